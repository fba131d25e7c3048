"""Training: from data to a model, in a folder from which it goes on after any interruption.

Guarantees: the same command goes on from the newest sound checkpoint, and ends with the same weights
and the same losses of rows, bit for bit, as one that was never interrupted, on the same machine,
number of threads and of ranks. Ranks and micro-batches may change on the way: the rows stay the same.
What is looked at (losses, validation) is the same too. A loss or gradient that is no number never gets
into a checkpoint. A checkpoint of other data, tokenizer, model shape or backend is refused by name.

Costs: the device is waited for once in `log_every` steps and before a checkpoint. Starting and going
on cost the same for any size of data.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import xxhash

from tokenmill.errors import UsageError
from tokenmill.load.loader import Loader
from tokenmill.load.ranks import find_rank
from tokenmill.load.state import check_state
from tokenmill.store.manifest import TOKENIZER_NAME, write_atomically
from tokenmill.trainer.augment import padded_vocab
from tokenmill.trainer.backend import Backend, open_backend
from tokenmill.trainer.checkpoints import Checkpoint, Checkpoints, State, refuse_other_run
from tokenmill.trainer.config import Config
from tokenmill.trainer.data import RunData, open_data
from tokenmill.trainer.folder import (
    CHECKPOINTS_NAME,
    CONFIG_NAME,
    RunFolder,
    find_folder,
    told_of_disk,
)
from tokenmill.trainer.interval import Stop
from tokenmill.trainer.loop import Board, Loop, Watcher
from tokenmill.trainer.model import Shape, first_values
from tokenmill.trainer.reading import read_not_mapped
from tokenmill.trainer.record import Record, points, read_metrics
from tokenmill.trainer.validate import Validator

__all__ = ["RunReport", "Watcher", "make_shape", "train"]

AnyPath = str | os.PathLike[str]
_AHEAD = 16  # steps whose rows are read ahead: to read a step's rows takes less time than the step
_CURE = "Go back to that, choose another `name`, or add `restart=True` to discard the run and start over."


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What came of a run: `was_finished` before it was begun, or `was_stopped` by a signal.

    Losses are the last of those that were told; None where there were none.
    """

    path: Path
    step: int
    loss: float | None
    val_loss: float | None
    bits_per_byte: float | None
    was_finished: bool = False
    was_stopped: bool = False


class _Silent:
    def note(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def line(self, line: dict[str, Any], seconds_left: float) -> None:
        pass


def train(
    data: RunData | AnyPath | Sequence[str],
    *,
    name: str,
    config: Config | None = None,
    backend: str = "torch",
    runs: AnyPath = "runs",
    restart: bool = False,
    watcher: Watcher | None = None,
    boards: Sequence[str] = (),
) -> RunReport:
    """Train a model, or go on with it: `runs`/`name` holds all that comes of it.

    >>> import tempfile
    >>> from tokenmill.store.tokens import Tokens
    >>> folder = tempfile.mkdtemp()
    >>> data = RunData(
    ...     train=Tokens.of(np.arange(10_000) % 50), val=None, vocab=50, tokenizer=None, eot_id=None,
    ...     describe="numbers that count up to 49",
    ... )
    >>> small = Config(
    ...     layers=1, heads=1, width=16, seq_len=16, batch_tokens=128, max_steps=20, warmup_steps=1
    ... )
    >>> report = train(data, name="counting", config=small, runs=folder)
    >>> report.step, report.loss < 4
    (20, True)
    >>> train(data, name="counting", config=small, runs=folder).was_finished
    True

    Parameters
    ----------
    data
        What `open_data` opens, or what it has opened.
    name, runs
        The run's folder is `runs`/`name`. One that is there goes on.
    config
        The settings; those that do not change the model may be others when a run goes on.
    backend
        torch or jax.
    restart
        Whether to discard the run of that name, and begin again.
    watcher
        Is told how it goes.
    boards
        tensorboard or wandb, to be told too.
    """
    config, watcher = config or Config(), watcher or _Silent()
    path = find_folder(runs, name)
    if not isinstance(data, RunData):
        given = [os.fspath(data)] if isinstance(data, (str, os.PathLike)) else list(data)
        data = open_data(given, config=config)
    shape = make_shape(data.vocab, config)
    rank, world_size = find_rank(None, None)
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
        if rank == 0:  # all of this is done before the others, who wait for the backend, look
            stack.enter_context(RunFolder(path, restart=restart))
            checkpoints.remove_temporaries()
            checkpoint = _find_checkpoint(checkpoints, own, watcher)
            if world_size == 1 and checkpoint and checkpoint.state.step >= config.max_steps:
                return _report(path, checkpoint.state.step, was_finished=True)
        engine = _open_backend(own, config, checkpoint, (rank, world_size), stack)
        _compare_ranks(own, engine)
        step = int(engine.total(np.array([checkpoint.state.step if checkpoint else 0.0]))[0])
        if step >= config.max_steps:
            return _report(path, step, was_finished=True)
        if rank and step:
            checkpoint = checkpoints.at(step)
        row = _go_on(checkpoint, engine, loader) if checkpoint else 0
        record = None
        if rank == 0:
            _tell_beginning(data, config, engine, shape, checkpoint, watcher)
            with told_of_disk(f"step {step:,} is kept" if step else "nothing was begun"):
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
        )
        loop.run()
        return _report(path, loop.step, was_stopped=loop.step < config.max_steps)


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
    )


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
    """The checkpoint to go on from, which is of this very run."""
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


