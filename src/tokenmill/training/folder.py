"""The folder of a run, `runs/NAME`: whose it is, and that only one process works in it.

config.json             the settings
tokenizer_state.json    what the ids mean, where that is known
metrics.jsonl           losses and speed; see `record.py`
row_losses.f32          the loss of every row; see `record.py`
loss.svg                the curves; see `chart.py`
checkpoints/            see `checkpoints.py`
lock                    held while a process works in the folder
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from tokenmill.errors import FolderError, UsageError, WorkError
from tokenmill.store.manifest import TOKENIZER_NAME
from tokenmill.training.record import LOSSES_NAME, METRICS_NAME

__all__ = [
    "BOARD_NAME",
    "CHART_NAME",
    "CHECKPOINTS_NAME",
    "CONFIG_NAME",
    "RunFolder",
    "find_folder",
    "told_of_disk",
]

BOARD_NAME = "tensorboard"
CHART_NAME = "loss.svg"
CHECKPOINTS_NAME = "checkpoints"
CONFIG_NAME = "config.json"
_LOCK_NAME = "lock"
# The checkpoints first: what would be left without them is cut back when a run begins anew.
_OURS = (
    CHECKPOINTS_NAME,
    METRICS_NAME,
    LOSSES_NAME,
    CHART_NAME,
    CONFIG_NAME,
    TOKENIZER_NAME,
    BOARD_NAME,
    _LOCK_NAME,
)


def find_folder(runs: str | os.PathLike[str], name: str) -> Path:
    """The folder of the run of a name.

    >>> find_folder("runs", "my_model").as_posix()
    'runs/my_model'
    >>> find_folder("runs", "../x")
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: '../x' is not a name for a run: it becomes a folder's name, so give \
one without slashes.
    """
    if not name or name in (".", "..") or any(mark in name for mark in "/\\\0"):
        raise UsageError(
            f"{name!r} is not a name for a run: it becomes a folder's name, so give one without slashes."
        )
    return Path(runs) / name


class RunFolder:
    """A run's folder with the lock on it held, and nothing half-written in it."""

    def __init__(self, path: Path, *, restart: bool = False) -> None:
        self.path = path
        self._refuse_if_foreign()
        with told_of_disk("nothing was begun"):
            path.mkdir(parents=True, exist_ok=True)
            self._lock = self._take_lock()
            try:
                if restart:
                    self._discard()
                self.remove_temporaries()
            except BaseException:
                self._let_go()
                raise

    def _refuse_if_foreign(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise FolderError(f"{self.path} is a file; choose another `name`.")
        names = set(os.listdir(self.path)) if self.path.exists() else set()
        strange = sorted(name for name in names if name.removesuffix(".tmp") not in _OURS)
        if strange and not names & {CHECKPOINTS_NAME, CONFIG_NAME, METRICS_NAME}:
            raise FolderError(
                f"{self.path} holds other things ({', '.join(strange[:3])}) and no run. Choose "
                "another `name`, or another folder with `runs`."
            )

    def _take_lock(self) -> int:
        handle = os.open(self.path / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 32).decode(errors="replace").strip()
            os.close(handle)
            told = f" (process {owner})" if owner.isdigit() else ""
            raise FolderError(
                f"Another process is training in {self.path}{told}. Wait for it, or choose another "
                "`name`."
            ) from None
        with suppress(OSError):  # the number is a courtesy, and the disk may be full
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
        return handle

    def _discard(self) -> None:
        """Remove all that a run makes, and nothing else; the lock stays."""
        for name in _OURS:
            target = self.path / name
            if target.is_dir():
                doomed = target.with_name(f"{name}.tmp")
                shutil.rmtree(doomed, ignore_errors=True)
                target.rename(doomed)
            elif name != _LOCK_NAME:
                target.unlink(missing_ok=True)

    def remove_temporaries(self) -> None:
        """Remove what a killed process left half-written."""
        for stale in self.path.glob("*.tmp"):
            if stale.is_dir():
                shutil.rmtree(stale)
            else:
                stale.unlink()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self.remove_temporaries()
        self._let_go()

    def _let_go(self) -> None:
        with suppress(OSError):
            os.ftruncate(self._lock, 0)
        os.close(self._lock)


@contextmanager
def told_of_disk(kept: str) -> Iterator[None]:
    """Raise errors of the disk as `WorkError`s that say what is kept and how to resume."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise WorkError(
                f"The disk is full{where}; {kept}.\nFree some space, then run the same command again."
            ) from error
        raise WorkError(
            f"Writing failed{where}: {error.strerror or error}; {kept}.\n"
            "Run the same command again once that is fixed."
        ) from error
