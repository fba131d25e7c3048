"""Sources of a split's ids: files, an array, a part of other shards, or several joined.

A shard is a range of ids of one dtype in a file. Its file is opened when it is first mapped, never
before, so 150,000 shards cost their names and three arrays of 150,000 numbers.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.storage.mapping import map_file
from tokenmill.storage.reading import (
    FOREIGN_CURE,
    DamagedFileError,
    check_size,
    open_foreign,
    open_inside,
)

Integers = npt.NDArray[np.int64]


class Shards(Protocol):
    """The interface through which `Tokens` reads ids. It must pickle."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of every id."""

    @property
    def counts(self) -> Integers:
        """The number of ids in each shard."""

    @property
    def kept(self) -> int | None:
        """How many shards to keep, if they are copies in memory; None if they are maps."""

    @property
    def checksum(self) -> str | None:
        """`"CUT:SUM"`: a hash of the dtype and the ids per file, and a hash of their checksums.

        The checksums come from the manifest. None if there is no manifest.
        """

    def name(self, number: int) -> str:
        """The file of a shard, relative to the opened path."""

    def map(self, number: int) -> npt.NDArray[Any]:
        """The ids of a shard, in one dimension, contiguous and read-only."""

    def read(self, number: int, first: int, last: int) -> npt.NDArray[Any]:
        """A copy of the ids [first, last) of a shard, without keeping a map."""


@dataclass(frozen=True, kw_only=True)
class FileShards:
    """Shards in files of a folder: `counts[n]` ids from byte `offsets[n]` of file `names[n]` on.

    `names` are relative to `folder` and may have subfolders. A count may be 0. `sizes` are the
    sizes of the files in bytes, checked again whenever a file is opened. `check` checks a file's
    header before it is mapped; it must be a module-level function, so that it can be pickled.
    `checksums` come from a manifest, if there is one; they are not checked here. Files that
    tokenmill did not write are `foreign`: they may be links to anywhere. Names with `..` are
    followed too, so the reader of a format must refuse such names in its metadata.
    """

    folder: Path
    names: Sequence[str]
    dtype: np.dtype[Any]
    counts: Integers
    offsets: Integers
    sizes: Integers
    check: Callable[[BinaryIO, str], None] | None = None
    foreign: bool = False
    checksums: Sequence[str] = ()

    @property
    def kept(self) -> int | None:
        return None

    @property
    def checksum(self) -> str | None:
        if not self.checksums:
            return None
        return f"{_hash(self.dtype.str, *map(str, self.counts.tolist()))}:{_hash(*self.checksums)}"

    def name(self, number: int) -> str:
        return self.names[number]

    def map(self, number: int) -> npt.NDArray[Any]:
        with self._open(number) as file:
            count, offset = int(self.counts[number]), int(self.offsets[number])
            return map_file(file, self.names[number], self.dtype, count, offset)

    def read(self, number: int, first: int, last: int) -> npt.NDArray[Any]:
        size, name = self.dtype.itemsize, self.names[number]
        with self._open(number) as file:
            try:
                file.seek(int(self.offsets[number]) + first * size)
                data = file.read((last - first) * size)
                if len(data) < (last - first) * size:  # truncated since its size was checked
                    check_size(file, name, int(self.sizes[number]), foreign=self.foreign)
                return np.frombuffer(data, self.dtype, last - first)
            except (OSError, ValueError) as error:  # the disk is failing
                reason = getattr(error, "strerror", None) or error
                raise DamagedFileError(name, f"cannot be read: {reason}", FOREIGN_CURE) from error

    def read_rows(
        self,
        number: int,
        firsts: Integers,
        rows: npt.NDArray[Any],
        places: Integers,
        between: Callable[[], None] | None,
    ) -> None:
        """See `read_rows` below."""
        name, offset, width = self.names[number], int(self.offsets[number]), self.dtype.itemsize
        memory, size = rows.data.cast("B"), rows.shape[1] * width
        with self._open(number) as file:
            descriptor = file.fileno()
            try:
                for first, place in zip(firsts.tolist(), places.tolist(), strict=True):
                    if between is not None:
                        between()
                    start, row = offset + first * width, memory[place * size : (place + 1) * size]
                    while (count := os.preadv(descriptor, [row], start)) < len(row):
                        if not count:  # truncated since its size was checked
                            check_size(file, name, int(self.sizes[number]), foreign=self.foreign)
                            raise DamagedFileError(name, "was changed while it was read")
                        row, start = row[count:], start + count
            except OSError as error:  # the disk is failing
                what = f"cannot be read: {error.strerror}"
                raise DamagedFileError(name, what, FOREIGN_CURE) from error

    def _open(self, number: int) -> BinaryIO:
        name = self.names[number]
        file = (open_foreign if self.foreign else open_inside)(self.folder, name)
        try:
            check_size(file, name, int(self.sizes[number]), foreign=self.foreign)
            if self.check is not None:
                self.check(file, name)
        except BaseException:
            file.close()
            raise
        return file


