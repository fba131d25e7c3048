"""Read rows of tokens through a cache on local disk, for files that are slow to read.

The cache stores pieces: blocks of `PIECE` bytes of a file.

Guarantees: the rows are the same as from `FileRows`. All bytes of a file come from one version of
it, because the key of a piece depends on the file's path, size, version and checksum. If a file has
the wrong size or changes while it is in use, an error names the file.

Costs: a row of 2 kB that is in the cache takes 3 µs. The first row of a piece takes 50 µs more,
because the piece is hashed. `fetch` brings rows into the cache before they are read. A row that is
not in the cache is fetched with its whole piece. With `is_streaming`, whole blocks of rows are
being fetched in the background. A missing row is then fetched alone and not stored, so that the
first steps of a run do not wait for whole blocks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.storage.cache import PIECE, Held, PieceCache
from tokenmill.storage.object_file import ObjectFile
from tokenmill.storage.object_store import run_together
from tokenmill.storage.pieces import Pieces, RemoteFile
from tokenmill.storage.ranges import Budget, RangeFetcher, copy_ranges
from tokenmill.storage.reading import (
    FOREIGN_CURE,
    DamagedFileError,
    cannot_read,
    find_all_files,
    for_each_file,
)
from tokenmill.store.documents import sums
from tokenmill.store.gather import join_near
from tokenmill.store.row_source import RowReader, RowSource
from tokenmill.store.shards import Shards, find_file, find_object_folder

_FILES = 4_096  # files whose versions are remembered
_SHIFT = 36  # bits of a piece's number
_HELD = 16_384  # pieces that were hashed and need not be hashed again; 2 GB

Integers = npt.NDArray[np.int64]
_this_thread = threading.local()  # `fetcher`, and `owner`: the object that uses the fetcher


class _Range(NamedTuple):
    """The bytes [start, stop) of a remote file. They go to position `place` of the result."""

    file: RemoteFile
    start: int
    stop: int
    place: int


class _Parts(NamedTuple):
    """Rows, divided into parts that are each inside one piece. Arrays have one entry per part."""

    rows: Integers  # the row that the part belongs to
    codes: Integers  # the shard's number and the piece's number in its file, as one integer
    starts: Integers  # where the part starts in its piece
    stops: Integers
    places: Integers  # where the part starts in its row, in bytes


class CachedRows(RowSource):
    """Reads tokens of shards through a cache, as if the shards were joined end to end.

    Before each piece of a file is read, `between` is called, so that a caller can stop the reading.
    """

    piece = 4 << 20  # bytes to read at once: missing pieces of one read are fetched together

    def __init__(
        self, shards: Shards, cache: PieceCache, between: Callable[[], None] | None = None
    ) -> None:
        super().__init__(shards.counts, shards.dtype)
        self.cache = cache
        self._shards, self._width, self._between = shards, shards.dtype.itemsize, between
        self._pieces = Pieces(cache)
        self._find_file = lru_cache(maxsize=_FILES)(self._identify)
        self._held: dict[int, Held] = {}  # pieces that were hashed, by their `_Parts.codes`
        self._found: set[int] = set()  # shards whose files were looked up
        self._budget = Budget()
        self.is_streaming = False  # whether blocks of rows are fetched before they are read

    def copy(self, start: int, ids: npt.NDArray[Any]) -> None:
        """Fill `ids` with the tokens from `start` on, from as many shards as needed."""
        memory, step = ids.data.cast("B"), self.piece // self._width
        for first in range(0, len(ids), step):
            stop = min(first + step, len(ids))
            ranges = self._find_ranges(start + first, start + stop, first * self._width)
            self._copy(list(ranges), memory)

    def find_rows(self, starts: Integers, length: int) -> RowReader:
        """Return a function that reads rows. Row n is the tokens [starts[n], starts[n] + length).

        All rows must be inside the split.
        """
        size = length * self._width
        shards = self.starts.searchsorted(starts, "right") - 1
        firsts = starts - self.starts[shards]

        def read(first: int, last: int) -> npt.NDArray[Any]:
            some = slice(first, last)
            rows = np.empty((len(starts[some]), length), self._shards.dtype)
            if not len(rows):
                return rows
            memory = rows.data.cast("B")
            done = self._copy_held(shards[some], firsts[some], length, memory)
            ranges = [
                part
                for number in np.flatnonzero(~done).tolist()
                for part in self._find_ranges(
                    int(starts[first + number]), int(starts[first + number]) + length, number * size
                )
            ]
            if ranges:
                (self._copy_alone if self.is_streaming else self._copy)(ranges, memory)
            return rows

        return read

    def _copy_held(
        self, shards: Integers, firsts: Integers, length: int, memory: memoryview
    ) -> npt.NDArray[np.bool_]:
        """Copy the rows that are in the cache to `memory`. Returns which rows were copied.

        Row n starts at token `firsts[n]` of shard `shards[n]`.
        """
        size, done = length * self._width, firsts + length <= self.counts[shards]
        parts = self._find_parts(shards, firsts, size, np.flatnonzero(done))
        codes, inverse = np.unique(parts.codes, return_inverse=True)
        helds = [self._held.get(code) or self._hold(code) for code in codes.tolist()]
        places = _find_places(helds, inverse, parts)
        wrong = np.unique(inverse[places < 0]).tolist()  # missing, or changed since it was hashed
        for number in wrong:
            helds[number] = self._hold(int(codes[number]))
        if wrong:
            places = _find_places(helds, inverse, parts)
        done[parts.rows[places < 0]] = False
        found = np.flatnonzero(done[parts.rows])
        begins = (parts.rows * size + parts.places)[found]
        ends = begins + (parts.stops - parts.starts)[found]
        targets = [memory[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
        self.cache.read(places[found].tolist(), targets, self._between)
        for number in np.unique(inverse[found]).tolist():
            held = helds[number]
            if held is None or not self.cache.is_held(held):  # replaced while it was being read
                self._held.pop(int(codes[number]), None)
                done[parts.rows[inverse == number]] = False
        return done

    def _find_parts(
        self, shards: Integers, firsts: Integers, size: int, chosen: Integers
    ) -> _Parts:
        """Divide the `chosen` rows into parts, each inside one piece. No row may cross shards."""
        known, at = np.unique(shards[chosen], return_inverse=True)
        self._find_files(known.tolist())
        begins = np.array([self._find_file(shard)[1] for shard in known.tolist()], np.int64)
        begins = begins[at] + firsts[chosen] * self._width
        numbers = begins // PIECE
        counts = (begins + size - 1) // PIECE - numbers + 1
        of = np.repeat(np.arange(len(chosen)), counts)
        numbers = numbers[of] + np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = np.maximum(begins[of] - numbers * PIECE, 0)
        stops = np.minimum(begins[of] + size - numbers * PIECE, PIECE)
        codes = (shards[chosen][of] << _SHIFT) + numbers
        return _Parts(chosen[of], codes, starts, stops, numbers * PIECE + starts - begins[of])

    def _hold(self, code: int) -> Held | None:
        """Return the cache slot of a piece after checking its hash; None if missing or damaged.

        `code` is the shard's number and the piece's number as one integer: see `_Parts.codes`.
        """
        file, _ = self._find_file(code >> _SHIFT)
        held = self.cache.hold(file.key(code & ((1 << _SHIFT) - 1)))
        if held is not None:
            if len(self._held) >= _HELD:
                self._held.clear()
            self._held[code] = held
        return held

    def _find_files(self, shards: Sequence[int]) -> None:
        """Look up the versions of the shards' files in parallel, because each may be a request."""
        if len(shards) > 1 and find_object_folder(self._shards) is not None:
            new = [shard for shard in shards if shard not in self._found]
            run_together(self._find_file, new)
            self._found.update(new)

    def _copy_alone(self, ranges: Sequence[_Range], memory: memoryview) -> None:
        """Copy ranges of files to their places in memory, without storing them in the cache."""
        wanted = [
            ((part.file, part.start, part.stop), memory[part.place :][: part.stop - part.start])
            for part in ranges
        ]
        for _ in copy_ranges(self.cache, wanted, self._budget):
            if self._between is not None:
                self._between()

    def read_ranges(self, starts: Integers, stops: Integers) -> Sequence[memoryview]:
        """Return the bytes of the ids [starts[n], stops[n]) for each n."""
        places = sums((stops - starts) * self._width).tolist()
        memory = np.empty(places[-1], np.uint8).data
        ranges: list[_Range] = []
        for start, stop, place in zip(starts.tolist(), stops.tolist(), places, strict=False):
            ranges += self._find_ranges(start, stop, place)
        self._copy(ranges, memory)
        return [memory[start:stop] for start, stop in pairwise(places)]

    def fetch(
        self, starts: Integers, length: int, is_stopped: Callable[[], bool], *, exact: bool = False
    ) -> None:
        """Fetch rows into the cache. Ends early once `is_stopped` returns True.

        By default, whole pieces are fetched. With `exact`, or if a row is as long as a piece, only
        the rows themselves are fetched, in this order.
        """
        if exact or length * self._width >= PIECE:
            shards = self.starts.searchsorted(starts, "right") - 1
            self._find_files(np.unique(shards).tolist())
            ranges = [
                (part.file, part.start, part.stop)
                for start in starts.tolist()
                for part in self._find_ranges(start, start + length, 0)
            ]
            fetcher = self._find_fetcher()
            fetcher.start(ranges, is_stopped)
            if not self.is_streaming:  # if it is, the next call starts more requests meanwhile
                fetcher.finish(is_stopped)
            return
        for _ in self.fetch_ranges(join_near(np.sort(starts), length, 0)):
            if is_stopped():
                break

    def fetch_ranges(self, ranges: Sequence[tuple[int, int]]) -> Iterator[int]:
        """Fetch the ids [start, stop) of each range into the cache, with whole pieces.

        After each request, yields how many bytes it fetched.
        """
        pieces: dict[tuple[RemoteFile, int], None] = {}
        for start, stop in ranges:
            for part in self._find_ranges(start, stop, 0):
                pieces.update(dict.fromkeys(_find_pieces(part)))
        yield from self._pieces.fetch_each(list(pieces))

    def find_files(self) -> None:
        """Look up the versions of all files in an object store, with few requests."""
        folder = find_object_folder(self._shards)
        if folder is not None:
            find_all_files(folder)
            for_each_file(folder, self._find_file, range(len(self.counts)), self._between)

    def count_cached(self, keys: npt.NDArray[np.uint64], stop: int) -> int:
        """Return how many bytes of the first `stop` tokens are cached.

        `keys` has the keys of all cached pieces, from `storage.cache.read_keys`.
        """
        total = 0
        for part in self._find_ranges(0, stop, 0) if len(keys) else ():
            numbers = np.arange(part.start // PIECE, -(-part.stop // PIECE))
            wanted = b"".join([part.file.key(number)[:8] for number in numbers.tolist()])
            own = np.frombuffer(wanted, "<u8")
            there = numbers[keys[np.minimum(keys.searchsorted(own), len(keys) - 1)] == own]
            starts = np.maximum(there * PIECE, part.start)
            total += int((np.minimum((there + 1) * PIECE, part.stop) - starts).sum())
        return total

    def _find_fetcher(self) -> RangeFetcher:
        """Return this thread's fetcher, whose requests may continue after a call."""
        if getattr(_this_thread, "owner", None) != (id(self), os.getpid()):
            _this_thread.owner = id(self), os.getpid()
            _this_thread.fetcher = RangeFetcher(self.cache, self._budget)
        fetcher: RangeFetcher = _this_thread.fetcher
        return fetcher

    def _copy(self, ranges: Sequence[_Range], memory: memoryview) -> None:
        """Copy ranges of files to their places in memory. Missing pieces are fetched and stored."""
        users: dict[tuple[str, int], list[_Range]] = {}
        files = {part.file.identity: part.file for part in ranges}
        for part in ranges:
            for file, number in _find_pieces(part):
                users.setdefault((file.identity, number), []).append(part)
        keys = sorted(users)
        for place, data in self._pieces.read([(files[name], number) for name, number in keys]):
            if self._between is not None:
                self._between()
            first = keys[place][1] * PIECE
            for part in users[keys[place]]:
                start, stop = max(part.start, first), min(part.stop, first + len(data))
                target = part.place + start - part.start
                memory[target : target + stop - start] = data[start - first : stop - first]

    def _find_ranges(self, start: int, stop: int, place: int) -> Iterator[_Range]:
        """Yield the ranges of files that hold the tokens [start, stop).

        The first token goes to byte `place` of the result.
        """
        shard, first = self.locate(start)
        while start < stop:
            count = min(stop - start, int(self.counts[shard]) - first)
            if count:
                file, begin = self._find_file(shard)
                begin += first * self._width
                yield _Range(file, begin, begin + count * self._width, place)
            start, shard, first = start + count, shard + 1, 0
            place += count * self._width

    def _identify(self, shard: int) -> tuple[RemoteFile, int]:
        """Return the file of a shard, and the position of the shard's first byte in that file."""
        shards, number, skipped = find_file(self._shards, shard)
        name = shards.names[number]
        with shards._open(number) as opened:  # checks its size and header
            version = _find_version(opened)
        size = int(shards.sizes[number])
        checksum = shards.checksums[number] if shards.checksums else ""
        identity = "\n".join((str(shards.folder.absolute()), name, str(size), version, checksum))

        def fetch(start: int, stop: int) -> bytes:
            with shards._open(number) as file:
                try:
                    if isinstance(file, ObjectFile):  # `read` would fetch more than needed
                        (data,) = file.read_ranges([(start, stop)])
                    else:
                        file.seek(start)
                        data = file.read(stop - start)
                    changed = _find_version(file) != version
                except OSError as error:
                    raise cannot_read(name, shards.folder, error, FOREIGN_CURE) from error
            if changed or len(data) != stop - start:
                raise DamagedFileError(name, "was changed while it was being read", FOREIGN_CURE)
            return data

        return RemoteFile(identity, size, fetch), int(
            shards.offsets[number]
        ) + skipped * self._width


def _find_places(helds: Sequence[Held | None], inverse: Integers, parts: _Parts) -> Integers:
    """Return where each part starts in the cache's file `pieces.bin`; -1 if it is not cached.

    `helds[inverse[n]]` is the cache slot of part n's piece; None if the piece is not cached.
    """
    known = [(-1, PIECE, 0) if one is None else (one.start, one.first, one.last) for one in helds]
    begins, firsts, lasts = np.array(known, np.int64).reshape(-1, 3).T
    is_there = (firsts[inverse] <= parts.starts) & (parts.stops <= lasts[inverse])
    return np.where(is_there, begins[inverse] + parts.starts, -1)


def _find_pieces(part: _Range) -> list[tuple[RemoteFile, int]]:
    return [(part.file, number) for number in range(part.start // PIECE, -(-part.stop // PIECE))]


def _find_version(file: BinaryIO) -> str:
    """Return an object's version, or the time of a local file's last change, as a text."""
    if isinstance(file, ObjectFile):
        return file.version
    return str(os.fstat(file.fileno()).st_mtime_ns)
