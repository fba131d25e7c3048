"""Read rows of tokens through a cache on local disk, for files that are slow to read.

Guarantees: the rows are the same as from `FileRows`. All bytes of a file come from one version of it:
the cache knows a file by its path, size, version and, if there is one, its checksum in the manifest.
A file that has the wrong size or changes while it is in use is refused by name.

Costs: a row is copied out of its pieces of `PIECE` bytes, which are read and hashed: 20 µs each. The
pieces of a call are fetched `REQUESTS` at once. `fetch` brings the pieces of later rows into the cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.storage.cache import PIECE, PieceCache
from tokenmill.storage.object_file import ObjectFile
from tokenmill.storage.pieces import Pieces, RemoteFile
from tokenmill.storage.reading import (
    FOREIGN_CURE,
    DamagedFileError,
    find_all_files,
    for_each_file,
)
from tokenmill.store.documents import sums
from tokenmill.store.gather import join_near
from tokenmill.store.row_source import RowReader, RowSource
from tokenmill.store.shards import Shards, find_file, find_object_folder

_FILES = 4_096  # whose identities are kept

Integers = npt.NDArray[np.int64]


class _Range(NamedTuple):
    """A range of bytes of a remote file, and where they go in the result."""

    file: RemoteFile
    start: int
    stop: int
    place: int


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

        def read(first: int, last: int) -> npt.NDArray[Any]:
            some = starts[first:last].tolist()
            rows = np.empty((len(some), length), self._shards.dtype)
            ranges = [
                part
                for number, start in enumerate(some)
                for part in self._find_ranges(start, start + length, number * size)
            ]
            if ranges:
                self._copy(ranges, rows.data.cast("B"))
            return rows

        return read

    def read_ranges(self, starts: Integers, stops: Integers) -> Sequence[memoryview]:
        """The bytes of the ids [start, stop) of ranges."""
        places = sums((stops - starts) * self._width).tolist()
        memory = np.empty(places[-1], np.uint8).data
        ranges: list[_Range] = []
        for start, stop, place in zip(starts.tolist(), stops.tolist(), places, strict=False):
            ranges += self._find_ranges(start, stop, place)
        self._copy(ranges, memory)
        return [memory[start:stop] for start, stop in pairwise(places)]

    def fetch(self, starts: Integers, length: int, is_stopped: Callable[[], bool]) -> None:
        """Bring rows into the cache; ends early once `is_stopped` returns True."""
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
                    file.seek(start)
                    data = file.read(stop - start)
                    changed = _find_version(file) != version
                except OSError as error:
                    what = f"cannot be read: {error.strerror or error}"
                    raise DamagedFileError(name, what, FOREIGN_CURE) from error
            if changed or len(data) != stop - start:
                raise DamagedFileError(name, "was changed while it was read", FOREIGN_CURE)
            return data

        return RemoteFile(identity, size, fetch), int(
            shards.offsets[number]
        ) + skipped * self._width


def _find_pieces(part: _Range) -> list[tuple[RemoteFile, int]]:
    return [(part.file, number) for number in range(part.start // PIECE, -(-part.stop // PIECE))]


def _find_version(file: BinaryIO) -> str:
    """A text that changes if a file does: of a local file, the time of its last change."""
    if isinstance(file, ObjectFile):
        return file.version
    return str(os.fstat(file.fileno()).st_mtime_ns)