def _go_on(checkpoint: Checkpoint, backend: Backend, loader: Loader) -> int:
    """Take up a checkpoint; returns its row."""
    backend.load(checkpoint.parameters(), checkpoint.optimizer_state())
    loader.load_state_dict(checkpoint.state.loader)
    return checkpoint.state.row


def _open_backend(
    own: State,
    config: Config,
    checkpoint: Checkpoint | None,
    place: tuple[int, int],
    stack: ExitStack,
) -> Backend:
    """The backend, at its place among the ranks; the first rank's, at least, has the right values."""
    shape = Shape(**own.shape)
    # No name for the values: they would take their memory as long as the run goes on.
    backend = open_backend(
        own.backend,
        config,
        shape,
        checkpoint.parameters() if checkpoint else first_values(shape, config.seed),
    )
    stack.callback(backend.close)
    if (backend.rank, backend.world_size) != place:
        raise UsageError(
            f"The environment says that this is rank {place[0]} of {place[1]}, and {backend.name} "
            f"that it is rank {backend.rank} of {backend.world_size}. Start several processes with: "
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
    """What is needed to look at the run, and to use its model, without its data."""
    written = orjson.dumps(asdict(config), option=orjson.OPT_INDENT_2) + b"\n"
    write_atomically(path / CONFIG_NAME, written)
    if data.tokenizer is not None:
        state = orjson.dumps(data.tokenizer.state(), option=orjson.OPT_SORT_KEYS)
        write_atomically(path / TOKENIZER_NAME, state + b"\n")


def _tell_beginning(
    data: RunData,
    config: Config,
    backend: Backend,
    shape: Shape,
    checkpoint: Checkpoint | None,
    watcher: Watcher,
) -> None:
    from tokenmill.trainer.model import count_parameters

    for note in data.notes:
        watcher.warn(note)
    watcher.note(f"data      {data.describe}")
    watcher.note(
        f"model     {count_parameters(shape):,} parameters on {backend.device} ({backend.name})"
    )
    watcher.note(
        f"steps     {config.max_steps:,} of {config.batch_rows:,} rows of {config.seq_len:,} tokens"
    )
    if checkpoint is not None:
        watcher.note(f"going on  from step {checkpoint.state.step:,} ({checkpoint.path})")


def _open_boards(
    names: Sequence[str], path: Path, step: int, config: Config, stack: ExitStack
) -> list[Board]:
    from tokenmill.trainer.boards import open_board

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
