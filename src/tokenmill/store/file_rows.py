"""Read rows of tokens from their files, without memory maps.

If a mapped file is truncated, or its disk fails, reading the missing part kills the process
(SIGBUS). Here, the read raises an exception that names the file. The rows are the same as from
`Gatherer`.

Costs: each call opens a file once for all rows in the file, and checks the file's size (30 µs). Every
row is one system call (1 µs and the copy). No file stays open. `benchmarks/load.py` measures these
costs. In an object store, rows close together are one request, and the requests of all shards run at
once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.storage.reading import for_each_file
from tokenmill.store.gather import PIECE, join_near
from tokenmill.store.row_source import RowReader, RowSource
from tokenmill.store.shards import (
    Shards,
    are_files,
    find_file,
    find_object_folder,
    read_ranges,
    read_rows,
)

_AHEAD = 1 << 21  # bytes: Linux reads only the beginning of a longer request

Integers = npt.NDArray[np.int64]


class FileRows(RowSource):
    """Reads rows of tokens from shards as if the shards were joined end to end.

    `between` is called before each row.

    >>> from tokenmill.store.shards import ArrayShard
    >>> read = FileRows(ArrayShard(np.array([5, 6, 7, 8]))).find_rows(np.array([2, 0, 1]), 2)
    >>> read(0, 2).tolist(), read(2, 3).tolist()
    ([[7, 8], [5, 6]], [[6, 7]])
    """

    piece = 4 << 20  # bytes to read at once: each time, the files are opened again

    def __init__(self, shards: Shards, between: Callable[[], None] | None = None) -> None:
        super().__init__(shards.counts, shards.dtype)
        self._shards, self._between = shards, between
        self._folder = find_object_folder(shards) or Path()

    def copy(self, start: int, ids: npt.NDArray[Any]) -> None:
        """Fill `ids` with the tokens from `start` on, from as many shards as needed."""
        if len(ids):
            copy_range(self._shards, self.counts, *self.locate(start), ids)

    def find_rows(self, starts: Integers, length: int) -> RowReader:
        """Return a function that reads rows. Row n is the tokens [starts[n], starts[n] + length).

        All rows must be inside the split.
        """
        shards = self.starts.searchsorted(starts, "right") - 1
        firsts = starts - self.starts[shards]
        crosses = firsts + length > self.counts[shards]

        def read(first: int, last: int) -> npt.NDArray[Any]:
            some = slice(first, last)
            rows = np.empty((len(starts[some]), length), self._shards.dtype)
            within = np.flatnonzero(~crosses[some])
            own = shards[some][within]

            def read_group(group: Integers) -> None:
                shard = int(shards[some][group[0]])
                read_rows(self._shards, shard, firsts[some][group], rows, group, self._between)

            groups = [within[group] for group in _group_equal(own)]
            for_each_file(self._folder, read_group, groups, self._between)
            for place in np.flatnonzero(crosses[some]).tolist():
                self.copy(int(starts[first + place]), rows[place])
            return rows

        return read

    def read_ranges(self, starts: Integers, stops: Integers) -> Sequence[memoryview]:
        """Return the bytes of the ids [starts[n], stops[n]) for each n.

        Each range must be inside one shard.
        """
        shards = self.starts.searchsorted(starts, "right") - 1
        firsts, lasts = starts - self.starts[shards], stops - self.starts[shards]
        found = [memoryview(b"")] * len(starts)

        def read_group(group: Integers) -> None:
            ranges = list(zip(firsts[group].tolist(), lasts[group].tolist(), strict=True))
            data = read_ranges(self._shards, int(shards[group[0]]), ranges, self._between)
            for place, one in zip(group.tolist(), data, strict=True):
                found[place] = memoryview(one)

        for_each_file(self._folder, read_group, _group_equal(shards), self._between)
        return found

    def fetch(self, starts: Integers, length: int, is_stopped: Callable[[], bool]) -> None:
        """Ask the system to read rows soon; ends early once `is_stopped` returns True."""
        is_local = are_files(self._shards) and find_object_folder(self._shards) is None
        if not is_local or not hasattr(os, "posix_fadvise"):
            return
        for start, stop in join_near(np.sort(starts), length, PIECE // self._shards.dtype.itemsize):
            shard, first = self.locate(start)
            while start < stop and not is_stopped():
                count = min(stop - start, int(self.counts[shard]) - first)
                if count:
                    _advise(self._shards, shard, first, first + count)
                start, shard, first = start + count, shard + 1, 0


def _group_equal(numbers: Integers) -> list[Integers]:
    """Return, for each distinct number, the indices at which it occurs."""
    order = numbers.argsort(kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
    return [group for group in groups if len(group)]


def _advise(shards: Shards, shard: int, first: int, last: int) -> None:
    """Ask the system to read the ids [first, last) of a shard, in large requests."""
    files, number, first_id = find_file(shards, shard, first)
    width = files.dtype.itemsize
    begin = int(files.offsets[number]) + first_id * width
    end = begin + (last - first) * width
    with files._open(number) as file:
        for place in range(begin, end, _AHEAD):
            os.posix_fadvise(file.fileno(), place, min(_AHEAD, end - place), os.POSIX_FADV_WILLNEED)


def copy_range(
    shards: Shards, counts: Integers, shard: int, first: int, ids: npt.NDArray[Any]
) -> None:
    """Fill `ids` with tokens: from position `first` of a shard on, then from the shards after it.

    `counts` is the number of tokens of each shard.
    """
    done = 0
    while done < len(ids):
        count = min(len(ids) - done, int(counts[shard]) - first)
        if count:  # straight into `ids`: memory that is allocated anew takes longer than the copy
            row = ids[done : done + count].reshape(1, count)
            read_rows(shards, shard, np.array([first]), row, np.zeros(1, np.int64))
        done, shard, first = done + count, shard + 1, 0
