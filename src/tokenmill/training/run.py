"""Training: from data to a model, in a folder from which it resumes after any interruption.

Guarantees: the same command resumes from the newest intact checkpoint and ends with the same weights
and row losses, bit for bit, as an uninterrupted run, on the same machine with the same number of
threads and ranks. Logged losses and validations are the same too. Ranks and micro-batches may change: the
rows stay the same. A loss or gradient that is NaN or infinite never gets into a checkpoint. A
checkpoint with other data, tokenizer, model shape or backend is refused, and the error names the
difference.

Costs: the trainer waits for the device every `log_every` steps and before a checkpoint. Starting and
resuming take the same time for any amount of data.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from tokenmill.errors import TokenmillError, UsageError
from tokenmill.load.loader import Loader
from tokenmill.load.state import check_state
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.files import write_file
from tokenmill.storage.names import TOKENIZER_NAME
from tokenmill.tokenizers import Tokenizer
from tokenmill.training.augment import padded_vocab
from tokenmill.training.backend import (
    Backend,
    check_device,
    find_ranks,
    has_accelerator,
    open_backend,
)
from tokenmill.training.checkpoints import Checkpoint, Checkpoints, State, refuse_other_run
from tokenmill.training.config import Config
from tokenmill.training.data import RunData, open_data
from tokenmill.training.display import Display, Silent, is_watched
from tokenmill.training.folder import CHECKPOINTS_NAME, CONFIG_NAME, RunFolder, find_folder
from tokenmill.training.interval import Stop
from tokenmill.training.loop import Board, Loop, Watcher
from tokenmill.training.model import Shape, count_parameters, first_values
from tokenmill.training.reading import read_not_mapped
from tokenmill.training.record import Record, points, read_metrics
from tokenmill.training.settings import override, read_config
from tokenmill.training.validate import Validator

AnyPath = str | os.PathLike[str]
_AHEAD = 16  # steps whose rows are read ahead; reading them takes less time than the step
_CURE = "Change it back, choose another `name`, or add `restart=True` to discard the run and start over."
SMALL_DEFAULT = "laptop"  # the preset without an accelerator


@dataclass(frozen=True, kw_only=True, repr=False)
class RunReport:
    """The result of a run. `was_finished`: it was complete before. `was_stopped`: by a signal.

    Losses are the last ones reported, or None.
    """

    path: Path
    step: int
    loss: float | None
    val_loss: float | None
    bits_per_byte: float | None
    was_finished: bool = False
    was_stopped: bool = False

    def __repr__(self) -> str:
        told = [f"{self.path}: step {self.step:,}"]
        told += [f"loss {self.loss:.4f}"] if self.loss is not None else []
        told += [f"validation loss {self.val_loss:.4f}"] if self.val_loss is not None else []
        told += ["finished before"] if self.was_finished else []
        told += ["stopped"] if self.was_stopped else []
        return f"<RunReport {', '.join(told)}>"


def train(
    data: RunData | AnyPath | Sequence[AnyPath] = (),
    *,
    name: str | None = None,
    config: Config | AnyPath | None = None,
    input_file: AnyPath | None = None,
    val: AnyPath | None = None,
    val_fraction: float | None = None,
    tokenizer: str | Tokenizer | None = None,
    vocab_size: int | None = None,
    eot_id: int | None = None,
    data_dtype: npt.DTypeLike | None = None,
    format: str | None = None,
    backend: str = "torch",
    device: str | None = None,
    runs: AnyPath = "runs",
    restart: bool = False,
    progress: bool | None = None,
    watcher: Watcher | None = None,
    boards: Sequence[str] = (),
    **settings: Any,
) -> RunReport:
    """Train a model, or resume its training: everything is kept in the folder `runs`/`name`.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "counting.txt").write_text("0123456789" * 1000)
    >>> report = train(
    ...     input_file=folder / "counting.txt", tokenizer="bytes", runs=folder / "runs",
    ...     config="tiny", max_steps=10,
    ... )
    >>> report.path.name, report.step, report.loss < 6
    ('counting', 10, True)

    Parameters
    ----------
    data
        A dataset, or any tokens that `tokenmill.open` opens; several as "NAME=DIR:WEIGHT".
    name, runs
        The run's folder is `runs`/`name`. If it has a run, that run resumes. The default name is that
        of the data.
    config
        A preset such as "tiny" or "124M", a file of settings, or a `Config`. The default settings are
        for a GPU; without a GPU, the default is the preset "laptop".
    input_file
        A text file to tokenize in memory, instead of `data`.
    val
        Tokens to validate on, instead of the split val.
    val_fraction
        Share of the tokens, at the end, to validate on if there is no split val.
    tokenizer, vocab_size, eot_id, data_dtype, format
        What the data does not say about itself, as in `tokenmill.open`.
    backend
        torch or jax.
    device
        Such as cpu, cuda, cuda:1 or mps; by default the fastest.
    restart
        Whether to discard the run of that name and start over.
    progress
        Whether to print progress; by default only in a terminal or a notebook.
    watcher
        Receives the progress instead of printing it.
    boards
        Where else to log: tensorboard, wandb.
    settings
        Settings of `Config` that take precedence over those of `config`, such as `max_steps=100`.
    """
    if watcher is None:
        watcher = Display() if progress or (progress is None and is_watched()) else Silent()
    check_device(backend, device)
    has_default = config is None
    config = override(_find_config(config, backend, device), **settings)
    given = [] if isinstance(data, RunData) else _as_list(data)
    path = find_run(given, input_file=input_file, name=name, runs=runs)
    if not isinstance(data, RunData):
        data = _open_data(
            given,
            input_file=input_file,
            tokenizer=tokenizer,
            val=val,
            config=config,
            vocab_size=vocab_size,
            eot_id=eot_id,
            dtype=data_dtype,
            format=format,
            val_fraction=val_fraction,
        )
    shape = make_shape(data.vocab, config)
    rank, world_size = find_ranks(backend)
    if rank == 0:
        for note in data.notes:
            watcher.warn(note)
        watcher.note(f"data      {data.describe}")
        if has_default and _is_small_default(backend, device):
            watcher.note(
                f"Training on the CPU with the preset `{SMALL_DEFAULT}`: about 4 minutes on two cores.\n"
                "`config='124M'` trains a full model."
            )
    loader = _make_loader(data, config, rank, world_size)
    own = State(
        step=0,
        row=0,
        loader=loader.state_dict(),
        vocab=data.vocab,
        eot_id=data.eot_id,
        shape=asdict(shape),
        config=asdict(config),
        backend=backend,
        fingerprints=data.fingerprints,
        val_loss=None,
    )
    checkpoints = Checkpoints(path / CHECKPOINTS_NAME)
    with ExitStack() as stack:
        stack.callback(loader.close)
        checkpoint = None
        owed = (False, False)
        if rank == 0:  # done before the others, which wait for the backend, read the folder
            stack.enter_context(RunFolder(path, restart=restart))
            checkpoints.remove_temporaries()
            checkpoint = _find_checkpoint(checkpoints, own, watcher)
            owed = _find_owed(path, checkpoint, config, data)
            if world_size == 1 and checkpoint and _is_finished(checkpoint.state.step, config, owed):
                return _report(path, checkpoint.state.step, was_finished=True)
        engine = _open_backend(own, config, checkpoint, (rank, world_size), device, stack)
        _compare_ranks(own, engine)
        told = engine.total(
            np.array([checkpoint.state.step if checkpoint else 0, *owed], np.float64)
        )
        step, owed = int(told[0]), (bool(told[1]), bool(told[2]))
        if step and _is_finished(step, config, owed):
            return _report(path, step, was_finished=True)
        if rank and step:
            checkpoint = checkpoints.at(step)
        row = _resume(checkpoint, engine, loader) if checkpoint else 0
        record = None
        if rank == 0:
            _tell_beginning(config, engine, shape, checkpoint, watcher)
            with explain_disk_errors(f"step {step:,} is kept" if step else "nothing was begun"):
                _write_settings(path, config, data)
                record = Record(path, step=step, row=row)
            stack.callback(record.close)
        loop = Loop(
            path=path,
            config=config,
            data=data,
            state=own,
            backend=engine,
            loader=loader,
            validator=_open_validator(data, config, engine, stack),
            checkpoints=checkpoints,
            record=record,
            watcher=watcher,
            boards=_open_boards(boards, path, step, config, stack) if rank == 0 else [],
            stop=stack.enter_context(Stop(impatient=world_size == 1, tell=watcher.note)),
            step=step,
            row=row,
            owed=owed,
        )
        loop.run()
        was_stopped = loop.step < config.max_steps or loop.was_cut
        return _report(path, loop.step, was_stopped=was_stopped)


def find_run(
    data: Sequence[AnyPath], *, input_file: AnyPath | None, name: str | None, runs: AnyPath
) -> Path:
    """The folder of a run on some data: by its name, or else by that of the data.

    >>> find_run(["data/corpus/"], input_file=None, name=None, runs="runs").as_posix()
    'runs/corpus'
    >>> find_run(["web=DIR:0.7", "code=DIR2:0.3"], input_file=None, name=None, runs="runs").name
    'web-code'
    """
    if name is None and input_file is not None:
        name = Path(input_file).stem
    elif name is None and len(data) == 1:
        name = Path(data[0]).resolve().stem
    elif name is None:
        name = "-".join(os.fspath(one).partition("=")[0] for one in data)
    return find_folder(runs, name)


def make_shape(vocab: int, config: Config) -> Shape:
    """The shape of a run's model, whose vocabulary is padded.

    >>> make_shape(50_257, Config()).vocab
    50304
    """
    return Shape(
        vocab=padded_vocab(vocab, config),
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads or config.heads,
        width=config.width,
        seq_len=config.seq_len,
        softcap=config.softcap,
        embedding_width=config.embedding_width,
        shortlist=config.shortlist,
    )


def _open_data(data: list[str], **options: Any) -> RunData:
    try:
        return open_data(data, **options)
    except TokenmillError as error:
        # `tokenmill.open` takes the dtype of the tokens; here, `dtype` is that of the model.
        error.args = (str(error).replace("`dtype", "`data_dtype"),)
        raise


def _find_config(config: Config | AnyPath | None, backend: str, device: str | None) -> Config:
    if isinstance(config, Config):
        return config
    if config is not None:
        return read_config(config)
    return read_config(SMALL_DEFAULT) if _is_small_default(backend, device) else Config()


def _is_small_default(backend: str, device: str | None) -> bool:
    return not has_accelerator(backend, device)


def _as_list(data: AnyPath | Sequence[AnyPath]) -> list[str]:
    return [os.fspath(one) for one in ([data] if isinstance(data, (str, os.PathLike)) else data)]


def _find_owed(
    path: Path, checkpoint: Checkpoint | None, config: Config, data: RunData
) -> tuple[bool, bool]:
    """Whether a stop skipped the validation and the sample due at a checkpoint's step."""
    if checkpoint is None:
        return False, False
    step = checkpoint.state.step
    lines = [line for line in read_metrics(path) if line["step"] == step]
    due = config.find_due(step)
    samples = data.tokenizer is not None and config.sample_tokens > 0
    return (
        due["validation"] and data.val is not None and not any("val_loss" in one for one in lines),
        due["sample"] and samples and not any("sample" in one for one in lines),
    )


