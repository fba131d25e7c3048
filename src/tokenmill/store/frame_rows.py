"""Copy rows of tokens out of compressed shards.

A frame is a few thousand tokens that were compressed together.

Guarantees: the rows are the same as from plain shards. Within a call, each frame is
decoded once, because rows are read in the order of their frames. Decoded frames stay in a cache for
the next calls. So if calls read the rows in order, or in blocks that fit in the cache, each frame is
decoded only once in total.

Costs: each row needs one or two frames, which are decoded unless they are in the cache. Besides its
rows and the cache, a call needs memory for a few MB of decoded ids. `benchmarks/compression.py`
measures the costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.storage.cache import PieceCache
from tokenmill.store.cached_rows import CachedRows
from tokenmill.store.compressed import TOGETHER, CompressedShards, FrameReader, copy_runs
from tokenmill.store.documents import sums
from tokenmill.store.file_rows import FileRows
from tokenmill.store.gather import MappedRows, join_near
from tokenmill.store.row_source import RowReader, RowSource
from tokenmill.store.shards import PartOfShards, Shards

Integers = npt.NDArray[np.int64]


def find_whole(shards: Shards) -> tuple[Shards, int]:
    """Return the shards that a `PartOfShards` was cut from, and where the part starts in them.

    Other shards are returned unchanged, with a start of 0.
    """
    start = 0
    while isinstance(shards, PartOfShards):
        start, shards = start + shards.start, shards.whole
    return shards, start


def find_stored(shards: Shards) -> Shards:
    """Return the shards as they are on disk: for compressed shards, the compressed bytes."""
    whole, _ = find_whole(shards)
    return whole.files if isinstance(whole, CompressedShards) else shards


class FrameRows(RowSource):
    """Reads tokens of compressed shards as if they were joined end to end, from token `start` on.

    `counts` has the number of tokens of each shard that belong to the split.
    """

    piece = 4 << 20  # bytes to read at once: the more rows, the more of them share frames

    def __init__(
        self, shards: CompressedShards, counts: Integers, start: int, frames: FrameReader
    ) -> None:
        super().__init__(counts, shards.dtype)
        self._start, self._shards, self._frames = start, shards, frames
        self._shard_starts = sums(shards.counts)

    @classmethod
    def of(
        cls,
        shards: Shards,
        *,
        mapped: bool = True,
        cache: PieceCache | None = None,
        between: Callable[[], None] | None = None,
    ) -> FrameRows | None:
        """Return a reader of compressed shards, or of a part of them; None for other shards.

        If `cache` is given, files are read through it. Otherwise `mapped` says whether they are
        mapped. `between` is called before each read, except from mapped files.
        """
        counts, (shards, start) = shards.counts, find_whole(shards)
        if not isinstance(shards, CompressedShards):
            return None
        source: FileRows | CachedRows | None = None
        if cache is not None:
            source = CachedRows(shards.files, cache, between)
        elif not mapped:
            source = FileRows(shards.files, between)
        return cls(shards, counts, start, FrameReader(shards, source))

    def copy(self, start: int, ids: npt.NDArray[Any]) -> None:
        """Fill `ids` with the tokens from `start` on, from as many shards as needed."""
        done = 0
        for shard, first, last in self._cut(start, start + len(ids)):
            self._frames.read_ahead(shard, first, last)
            self._frames.copy(shard, first, ids[done : done + last - first])
            done += last - first

    def find_rows(self, starts: Integers, length: int) -> RowReader:
        """Return a function that reads rows. Row n is the tokens [starts[n], starts[n] + length).

        All rows must be inside the split.
        """

        def read(first: int, last: int) -> npt.NDArray[Any]:
            rows = np.empty((len(starts[first:last]), length), self._shards.dtype)
            if rows.shape[1] * rows.itemsize > TOGETHER:
                for start, row in zip(starts[first:last].tolist(), rows, strict=True):
                    self.copy(start, row)
            elif len(rows):
                self._read_rows(starts[first:last] + self._start, rows)
            return rows

        return read

    def read_ahead(self, starts: Integers, length: int) -> None:
        """Ask the system to read rows ahead. Useful for rows close together on a slow disk."""
        gap = self._shards.tokens_per_frame
        for start, stop in join_near(np.sort(starts), length, gap):
            for shard, first, last in self._cut(start, stop):
                self._frames.read_ahead(shard, first, last)

    def fetch(self, starts: Integers, length: int, is_stopped: Callable[[], bool]) -> None:
        """Fetch rows into the disk cache; without one, ask the system to read them soon."""
        ranges = np.array(join_near(np.sort(starts), length, 0)) + self._start
        firsts, _ = self._find_frames(ranges[:, 0])
        lasts, _ = self._find_frames(ranges[:, 1] - 1)
        if not self._frames.fetch(firsts, lasts, is_stopped):
            super().fetch(starts, length, is_stopped)

    def _cut(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Divide the tokens [start, stop) by shards, as (shard, first, last).

        `first` and `last` count from the start of the shard.
        """
        start, stop, starts = start + self._start, stop + self._start, self._shard_starts
        cuts, shard = [], int(np.searchsorted(starts, start, side="right")) - 1
        while start < stop:
            end = min(stop, int(starts[shard + 1]))
            if start < end:
                cuts.append((shard, start - int(starts[shard]), end - int(starts[shard])))
            start, shard = end, shard + 1
        return cuts

    def _read_rows(self, starts: Integers, rows: npt.NDArray[Any]) -> None:
        """Fill row n with the tokens from `starts[n]` on, counted from the start of the first shard."""
        firsts, offsets = self._find_frames(starts)
        lasts, _ = self._find_frames(starts + (rows.shape[1] - 1))
        order = firsts.argsort(kind="stable")
        reached = np.maximum.accumulate(lasts[order])
        before = np.concatenate(([-1], reached[:-1]))
        fresh = reached - np.maximum(before, firsts[order] - 1)  # frames that no row before needs
        groups = np.cumsum(fresh) // self._frames.together
        for some in np.split(order, np.flatnonzero(np.diff(groups)) + 1):
            self._read_group(some, firsts[some], lasts[some], offsets[some], rows)

    def _find_frames(self, tokens: Integers) -> tuple[Integers, Integers]:
        """Return each token's frame number, and the token's first byte in the decoded frame."""
        shards = self._shard_starts.searchsorted(tokens, "right") - 1
        return self._frames.locate(shards, tokens - self._shard_starts[shards])

    def _read_group(
        self,
        places: Integers,
        firsts: Integers,
        lasts: Integers,
        offsets: Integers,
        rows: npt.NDArray[Any],
    ) -> None:
        """Fill `rows[places[n]]` from the frames `firsts[n]` to `lasts[n]`, both included.

        The row starts at byte `offsets[n]` of its first frame.
        """
        counts = lasts - firsts + 1
        ends = np.cumsum(counts)
        numbers = np.unique(np.repeat(firsts - (ends - counts), counts) + np.arange(ends[-1]))
        addresses, held = self._frames.hold(numbers)
        lengths = self._frames.measure(numbers)
        first, last = numbers.searchsorted(firsts), numbers.searchsorted(lasts)
        # Most frames that were decoded together are next to each other in memory, so most rows are
        # contiguous. The other rows have a break between their frames.
        breaks = np.cumsum(addresses[1:] != addresses[:-1] + lengths[:-1])
        breaks = np.concatenate(([0], breaks))
        is_whole = breaks[first] == breaks[last]
        whole = np.flatnonzero(is_whole)
        if len(whole):
            begins = addresses[first[whole]] + offsets[whole]
            read = MappedRows(begins, rows.shape[1], rows.dtype, held)
            rows[places[whole]] = read(0, len(whole))
        for one in np.flatnonzero(~is_whole).tolist():
            some = slice(int(first[one]), int(last[one]) + 1)
            out = rows[places[one]].view(np.uint8)
            copy_runs(addresses[some], lengths[some], int(offsets[one]), held, out)
