"""The loss that is expected at each step, and its usual spread: medians over the steps around it.

Losses fall steeply at first, so a loss is compared with its neighbours in time and never with the
whole run. The level of a step is the median of the losses of the `HALF` steps before it, itself and
the `HALF` steps after it. Near the start of the run, both sides are shortened equally, so that a
falling curve has no excess there; near the end, only the later side is shortened. The spread is the
larger of two robust estimates over the same steps: the median distance from the level, and the median
change from one step to the next. If both are 0, because most losses are equal, the spread is the mean
distance.

Guarantees: results do not depend on how the steps are divided into blocks. Values that are not
finite are left out. Adding a constant to all losses, or multiplying them by a positive one, changes
no score. Costs: about 1 µs per step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

HALF = 16  # steps on each side
LEAST = 9  # values that a median must come from
MOST_SCORE = 1e6
_AT_ONCE = 1 << 14  # windows (the steps around a step) to sort at once
# These make the estimates equal to the standard deviation, if losses are normally distributed.
_OF_DISTANCE, _OF_CHANGE, _OF_MEAN = 1.4826, 1.0484, 1.2533

Floats = npt.NDArray[np.float64]


class Part(NamedTuple):
    """The values of some steps, from step `first` on, of a series of `total` steps."""

    first: int
    values: Floats
    total: int

    @property
    def last(self) -> int:
        return self.first + len(self.values)


class Level(NamedTuple):
    """For each step: the expected value, the spread, and how many values these come from."""

    expected: Floats
    spread: Floats
    counts: npt.NDArray[np.int64]


def widen(low: int, high: int, total: int, times: int = 1) -> tuple[int, int]:
    """Return the range [low, high) with `times` times `HALF` more steps on both sides.

    >>> widen(10, 20, 30)
    (0, 30)
    """
    return max(0, low - times * HALF), min(total, high + times * HALF)


def find_medians(part: Part, low: int, high: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return the medians of the values around the steps [low, high), and the number of values.

    >>> part = Part(0, np.array([9.0, 5, 1, 1, 7]), 5)
    >>> find_medians(part, 0, 5)[0].tolist()
    [9.0, 5.0, 5.0, 5.0, 5.0]
    """
    medians, counts = np.empty(high - low), np.empty(high - low, np.int64)
    for start in range(low, high, _AT_ONCE):
        windows = _cut(part, start, min(high, start + _AT_ONCE))
        here = slice(start - low, start - low + len(windows))
        medians[here], counts[here] = row_medians(windows)
    return medians, counts


def find_level(part: Part, low: int, high: int) -> Level:
    """Return the level and the spread of the values of the steps [low, high).

    `part` must have the values of `widen(low, high, total, 2)`.
    """
    first, last = widen(low, high, part.total)
    expected, counts = find_medians(part, first, last)
    distances = np.abs(part.values[first - part.first : last - part.first] - expected)
    own = slice(low - first, high - first)
    spread = find_spread(
        part, Part(first, distances, part.total), Part(first, distances, part.total), low, high
    )
    return Level(expected[own], spread, counts[own])


def find_spread(part: Part, distances: Part, means: Part, low: int, high: int) -> Floats:
    """Return the spread around the level for the steps [low, high).

    `distances` has the usual distance from the level at each step, and `means` the mean distance.
    """
    near, _ = find_medians(distances, low, high)
    moved, _ = find_medians(_find_changes(part, *widen(low, high, part.total)), low, high)
    spread = np.fmax(_OF_DISTANCE * near, _OF_CHANGE * moved)
    for start in range(low, high, _AT_ONCE):
        some = spread[start - low : start - low + _AT_ONCE]
        if (some == 0).any():
            windows = _cut(means, start, start + len(some))
            known = np.maximum((~np.isnan(windows)).sum(axis=1), 1)
            some[:] = np.where(some == 0, _OF_MEAN * np.nansum(windows, axis=1) / known, some)
    return spread


def _find_changes(part: Part, first: int, last: int) -> Part:
    """Return how much the value of each step differs from that of the step before."""
    values = part.values[first - part.first : last - part.first]
    before = part.values[first - part.first - 1] if first > part.first else np.nan
    return Part(first, np.abs(np.diff(values, prepend=before)), part.total)


def _cut(part: Part, low: int, high: int) -> Floats:
    """Return the windows around the steps [low, high), one in each row; NaN stands for no value."""
    padded = np.full(high - low + 2 * HALF, np.nan)
    first, last = widen(low, high, part.total)
    begin = first - (low - HALF)
    padded[begin : begin + last - first] = part.values[first - part.first : last - part.first]
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * HALF + 1).copy()
    for step in range(low, min(high, HALF)):  # use only as many steps after it as before it
        windows[step - low, HALF + step + 1 :] = np.nan
    return windows


def row_medians(rows: npt.NDArray[np.floating]) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return the median of each row without its NaNs, and how many values it has. Sorts `rows`.

    >>> row_medians(np.array([[3.0, np.nan, 1], [np.nan] * 3]))
    (array([ 2., nan]), array([2, 0]))
    """
    counts = rows.shape[1] - np.isnan(rows).sum(axis=1)
    rows.sort(axis=1)  # NaNs come last
    index = np.arange(len(rows))
    lower = rows[index, np.maximum(counts - 1, 0) // 2].astype(np.float64)
    upper = rows[index, np.minimum(counts // 2, rows.shape[1] - 1)].astype(np.float64)
    return lower + (upper - lower) / 2, counts


def find_scores(excess: npt.NDArray[np.floating], spread: npt.NDArray[np.floating]) -> Floats:
    """Return by how many spreads values exceed their level, up to `MOST_SCORE`; NaN if unknown.

    >>> find_scores(np.array([3.0, 0, 1, np.nan]), np.array([2.0, 0, 0, 1])).tolist()
    [1.5, 0.0, 1000000.0, nan]
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scores = excess.astype(np.float64) / spread
    scores[(excess == 0) & (spread == 0)] = 0
    return np.clip(scores, -MOST_SCORE, MOST_SCORE, out=scores)
