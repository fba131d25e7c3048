"""The mean loss of each step of a run, reduced to as many numbers as a chart can show.

Steps are grouped in buckets of 1, 2, 4, 8... steps. A bucket has the lowest, the highest and the mean
loss of its steps, so no spike is lost, however many steps are in a bucket. Buckets begin at multiples
of their width: they stay the same when a chart is moved, or when the run grows.

Costs: each row's loss is read once, when it is new. At most `MOST_BUCKETS` buckets are kept (64 MB),
however long the run is. If the kept buckets are wider than a chart needs, the losses of the steps in
the chart are read again: those of at most a few thousand kept buckets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

MOST_BUCKETS = 1 << 20
_READ_ROWS = 1 << 20  # losses to read at once
_FINE = 1 << 18  # buckets from which moving means are made

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Read = Callable[[int, int], npt.NDArray[np.float32]]


class StepRows(Protocol):
    """Consecutive steps with `batch_rows` rows each; the first is `step`, which begins at `row`."""

    @property
    def step(self) -> int: ...
    @property
    def row(self) -> int: ...
    @property
    def batch_rows(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """The losses of steps, `width` steps to a bucket.

    Bucket n of the arrays has the steps from `(first + n) * width` on. `count` of them have a known
    loss: the lowest is `low`, the highest is `high`, and the sum is `total`.
    """

    width: int
    first: int
    low: Floats
    high: Floats
    total: Floats
    count: Integers

    def __len__(self) -> int:
        return len(self.count)

    @property
    def steps(self) -> Floats:
        """The middle of each bucket's known steps."""
        return self.starts + (np.maximum(self.count, 1) - 1) / 2

    @property
    def starts(self) -> Integers:
        """The first step of each bucket."""
        return (self.first + np.arange(len(self))) * self.width

    @property
    def means(self) -> Floats:
        """The mean loss of each bucket; NaN if no loss is known."""
        with np.errstate(invalid="ignore"):
            return self.total / self.count

    def widen(self, factor: int) -> Buckets:
        """Join `factor` neighbouring buckets to one.

        >>> bucket_steps(3, np.array([5.0, 4.0, 9.0]), 1).widen(2).high.tolist()
        [5.0, 9.0]
        """
        if factor == 1 or not len(self):
            width, first = self.width * factor, self.first // factor
            return replace(self, width=width, first=first)
        numbers = (self.first + np.arange(len(self))) // factor
        begins = np.flatnonzero(np.diff(numbers, prepend=-1))
        return Buckets(
            width=self.width * factor,
            first=int(numbers[0]),
            low=np.minimum.reduceat(self.low, begins),
            high=np.maximum.reduceat(self.high, begins),
            total=np.add.reduceat(self.total, begins),
            count=np.add.reduceat(self.count, begins),
        )

    def cut(self, first: int, last: int) -> Buckets:
        """Return the buckets that have any of the steps [first, last)."""
        low = min(max(first // self.width - self.first, 0), len(self))
        high = min(max(-(-last // self.width) - self.first, low), len(self))
        some = slice(low, high)
        return Buckets(
            width=self.width,
            first=self.first + low,
            low=self.low[some],
            high=self.high[some],
            total=self.total[some],
            count=self.count[some],
        )

    def append(self, other: Buckets) -> Buckets:
        """Return these buckets and later ones of the same width, whose first may be our last one."""
        if not len(self) or not len(other):
            return self if len(self) else other
        shared = self.first + len(self) - other.first  # 1 or 0
        joined = {
            name: np.concatenate([getattr(self, name), getattr(other, name)[shared:]])
            for name in ("low", "high", "total", "count")
        }
        made = Buckets(width=self.width, first=self.first, **joined)
        if shared:
            at = len(self) - 1
            made.low[at] = min(self.low[-1], other.low[0])
            made.high[at] = max(self.high[-1], other.high[0])
            made.total[at] += other.total[0]
            made.count[at] += other.count[0]
        return made


def bucket_steps(first: int, losses: Floats, width: int) -> Buckets:
    """Put the losses of the steps from `first` on into buckets; NaN is unknown.

    >>> bucket_steps(1, np.array([4.0, 3.0, 2.0]), 2).means.tolist()
    [4.0, 2.5]
    """
    known = ~np.isnan(losses)
    single = Buckets(
        width=1,
        first=first,
        low=np.where(known, losses, np.inf),
        high=np.where(known, losses, -np.inf),
        total=np.where(known, losses, 0.0),
        count=known.astype(np.int64),
    )
    return single.widen(width)


class StepLosses:
    """The losses of a run's steps, read from the losses of its rows while they are added.

    `read(first, last)` returns the losses of the rows [first, last). The steps of `phases` are
    ascending, and the last phase has no end. `first` is the first step whose rows are known.

    >>> rows = np.array([4, 2, 3, 3, 9, 1], np.float32)
    >>> losses = StepLosses(lambda first, last: rows[first:last], [Phase(0, 0, 2)])
    >>> losses.follow(5)
    >>> losses.steps, losses.find(0, 2, 1).means.tolist()
    (2, [3.0, 3.0])
    """

    def __init__(
        self, read: Read, phases: Sequence[StepRows], *, most_buckets: int = MOST_BUCKETS
    ) -> None:
        self._read, self._phases, self._most = read, phases, most_buckets
        self._kept = bucket_steps(0, np.empty(0), 1)
        # Count the complete steps whose losses were read. Those before the first phase are unknown.
        self.steps = self.first = phases[0].step

    def follow(self, rows: int, *, until: float = math.inf) -> None:
        """Read the losses of new rows; the run now has losses for `rows` of them.

        After the time `until` of `time.monotonic`, it reads no further; the next call continues.
        """
        end = self.step_at(rows)
        while self.steps < end:
            phase = self._phase_of(self.steps)
            count = max(1, _READ_ROWS // phase.batch_rows)
            stop = min(end, self.steps + count)
            self._add(self._means(self.steps, stop))
            self.steps = stop
            if time.monotonic() >= until:
                return

    def _add(self, means: Floats) -> None:
        self._kept = self._kept.append(bucket_steps(self.steps, means, self._kept.width))
        while len(self._kept) > self._most:
            self._kept = self._kept.widen(2)

    def find(self, first: int, last: int, width: int) -> Buckets:
        """Return the buckets of `width` steps, a power of two, that have the steps [first, last)."""
        first, last = max(0, first), min(last, self.steps)
        if last <= first:
            return bucket_steps(first // width * width, np.empty(0), 1).widen(width)
        first, last = first // width * width, min(-(-last // width) * width, self.steps)
        if width >= self._kept.width:
            return self._kept.cut(first, last).widen(width // self._kept.width)
        return bucket_steps(first, self._means(first, last), width)

    def smooth(self, at: Floats, window: int) -> Floats:
        """Return, for each step of `at`, the mean loss of the `window` steps around it.

        `at` is ascending. At the ends of the run, a window has fewer steps. If all windows together
        span more than 262,144 steps, the ends of each are rounded to whole buckets.
        """
        if not len(at):
            return np.empty(0)
        first, last = int(at[0] - window / 2) - 1, int(at[-1] + window / 2) + 2
        first, last = max(first, 0), min(last, self.steps)
        fine = self.find(first, last, find_width(first, last, _FINE))
        totals = np.concatenate([[0.0], np.cumsum(fine.total)])
        counts = np.concatenate([[0], np.cumsum(fine.count)])
        low, high = (
            np.clip(np.ceil((at + half) / fine.width) - fine.first, 0, len(fine)).astype(np.int64)
            for half in (-window / 2, window / 2)
        )
        high = np.maximum(high, np.minimum(low + 1, len(fine)))
        with np.errstate(invalid="ignore", divide="ignore"):
            means: Floats = (totals[high] - totals[low]) / (counts[high] - counts[low])
        return means

    def rows_of(self, step: int) -> range:
        """Return the rows of a step."""
        phase = self._phase_of(step)
        first = phase.row + (step - phase.step) * phase.batch_rows
        return range(first, first + phase.batch_rows)

    def step_at(self, row: int) -> int:
        """Return the step to which a row belongs."""
        if row < self._phases[0].row:
            return self.first
        phase = next(phase for phase in reversed(self._phases) if phase.row <= row)
        step = phase.step + (row - phase.row) // phase.batch_rows
        ends = [later.step for earlier, later in pairwise(self._phases) if earlier is phase]
        return min([step, *ends])

    def _phase_of(self, step: int) -> StepRows:
        return next(phase for phase in reversed(self._phases) if phase.step <= step)

    def _means(self, first: int, last: int) -> Floats:
        """Return the mean loss of each of the steps [first, last); rows of NaN do not count."""
        totals, counts = np.zeros(last - first), np.zeros(last - first, np.int64)
        for phase, begin, end in self._cut_by_phase(first, last):
            row = phase.row + (begin - phase.step) * phase.batch_rows
            stop = phase.row + (end - phase.step) * phase.batch_rows
            at_once = max(_READ_ROWS // phase.batch_rows, 1) * phase.batch_rows
            at_once = min(at_once, 8 * _READ_ROWS)  # even if a single step has more rows
            while row < stop:
                losses = self._read(row, min(stop, row + at_once))
                if not len(losses):  # the file was truncated in the meantime
                    break
                _add_rows(totals, counts, losses, row - phase.row, phase, first)
                row += len(losses)
        with np.errstate(invalid="ignore"):
            return totals / counts

    def _cut_by_phase(self, first: int, last: int) -> Iterator[tuple[StepRows, int, int]]:
        """Divide the steps [first, last) among the phases."""
        ends = [phase.step for phase in self._phases[1:]] + [last]
        for phase, end in zip(self._phases, ends, strict=True):
            begin, stop = max(first, phase.step), min(last, end)
            if begin < stop:
                yield phase, begin, stop


@dataclass(frozen=True)
class Phase:
    """Steps with `batch_rows` rows each. The first is `step`, which begins at `row`."""

    step: int
    row: int
    batch_rows: int


def _add_rows(
    totals: Floats,
    counts: Integers,
    losses: npt.NDArray[np.float32],
    row: int,
    phase: StepRows,
    first: int,
) -> None:
    """Add the losses of rows to the sums of their steps. `row` counts from the phase's first row.

    `totals` and `counts` begin with step `first` of the run.
    """
    known = np.isfinite(losses)
    losses = losses if known.all() else np.where(known, losses, np.float32(0))
    begin, inside = divmod(row, phase.batch_rows)
    at = begin + phase.step - first
    if not inside and len(losses) % phase.batch_rows == 0:  # whole steps
        shape = (-1, phase.batch_rows)
        steps = slice(at, at + len(losses) // phase.batch_rows)
        totals[steps] += losses.reshape(shape).sum(axis=1, dtype=np.float64)
        counts[steps] += known.reshape(shape).sum(axis=1)
        return
    numbers = (inside + np.arange(len(losses))) // phase.batch_rows
    begins = np.flatnonzero(np.diff(numbers, prepend=-1))
    totals[at + numbers[begins]] += np.add.reduceat(losses, begins, dtype=np.float64)
    counts[at + numbers[begins]] += np.add.reduceat(known, begins, dtype=np.int64)


def find_width(first: int, last: int, most: int) -> int:
    """Return the smallest power of two for which at most `most` buckets hold the steps [first, last).

    >>> find_width(0, 1000, 1000), find_width(0, 1001, 1000), find_width(1, 1001, 500)
    (1, 2, 4)
    """
    width = 1
    while -(-last // width) - first // width > max(most, 1) and width < last:
        width *= 2
    return width
