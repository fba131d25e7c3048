"""The folder of a run, `runs/NAME`, with one process working in it at a time.

config.json             the settings
tokenizer_state.json    the tokenizer, if known
metrics.jsonl           one JSON object per line: a `step`, and either `loss` (the mean since the
                        last such line) with speed and memory, or `val_loss`, or `sample`
row_losses.f32          the mean loss of row n as the float32 at byte 4n
loss.svg                the curves; see `chart.py`
data.json               the data, the order of its rows and the batches; see `run_reading.py`
checkpoints/            see `checkpoints.py`
lock                    held while a process works in the folder

Guarantees: all metrics and row losses up to a checkpoint are on disk before the checkpoint. A
resumed run first truncates both files to its checkpoint. So an interrupted run leaves the same
lines as an uninterrupted one, except for the values in `TIMES`. Costs: one write per line of
metrics, and one per step for its row losses.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.errors import StateError, UsageError, WorkError
from tokenmill.storage.decoding import convert, decode
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.files import (
    open_entry,
    refuse_link,
    remove,
    sync_folder,
    temporary_path,
    write_file,
)
from tokenmill.storage.names import TOKENIZER_NAME
from tokenmill.storage.output import OutputFolder
from tokenmill.storage.reading import open_inside
from tokenmill.training.chart import Curve, draw_svg
from tokenmill.training.config import Steps
from tokenmill.wording import size

BOARD_NAME = "tensorboard"
CHART_NAME = "loss.svg"
CHECKPOINTS_NAME = "checkpoints"
CONFIG_NAME = "config.json"
DATA_NAME = "data.json"
LOSSES_NAME = "row_losses.f32"
METRICS_NAME = "metrics.jsonl"
TIMES = ("seconds", "tokens_per_second", "waiting", "memory", "mfu")
_LOCK_NAME = "lock"
# In the order of deletion. Checkpoints are deleted first: if deletion is interrupted after that, a
# new run starts over and truncates the other files.
_OURS = (
    *(CHECKPOINTS_NAME, METRICS_NAME, LOSSES_NAME, CHART_NAME),
    *(CONFIG_NAME, DATA_NAME, TOKENIZER_NAME, BOARD_NAME, _LOCK_NAME),
)
_FLOAT = np.dtype("<f4")
_ROWS = 1 << 20  # losses to read or write at once
_MOST_METRICS = 128 << 20  # bytes; half a million lines


def find_folder(runs: str | os.PathLike[str], name: str) -> Path:
    """Return the folder of a run, by its name.

    >>> find_folder("runs", "my_model").as_posix()
    'runs/my_model'
    >>> find_folder("runs", "../x")
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: '../x' is not a name for a run: it becomes a folder's name, so it \
must not contain slashes.
    """
    if not name or name in (".", "..") or any(mark in name for mark in "/\\\0"):
        raise UsageError(
            f"{name!r} is not a name for a run: it becomes a folder's name, so it must not contain "
            "slashes."
        )
    return Path(runs) / name


class RunFolder(OutputFolder):
    """A run's folder, locked and without incomplete files. `restart` discards the run in it."""

    def __init__(self, path: Path, *, restart: bool = False) -> None:
        with explain_disk_errors("nothing was started"):
            super().__init__(
                path,
                marks=(CHECKPOINTS_NAME, CONFIG_NAME, METRICS_NAME),
                ignored=_OURS,
                lock=_LOCK_NAME,
                argument="name",
            )
            try:
                if restart:
                    self._discard()
                for name in _OURS:  # fail now, not at the first checkpoint
                    refuse_link(path / name)
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


class _Line(msgspec.Struct):
    """The values of a metrics line that other code uses; a line may have more."""

    step: Steps
    row: Steps | None = None
    loss: float | None = None
    val_loss: float | None = None
    bits_per_byte: float | None = None
    sample: str = ""

    def __post_init__(self) -> None:
        if self.loss is not None and self.row is None:
            raise ValueError("a line with a loss needs a row")


