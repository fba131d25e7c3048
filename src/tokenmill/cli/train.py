"""`tokenmill train`: train a model on tokens, or go on with it."""

from __future__ import annotations

import inspect
import math
import re
import shlex
from dataclasses import field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from cyclopts import Group, Parameter
from rich.text import Text

from tokenmill.cli.console import count, duration, harmless, size, stderr, stdout, typed
from tokenmill.cli.flags import name_flags
from tokenmill.cli.progress import tell_stopped
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.trainer.config import Config

__all__ = ["train"]

_DATA = Group("What is trained on", sort_key=1)
_RUN = Group("The run", sort_key=2)
_SETTINGS = Group("Settings, which go before those of --config", sort_key=3)


def _make_overrides() -> type[Any]:
    """A class with the names of `Config` in which None stands for what was not said."""
    told: dict[str, str] = {}
    for names, text in re.findall(
        r"^([a-z][a-z0-9_, ]*)\n((?:    .*\n?)+)", inspect.getdoc(Config) or "", re.MULTILINE
    ):
        told |= {name: " ".join(text.split()) for name in names.split(", ")}
    kinds = get_type_hints(Config)
    made = []
    for one in fields(Config):
        default = "" if one.default is None else f" [default: {one.default}]"
        shown = Parameter(help=f"{told.get(one.name, '')}{default}", show_default=False)
        made.append((one.name, Annotated[kinds[one.name] | None, shown], field(default=None)))
    namespace = {"__module__": __name__}  # otherwise it would pass for a class of Python's own
    return make_dataclass("Overrides", made, kw_only=True, frozen=True, namespace=namespace)


Overrides: Any = _make_overrides()


def train(
    *,
    data: Annotated[list[str] | None, Parameter(group=_DATA, json_list=False, negative="")] = None,
    input_file: Annotated[Path | None, Parameter(group=_DATA)] = None,
    val: Annotated[Path | None, Parameter(group=_DATA)] = None,
    val_fraction: Annotated[float | None, Parameter(group=_DATA)] = None,
    tokenizer: Annotated[str | None, Parameter(group=_DATA)] = None,
    vocab_size: Annotated[int | None, Parameter(group=_DATA)] = None,
    eot_id: Annotated[int | None, Parameter(group=_DATA)] = None,
    data_dtype: Annotated[str | None, Parameter(group=_DATA)] = None,
    format: Annotated[str | None, Parameter(group=_DATA)] = None,
    name: Annotated[str, Parameter(group=_RUN)],
    runs: Annotated[Path, Parameter(group=_RUN)] = Path("runs"),
    config: Annotated[Path | None, Parameter(group=_RUN)] = None,
    backend: Annotated[Literal["torch", "jax"], Parameter(group=_RUN)] = "torch",
    restart: Annotated[bool, Parameter(negative="", group=_RUN)] = False,
    tensorboard: Annotated[bool, Parameter(negative="", group=_RUN)] = False,
    wandb: Annotated[bool, Parameter(negative="", group=_RUN)] = False,
    settings: Annotated[Overrides | None, Parameter(name="*", group=_SETTINGS)] = None,
) -> int:
    """Train a small GPT on tokens, or go on with it where it was.

    The same command goes on after any interruption, and ends with the same weights as if there had
    been none. Several processes: torchrun --nproc-per-node 8 -m tokenmill.cli train …

    Parameters
    ----------
    data
        A dataset, or any tokens that tokenmill opens. Several are a mixture:
        --data web=DIR:0.7 --data code=DIR:0.3.
    input_file
        A text, which is tokenized in memory.
    val
        Tokens to validate on, instead of the split val.
    val_fraction
        The end of the tokens to validate on, where there is no split val.
    tokenizer
        For --input-file (gpt2 by default), and for tokens that do not tell.
    vocab_size
        How many ids there are, for tokens that do not tell.
    eot_id
        The id between documents, for tokens that do not tell.
    data_dtype
        How ids are stored, for files that are ids and nothing else: uint16, uint32, ...
    format
        What the data are, if that is not recognised: npy, llmc, nanogpt, raw, ...
    name
        What comes of it is in runs/NAME.
    runs
        The folder of all runs.
    config
        A file of settings, JSON or YAML, such as configs/tiny_cpu.json.
    backend
        The framework.
    restart
        Discard the run of this name, and begin again.
    tensorboard
        Write event files for TensorBoard too.
    wandb
        Log to Weights & Biases too.
    """
    from tokenmill.load.ranks import find_rank
    from tokenmill.trainer.folder import CHECKPOINTS_NAME, find_folder
    from tokenmill.trainer.run import train as train_model
    from tokenmill.trainer.settings import override, read_config

    if not data and input_file is None:
        raise UsageError("Say what to train on: --data DIR, or --input-file FILE.")
    chosen = override(
        read_config(config) if config is not None else Config(),
        **{one.name: getattr(settings, one.name, None) for one in fields(Config)},
    )
    folder = find_folder(runs, name)
    try:
        report = train_model(
            _open_data(
                data or [],
                input_file=input_file,
                tokenizer=tokenizer,
                val=val,
                config=chosen,
                vocab_size=vocab_size,
                eot_id=eot_id,
                dtype=data_dtype,
                format=format,
                val_fraction=val_fraction,
            ),
            name=name,
            config=chosen,
            backend=backend,
            runs=runs,
            restart=restart,
            watcher=Display(chosen.max_steps),
            boards=["tensorboard"] * tensorboard + ["wandb"] * wandb,
        )
    except KeyboardInterrupt:
        if not any((folder / CHECKPOINTS_NAME).glob("step_*")):
            stderr.print(
                Text("Stopped before the first checkpoint; the same command begins again.")
            )
            return 130
        return tell_stopped(f"in {folder}, up to the newest checkpoint")
    if find_rank(None, None)[0]:  # the first of several tells
        return 130 if report.was_stopped else 0
    if report.was_stopped:
        return tell_stopped(f"in {folder}, up to step {report.step:,}")
    _show_end(report, name, runs)
    return 0