def _is_finished(step: int, config: Config, owed: tuple[bool, bool]) -> bool:
    return step > config.max_steps or (step == config.max_steps and not any(owed))


def _make_loader(data: RunData, config: Config, rank: int, world_size: int) -> Loader:
    if config.batch_rows % world_size:
        raise UsageError(
            f"a step has {config.batch_rows} rows (`batch_tokens` {config.batch_tokens:,} of `seq_len` "
            f"{config.seq_len:,}), which {world_size} ranks cannot share equally; give `batch_tokens` "
            f"a multiple of {world_size * config.seq_len:,}."
        )
    return Loader(
        read_not_mapped(data.train),
        batch_size=config.batch_rows // world_size,
        seq_len=config.seq_len,
        seed=config.seed,
        rank=rank,
        world_size=world_size,
        dtype=np.int32,
        documents=config.within_documents,
        prefetch=_AHEAD,
    )


def _find_checkpoint(checkpoints: Checkpoints, own: State, watcher: Watcher) -> Checkpoint | None:
    """The checkpoint to resume from, checked to belong to this run."""
    found = checkpoints.newest(watcher.warn)
    if found is None:
        return None
    refuse_other_run(found.state, own, _CURE)
    check_state(found.state.loader, own.loader, force=False, cure=_CURE)
    changed = [
        f"{name} {found.state.config.get(name)} → {value}"
        for name, value in own.config.items()
        if found.state.config.get(name) != value
    ]
    if changed and found.state.step < own.config["max_steps"]:
        watcher.note(f"From step {found.state.step:,} on: {', '.join(changed)}.")
    return found


