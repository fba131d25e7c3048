"""Read rows of tokens through a cache on local disk, for files that are slow to read.

Guarantees: the rows are the same as from `FileRows`. All bytes of a file come from one version of it:
the cache knows a file by its path, size, version and, if there is one, its checksum in the manifest.
A file that has the wrong size or changes while it is in use is refused by name.

Costs: a row of 2 kB that is in the cache takes 3 µs. Each piece of `PIECE` bytes is hashed when a row
of it is first read: 50 µs. `fetch` brings later rows into the cache. A row that is missing is fetched
with its whole piece; or alone and without storing it, if `is_streaming` says that its block is on its
way. So a run starts after a round trip, and its first steps need not wait for whole blocks.
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

_FILES = 4_096  # whose identities are kept
_SHIFT = 36  # bits of a piece's number
_HELD = 16_384  # pieces that were hashed and need not be hashed again; 2 GB

Integers = npt.NDArray[np.int64]
_this_thread = threading.local()  # its `fetcher`, and the object that uses it


class _Range(NamedTuple):
    """A range of bytes of a remote file, and where they go in the result."""

    file: RemoteFile
    start: int
    stop: int
    place: int


class _Parts(NamedTuple):
    """Parts of pieces that rows consist of."""

    rows: Integers  # the row of each part
    codes: Integers  # the number of its shard, and of the piece in the shard's file
    starts: Integers  # where the part starts in its piece
    stops: Integers
    places: Integers  # where it starts in its row, in bytes


class CachedRows(RowSource):
    """Reads tokens of shards that are joined end to end, through a cache. `between` is called before
    each piece."""

    piece = 4 << 20  # bytes to read at once: each time, the missing pieces are fetched together

    def __init__(
        self, shards: Shards, cache: PieceCache, between: Callable[[], None] | None = None
    ) -> None:
        super().__init__(shards.counts, shards.dtype)
        self.cache = cache
        self._shards, self._width, self._between = shards, shards.dtype.itemsize, between
        self._pieces = Pieces(cache)
        self._find_file = lru_cache(maxsize=_FILES)(self._identify)
        self._held: dict[int, Held] = {}  # by the number of the shard and of the piece
        self._found: set[int] = set()  # shards whose files were looked up
        self._budget = Budget()
        self.is_streaming = False  # whether blocks of rows are fetched ahead

    def copy(self, start: int, ids: npt.NDArray[Any]) -> None:
        """Fill `ids` with the tokens from `start` on, from as many shards as needed."""
        memory, step = ids.data.cast("B"), self.piece // self._width
        for first in range(0, len(ids), step):
            stop = min(first + step, len(ids))
            ranges = self._find_ranges(start + first, start + stop, first * self._width)
            self._copy(list(ranges), memory)

    def find_rows(self, starts: Integers, length: int) -> RowReader:
        """Find the rows [start, start + length), to read in parts; all must be in the split."""
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
        """Copy rows that are in the cache; returns which these are. Row n starts at token
        `firsts[n]` of shard `shards[n]`."""
        size, done = length * self._width, firsts + length <= self.counts[shards]
        parts = self._find_parts(shards, firsts, size, np.flatnonzero(done))
        codes, inverse = np.unique(parts.codes, return_inverse=True)
        helds = [self._held.get(code) or self._hold(code) for code in codes.tolist()]
        places = _find_places(helds, inverse, parts)
        wrong = np.unique(inverse[places < 0]).tolist()  # missing, or a part that has grown
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
            if held is None or not self.cache.is_held(held):  # replaced while it was read
                self._held.pop(int(codes[number]), None)
                done[parts.rows[inverse == number]] = False
        return done

    def _find_parts(
        self, shards: Integers, firsts: Integers, size: int, chosen: Integers
    ) -> _Parts:
        """The parts of pieces that some rows consist of; each row is in one shard."""
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
        """Check a piece in the cache, by its shard and number."""
        file, _ = self._find_file(code >> _SHIFT)
        held = self.cache.hold(file.key(code & ((1 << _SHIFT) - 1)))
        if held is not None:
            if len(self._held) >= _HELD:
                self._held.clear()
            self._held[code] = held
        return held

    def _find_files(self, shards: Sequence[int]) -> None:
        """Find the versions of files at once; each may be a request."""
        if len(shards) > 1 and find_object_folder(self._shards) is not None:
            new = [shard for shard in shards if shard not in self._found]
            run_together(self._find_file, new)
            self._found.update(new)

    def _copy_alone(self, ranges: Sequence[_Range], memory: memoryview) -> None:
        """Copy ranges of files to their places in memory, each fetched alone."""
        wanted = [
            ((part.file, part.start, part.stop), memory[part.place :][: part.stop - part.start])
            for part in ranges
        ]
        for _ in copy_ranges(self.cache, wanted, self._budget):
            if self._between is not None:
                self._between()

    def read_ranges(self, starts: Integers, stops: Integers) -> Sequence[memoryview]:
        """The bytes of the ids [start, stop) of ranges."""
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
        """Bring rows into the cache; ends early once `is_stopped` returns True.

        Long rows, and all with `exact`, are fetched as they are and in this order; others with their
        whole pieces.
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
            if not self.is_streaming:  # otherwise, the next call follows without a pause
                fetcher.finish(is_stopped)
            return
        for _ in self.fetch_ranges(join_near(np.sort(starts), length, 0)):
            if is_stopped():
                break

    def fetch_ranges(self, ranges: Sequence[tuple[int, int]]) -> Iterator[int]:
        """Bring the ids [start, stop) of ranges into the cache.

        Yields the bytes of each request when it is done.
        """
        pieces: dict[tuple[RemoteFile, int], None] = {}
        for start, stop in ranges:
            for part in self._find_ranges(start, stop, 0):
                pieces.update(dict.fromkeys(_find_pieces(part)))
        yield from self._pieces.fetch_each(list(pieces))

    def find_files(self) -> None:
        """Find the versions of all files with few requests, if they are in an object store."""
        folder = find_object_folder(self._shards)
        if folder is not None:
            find_all_files(folder)
            for_each_file(folder, self._find_file, range(len(self.counts)), self._between)

    def count_cached(self, keys: npt.NDArray[np.uint64], stop: int) -> int:
        """How many bytes of the ids [0, stop) are in a cache with these keys: see `read_keys`."""
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
        """The fetcher of this thread: it keeps its requests between calls."""
        if getattr(_this_thread, "owner", None) != (id(self), os.getpid()):
            _this_thread.owner = id(self), os.getpid()
            _this_thread.fetcher = RangeFetcher(self.cache, self._budget)
        fetcher: RangeFetcher = _this_thread.fetcher
        return fetcher

    def _copy(self, ranges: Sequence[_Range], memory: memoryview) -> None:
        """Copy ranges of files to their places in memory, piece by piece."""
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
        """The bytes of the tokens [start, stop), from `place` of the result on."""
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
        """The file of a shard, and where the shard starts in it."""
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
                    if isinstance(file, ObjectFile):  # `read` would fetch more
                        (data,) = file.read_ranges([(start, stop)])
                    else:
                        file.seek(start)
                        data = file.read(stop - start)
                    changed = _find_version(file) != version
                except OSError as error:
                    raise cannot_read(name, shards.folder, error, FOREIGN_CURE) from error
            if changed or len(data) != stop - start:
                raise DamagedFileError(name, "was changed while it was read", FOREIGN_CURE)
            return data

        return RemoteFile(identity, size, fetch), int(
            shards.offsets[number]
        ) + skipped * self._width


def _find_places(helds: Sequence[Held | None], inverse: Integers, parts: _Parts) -> Integers:
    """Where parts are in the file of the cache; -1 for those that are not there."""
    known = [(-1, PIECE, 0) if one is None else (one.start, one.first, one.last) for one in helds]
    begins, firsts, lasts = np.array(known, np.int64).reshape(-1, 3).T
    is_there = (firsts[inverse] <= parts.starts) & (parts.stops <= lasts[inverse])
    return np.where(is_there, begins[inverse] + parts.starts, -1)


def _find_pieces(part: _Range) -> list[tuple[RemoteFile, int]]:
    return [(part.file, number) for number in range(part.start // PIECE, -(-part.stop // PIECE))]


def _find_version(file: BinaryIO) -> str:
    """A text that changes if a file does: of a local file, the time of its last change."""
    if isinstance(file, ObjectFile):
        return file.version
    return str(os.fstat(file.fileno()).st_mtime_ns)