def _open_data(data: list[str], **options: Any) -> Any:
    from tokenmill.trainer.data import open_data

    try:
        return open_data(data, **options)
    except TokenmillError as error:
        # To open tokens takes their dtype; --dtype is that of the model.
        error.args = (str(error).replace("`dtype", "`data_dtype"),)
        raise


class Display:
    """One tidy line for each line of metrics; a `Watcher` for training."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def note(self, text: str) -> None:
        """Something about the run."""
        _line(name_flags(text))

    def warn(self, text: str) -> None:
        """Something that the user should look at."""
        stderr.print(Text(f"tokenmill: {harmless(name_flags(text))}"))

    def line(self, line: dict[str, Any], seconds_left: float) -> None:
        """A line of metrics."""
        _line(tell_line(line, self.steps, seconds_left))


def tell_line(line: dict[str, Any], steps: int, seconds_left: float) -> str:
    """A line of metrics for people.

    >>> tell_line({"step": 20, "val_loss": 2.5, "bits_per_byte": 1.25}, 100, 3)
    'step  20/100  validation loss 2.5000  1.2500 bits per byte'
    """
    last = count(steps)
    words = [f"step {count(line['step']):>{len(last)}}/{last}"]
    if "loss" in line:
        words += [
            f"loss {line['loss']:.4f}",
            f"rate {line['rate']:4.0%}",
            f"{count(round(line['tokens_per_second'])):>9} tokens/s",
            f"data {line['waiting']:5.1%}",
            size(line["memory"]),
        ]
        if "mfu" in line:
            words.append(f"mfu {line['mfu']:.1%}")
        if line["step"] < steps and math.isfinite(seconds_left):
            words.append(f"{duration(seconds_left)} left")
    elif "val_loss" in line:
        words.append(f"validation loss {line['val_loss']:.4f}")
        if "bits_per_byte" in line:
            words.append(f"{line['bits_per_byte']:.4f} bits per byte")
    elif "sample" in line:
        words.append(f"sample: {line['sample']}")
    return "  ".join(words)


def _show_end(report: Any, name: str, runs: Path) -> None:
    """What came of it, and what to type next."""
    _show_curves(report.path)
    if report.was_finished:
        _line(f"{report.path} was finished before, at step {report.step:,}; nothing was changed.")
    if report.val_loss is not None:
        bits = report.bits_per_byte
        told = "" if bits is None else f", {bits:.4f} bits per byte"
        _line(f"Validation loss {report.val_loss:.4f}{told}.")
    _line(f"The model, its losses and their curves are in {report.path}.")
    if report.was_finished:
        _line("To go on, add --max-steps with a larger number; to begin again, --restart.")
    place = "" if runs == Path("runs") else f" --runs {typed(runs)}"
    _line(f"\nNext:  tokenmill sample --name {shlex.quote(name)}{place}")


def _show_curves(path: Path) -> None:
    """The losses of a run as a drawing of characters, once there is something to be seen."""
    from tokenmill.trainer.chart import Curve, draw_text
    from tokenmill.trainer.record import points, read_metrics

    lines = read_metrics(path)
    curves = [
        Curve(told, *points(lines, name))
        for told, name in (("train", "loss"), ("validation", "val_loss"))
    ]
    if len(points(lines, "loss")[0]) > 2:
        _line(f"\n{draw_text(curves)}\n")


def _line(text: str) -> None:
    stdout.print(Text(harmless(text)))
