"""What a run leaves to look at: `metrics.jsonl`, and `row_losses.f32`.

`metrics.jsonl` has one JSON object a line: `step` and `loss` (the mean since the line before) with
what went with it, `step` and `val_loss`, or `step` and `sample`. `row_losses.f32` holds the mean loss
of row n as the float32 at byte 4n, so that a spike leads to its rows:

    losses = np.fromfile("runs/my_model/row_losses.f32", "<f4")
    losses.argmax()        # the worst row; Loader.batch_from tells what is in it

Guarantees: everything that a checkpoint counts is on disk before the checkpoint; a run that resumes
from it first truncates both files to that point. Except for `TIMES`, an interrupted run leaves the
same lines as an uninterrupted one. Costs: one write to each file per interval.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

METRICS_NAME = "metrics.jsonl"
LOSSES_NAME = "row_losses.f32"
TIMES = ("seconds", "tokens_per_second", "waiting", "memory", "mfu")
_FLOAT = np.dtype("<f4")


class Record:
    """The two files of a run, open to go on after a step and a row.

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
        self._metrics = _open(folder / METRICS_NAME)
        self._losses = _open(folder / LOSSES_NAME)
        with os.fdopen(os.dup(self._metrics), "rb") as file:
            self.lines, end = _parse(file.read(), step)
        os.truncate(self._metrics, end)
        os.lseek(self._metrics, end, os.SEEK_SET)
        there = os.fstat(self._losses).st_size // _FLOAT.itemsize
        os.truncate(self._losses, min(there, row) * _FLOAT.itemsize)
        if there < row:  # somebody removed it
            self.add_losses(there, np.full(row - there, np.nan, np.float32))

    def add_losses(self, first_row: int, losses: npt.NDArray[np.float32]) -> None:
        """The mean losses of some rows from a row on."""
        data = losses.astype(_FLOAT).tobytes()
        _write_all(self._losses, data, first_row * _FLOAT.itemsize)

    def mean_loss(self, end: int) -> float:
        """The mean loss of the rows up to `end` that no line tells of yet."""
        first = next((line["row"] for line in reversed(self.lines) if "loss" in line), 0)
        data = os.pread(self._losses, (end - first) * _FLOAT.itemsize, int(first) * _FLOAT.itemsize)
        losses = np.frombuffer(data, _FLOAT).astype(np.float64)
        return float(losses.mean()) if len(losses) else float("nan")

    def add(self, line: dict[str, Any]) -> None:
        """One more line of metrics."""
        self.lines.append(line)
        _write_all(self._metrics, orjson.dumps(line) + b"\n")

    def points(self, name: str) -> tuple[list[int], list[float]]:
        """The steps and values of one kind of line: loss or val_loss."""
        return points(self.lines, name)

    def flush(self) -> None:
        """Put both files on the disk."""
        os.fsync(self._metrics)
        os.fsync(self._losses)

    def close(self) -> None:
        """Close both files."""
        os.close(self._metrics)
        os.close(self._losses)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics; one that is torn, because the run was killed, is left out."""
    try:
        return _parse((folder / METRICS_NAME).read_bytes(), None)[0]
    except FileNotFoundError:
        return []


def points(lines: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """The steps and values of one kind of line.

    >>> points([{"step": 1, "loss": 2.5}, {"step": 1, "val_loss": 3.0}], "loss")
    ([1], [2.5])
    """
    told = [(line["step"], line[name]) for line in lines if name in line]
    return [step for step, _ in told], [value for _, value in told]


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def _write_all(handle: int, data: bytes, place: int | None = None) -> None:
    """Write all of it: on a disk that gets full, the system may write a part and say so only then."""
    while data:
        if place is None:
            done = os.write(handle, data)
        else:
            done = os.pwrite(handle, data, place)
            place += done
        data = data[done:]


def _parse(data: bytes, last_step: int | None) -> tuple[list[dict[str, Any]], int]:
    """The sound lines up to a step, and where they end."""
    lines: list[dict[str, Any]] = []
    end = 0
    while (newline := data.find(b"\n", end)) >= 0:
        try:
            line = orjson.loads(data[end:newline])
        except orjson.JSONDecodeError:
            break
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            break
        if last_step is not None and line["step"] > last_step:
            break
        lines.append(line)
        end = newline + 1
    return lines, end