def _resume(checkpoint: Checkpoint, backend: Backend, loader: Loader) -> int:
    """Load a checkpoint; returns its row."""
    backend.load(checkpoint.parameters(), checkpoint.optimizer_state())
    loader.load_state_dict(checkpoint.state.loader)
    return checkpoint.state.row


def _open_backend(
    own: State,
    config: Config,
    checkpoint: Checkpoint | None,
    place: tuple[int, int],
    device: str | None,
    stack: ExitStack,
) -> Backend:
    """The backend of this rank; at least that of rank 0 has the right values."""
    shape = Shape(**own.shape)
    # The values get no name: it would keep them in memory for the whole run.
    backend = open_backend(
        own.backend,
        config,
        shape,
        checkpoint.parameters() if checkpoint else first_values(shape, config.seed),
        device,
    )
    stack.callback(backend.close)
    if (backend.rank, backend.world_size) != place:
        raise UsageError(
            f"The environment says that this is rank {place[0]} of {place[1]}, but {backend.name} says "
            f"rank {backend.rank} of {backend.world_size}. Start several processes with: "
            "torchrun --nproc-per-node N -m tokenmill.cli train …"
        )
    return backend


def _compare_ranks(own: State, backend: Backend) -> None:
    """Refuse ranks with different settings or data. A collective call."""
    if backend.world_size == 1:
        return
    settings = {**own.config, "data": own.loader, "vocab": own.vocab, "eot_id": own.eot_id}
    table = np.zeros((backend.world_size, len(settings)))
    # As many bits of a hash as a float64 holds exactly.
    table[backend.rank] = [
        xxhash.xxh3_64_intdigest(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)) >> 12
        for value in settings.values()
    ]
    differs = (backend.total(table) != table[backend.rank]).any(axis=0)
    if told := [
        f"{name} {own.loader['sources'] if name == 'data' else value}"
        for (name, value), other in zip(settings.items(), differs, strict=True)
        if other
    ]:
        raise UsageError(
            f"The ranks were started differently. Rank {backend.rank} has {', '.join(told)}. Give "
            "all ranks the same settings and data."
        )


