"""Compressed shards: find, read and decode the zstd frames that contain some tokens.

The frames of all shards are numbered consecutively. Many frames are decoded in one call of native
code, which releases the GIL. Decoded frames stay in a cache of the process. `frames.py` describes
the format of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.storage import mapping
from tokenmill.storage.reading import DamagedFileError
from tokenmill.store.cached_rows import CachedRows
from tokenmill.store.documents import sums
from tokenmill.store.file_rows import FileRows
from tokenmill.store.frame_cache import CACHE, Decoded
from tokenmill.store.frames import (
    Bytes,
    FrameError,
    FrameTable,
    count_frames,
    decode,
    make_header,
    measure_table,
)
from tokenmill.store.gather import MANY, cut_by_number, view_memory
from tokenmill.store.shards import Shards, combine_checksums

TOGETHER = 2 << 20  # bytes of ids that are decoded at once
_FAR_TOGETHER = 16 << 20  # more if files are not mapped, because requests can run in parallel
_TABLES = 32 << 20  # bytes of tables to keep in memory, if files are not mapped

Integers = npt.NDArray[np.int64]
_owners = count()


class CompressedShards:
    """Compressed shards. Shard n has `counts[n]` ids, compressed in file n of `files`.

    `files` reads these files as arrays of bytes. `checksums` are of the ids before compression.
    """

    def __init__(
        self,
        files: Shards,
        dtype: np.dtype[Any],
        counts: Integers,
        tokens_per_frame: int,
        checksums: Sequence[str] = (),
    ) -> None:
        self.files, self.dtype, self.counts = files, dtype, counts
        self.tokens_per_frame, self._checksums = tokens_per_frame, checksums
        self.owner = next(_owners)  # identifies the frames of these shards in `frame_cache`
        # bases[n] is the number of the first frame of shard n; the last entry counts all frames.
        self.bases = sums(count_frames(counts, tokens_per_frame))

    def __reduce__(self) -> tuple[Any, ...]:
        known = self.files, self.dtype, self.counts, self.tokens_per_frame, self._checksums
        return CompressedShards, known

    @property
    def kept(self) -> int | None:
        return 1  # `map` makes a copy

    @property
    def checksum(self) -> str | None:
        return combine_checksums(self.dtype, self.counts, self._checksums)

    def name(self, number: int) -> str:
        return self.files.name(number)

    def map(self, number: int) -> npt.NDArray[Any]:
        return self.read(number, 0, int(self.counts[number]))

    def read(self, number: int, first: int, last: int) -> npt.NDArray[Any]:
        ids = np.empty(last - first, self.dtype)
        self._reader.copy(number, first, ids)
        return ids

    @cached_property
    def _reader(self) -> FrameReader:
        return FrameReader(self, FileRows(self.files))


class _File(NamedTuple):
    """A mapped file: the table of its frames, and its bytes."""

    table: FrameTable
    data: Bytes


class FrameReader:
    """Decodes frames by their numbers.

    `source` reads the compressed bytes of files. If it is None, files are mapped.
    """

    def __init__(
        self, shards: CompressedShards, source: FileRows | CachedRows | None = None
    ) -> None:
        self.shards, self._source = shards, source
        self._file_starts = sums(shards.files.counts)  # where each file starts, if all are joined
        self._width = shards.dtype.itemsize
        self.frame_bytes = shards.tokens_per_frame * self._width
        self._header = make_header(self.frame_bytes)  # of a full frame, the longest
        # How many frames to decode at once.
        together = TOGETHER if source is None else _FAR_TOGETHER
        self.together = max(1, together // self.frame_bytes)
        self._maps = mapping.Maps(self._map)
        self._tables: dict[int, FrameTable] = {}
        largest = measure_table(int(np.diff(shards.bases).max(initial=1)))
        self._most_tables = max(1, _TABLES // largest)

    def locate(self, shards: Integers, places: Integers) -> tuple[Integers, Integers]:
        """Return the number of each id's frame, and the id's first byte in the decoded frame.

        Id n is at position `places[n]` of shard `shards[n]`.
        """
        frames, ids = np.divmod(places, self.shards.tokens_per_frame)
        return self.shards.bases[shards] + frames, ids * self._width

    def measure(self, numbers: Integers) -> Integers:
        """Return the decoded size of each frame in bytes."""
        shards = self._find_shards(numbers)
        before = (numbers - self.shards.bases[shards]) * self.shards.tokens_per_frame
        left = self.shards.counts[shards] - before
        return np.minimum(left, self.shards.tokens_per_frame) * self._width

    def hold(self, numbers: Integers) -> tuple[Integers, list[Decoded]]:
        """Return the memory address of each decoded frame, and objects that keep the memory alive."""
        found = CACHE.find(self.shards.owner, numbers.tolist())
        addresses = np.array([0 if one is None else one[0] for one in found], np.int64)
        held = list({id(one[1]): one[1] for one in found if one is not None}.values())
        missing = np.flatnonzero(np.array([one is None for one in found], np.bool_))
        for some in self._cut_by_files(numbers[missing]):
            decoded, addresses[missing[some]] = self._decode(numbers[missing[some]])
            held.append(decoded)
        return addresses, held

    def copy(self, shard: int, first: int, ids: npt.NDArray[Any]) -> None:
        """Fill `ids` with the ids of a shard from position `first` on."""
        out, skip = ids.view(np.uint8), first * self._width
        base, size = int(self.shards.bases[shard]), self.frame_bytes
        done = 0
        while done < len(out):
            start, offset = divmod(skip + done, size)
            stop = min(count_frames(skip + len(out), size), start + self.together)
            numbers = np.arange(base + start, base + stop)
            addresses, held = self.hold(numbers)
            done += copy_runs(addresses, self.measure(numbers), offset, held, out[done:])

    def read_ahead(self, shard: int, first: int, last: int) -> None:
        """If files are mapped, ask the system to read the frames of the ids [first, last) soon."""
        if self._source is None and last > first:
            file = self._maps[shard]
            ends = np.array([first, last - 1]) // self.shards.tokens_per_frame
            starts, stops = file.table.find(ends)
            mapping.read_ahead(file.data, int(starts[0]), int(stops[1]))

    def fetch(self, firsts: Integers, lasts: Integers, is_stopped: Callable[[], bool]) -> bool:
        """Fetch the frames `firsts[n]` to `lasts[n]`, both included, into the disk cache.

        Ends early once `is_stopped` returns True. Returns False if there is no disk cache.
        """
        if not isinstance(self._source, CachedRows):
            return False
        if is_stopped():
            return True
        starts, stops = self._find_bytes(firsts)[0], self._find_bytes(lasts)[1]
        ranges = list(zip(starts.tolist(), stops.tolist(), strict=True))
        for _ in self._source.fetch_ranges(ranges):
            if is_stopped():
                break
        return True

    def _cut_by_files(self, numbers: Integers) -> list[Integers]:
        """Divide the indices of sorted frames into groups, so that few files are mapped at once.

        Each group has frames of at most `MANY` files.
        """
        if not len(numbers):
            return []
        files = np.cumsum(np.diff(self._find_shards(numbers), prepend=0) != 0) // MANY
        return np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(files)) + 1)

    def _find_shards(self, numbers: Integers) -> Integers:
        return self.shards.bases.searchsorted(numbers, "right") - 1

    def _map(self, shard: int) -> _File:
        start = self._find_table(shard)
        data = self.shards.files.map(shard)
        return _File(self._read_table(shard, data[start:]), data)

    def _find_table(self, shard: int) -> int:
        """Return where the table of frames starts in a shard's file."""
        size = int(self.shards.files.counts[shard])
        table = measure_table(int(self.shards.bases[shard + 1] - self.shards.bases[shard]))
        if table > size:
            what = f"has {size:,} bytes, too few for the table of its frames"
            raise DamagedFileError(self.shards.name(shard), what)
        return size - table

    def _read_table(self, shard: int, data: Bytes) -> FrameTable:
        plain = int(self.shards.counts[shard]) * self._width
        size = int(self.shards.files.counts[shard])
        return FrameTable(data, size, plain, self.frame_bytes, self.shards.name(shard))

    def _find_tables(self, shards: list[int]) -> dict[int, FrameTable]:
        """Return the frame tables of unmapped files. Reads those that are not in memory, in parallel."""
        assert self._source is not None
        found = {shard: table for shard in shards if (table := self._tables.get(shard)) is not None}
        if new := [shard for shard in shards if shard not in found]:
            places = np.array([self._find_table(shard) for shard in new], np.int64)
            stops = self._file_starts[np.array(new) + 1]
            tails = self._source.read_ranges(self._file_starts[new] + places, stops)
            for shard, tail in zip(new, tails, strict=True):
                table = self._read_table(shard, np.frombuffer(tail, np.uint8))
                found[shard] = self._tables[shard] = table
            # Copied first, because other threads may add and drop tables.
            for old in [*self._tables][: -self._most_tables]:
                self._tables.pop(old, None)
        return found

    def _find_bytes(self, numbers: Integers) -> tuple[Integers, Integers]:
        """Return where frames start and end, as positions in all files joined end to end."""
        shards = self._find_shards(numbers)
        starts, stops = np.empty_like(numbers), np.empty_like(numbers)
        # Some shards at a time, because the tables of all shards may be too large for memory.
        for part in cut_by_number(shards, self._most_tables):
            tables = self._find_tables(np.unique(shards[part]).tolist())
            for some in np.split(part, np.flatnonzero(np.diff(shards[part])) + 1):
                shard = int(shards[some[0]])
                found = tables[shard].find(numbers[some] - self.shards.bases[shard])
                starts[some], stops[some] = (one + self._file_starts[shard] for one in found)
        return starts, stops

    def _decode(self, numbers: Integers) -> tuple[Decoded, Integers]:
        frames, heads = self._read_maps(numbers) if self._source is None else self._read(numbers)
        sizes = self.measure(numbers)
        if (wrong := self._find_wrong_head(heads, sizes)) is not None:
            raise self._refuse(int(numbers[wrong]), "its header is wrong")
        try:
            memory, addresses = decode(frames, sizes)
        except FrameError as error:
            raise self._refuse(int(numbers[error.place]), error.reason) from None
        size = int(sizes.sum())
        decoded = Decoded(self.shards.owner, numbers.tolist(), memory, size)
        CACHE.add(decoded, addresses.tolist())
        return decoded, addresses

    def _find_wrong_head(self, heads: Bytes, sizes: Integers) -> int | None:
        """Return the index of the first frame whose header is wrong for its size, or None."""
        wrong = (heads != np.frombuffer(self._header, np.uint8)).any(axis=1)
        for place in np.flatnonzero(sizes != self.frame_bytes).tolist():  # the last of a shard
            header = make_header(int(sizes[place]))
            wrong[place] = heads[place, : len(header)].tobytes() != header
        return int(wrong.argmax()) if wrong.any() else None

    def _read_maps(self, numbers: Integers) -> tuple[list[memoryview], Bytes]:
        """Return the compressed frames, as views of mapped files, and the first bytes of each."""
        shards = self._find_shards(numbers)
        frames: list[memoryview] = []
        heads: list[Bytes] = []
        for some in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(shards)) + 1):
            shard = int(shards[some[0]])
            file = self._maps[shard]
            starts, stops = file.table.find(numbers[some] - self.shards.bases[shard])
            # Reading a map may wait for the disk. NumPy lets other threads run meanwhile.
            heads.append(file.data[starts[:, None] + np.arange(len(self._header))])
            data = file.data.data
            frames += [data[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
        return frames, np.concatenate(heads)

    def _read(self, numbers: Integers) -> tuple[list[memoryview], Bytes]:
        """Return the compressed frames, read without maps, and the first bytes of each."""
        assert self._source is not None
        starts, stops = self._find_bytes(numbers)
        breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
        firsts = starts[[0, *breaks]]
        found = self._source.read_ranges(firsts, stops[[*(breaks - 1), -1]])
        runs = np.repeat(np.arange(len(firsts)), np.diff(breaks, prepend=0, append=len(numbers)))
        places = zip(runs.tolist(), (starts - firsts[runs]).tolist(), strict=True)
        sizes = (stops - starts).tolist()
        frames = [found[run][at : at + size] for (run, at), size in zip(places, sizes, strict=True)]
        length = len(self._header)
        joined = b"".join([bytes(frame[:length]).ljust(length) for frame in frames])
        return frames, np.frombuffer(joined, np.uint8).reshape(-1, length)

    def _refuse(self, number: int, reason: str) -> DamagedFileError:
        shard = int(self._find_shards(np.array([number]))[0])
        own = number - int(self.shards.bases[shard])
        first = own * self.shards.tokens_per_frame
        last = min(first + self.shards.tokens_per_frame, int(self.shards.counts[shard])) - 1
        what = f"is damaged in frame {own:,}, with tokens {first:,} to {last:,}: {reason}"
        return DamagedFileError(self.shards.name(shard), what)


def join_runs(addresses: Integers, lengths: Integers) -> tuple[list[int], list[int]]:
    """Join adjacent ranges of memory. Returns the addresses and lengths of the joined ranges.

    >>> join_runs(np.array([100, 110, 300]), np.array([10, 5, 7]))
    ([100, 300], [15, 7])
    """
    breaks = np.flatnonzero(addresses[1:] != addresses[:-1] + lengths[:-1]) + 1
    firsts = np.concatenate(([0], breaks))
    return addresses[firsts].tolist(), np.add.reduceat(lengths, firsts).tolist()


def copy_runs(
    addresses: Integers, lengths: Integers, skip: int, held: Sequence[object], out: Bytes
) -> int:
    """Fill `out` from ranges of memory; returns how many bytes were copied.

    Skips the first `skip` bytes of the first range. `held` keeps the memory alive.
    """
    done = 0
    for address, length in zip(*join_runs(addresses, lengths), strict=True):
        part = view_memory(address, length, 1, held).view(np.uint8)[skip:][: len(out) - done]
        out[done : done + len(part)] = part
        done, skip = done + len(part), 0
    return done
