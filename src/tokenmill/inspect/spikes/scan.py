"""Find the steps whose loss jumped and the rows that stand out, in one pass over all losses.

A row's excess is its loss minus the expected loss. That is the level of its step, a median over the
steps around it (see `levels.py`). In steps of `OWN` rows or more, it is the median of the row's own
step if that is higher: if all rows of a step are higher because the weights changed, none has excess.

Memory is bounded for any number of losses: they are read in blocks of about `_BLOCK` rows, and at
most `MOST_JUMPS` jumps, `MOST_ROWS` rows and `_MOST_LEVELS` levels are kept. Costs: about 100 ns a
row (`benchmarks/culprit.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.inspect.run_view import Phase
from tokenmill.inspect.spikes.levels import (
    LEAST,
    Floats,
    Level,
    Part,
    find_level,
    find_medians,
    find_scores,
    find_spread,
    row_medians,
    widen,
)
from tokenmill.progress import Watcher

MOST_ROWS = 1024
MOST_JUMPS = 256
OWN = 8  # rows that a step needs for its own median to count as expected loss
GAP = 4  # steps between two jumps that count as one
_BLOCK = 1 << 20  # rows read at once
_LARGEST = 1e30  # a larger loss counts as infinite, so that sums and distances stay finite
_MOST_NOT_FINITE = 16  # steps with NaN or infinite losses to list
_MOST_LEVELS = 1 << 22

Integers = npt.NDArray[np.int64]


class Piece(NamedTuple):
    """The losses of the rows of consecutive steps, as an array of shape (steps, rows of a step)."""

    step: int
    row: int
    losses: npt.NDArray[Any]


class Summary(NamedTuple):
    """For consecutive steps: mean and median of the finite losses, and counts of the other losses."""

    first: int
    means: Floats
    medians: Floats
    nans: Integers
    infinities: Integers


class Curve(ABC):
    """The losses of a run, by step.

    `steps` counts the steps. `rows` counts the rows; None if only the losses of steps are known.
    """

    steps: int
    rows: int | None

    @abstractmethod
    def summarize(self, first: int, last: int) -> Summary:
        """Summarize the steps [first, last)."""

    @abstractmethod
    def number(self, step: int) -> int:
        """Return the run's number of a step, which is its index unless some losses are missing."""

    @property
    @abstractmethod
    def block_steps(self) -> int:
        """How many steps to process at once."""