class Record:
    """The files of metrics and row losses, truncated to a step and a row, and open for appending.

    >>> import tempfile
    >>> record = Record(Path(tempfile.mkdtemp()), step=0, row=0)
    >>> record.add_losses(0, np.array([3.0, 2.0], np.float32))
    >>> record.mean_loss(2)
    2.5
    >>> record.add({"step": 1, "row": 2, "loss": 2.5})
    >>> record.mean_loss(2), record.lines
    (nan, [{'step': 1, 'row': 2, 'loss': 2.5}])
    """

    def __init__(self, folder: Path, *, step: int, row: int) -> None:
        self._metrics = open_entry(folder / METRICS_NAME)
        try:
            self._losses = open_entry(folder / LOSSES_NAME)
        except BaseException:
            os.close(self._metrics)
            raise
        sync_folder(folder)
        with os.fdopen(os.dup(self._metrics), "rb") as file:
            self.lines, end = _parse(file, folder, step)
        os.truncate(self._metrics, end)
        os.lseek(self._metrics, end, os.SEEK_SET)
        present = os.fstat(self._losses).st_size // _FLOAT.itemsize
        os.truncate(self._losses, min(present, row) * _FLOAT.itemsize)
        if present < row:  # the file was deleted or truncated
            self._fill(folder, present, row)

    def add_losses(self, first_row: int, losses: npt.NDArray[np.float32]) -> None:
        """Write the mean losses of consecutive rows."""
        os.lseek(self._losses, first_row * _FLOAT.itemsize, os.SEEK_SET)
        _write_all(self._losses, losses.astype(_FLOAT).tobytes())

    def _fill(self, folder: Path, first: int, end: int) -> None:
        """Write NaN for rows whose losses are lost. Raises `WorkError` if the disk has no room."""
        free = shutil.disk_usage(folder).free
        if (end - first) * _FLOAT.itemsize > free:
            raise WorkError(
                f"{folder / LOSSES_NAME} is cut short: it has losses for {first:,} rows, but the "
                f"checkpoint is at row {end:,}. To fill the gap, this disk needs more than the "
                f"{size(free)} that are free. Free some space, restore the file from a backup, or add "
                "`restart=True` to start over."
            )
        for start in range(first, end, _ROWS):
            self.add_losses(start, np.full(min(end, start + _ROWS) - start, np.nan, np.float32))

    def mean_loss(self, end: int) -> float:
        """Return the mean loss of the rows before `end` that are in no line of metrics yet.

        NaN if there are none.
        """
        ends = (line["row"] for line in reversed(self.lines) if line.get("row") is not None)
        first = next(ends, 0)
        total, rows = 0.0, 0
        for start in range(first, end, _ROWS):
            count = (min(end, start + _ROWS) - start) * _FLOAT.itemsize
            losses = np.frombuffer(os.pread(self._losses, count, start * _FLOAT.itemsize), _FLOAT)
            total, rows = total + float(losses.astype(np.float64).sum()), rows + len(losses)
        return total / rows if rows else float("nan")

    def add(self, line: dict[str, Any]) -> None:
        """Add a line of metrics."""
        self.lines.append(line)
        _write_all(self._metrics, orjson.dumps(line) + b"\n")

    def flush(self) -> None:
        """Flush both files to the disk."""
        os.fsync(self._metrics)
        os.fsync(self._losses)

    def close(self) -> None:
        """Close both files."""
        os.close(self._metrics)
        os.close(self._losses)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics, up to the first damaged or incomplete line."""
    return follow_metrics(folder, 0)[0]


def follow_metrics(folder: Path, start: int) -> tuple[list[dict[str, Any]], int]:
    """Return the lines of a run's metrics from a byte on, and the byte to continue at.

    `start` is 0 or what an earlier call returned. If the file was truncated or replaced since, so
    that no line ends at `start`, or if there is no file, the byte returned is 0: read everything
    again. Raises DatasetError if the file is a pipe or a device, or a link out of the folder.
    """
    if not (folder / METRICS_NAME).exists():
        return [], 0
    with open_inside(folder, METRICS_NAME) as file:
        if start:
            file.seek(start - 1)
            if file.read(1) != b"\n":
                return [], 0
        lines, end = _parse(file, folder, None)
        return lines, start + end


def find_values(lines: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Return the steps and values of one metric.

    >>> find_values([{"step": 1, "loss": 2.5}, {"step": 1, "val_loss": 3.0}], "loss")
    ([1], [2.5])
    """
    found = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    return [step for step, _ in found], [value for _, value in found]


def make_curves(lines: list[dict[str, Any]]) -> list[Curve]:
    """Return the curves of the training and validation losses."""
    return [
        Curve("train", *find_values(lines, "loss")),
        Curve("validation", *find_values(lines, "val_loss")),
    ]


def write_chart(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Write the chart of a run's losses."""
    write_file(folder / CHART_NAME, _draw(folder, lines))


def is_charted(folder: Path, lines: list[dict[str, Any]]) -> bool:
    """Return whether a run's chart is up to date."""
    try:
        handle = open_entry(folder / CHART_NAME, os.O_RDONLY)
    except FileNotFoundError:
        return False
    expected = _draw(folder, lines)
    with os.fdopen(handle, "rb") as file:
        return file.read(len(expected) + 1) == expected


def _draw(folder: Path, lines: list[dict[str, Any]]) -> bytes:
    curves = [curve for curve in make_curves(lines) if np.size(curve.steps)]
    return draw_svg(curves, folder.name).encode()


def _write_all(handle: int, data: bytes) -> None:
    """Write all data. On a disk that is almost full, one `os.write` may write only some of it."""
    while data:
        data = data[os.write(handle, data) :]


def _parse(file: BinaryIO, folder: Path, last_step: int | None) -> tuple[list[dict[str, Any]], int]:
    """Return the lines of metrics up to `last_step`, and how many bytes they have.

    Reads from the file's position on. Stops at the first damaged or incomplete line. If `last_step`
    is None, there is no last step.
    """
    found = os.fstat(file.fileno()).st_size
    if found > _MOST_METRICS:
        raise StateError(
            f"{folder / METRICS_NAME} has {found:,} bytes; at most {_MOST_METRICS:,} are read. Move the "
            "file away: the run continues with a new one."
        )
    data = file.read(_MOST_METRICS)
    lines: list[dict[str, Any]] = []
    end = 0
    while (newline := data.find(b"\n", end)) >= 0:
        try:
            line = decode(data[end:newline], dict[str, bool | int | float | str | None])
            convert(line, _Line)
        except ValueError:
            break
        if last_step is not None and line["step"] > last_step:  # type: ignore[operator]
            break
        lines.append(line)
        end = newline + 1
    return lines, end