@dataclass(frozen=True)
class ArrayShard:
    """One shard, an array in memory. `checksum` is the checksum of the files it was copied from."""

    ids: npt.NDArray[Any]
    checksum: str | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.ids.dtype

    @property
    def counts(self) -> Integers:
        return np.array([len(self.ids)], np.int64)

    @property
    def kept(self) -> int | None:
        return None

    def name(self, number: int) -> str:
        assert number == 0
        return "memory"

    def map(self, number: int) -> npt.NDArray[Any]:
        assert number == 0
        return self.ids

    def read(self, number: int, first: int, last: int) -> npt.NDArray[Any]:
        return self.map(number)[first:last].copy()


@dataclass(frozen=True, kw_only=True)
class PartOfShards:
    """The ids `start` to `stop` of other shards; at least one id."""

    whole: Shards
    start: int
    stop: int

    @cached_property
    def _ranges(self) -> tuple[int, Integers, Integers]:
        """The number of the first shard, and where the part starts and ends in each shard."""
        ends = np.cumsum(self.whole.counts)
        low = int(np.searchsorted(ends, self.start, side="right"))
        high = int(np.searchsorted(ends, self.stop, side="left")) + 1
        begins = ends[low:high] - self.whole.counts[low:high]
        first = np.maximum(self.start - begins, 0)
        return low, first, np.minimum(self.stop, ends[low:high]) - begins

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.whole.dtype

    @property
    def counts(self) -> Integers:
        _, first, last = self._ranges
        return last - first

    @property
    def kept(self) -> int | None:
        return self.whole.kept

    @property
    def checksum(self) -> str | None:
        if self.whole.checksum is None:
            return None
        cut, sum = self.whole.checksum.split(":")
        return f"{_hash(cut, str(self.start), str(self.stop))}:{sum}"

    def name(self, number: int) -> str:
        return self.whole.name(self._ranges[0] + number)

    def map(self, number: int) -> npt.NDArray[Any]:
        low, first, last = self._ranges
        return self.whole.map(low + number)[first[number] : last[number]]

    def read(self, number: int, first: int, last: int) -> npt.NDArray[Any]:
        low, begin, _ = self._ranges
        skip = int(begin[number])
        return self.whole.read(low + number, first + skip, last + skip)


@dataclass(frozen=True)
class JoinedShards:
    """Join shards of one dtype end to end; `folders` are prefixes of their names."""

    parts: tuple[Shards, ...]
    folders: tuple[str, ...] = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.parts[0].dtype

    @cached_property
    def counts(self) -> Integers:
        return np.concatenate([part.counts for part in self.parts])

    @property
    def kept(self) -> int | None:
        return min((part.kept for part in self.parts if part.kept is not None), default=None)

    @property
    def checksum(self) -> None:
        return None  # prepared datasets are never joined

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(len(part.counts) for part in self.parts))

    def _find(self, number: int) -> tuple[Shards, int]:
        part = bisect_right(self._ends, number)
        return self.parts[part], number - (self._ends[part - 1] if part else 0)

    def name(self, number: int) -> str:
        part, own = self._find(number)
        folder = self.folders[bisect_right(self._ends, number)] if self.folders else ""
        return str(Path(folder, part.name(own)))

    def map(self, number: int) -> npt.NDArray[Any]:
        part, own = self._find(number)
        return part.map(own)

    def read(self, number: int, first: int, last: int) -> npt.NDArray[Any]:
        part, own = self._find(number)
        return part.read(own, first, last)


def read_rows(
    shards: Shards,
    number: int,
    firsts: Integers,
    rows: npt.NDArray[Any],
    places: Integers,
    between: Callable[[], None] | None = None,
) -> None:
    """Read rows of one shard without a map: the row from id `firsts[n]` on becomes `rows[places[n]]`.

    A file is opened only once. `between` is called before each row.
    """
    if isinstance(shards, FileShards):
        shards.read_rows(number, firsts, rows, places, between)
    elif isinstance(shards, PartOfShards):
        low, begin, _ = shards._ranges
        read_rows(shards.whole, low + number, firsts + begin[number], rows, places, between)
    elif isinstance(shards, JoinedShards):
        read_rows(*shards._find(number), firsts, rows, places, between)
    else:
        for first, place in zip(firsts.tolist(), places.tolist(), strict=True):
            if between is not None:
                between()
            rows[place] = shards.read(number, first, first + rows.shape[1])


def _hash(*texts: str) -> str:
    return xxhash.xxh3_128_hexdigest("\n".join(texts).encode())


def cut(shards: Shards, place: int) -> tuple[Shards, Shards]:
    """Divide ids at a position, into the ids before it and the rest.

    >>> ArrayShard(np.arange(5)).counts, [part.map(0) for part in cut(ArrayShard(np.arange(5)), 3)]
    (array([5]), [array([0, 1, 2]), array([3, 4])])
    """
    total = int(shards.counts.sum())
    assert 0 < place < total
    before = PartOfShards(whole=shards, start=0, stop=place)
    return before, PartOfShards(whole=shards, start=place, stop=total)