def _open_validator(
    data: RunData, config: Config, backend: Backend, stack: ExitStack
) -> Validator | None:
    if data.val is None:
        return None
    validator = Validator(data, read_not_mapped(data.val), config, backend)
    stack.callback(validator.close)
    return validator


def _write_settings(path: Path, config: Config, data: RunData) -> None:
    """Write what is needed to inspect the run and use its model without its data."""
    written = orjson.dumps(asdict(config), option=orjson.OPT_INDENT_2) + b"\n"
    write_file(path / CONFIG_NAME, written)
    if data.tokenizer is not None:
        state = orjson.dumps(data.tokenizer.state(), option=orjson.OPT_SORT_KEYS)
        write_file(path / TOKENIZER_NAME, state + b"\n")


def _tell_beginning(
    config: Config,
    backend: Backend,
    shape: Shape,
    checkpoint: Checkpoint | None,
    watcher: Watcher,
) -> None:
    watcher.note(
        f"model     {count_parameters(shape):,} parameters on {backend.device} ({backend.name})"
    )
    watcher.note(
        f"steps     {config.max_steps:,} of {config.batch_rows:,} rows of {config.seq_len:,} tokens"
    )
    if checkpoint is not None:
        watcher.note(f"resuming  from step {checkpoint.state.step:,} ({checkpoint.path})")


def _open_boards(
    names: Sequence[str], path: Path, step: int, config: Config, stack: ExitStack
) -> list[Board]:
    from tokenmill.training.boards import open_board

    boards = [open_board(name, path, step=step, config=config) for name in names]
    for board in boards:
        stack.callback(board.close)
    return boards


def _report(
    path: Path, step: int, *, was_finished: bool = False, was_stopped: bool = False
) -> RunReport:
    lines = read_metrics(path)
    last = {
        name: next(iter(points(lines, name)[1][-1:]), None)
        for name in ("loss", "val_loss", "bits_per_byte")
    }
    return RunReport(
        path=path, step=step, was_finished=was_finished, was_stopped=was_stopped, **last
    )
