"""The curves of one run, which grow while it trains.

`refresh` reads only what the run wrote since the last call. If the run was restarted, or resumed in a
way that truncated its files, everything is read again. Several threads may use the curves.

Costs: 4 bytes are read for each new row, plus the new lines of metrics. Losses by source are means of
at most `SAMPLED_ROWS` rows for a whole chart, so their time does not grow with the run; means of
complete buckets are kept.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.errors import TokenmillError
from tokenmill.inspect.run_view import Phase, RunView
from tokenmill.inspect.view.step_losses import Buckets, Floats, Integers, StepLosses
from tokenmill.storage.reading import open_inside
from tokenmill.training.config import Config
from tokenmill.training.config_file import read_config
from tokenmill.training.run_folder import CONFIG_NAME, DATA_NAME, METRICS_NAME, follow_metrics
from tokenmill.training.run_reading import read_run_data

SAMPLED_ROWS = 1 << 20  # rows whose losses are averaged by source, in all buckets together
LIVE_SECONDS = 600.0  # a run that wrote something more recently is shown as live
_MOST_LINE_STEPS = 1 << 24  # steps of a curve that is made from lines of metrics
_LARGEST = 3e38  # the largest loss that fits in float32
_MOST_KEPT = 1 << 14  # buckets whose losses by source are kept


@dataclass
class Metrics:
    """What the lines of a run's metrics file say, in lists that grow."""

    line_steps: list[int] = field(default_factory=list)
    line_losses: list[float] = field(default_factory=list)
    val_steps: list[int] = field(default_factory=list)
    val_losses: list[float] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)  # the last line with a loss
    end: int = 0  # bytes that were read

    @property
    def last_step(self) -> int:
        """How many steps the lines say are done."""
        return max(self.line_steps[-1:] + self.val_steps[-1:], default=0)

    def add(self, lines: Sequence[dict[str, Any]], end: int) -> None:
        """Add lines; `end` is the byte after them."""
        for line in lines:
            if line.get("loss") is not None:
                self.line_steps.append(line["step"])
                self.line_losses.append(line["loss"])
                self.last = line
            if line.get("val_loss") is not None:
                self.val_steps.append(
                    line["step"]
                )  # append before the value: other threads read both
                self.val_losses.append(line["val_loss"])
        self.end = end


