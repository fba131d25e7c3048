"""Shards in files of zstd frames: find, read and decode the frames that hold some tokens.

Frames are numbered through all shards. They are decoded together, in native code and without the
interpreter's lock, and stay in the cache of the process. See `frames` for the bytes of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.storage import mapping
from tokenmill.storage.reading import DamagedFileError
from tokenmill.store.documents import sums
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
from tokenmill.store.gather import MANY, view_memory
from tokenmill.store.shards import Shards, combine_checksums, read_ranges

TOGETHER = 2 << 20  # bytes of ids that are decoded at once
_TABLES = 32 << 20  # bytes of tables that are kept, if files are not mapped

Integers = npt.NDArray[np.int64]
_owners = count()


class CompressedShards:
    """Shards of `counts` ids each; `files` has their compressed bytes, as shards of bytes.

    `checksums` are those of the plain ids, so that they do not depend on the compression.
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
        self.owner = next(_owners)  # of frames in the cache
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
        return FrameReader(self, mapped=False)


class _File(NamedTuple):
    """An open file: where its frames are, and its bytes if it is mapped."""

    table: FrameTable
    data: Bytes | None


class FrameReader:
    """Decodes frames of shards, by their numbers. `between` is called before each read of a file."""

    def __init__(
        self,
        shards: CompressedShards,
        *,
        mapped: bool = True,
        between: Callable[[], None] | None = None,
    ) -> None:
        self.shards, self._mapped, self._between = shards, mapped, between
        self._width = shards.dtype.itemsize
        self.frame_bytes = shards.tokens_per_frame * self._width
        self._header = make_header(self.frame_bytes)  # no shorter than that of a smaller frame
        # Frames that are decoded at once.
        self.together = max(1, TOGETHER // self.frame_bytes)
        self._find_file: Callable[[int], _File]
        if mapped:
            self._find_file = mapping.Maps(self._open).__getitem__
        else:
            largest = measure_table(int(np.diff(shards.bases).max(initial=1)))
            self._find_file = lru_cache(maxsize=max(1, _TABLES // largest))(self._open)

    def locate(self, shards: Integers, places: Integers) -> tuple[Integers, Integers]:
        """The frames of ids, given by their shards and their places in them; and the ids' bytes."""
        frames, ids = np.divmod(places, self.shards.tokens_per_frame)
        return self.shards.bases[shards] + frames, ids * self._width

    def measure(self, numbers: Integers) -> Integers:
        """The bytes of the ids of frames."""
        shards = self._find_shards(numbers)
        before = (numbers - self.shards.bases[shards]) * self.shards.tokens_per_frame
        left = self.shards.counts[shards] - before
        return np.minimum(left, self.shards.tokens_per_frame) * self._width

    def hold(self, numbers: Integers) -> tuple[Integers, list[Decoded]]:
        """The addresses of the ids of frames, and what keeps them in memory."""
        found = CACHE.find(self.shards.owner, numbers.tolist())
        addresses = np.array([0 if one is None else one[0] for one in found], np.int64)
        held = list({id(one[1]): one[1] for one in found if one is not None}.values())
        missing = np.flatnonzero(np.array([one is None for one in found], np.bool_))
        for some in self._cut_by_files(numbers[missing]):
            decoded, addresses[missing[some]] = self._decode(numbers[missing[some]])
            held.append(decoded)
        return addresses, held

    def copy(self, shard: int, first: int, ids: npt.NDArray[Any]) -> None:
        """Fill `ids` with the ids of a shard from place `first` on."""
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
        """Ask the system to read the frames of the ids [first, last) of a shard soon."""
        file = self._find_file(shard)
        if file.data is not None and last > first:
            ends = np.array([first, last - 1]) // self.shards.tokens_per_frame
            starts, stops = file.table.find(ends)
            mapping.read_ahead(file.data, int(starts[0]), int(stops[1]))

    def _cut_by_files(self, numbers: Integers) -> list[Integers]:
        """Divide the places of sorted frames into parts of at most `MANY` files, which are mapped
        at the same time."""
        if not len(numbers):
            return []
        files = np.cumsum(np.diff(self._find_shards(numbers), prepend=0) != 0) // MANY
        return np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(files)) + 1)

    def _find_shards(self, numbers: Integers) -> Integers:
        return self.shards.bases.searchsorted(numbers, "right") - 1

    def _open(self, shard: int) -> _File:
        files, name = self.shards.files, self.shards.name(shard)
        size = int(files.counts[shard])
        table_size = measure_table(int(np.diff(self.shards.bases[shard : shard + 2])[0]))
        if table_size > size:
            raise DamagedFileError(name, f"has {size:,} bytes, too few for the table of its frames")
        if self._mapped:
            data = files.map(shard)
            table = data[size - table_size :]
        else:
            data = None
            (tail,) = read_ranges(files, shard, [(size - table_size, size)], self._between)
            table = np.frombuffer(tail, np.uint8)
        plain = int(self.shards.counts[shard]) * self._width
        return _File(FrameTable(table, size, plain, self.frame_bytes, name), data)

    def _decode(self, numbers: Integers) -> tuple[Decoded, Integers]:
        shards, sizes = self._find_shards(numbers), self.measure(numbers)
        frames: list[memoryview] = []
        heads: list[Bytes] = []
        for some in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(shards)) + 1):
            shard = int(shards[some[0]])
            found, head = self._fetch(shard, numbers[some] - self.shards.bases[shard])
            frames += found
            heads.append(head)
        if (wrong := self._find_wrong_head(np.concatenate(heads), sizes)) is not None:
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
        """The place of the first frame with another header than one of its size has."""
        wrong = (heads != np.frombuffer(self._header, np.uint8)).any(axis=1)
        for place in np.flatnonzero(sizes != self.frame_bytes).tolist():  # the last of a shard
            header = make_header(int(sizes[place]))
            wrong[place] = heads[place, : len(header)].tobytes() != header
        return int(wrong.argmax()) if wrong.any() else None

    def _fetch(self, shard: int, own: Integers) -> tuple[list[memoryview], Bytes]:
        """The compressed frames of a shard, and the bytes at their starts.

        The frames of the shard are counted from 0 here.
        """
        file = self._find_file(shard)
        starts, stops = file.table.find(own)
        if file.data is not None:
            data = file.data.data
            # Reading a map may wait for the disk. NumPy lets other threads run meanwhile.
            heads = file.data[starts[:, None] + np.arange(len(self._header))]
            return [data[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)], heads
        breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
        firsts, lasts = starts[[0, *breaks]], stops[[*(breaks - 1), -1]]
        ranges = list(zip(firsts.tolist(), lasts.tolist(), strict=True))
        found = read_ranges(self.shards.files, shard, ranges, self._between)
        runs = np.repeat(np.arange(len(ranges)), np.diff(breaks, prepend=0, append=len(own)))
        places = zip(runs.tolist(), (starts - firsts[runs]).tolist(), strict=True)
        sizes = (stops - starts).tolist()
        frames = [
            memoryview(found[run])[at : at + size]
            for (run, at), size in zip(places, sizes, strict=True)
        ]
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
    """Ranges of memory, with adjacent ones joined: their addresses and lengths.

    >>> join_runs(np.array([100, 110, 300]), np.array([10, 5, 7]))
    ([100, 300], [15, 7])
    """
    breaks = np.flatnonzero(addresses[1:] != addresses[:-1] + lengths[:-1]) + 1
    firsts = np.concatenate(([0], breaks))
    return addresses[firsts].tolist(), np.add.reduceat(lengths, firsts).tolist()


def copy_runs(
    addresses: Integers, lengths: Integers, skip: int, held: Sequence[object], out: Bytes
) -> int:
    """Fill `out` from ranges of memory, from byte `skip` on; returns how many bytes there were."""
    done = 0
    for address, length in zip(*join_runs(addresses, lengths), strict=True):
        part = view_memory(address, length, 1, held).view(np.uint8)[skip:][: len(out) - done]
        out[done : done + len(part)] = part
        done, skip = done + len(part), 0
    return done
