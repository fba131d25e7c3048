"""`tokenmill train`: train a model on tokens, or resume its training."""

from __future__ import annotations

import inspect
import re
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from cyclopts import Group, Parameter

from tokenmill.cli.console import parse_size, quote, report_stopped, show, show_next, typed, warn
from tokenmill.cli.flags import name_flags
from tokenmill.errors import UsageError
from tokenmill.training.config import Config

_DATA = Group("Data", sort_key=1)
_RUN = Group("Run", sort_key=2)
_SETTINGS = Group("Settings that override those of --config", sort_key=3)


def _make_overrides() -> type[Any]:
    """Make a class with a flag for each field of `Config`; None means that the flag was not given."""
    explained: dict[str, str] = {}
    for names, text in re.findall(
        r"^([a-z][a-z0-9_, ]*)\n((?:    .*\n?)+)", inspect.getdoc(Config) or "", re.MULTILINE
    ):
        explained |= {name: " ".join(text.split()) for name in names.split(", ")}
    kinds = get_type_hints(Config)
    made = []
    for one in fields(Config):
        default = "" if one.default is None else f" [default: {one.default}]"
        shown = Parameter(help=f"{explained.get(one.name, '')}{default}", show_default=False)
        made.append((one.name, Annotated[kinds[one.name] | None, shown], field(default=None)))
    namespace = {"__module__": __name__}  # cyclopts treats classes without a module as built in
    return make_dataclass("Overrides", made, kw_only=True, frozen=True, namespace=namespace)


Overrides: Any = _make_overrides()


