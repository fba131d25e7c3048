"""Training: from data to a model, in a folder from which it resumes after any interruption.

Guarantees: the same command resumes from the newest intact checkpoint. On the same machine, with
the same number of threads and ranks, it ends with the same weights and row losses as an
uninterrupted run, bit for bit. Logged losses and validations are the same too. A run may resume
with another number of ranks or another micro-batch size: it still trains on the same rows. If a
loss, gradient or weight is NaN or infinite, no checkpoint is written. A checkpoint with other data,
tokenizer, model shape or backend is refused, and the error names the difference.

Costs: the trainer waits for the device every `log_every` steps and before a checkpoint. The time to
start or resume does not depend on the amount of data.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TokenmillError
from tokenmill.load.loader import Loader
from tokenmill.tokenizers import Tokenizer
from tokenmill.training.backend import check_ranks
from tokenmill.training.backends import check_device, find_ranks, has_accelerator
from tokenmill.training.checkpoint_files import RunState
from tokenmill.training.config import Config
from tokenmill.training.config_file import override, read_config
from tokenmill.training.data import RunData, open_data, read_not_mapped
from tokenmill.training.display import RunWatcher, choose_watcher
from tokenmill.training.model import Shape, check_memory, make_shape
from tokenmill.training.rank_run import SMALL_DEFAULT, RankRun, RunReport
from tokenmill.training.ranks import follow_launcher
from tokenmill.training.run_folder import find_folder
from tokenmill.training.run_generations import read_sources

AnyPath = str | os.PathLike[str]
_AHEAD = 16  # steps to read ahead


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
    cache_dir: AnyPath | None = None,
    cache_bytes: int | None = None,
    backend: str = "torch",
    device: str | None = None,
    runs: AnyPath = "runs",
    restart: bool = False,
    progress: bool | None = None,
    watcher: RunWatcher | None = None,
    boards: Sequence[str] = (),
    **settings: Any,
) -> RunReport:
    """Train a model, or resume its training. The folder `runs`/`name` holds all files of the run.

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
        A dataset, or any tokens that `tokenmill.open` opens. Give several as "NAME=DIR:WEIGHT".
    name, runs
        The run's folder is `runs`/`name`. If it already holds a run, that run resumes. By default,
        the run has the name of the data.
    config
        A preset such as "tiny" or "124M", a file of settings, or a `Config`. The default is
        `Config()`, which is for a GPU; without a GPU, it is the preset "laptop".
    input_file
        A text file to tokenize in memory, instead of `data`.
    val
        Tokens to validate on, instead of the data's split `val`.
    val_fraction
        Share of the tokens, at the end, to validate on if the data has no split `val`.
    tokenizer, vocab_size, eot_id, data_dtype, format
        Facts that the data does not include, as in `tokenmill.open`.
    cache_dir, cache_bytes
        The disk cache for data in an object store, as in `tokenmill.open`.
    backend
        torch or jax.
    device
        A device such as cpu, cuda, cuda:1 or mps. By default, the fastest.
    restart
        Whether to discard the run of that name and start over.
    progress
        Whether to print progress; by default only in a terminal or a notebook.
    watcher
        Receives the progress, which is then not printed.
    boards
        Programs to log to as well: tensorboard, wandb.
    settings
        Settings of `Config` that override `config`, such as `max_steps=100`.
    """
    watcher = watcher or choose_watcher(progress)
    check_device(backend, device)
    with ExitStack() as stack:
        is_small = config is None and not has_accelerator(backend, device, stack)
        config = override(_choose_config(config, is_small=is_small), **settings)
        paths = _list_paths(data)
        path = find_run(paths, input_file=input_file, name=name, runs=runs)
        if not isinstance(data, RunData):
            data = _open_data(
                paths,
                input_file=input_file,
                tokenizer=tokenizer,
                val=val,
                config=config,
                vocab_size=vocab_size,
                eot_id=eot_id,
                dtype=data_dtype,
                format=format,
                val_fraction=val_fraction,
                cache_dir=cache_dir,
                cache_bytes=cache_bytes,
                saved={} if restart else read_sources(path),
            )
        stack.enter_context(follow_launcher(watcher.warn, config.rank_timeout))
        rank, world_size = find_ranks(backend)
        check_ranks(config, world_size)
        shape = make_shape(data.vocab, config)
        check_memory(shape)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = _make_loader(data, config, rank, world_size)
        for problem in caught if rank == 0 else ():
            watcher.warn(str(problem.message))
        stack.callback(loader.close)
        run = RankRun(
            path=path,
            config=config,
            data=data,
            state=_make_state(data, config, loader, shape, backend),
            loader=loader,
            watcher=watcher,
            rank=rank,
            world_size=world_size,
            device=device,
            boards=boards,
            restart=restart,
        )
        if rank == 0:
            run.announce_data(is_small=is_small)
        return run.train(stack)


def _choose_config(config: Config | AnyPath | None, *, is_small: bool) -> Config:
    if isinstance(config, Config):
        return config
    if config is not None:
        return read_config(config)
    return read_config(SMALL_DEFAULT) if is_small else Config()


def _list_paths(data: RunData | AnyPath | Sequence[AnyPath]) -> list[str]:
    if isinstance(data, RunData):
        return []
    return [os.fspath(one) for one in ([data] if isinstance(data, (str, os.PathLike)) else data)]


def find_run(
    data: Sequence[AnyPath], *, input_file: AnyPath | None, name: str | None, runs: AnyPath
) -> Path:
    """Return the folder of the run `name`. By default, a run has the name of the data.

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


def _open_data(data: list[str], **options: Any) -> RunData:
    try:
        return open_data(data, **options)
    except TokenmillError as error:
        # `tokenmill.open` calls the tokens' dtype `dtype`. In `train`, that is the model's dtype.
        error.args = (str(error).replace("`dtype", "`data_dtype"),)
        raise


def _make_loader(data: RunData, config: Config, rank: int, world_size: int) -> Loader:
    return Loader(
        read_not_mapped(data.train),
        batch_size=config.batch_rows // world_size,
        seq_len=config.seq_len,
        seed=config.seed,
        order=config.order,
        rank=rank,
        world_size=world_size,
        dtype=np.int32,
        documents=config.within_documents,
        prefetch=_AHEAD,
    )


def _make_state(
    data: RunData, config: Config, loader: Loader, shape: Shape, backend: str
) -> RunState:
    """Return the state of a run that has not started."""
    return RunState(
        step=0,
        row=0,
        loader=loader.state_dict(),
        vocab=data.vocab,
        eot_id=data.eot_id,
        shape=asdict(shape),
        config=asdict(config),
        backend=cast(Any, backend),  # checked by `open_backend`
        fingerprints=data.fingerprints,
        val_loss=None,
    )
