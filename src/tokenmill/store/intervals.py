"""Which of many intervals each of many numbers is in, and what else rows need to be sorted out.

Guarantees: what `numpy.searchsorted` finds. Costs: a table of four to eight numbers an interval, in
which a number's place is near; from there it is a step or two, for all numbers at once. That is ten
times as fast as searching for each, unless so many intervals begin at one place that it is searched
for after all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MOST_STEPS = 8

Integers = npt.NDArray[np.int64]


class Intervals:
    """Intervals that follow each other; interval n begins at `starts[n]`, and the last one ends
    where `starts` does. The first begins at 0.

    >>> Intervals(np.array([0, 3, 3, 10])).find(np.array([9, 0, 2, 3]))
    array([2, 0, 0, 2])
    """

    def __init__(self, starts: Integers) -> None:
        self._starts = starts
        end = int(starts[-1])
        self._shift = max(0, (end // (4 * len(starts))).bit_length() - 1)
        edges = np.arange((end >> self._shift) + 2) << self._shift
        self._near = starts[:-1].searchsorted(edges, "right") - 1
        self._steps = int(np.diff(self._near).max())

    def find(self, numbers: Integers) -> Integers:
        """The interval of each number; all are from 0 to below the end."""
        if self._steps > _MOST_STEPS:
            return self._starts[:-1].searchsorted(numbers, "right") - 1
        found: Integers = self._near[numbers >> self._shift]
        for _ in range(self._steps):
            found += self._starts[found + 1] <= numbers
        return found


def find_distinct(numbers: Integers, most: int) -> tuple[Integers, Integers]:
    """The distinct ones of some numbers, all from 0 to below `most`, in order; and which of these
    each number is.

    >>> [part.tolist() for part in find_distinct(np.array([7, 2, 7, 2]), 10)]
    [[2, 7], [1, 0, 1, 0]]
    """
    if len(numbers) < most:
        return np.unique(numbers, return_inverse=True)
    marks = np.bincount(numbers) > 0
    return np.flatnonzero(marks), (np.cumsum(marks) - 1)[numbers]


def cut_by_number(numbers: Integers, most: int) -> list[Integers]:
    """The places of some numbers, in parts of no more than `most` distinct ones each.

    >>> [part.tolist() for part in cut_by_number(np.array([9, 4, 9, 7]), 2)]
    [[1, 3], [0, 2]]
    """
    order = numbers.argsort(kind="stable")
    runs = (np.diff(numbers[order], prepend=-1) != 0).cumsum() - 1
    runs //= most
    return np.split(order, np.flatnonzero(np.diff(runs)) + 1)


def join_near(starts: Integers, length: int, gap: int) -> list[tuple[int, int]]:
    """The ranges that rows cover, where those with no more than a gap between them are one.

    >>> join_near(np.array([0, 10, 90]), 10, gap=5)
    [(0, 20), (90, 100)]
    """
    cuts = np.flatnonzero(np.diff(starts) > length + gap) + 1
    firsts = starts[np.concatenate(([0], cuts))]
    lasts = starts[np.concatenate((cuts - 1, [len(starts) - 1]))] + length
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
