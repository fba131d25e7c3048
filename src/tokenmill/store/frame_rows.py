"""Copy rows of tokens out of compressed shards.

Guarantees: the rows are the same as from plain shards. Rows are read in the order of their frames, so a
frame is decoded once for all rows of a call. Frames stay in the cache of the process for the next calls:
reading in order, or in blocks that fit in it, decodes each frame once.

Costs: a row decodes the one or two frames it is in, unless they are in the cache. A call holds
`TOGETHER` bytes of decoded ids besides its rows and the cache. `benchmarks/compression.py` measures it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.store.compressed import (
    TOGETHER,
    CompressedShards,
    FrameReader,
    copy_runs,
)
from tokenmill.store.documents import sums
from tokenmill.store.gather import MappedRows, RowReader, join_near
from tokenmill.store.shards import PartOfShards, Shards

Integers = npt.NDArray[np.int64]


class FrameRows:
    """Reads tokens of compressed shards that are joined end to end, from token `start` on.

    `counts` has the tokens of each shard that belong to the split. With `mapped=False`, files are
    read without memory maps, and `between` is called before each read.
    """

    piece = 4 << 20  # bytes to read at once: more rows are in the same frames

    def __init__(
        self,
        shards: CompressedShards,
        counts: Integers,
        start: int = 0,
        *,
        mapped: bool = True,
        between: Callable[[], None] | None = None,
    ) -> None:
        self.counts, self.starts = counts, sums(counts)
        self._start, self._shards = start, shards
        self._shard_starts = sums(shards.counts)
        self._frames = FrameReader(shards, mapped=mapped, between=between)

    @classmethod
    def of(cls, shards: Shards, **options: Any) -> FrameRows | None:
        """The rows of compressed shards, or of a part of such shards; None for other shards."""
        counts, start = shards.counts, 0
        while isinstance(shards, PartOfShards):
            start, shards = start + shards.start, shards.whole
        return (
            cls(shards, counts, start, **options) if isinstance(shards, CompressedShards) else None
        )

    def locate(self, token: int) -> tuple[int, int]:
        """The number of the shard that holds a token, and the token's place in it."""
        shard = int(np.searchsorted(self.starts, token, side="right")) - 1
        return shard, token - int(self.starts[shard])

    def read_token(self, token: int) -> int:
        """The id of one token."""
        ids = np.empty(1, self._shards.dtype)
        self.copy(token, ids)
        return int(ids[0])

    def copy(self, start: int, ids: npt.NDArray[Any]) -> None:
        """Fill `ids` with the tokens from `start` on, from as many shards as needed."""
        done = 0
        for shard, first, last in self._cut(start, start + len(ids)):
            self._frames.read_ahead(shard, first, last)
            self._frames.copy(shard, first, ids[done : done + last - first])
            done += last - first

    def find_rows(self, starts: Integers, length: int) -> RowReader:
        """Find the rows [start, start + length), to read in parts; all must be in the split."""

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
        """Ask the system to read rows ahead; ends early once `is_stopped` returns True."""
        if not is_stopped():
            self.read_ahead(starts, length)

    def _cut(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """The shards of some tokens: each with the places of its first and last token."""
        start, stop, starts = start + self._start, stop + self._start, self._shard_starts
        cuts, shard = [], int(np.searchsorted(starts, start, side="right")) - 1
        while start < stop:
            end = min(stop, int(starts[shard + 1]))
            if start < end:
                cuts.append((shard, start - int(starts[shard]), end - int(starts[shard])))
            start, shard = end, shard + 1
        return cuts

    def _read_rows(self, starts: Integers, rows: npt.NDArray[Any]) -> None:
        """Fill rows with the tokens from `starts` on, which count from the first shard's."""
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
        """The frames of tokens, and the tokens' bytes in them."""
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
        """Fill the rows at these places, whose frames `firsts` to `lasts` fit in memory."""
        counts = lasts - firsts + 1
        ends = np.cumsum(counts)
        numbers = np.unique(np.repeat(firsts - (ends - counts), counts) + np.arange(ends[-1]))
        addresses, held = self._frames.hold(numbers)
        lengths = self._frames.measure(numbers)
        first, last = numbers.searchsorted(firsts), numbers.searchsorted(lasts)
        # Frames that were decoded together are next to each other in memory, so most rows are in one
        # piece. A row whose number of breaks grows along it is not.
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