class RunCurves:
    """The curves of a run, by its name. Call `refresh` before reading them."""

    def __init__(self, name: str, view: RunView) -> None:
        self.name, self.view = name, view
        self.lock = threading.RLock()
        self.metrics = Metrics()
        self._by_source: dict[tuple[int, int], Floats] = {}
        self._rows = 0
        self._phases_time = -1
        self.losses = self._open_losses()

    @property
    def steps(self) -> int:
        """How many steps the charts show."""
        return max(self.losses.steps, self.metrics.last_step)

    @property
    def max_steps(self) -> int | None:
        """How many steps the run will have when it is complete, if known."""
        config = read_run_config(self.view.folder)
        return config.max_steps if config is not None else None

    @property
    def is_live(self) -> bool:
        """Whether the run has written metrics in the last ten minutes and is not complete."""
        if self.view.folder is None or self.steps >= (self.max_steps or 1 << 62):
            return False
        try:
            changed = (self.view.folder / METRICS_NAME).stat().st_mtime
        except OSError:
            return False
        return time.time() - changed < LIVE_SECONDS

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the sources, if the losses of rows are known and there are several."""
        return self.view.rows.names if self._rows and len(self.view.rows.names) > 1 else ()

    @property
    def unread_steps(self) -> int:
        """How many steps have losses that were not read yet, because there was no time."""
        return max(0, self.losses.step_at(self._rows) - self.losses.steps) if self._rows else 0

    def refresh(self, *, until: float = math.inf) -> None:
        """Read what the run has written since the last call.

        After the time `until` of `time.monotonic`, no more losses are read; the next call continues.
        """
        with self.lock:
            self._read_phases()
            self._read_metrics()
            rows = self.view.losses_count
            if rows < self._rows or self.view.phases != self._phases:
                self.losses = self._open_losses()
            self._rows = rows
            if rows:
                self.losses.follow(rows, until=until)
            else:
                self._use_lines()

    def _read_phases(self) -> None:
        """Add the phases that the run has begun since it was opened."""
        if self.view.folder is None:
            return
        try:
            changed = (self.view.folder / DATA_NAME).stat().st_mtime_ns
            if changed == self._phases_time:
                return
            self._phases_time = changed
            record = read_run_data(self.view.folder)
        except (TokenmillError, OSError):  # the run is replacing the file
            return
        self.view.phases = tuple(
            Phase(step=one.step, row=one.row, batch_rows=one.batch_rows, world_size=one.world_size)
            for one in record.phases
        )

    def _open_losses(self) -> StepLosses:
        self._by_source.clear()
        self._phases = self.view.phases
        return StepLosses(self.view.losses, self._phases)

    def _read_metrics(self) -> None:
        if self.view.folder is None:
            return
        try:
            lines, end = follow_metrics(self.view.folder, self.metrics.end)
            was_rewritten = bool(lines) and lines[0]["step"] < self.metrics.last_step
            if self.metrics.end and (not end or was_rewritten):
                self.metrics, self.losses = Metrics(), self._open_losses()
                lines, end = follow_metrics(self.view.folder, 0)
        except TokenmillError:  # such as a file that is larger than that of any run, or a pipe
            return
        self.metrics.add(lines, end)

    def _use_lines(self) -> None:
        """Make the curve from lines of metrics, each of which has the mean loss of some steps.

        Lines whose steps do not ascend are left out: otherwise a few lines could give many values.
        """
        steps, found = [0], [0.0]
        for step, loss in zip(self.metrics.line_steps, self.metrics.line_losses, strict=True):
            if steps[-1] < step <= _MOST_LINE_STEPS:
                steps.append(step)
                found.append(loss)
        if steps[-1] == self.losses.steps:
            return
        losses = np.clip(np.array(found[1:], np.float64), -_LARGEST, _LARGEST)
        values = np.repeat(losses.astype(np.float32), np.diff(steps))
        one_each = Phase(step=0, row=0, batch_rows=1, world_size=1)
        self.losses = StepLosses(lambda first, last: values[first:last], [one_each])
        self.losses.follow(len(values))

    def validation(self, first: float, last: float, most: int) -> tuple[Floats, Floats]:
        """Return the steps and losses of at most `most` evenly spaced validations in a range."""
        values = np.array(self.metrics.val_losses, np.float64)
        steps = np.array(self.metrics.val_steps[: len(values)], np.float64)
        inside = np.flatnonzero((steps >= first) & (steps <= last))
        if len(inside) > most:  # evenly spaced ones, with the last
            inside = inside[np.linspace(0, len(inside) - 1, most).round().astype(np.int64)]
        return steps[inside], values[inside]

    def find_by_source(self, buckets: Buckets) -> Floats:
        """Return the mean loss of each source in each bucket, as an array (sources, buckets).

        NaN where a bucket has no rows of a source. A bucket with more rows than its share of
        `SAMPLED_ROWS` is represented by its first rows.
        """
        names = self.view.rows.names
        found = np.full((len(names), len(buckets)), np.nan)
        share = max(1, SAMPLED_ROWS // max(len(buckets), 1))
        for at, start in enumerate(buckets.starts.tolist()):
            key = (buckets.width, start)
            kept = self._by_source.get(key)
            if kept is None:
                stop = min(start + buckets.width, self.losses.steps)
                kept = self._means_by_source(max(start, self.losses.first), stop, share)
                if stop == start + buckets.width:  # complete
                    if len(self._by_source) >= _MOST_KEPT:
                        self._by_source.clear()
                    self._by_source[key] = kept
            found[:, at] = kept
        return found

    def _means_by_source(self, first: int, stop: int, most: int) -> Floats:
        names = self.view.rows.names
        if stop <= first:
            return np.full(len(names), np.nan)
        begin, end = self.losses.rows_of(first).start, self.losses.rows_of(stop - 1).stop
        end = min(end, begin + most)
        losses = self.view.losses(begin, end).astype(np.float64)
        sources = self._assign(np.arange(begin, begin + len(losses)))
        known = np.isfinite(losses)
        totals = np.bincount(sources[known], losses[known], len(names))
        counts = np.bincount(sources[known], minlength=len(names))
        with np.errstate(invalid="ignore"):
            means: Floats = totals / counts
        return means

    def _assign(self, rows: Integers) -> Integers:
        mixture = self.view.rows.mixture
        return mixture.assign(rows)[0] if mixture is not None else np.zeros_like(rows)


def read_run_config(folder: Path | None) -> Config | None:
    """Return the settings of a run; None if there is no run or its settings cannot be read."""
    if folder is None:
        return None
    try:
        with open_inside(folder, CONFIG_NAME):  # `read_config` would wait for a pipe
            return read_config(folder / CONFIG_NAME)
    except (TokenmillError, OSError):
        return None