class RowCurve(Curve):
    """A loss for each row. Rows of an incomplete last step are left out.

    `is_ordered` says that the rows of a step are neighbours in the data. One document may then fill
    a step, so no row is compared with its own step.
    """

    def __init__(
        self,
        phases: Sequence[Phase],
        count: int,
        read: Callable[[int, int], npt.NDArray[Any]],
        *,
        is_ordered: bool = False,
    ) -> None:
        self._read, self.is_ordered = read, is_ordered
        self._phases = []
        self.steps = self.rows = 0
        for number, phase in enumerate(phases):
            end = phases[number + 1].row if number + 1 < len(phases) else count
            steps = (min(end, count) - phase.row) // phase.batch_rows
            if steps > 0:
                self._phases.append((phase.step, phase.row, phase.batch_rows, steps))
                self.steps, self.rows = phase.step + steps, phase.row + steps * phase.batch_rows

    @property
    def block_steps(self) -> int:
        largest = max((rows for _, _, rows, _ in self._phases), default=1)
        return max(256, _BLOCK // largest)

    def number(self, step: int) -> int:
        return step

    def find_steps(self, rows: Integers) -> Integers:
        """Return the step of each row."""
        found = np.zeros(len(rows), np.int64)
        for step, row, batch_rows, _ in self._phases:
            found = np.where(rows >= row, step + (rows - row) // batch_rows, found)
        return found

    def rows_of(self, step: int) -> range:
        """Return the rows of a step."""
        for first, row, batch_rows, steps in self._phases:
            if first <= step < first + steps:
                start = row + (step - first) * batch_rows
                return range(start, start + batch_rows)
        return range(0)

    def count_rows(self, first: int, last: int) -> Integers:
        """Return how many rows each of the steps [first, last) has."""
        found = np.zeros(last - first, np.int64)
        for begin, _, batch_rows, steps in self._phases:
            found[max(begin - first, 0) : max(begin + steps - first, 0)] = batch_rows
        return found

    def read_rows(self, rows: Integers) -> npt.NDArray[np.float32]:
        """Return the losses of some rows, given in ascending order."""
        if not len(rows):
            return np.empty(0, np.float32)
        # Read neighbouring rows together, because `read` takes ranges: a run offers nothing else.
        cuts = np.flatnonzero(np.diff(rows) > 1024) + 1
        parts = []
        for some in np.split(rows, cuts):
            for start in range(0, len(some), 1024):
                near = some[start : start + 1024]
                first = int(near[0])
                parts.append(self._read(first, int(near[-1]) + 1)[near - first])
        return np.concatenate(parts).astype(np.float32)

    def pieces(self, first: int, last: int) -> Iterator[Piece]:
        """Yield the losses of the steps [first, last), about `_BLOCK` rows at a time."""
        for begin, row, batch_rows, steps in self._phases:
            low, high = max(first, begin), min(last, begin + steps)
            size = max(1, _BLOCK // batch_rows)
            for step in range(low, high, size):
                end = min(high, step + size)
                start = row + (step - begin) * batch_rows
                losses = self._read(start, start + (end - step) * batch_rows)
                yield Piece(step, start, losses.reshape(end - step, batch_rows))

    def summarize(self, first: int, last: int) -> Summary:
        found = Summary(
            first,
            *(np.full(last - first, np.nan) for _ in range(2)),
            *(np.zeros(last - first, np.int64) for _ in range(2)),
        )
        for step, _, losses in self.pieces(first, last):
            here = slice(step - first, step - first + len(losses))
            known = _only_finite(losses)
            found.nans[here], found.infinities[here] = _count_not_finite(losses, known)
            counts = losses.shape[1] - found.nans[here] - found.infinities[here]
            sums = np.nansum(known, axis=1, dtype=np.float64)
            found.means[here] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
            found.medians[here] = row_medians(known)[0]
        return found

    def measure_distances(self, first: int, centers: Floats) -> tuple[Floats, Floats]:
        """Return the median and the mean distance of each step's losses from its value in `centers`."""
        medians, means = (np.full(len(centers), np.nan) for _ in range(2))
        for step, _, losses in self.pieces(first, first + len(centers)):
            here = slice(step - first, step - first + len(losses))
            distances = np.abs(_only_finite(losses) - centers[here, None])
            known = (~np.isnan(distances)).sum(axis=1)
            sums = np.nansum(distances, axis=1)
            means[here] = np.where(known > 0, sums / np.maximum(known, 1), np.nan)
            medians[here] = row_medians(distances)[0]
        return medians, means


class StepCurve(Curve):
    """A loss for each step. `numbers` has the step of each value; None means 0, 1, 2, …"""

    rows = None
    block_steps = 1 << 16

    def __init__(self, values: npt.NDArray[Any], numbers: Integers | None = None) -> None:
        self._values, self._numbers = values, numbers
        self.steps = len(values)

    def number(self, step: int) -> int:
        return step if self._numbers is None else int(self._numbers[step])

    def find(self, steps: Integers) -> tuple[Integers, Floats]:
        """Return the index and the loss of each step, given the numbers of steps in the file.

        The loss of a step that the file does not have is NaN.
        """
        if self._numbers is None:
            found = np.minimum(steps, self.steps - 1)
            is_known = steps < self.steps
        else:
            found = np.minimum(self._numbers.searchsorted(steps), self.steps - 1)
            is_known = self._numbers[found] == steps
        return found, np.where(is_known, self._values[found].astype(np.float64), np.nan)

    def summarize(self, first: int, last: int) -> Summary:
        values = np.asarray(self._values[first:last], np.float64)
        known = _only_finite(values)
        nans, infinities = _count_not_finite(values[:, None], known[:, None])
        return Summary(first, known, known, nans, infinities)


def _only_finite(losses: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy with NaN instead of infinite losses and of losses beyond `_LARGEST`."""
    kept = losses.astype(np.float64 if losses.dtype.itemsize > 2 else np.float32)
    with np.errstate(invalid="ignore"):
        kept[np.abs(kept) > _LARGEST] = np.nan
    return kept


def _count_not_finite(
    losses: npt.NDArray[Any], known: npt.NDArray[Any]
) -> tuple[Integers, Integers]:
    """Return how many losses of each step are NaN, and how many are infinite."""
    nans = np.isnan(losses).sum(axis=1)
    return nans, np.isnan(known).sum(axis=1) - nans


@dataclass(frozen=True, kw_only=True)
class Jump:
    """Steps whose loss jumped, from `first` to `last`. `peak` is the step with the highest loss.

    `first_excess` is the excess of `first`; all other values are those of `peak`.
    """

    first: int
    last: int
    peak: int
    loss: float
    expected: float
    excess: float
    first_excess: float
    score: float


@dataclass(frozen=True, kw_only=True, eq=False)
class HighRows:
    """The rows with the highest excess, as columns, in descending order of excess."""

    rows: Integers
    losses: Floats
    excess: Floats
    scores: Floats


@dataclass(kw_only=True, eq=False)
class Scan:
    """What a pass over all losses found.

    `not_finite` has (step, NaN losses, infinite losses) for the first steps that have such losses.
    `judged` counts the steps that have enough neighbours to be judged.
    """

    jumps: list[Jump] = field(default_factory=list)
    jump_count: int = 0
    worst: HighRows
    high_rows: int = 0
    judged: int = 0
    nans: int = 0
    infinities: int = 0
    not_finite: list[tuple[int, int, int]] = field(default_factory=list)
    stride: int = 1
    # One entry for every `stride` steps: the expected loss (of a row, or in a `StepCurve` of a step) and
    # the spread.
    levels: Floats

    def judge(self, steps: Integers, losses: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        """Return the excess and the score of losses, given the indices of their steps."""
        expected, spread = self.levels[steps // self.stride].T
        excess = _only_finite(losses) - expected
        return excess, find_scores(excess, spread)


def scan(curve: Curve, threshold: float, watcher: Watcher) -> Scan:
    """Find the jumps and the worst rows of a curve.

    Jumps are steps whose loss exceeds the expected loss by `threshold` spreads or more. The worst
    rows are those with the highest excess; `high_rows` counts all rows that reach the threshold.
    """
    none = np.empty(0)
    stride = 1 + curve.steps // _MOST_LEVELS
    found = Scan(
        worst=HighRows(rows=np.empty(0, np.int64), losses=none, excess=none, scores=none),
        stride=stride,
        levels=np.full((-(-curve.steps // stride), 2), np.nan),
    )
    total = curve.rows if curve.rows is not None else curve.steps
    watcher.begin("reading losses", total * 4)
    for low in range(0, curve.steps, curve.block_steps):
        high = min(curve.steps, low + curve.block_steps)
        wide = curve.summarize(*widen(low, high, curve.steps, 2))
        level = find_level(Part(wide.first, wide.means, curve.steps), low, high)
        own = slice(low - wide.first, high - wide.first)
        _add_jumps(found, wide.means[own], low, level, threshold)
        _add_not_finite(found, wide, low, high)
        done = high - low
        if isinstance(curve, RowCurve):
            done = _scan_rows(found, curve, wide, low, high, threshold)
        else:
            level.expected[level.counts < LEAST] = np.nan
            _keep_levels(found, curve, low, level.expected, level.spread)
        watcher.advance(done * 4)
    found.jumps = _keep_jumps(found.jumps)
    return found


def _add_jumps(found: Scan, losses: Floats, low: int, level: Level, threshold: float) -> None:
    excess = losses - level.expected
    scores = find_scores(excess, level.spread)
    scores[level.counts < LEAST] = np.nan
    found.judged += int((~np.isnan(scores)).sum())
    with np.errstate(invalid="ignore"):
        high = np.flatnonzero((scores >= threshold) & (excess > 0))
    for index in high.tolist():
        step = low + index
        one = Jump(
            first=step,
            last=step,
            peak=step,
            loss=float(losses[index]),
            expected=float(level.expected[index]),
            excess=float(excess[index]),
            first_excess=float(excess[index]),
            score=float(scores[index]),
        )
        before = found.jumps[-1] if found.jumps else None
        if before is not None and step - before.last <= GAP:
            top = one if one.excess > before.excess else before
            found.jumps[-1] = replace(
                top, first=before.first, first_excess=before.first_excess, last=step
            )
            continue
        if len(found.jumps) > 8 * MOST_JUMPS:  # keep the last one too, since it may still grow
            found.jumps = [*_keep_jumps(found.jumps[:-1]), found.jumps[-1]]
        found.jumps.append(one)
        found.jump_count += 1


def _keep_jumps(jumps: Sequence[Jump]) -> list[Jump]:
    """Return the highest jumps, in descending order of their height."""
    return sorted(jumps, key=lambda jump: (-jump.excess, jump.first))[:MOST_JUMPS]


def _add_not_finite(found: Scan, wide: Summary, low: int, high: int) -> None:
    own = slice(low - wide.first, high - wide.first)
    nans, infinities = wide.nans[own], wide.infinities[own]
    found.nans += int(nans.sum())
    found.infinities += int(infinities.sum())
    for index in np.flatnonzero(nans + infinities)[: _MOST_NOT_FINITE - len(found.not_finite)]:
        found.not_finite.append((low + int(index), int(nans[index]), int(infinities[index])))


def _scan_rows(
    found: Scan, curve: RowCurve, wide: Summary, low: int, high: int, threshold: float
) -> int:
    """Find the worst rows of the steps [low, high). Return how many rows were read."""
    part = Part(wide.first, wide.medians, curve.steps)
    first, last = widen(low, high, curve.steps)
    expected, counts = find_medians(part, first, last)
    medians = part.values[first - part.first : last - part.first]
    has_own = (curve.count_rows(first, last) >= OWN) & (not curve.is_ordered)
    expected = np.where(has_own, np.fmax(expected, medians), expected)
    distances, means = curve.measure_distances(first, expected)
    spread = find_spread(
        part, Part(first, distances, curve.steps), Part(first, means, curve.steps), low, high
    )
    own = slice(low - first, high - first)
    expected, counts = expected[own], counts[own]
    read = 0
    for step, row, losses in curve.pieces(low, high):
        here = slice(step - low, step - low + len(losses))
        few = counts[here] * losses.shape[1] < LEAST
        expected[here][few] = np.nan
        read += losses.size
        excess = _only_finite(losses) - expected[here, None]
        scores = find_scores(excess, spread[here, None])
        with np.errstate(invalid="ignore"):
            found.high_rows += int((scores >= threshold).sum())
        _keep_worst(found, row, losses.ravel(), excess.ravel(), scores.ravel())
    _keep_levels(found, curve, low, expected, spread)
    return read


def _keep_levels(found: Scan, curve: Curve, low: int, expected: Floats, spread: Floats) -> None:
    """Keep the expected loss and the spread of one step, the middle one, of every `stride` steps."""
    groups = np.arange(low // found.stride, len(found.levels))
    groups = groups[: len(expected) // found.stride + 2]
    at = np.minimum(groups * found.stride + found.stride // 2, curve.steps - 1) - low
    inside = (at >= 0) & (at < len(expected))
    found.levels[groups[inside]] = np.stack((expected, spread), axis=1)[at[inside]]


def _keep_worst(
    found: Scan, row: int, losses: npt.NDArray[Any], excess: npt.NDArray[Any], scores: Floats
) -> None:
    worst = found.worst
    least = worst.excess[-1] if len(worst.excess) == MOST_ROWS else 0.0
    with np.errstate(invalid="ignore"):
        chosen = np.flatnonzero(excess > least)
    if not len(chosen):
        return
    if len(chosen) > MOST_ROWS:  # of rows with equal excess, the first ones stay
        order = np.argsort(-excess[chosen], kind="stable")[:MOST_ROWS]
        chosen = chosen[order]
    rows = np.concatenate((worst.rows, row + chosen))
    columns = [
        np.concatenate((old, new[chosen].astype(np.float64)))
        for old, new in ((worst.losses, losses), (worst.excess, excess), (worst.scores, scores))
    ]
    order = np.lexsort((rows, -columns[1]))[:MOST_ROWS]
    found.worst = HighRows(
        rows=rows[order],
        losses=columns[0][order],
        excess=columns[1][order],
        scores=columns[2][order],
    )