@Parameter(name="*", group=_DATA)
@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The flags about data, as keyword arguments of `tokenmill.train`.

    Parameters
    ----------
    input_file
        Text file to tokenize in memory and train on, instead of --data.
    val
        Tokens to validate on, instead of the validation split of --data.
    val_fraction
        Fraction of the tokens, at the end of the data, to hold out for validation. Only for data
        without a validation split. By default, 0.1 for --input-file and 0 for other data.
    tokenizer
        Tokenizer that made the tokens, or the tokenizer for --input-file. By default, the tokenizer
        comes from the data; for --input-file, gpt2.
    vocab_size
        Number of ids in the vocabulary. By default, the number comes from the tokenizer or the
        data.
    eot_id
        Id that separates documents. By default, the id comes from the tokenizer or the data.
    data_dtype
        Type of the ids in data files without a header: uint16, uint32, ...
    format
        Format of the data, such as npy, llmc, nanogpt or raw. By default, tokenmill recognizes the
        format.
    cache_dir
        Folder of the disk cache for data in an object store. By default, ~/.cache/tokenmill.
    cache_bytes
        Maximum size of that cache, such as 200GB. 0 means no cache. By default, an existing cache
        keeps its limit, and a new cache gets 17GB, but at most half of the free space.
    """

    input_file: Path | None = None
    val: Path | None = None
    val_fraction: float | None = None
    tokenizer: str | None = None
    vocab_size: int | None = None
    eot_id: int | None = None
    data_dtype: str | None = None
    format: str | None = None
    cache_dir: Path | None = None
    cache_bytes: str | None = None


_Switch = Annotated[bool, Parameter(negative="", show_default=False)]


@Parameter(name="*", group=_RUN)
@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The flags about the run and its logs, as keyword arguments of `tokenmill.train`.

    Parameters
    ----------
    name
        Name of the run and of its folder in --runs. By default, the name of the data.
    runs
        Folder that contains all runs.
    config
        Preset (tiny, laptop, 124M, 150M, 250M), or JSON or YAML file of settings. By default, the
        settings below; without a GPU, the preset laptop.
    backend
        Framework to train with: torch or jax.
    device
        Device to train on, such as cpu, cuda, cuda:1 or mps. By default, the fastest device.
    restart
        Discard the existing run with this name, and start over.
    tensorboard
        Write event files for TensorBoard.
    wandb
        Log metrics to Weights & Biases.
    """

    name: str | None = None
    runs: Path = Path("runs")
    config: str | None = None
    backend: Literal["torch", "jax"] = "torch"
    device: str | None = None
    restart: _Switch = False
    tensorboard: _Switch = False
    wandb: _Switch = False

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments for `tokenmill.train`.

        `tensorboard` and `wandb` become the list `boards`.

        >>> RunOptions(device="cpu", wandb=True).arguments
        {'name': None, ..., 'device': 'cpu', 'restart': False, 'boards': ['wandb']}
        """
        given = asdict(self)
        boards = [board for board in ("tensorboard", "wandb") if given.pop(board)]
        return {**given, "boards": boards}


_NO_DATA_OPTIONS, _NO_RUN_OPTIONS = DataOptions(), RunOptions()


def train(
    data: Annotated[list[str] | None, Parameter(group=_DATA, json_list=False, negative="")] = None,
    *,
    opening: DataOptions = _NO_DATA_OPTIONS,
    run: RunOptions = _NO_RUN_OPTIONS,
    settings: Annotated[Overrides | None, Parameter(name="*", group=_SETTINGS)] = None,
) -> int:
    """Train a small GPT on tokens, or resume training.

    To resume after an interruption, run the same command again. Interruptions do not change the
    final weights. To train with several processes:
    torchrun --nproc-per-node 8 -m tokenmill.cli train …

    Parameters
    ----------
    data
        Folder of a dataset, or tokens in any format that tokenmill opens. For a mixture, give each
        dataset a name and a weight: --data web=DIR:0.7 --data code=DIR:0.3.
    """
    Path.cwd()  # raises an error if the current folder was deleted; PyTorch would exit silently
    from tokenmill.load.distributed import find_rank
    from tokenmill.training.display import RunDisplay
    from tokenmill.training.run import find_run
    from tokenmill.training.run import train as train_model
    from tokenmill.training.run_folder import CHECKPOINTS_NAME

    if not data and opening.input_file is None:
        raise UsageError("Name the data to train on: tokenmill train DIR, or --input-file FILE.")
    folder = find_run(data or [], input_file=opening.input_file, name=run.name, runs=run.runs)
    given = {one.name: getattr(settings, one.name, None) for one in fields(Config)}
    arguments: dict[str, Any] = {**asdict(opening), **run.arguments, **given}
    if opening.cache_bytes is not None:
        arguments["cache_bytes"] = parse_size(opening.cache_bytes)
    try:
        report = train_model(data or [], watcher=RunDisplay(name_flags), **arguments)
    except KeyboardInterrupt:
        if not any((folder / CHECKPOINTS_NAME).glob("step_*")):
            return _report_nothing_kept()
        return report_stopped(f"in {folder}, up to the newest checkpoint")
    if find_rank(None, None)[0]:  # only rank 0 prints
        return 130 if report.was_stopped else 0
    if report.was_stopped:
        if not report.step:
            return _report_nothing_kept()
        return report_stopped(f"in {folder}, up to step {report.step:,}")
    _show_end(report, run.runs)
    return 0


def _report_nothing_kept() -> int:
    warn("Stopped before the first step was complete. To start over, run the same command again.")
    return 130


def _show_end(report: Any, runs: Path) -> None:
    """Print the results and the next command."""
    _show_curves(report.path)
    if report.was_finished:
        show(f"{report.path} was already finished, at step {report.step:,}; nothing was trained.")
    if report.val_loss is not None:
        bits = report.bits_per_byte
        per_byte = "" if bits is None else f", {bits:.4f} bits per byte"
        show(f"Validation loss {report.val_loss:.4f}{per_byte}.")
    show(f"The model, its losses and their curves are in {report.path}.")
    if report.was_finished:
        show("To continue training, pass a larger --max-steps; to start over, --restart.")
    place = "" if runs == Path("runs") else f" --runs {typed(runs)}"
    name = quote(report.path.name)
    given = f"--name={name}" if name.startswith("-") else name
    show_next(f"tokenmill sample {given}{place}")


def _show_curves(path: Path) -> None:
    """Plot the losses of a run as text, if there are enough points."""
    from tokenmill.training.chart import draw_text
    from tokenmill.training.run_folder import find_values, make_curves, read_metrics

    lines = read_metrics(path)
    curves = make_curves(lines)
    if len(find_values(lines, "loss")[0]) > 2:
        show(f"\n{draw_text(curves)}\n")
