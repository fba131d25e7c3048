"""Read rows of tokens from their files, without memory maps.

If a mapped file is truncated, or its disk fails, reading the missing part kills the process
(SIGBUS). Here, the read raises an exception that names the file. The rows are the same as from
`Gatherer`.

Costs: each call opens a file once for all its rows, and checks its size (30 µs). Every row is one
system call (1 µs and the copy). No file stays open. `benchmarks/load.py` measures it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.store.documents import sums
from tokenmill.store.gather import RowReader
from tokenmill.store.shards import Shards, read_rows

Integers = npt.NDArray[np.int64]


class FileRows:
    """Reads tokens of shards that are joined end to end. `between` is called before each row.

    >>> from tokenmill.store.shards import ArrayShard
    >>> read = FileRows(ArrayShard(np.array([5, 6, 7, 8]))).find_rows(np.array([2, 0, 1]), 2)
    >>> read(0, 2).tolist(), read(2, 3).tolist()
    ([[7, 8], [5, 6]], [[6, 7]])
    """

    piece = 4 << 20  # bytes to read at once: each time, the files are opened again

    def __init__(self, shards: Shards, between: Callable[[], None] | None = None) -> None:
        self.counts = shards.counts
        self.starts = sums(self.counts)
        self._shards, self._between = shards, between

    def locate(self, token: int) -> tuple[int, int]:
        """The number of the shard that holds a token, and the token's place in it."""
        shard = int(np.searchsorted(self.starts, token, side="right")) - 1
        return shard, token - int(self.starts[shard])

    def read_token(self, token: int) -> int:
        """The id of one token."""
        shard, place = self.locate(token)
        return int(self._shards.read(shard, place, place + 1)[0])

    def copy(self, start: int, ids: npt.NDArray[Any]) -> None:
        """Fill `ids` with the tokens from `start` on, from as many shards as needed."""
        if len(ids):
            copy_range(self._shards, self.counts, *self.locate(start), ids)

    def find_rows(self, starts: Integers, length: int) -> RowReader:
        """Find the rows [start, start + length), to read in parts; all must be in the split."""
        shards = self.starts.searchsorted(starts, "right") - 1
        firsts = starts - self.starts[shards]
        crosses = firsts + length > self.counts[shards]

        def read(first: int, last: int) -> npt.NDArray[Any]:
            some = slice(first, last)
            rows = np.empty((len(starts[some]), length), self._shards.dtype)
            within = np.flatnonzero(~crosses[some])
            own = shards[some][within]
            order = own.argsort(kind="stable")
            for group in np.split(within[order], np.flatnonzero(np.diff(own[order])) + 1):
                if len(group):
                    shard = int(shards[some][group[0]])
                    read_rows(self._shards, shard, firsts[some][group], rows, group, self._between)
            for place in np.flatnonzero(crosses[some]).tolist():
                self.copy(int(starts[first + place]), rows[place])
            return rows

        return read

    def read_ahead(self, starts: Integers, length: int) -> None:
        """Does nothing: the system reads ahead by itself, unlike with maps."""


def copy_range(
    shards: Shards, counts: Integers, shard: int, first: int, ids: npt.NDArray[Any]
) -> None:
    """Fill `ids` from place `first` of a shard on, and from the shards after it if needed."""
    done = 0
    while done < len(ids):
        count = min(len(ids) - done, int(counts[shard]) - first)
        if count:
            ids[done : done + count] = shards.read(shard, first, first + count)
        done, shard, first = done + count, shard + 1, 0
