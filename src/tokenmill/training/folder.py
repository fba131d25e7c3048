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

import os
from pathlib import Path

from tokenmill.errors import UsageError
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.files import remove, temporary_path
from tokenmill.storage.names import TOKENIZER_NAME
from tokenmill.storage.output import OutputFolder
from tokenmill.training.record import LOSSES_NAME, METRICS_NAME

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


class RunFolder(OutputFolder):
    """A run's folder with the lock on it held, and nothing half-written in it."""

    def __init__(self, path: Path, *, restart: bool = False) -> None:
        with explain_disk_errors("nothing was begun"):
            super().__init__(
                path,
                marks=(CHECKPOINTS_NAME, CONFIG_NAME, METRICS_NAME),
                ignored=_OURS,
                lock=_LOCK_NAME,
                argument="name",
            )
            if restart:
                try:
                    self._discard()
                except BaseException:
                    self.close()
                    raise

    def _discard(self) -> None:
        """Remove everything that a run makes, and nothing else; the lock stays."""
        for name in _OURS:
            target = self.path / name
            if target.is_dir():  # a kill must not leave half of the checkpoints
                doomed = temporary_path(target)
                target.rename(doomed)
                remove(doomed)
            elif name != _LOCK_NAME:
                remove(target)
