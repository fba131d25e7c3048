"""Where the ids of a split come from: files, an array, a part of other shards, or other shards joined.

A shard is a range of ids of one dtype in a file. The file is opened when the shard is first mapped,
never before, so 150,000 shards cost their names and three arrays of 150,000 numbers.
"""

from __future__ import annotations

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
from tokenmill.storage.object_file import ObjectFile
from tokenmill.storage.reading import (
    FOREIGN_CURE,
    DamagedFileError,
    cannot_read,
    check_size,
    is_mappable,
    open_foreign,
    open_inside,
    read_pieces,
)

Integers = npt.NDArray[np.int64]


class Shards(Protocol):
    """The interface through which `Tokens` reads ids. Implementations must be picklable."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of every id."""

    @property
    def counts(self) -> Integers:
        """The number of ids in each shard."""

    @property
    def kept(self) -> int | None:
        """How many shards a reader may keep in memory.

        None if `map` maps files instead of copying shards to memory.
        """

    @property
    def checksum(self) -> str | None:
        """`"CUT:SUM"`, or None if there is no manifest.

        CUT is a hash of the dtype and of the number of ids in each file. SUM is a hash of the files'
        checksums in the manifest.
        """

    def name(self, number: int) -> str:
        """Return the path of a shard's file, relative to the path that was opened."""

    def map(self, number: int) -> npt.NDArray[Any]:
        """Return the ids of a shard, in one dimension, contiguous and read-only."""

    def read(self, number: int, first: int, last: int) -> npt.NDArray[Any]:
        """Return a copy of the ids [first, last) of a shard, without keeping a map."""


@dataclass(frozen=True, kw_only=True)
class FileShards:
    """Shards in files of a folder. Shard n is `counts[n]` ids at byte `offsets[n]` of file `names[n]`.

    - `names` are relative to `folder` and may have subfolders.
    - `counts` may contain 0.
    - `sizes` are the sizes of the files in bytes. They are checked whenever a file is opened.
    - `check` checks the header of an opened file. It must be a module-level function, so that it can
      be pickled.
    - `foreign` says that tokenmill did not write the files. They may then be links to anywhere. Names
      with `..` are followed too, so the reader of a format must refuse such names in its metadata.
    - `checksums` come from the manifest, if there is one. They are not checked here.
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
        return combine_checksums(self.dtype, self.counts, self.checksums)

    def name(self, number: int) -> str:
        return self.names[number]

    def map(self, number: int) -> npt.NDArray[Any]:
        with self._open(number) as file:
            count, offset = int(self.counts[number]), int(self.offsets[number])
            return map_file(file, self.names[number], self.dtype, count, offset)

    def read(self, number: int, first: int, last: int) -> npt.NDArray[Any]:
        (data,) = self.read_ranges(number, [(first, last)])
        return np.frombuffer(data, self.dtype, last - first)

    def read_ranges(
        self,
        number: int,
        ranges: Sequence[tuple[int, int]],
        between: Callable[[], None] | None = None,
    ) -> list[bytes]:
        """Return the bytes of ranges of a shard, as the module-level `read_ranges` does."""
        offset, size, name = int(self.offsets[number]), self.dtype.itemsize, self.names[number]
        found = []
        with self._open(number) as file:
            try:
                if isinstance(file, ObjectFile) and len(ranges) > 1:
                    if between is not None:
                        between()
                    places = [(offset + one * size, offset + two * size) for one, two in ranges]
                    return file.read_ranges(places)
                for first, last in ranges:
                    if between is not None:
                        between()
                    file.seek(offset + first * size)
                    found.append(file.read((last - first) * size))
                    if len(found[-1]) < (last - first) * size:  # truncated since it was opened
                        check_size(file, name, int(self.sizes[number]), foreign=self.foreign)
                        raise DamagedFileError(name, "was changed while it was being read")
            except OSError as error:  # the disk is failing
                raise cannot_read(name, self.folder, error, FOREIGN_CURE) from error
        return found

    def read_rows(
        self,
        number: int,
        firsts: Integers,
        rows: npt.NDArray[Any],
        places: Integers,
        between: Callable[[], None] | None,
    ) -> None:
        """Read rows of a shard. The module-level `read_rows` explains the arguments."""
        memory, size = rows.data.cast("B"), rows.shape[1] * self.dtype.itemsize
        pieces = [memory[place * size : (place + 1) * size] for place in places.tolist()]
        with self._open(number) as file:
            self._read_pieces(file, number, firsts, pieces, between)

    def _read_pieces(
        self,
        file: BinaryIO,
        number: int,
        firsts: Integers,
        pieces: Sequence[memoryview],
        between: Callable[[], None] | None = None,
    ) -> None:
        """Fill `pieces[n]` with the ids of an open shard from position `firsts[n]` on."""
        name = self.names[number]
        starts = (int(self.offsets[number]) + firsts * self.dtype.itemsize).tolist()
        try:
            if not read_pieces(file, starts, pieces, between):
                # It was truncated since its size was checked.
                check_size(file, name, int(self.sizes[number]), foreign=self.foreign)
                raise DamagedFileError(name, "was changed while it was being read")
        except OSError as error:  # the disk is failing
            raise cannot_read(name, self.folder, error, FOREIGN_CURE) from error

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


class OpenShard:
    """A shard whose file stays open, to read many ranges of it. Threads may share it.

    The file is closed when the last reference to this object is gone.
    """

    def __init__(self, shards: FileShards, number: int) -> None:
        self._shards, self._number = shards, number
        self._file = shards._open(number)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def read(self, first: int, ids: npt.NDArray[Any]) -> None:
        """Fill `ids` with the ids from position `first` of the shard on."""
        piece = ids.view(np.uint8).data
        self._shards._read_pieces(self._file, self._number, np.array([first]), [piece])


@dataclass(frozen=True)
class ArrayShard:
    """One shard that is an array in memory. `checksum` is of the shards that it was copied from."""

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
    """The ids [start, stop) of other shards. The range must not be empty."""

    whole: Shards
    start: int
    stop: int

    @cached_property
    def _ranges(self) -> tuple[int, Integers, Integers]:
        """The index of the first shard that the part covers, and two arrays.

        The arrays have one entry for each shard that the part covers: where the part starts in the
        shard, and where the part ends in the shard.
        """
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
    """Shards of one dtype, joined end to end. The names in `parts[n]` are relative to `folders[n]`."""

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
        return None  # only a mixture joins prepared datasets, and it compares each on its own

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
    """Read rows of one shard without mapping its file.

    The row that starts at position `firsts[n]` of the shard is written to `rows[places[n]]`. A file is
    opened only once. `between` is called before each row.
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


def read_ranges(
    shards: Shards,
    number: int,
    ranges: Sequence[tuple[int, int]],
    between: Callable[[], None] | None = None,
) -> list[bytes]:
    """Return the bytes of the ids [first, last) of each range, without mapping the shard's file.

    A file is opened only once. `between` is called before each read of a file.
    """
    if isinstance(shards, FileShards):
        return shards.read_ranges(number, ranges, between)
    return [shards.read(number, first, last).tobytes() for first, last in ranges]


def combine_checksums(
    dtype: np.dtype[Any], counts: Integers, checksums: Sequence[str]
) -> str | None:
    """Return the value of `Shards.checksum`, made from the checksum of each shard.

    None if `checksums` is empty.
    """
    if not checksums:
        return None
    return f"{_hash(dtype.str, *map(str, counts.tolist()))}:{_hash(*checksums)}"


def find_object_folder(shards: Shards) -> Path | None:
    """Return a folder of the shards that is in an object store; None if all folders are local."""
    return next((one for one in _find_folders(shards) if not is_mappable(one)), None)


def _find_folders(shards: Shards) -> list[Path]:
    if isinstance(shards, FileShards):
        return [shards.folder]
    if isinstance(shards, PartOfShards):
        return _find_folders(shards.whole)
    if isinstance(shards, JoinedShards):
        return [folder for part in shards.parts for folder in _find_folders(part)]
    files: Shards | None = getattr(shards, "files", None)  # of compressed shards
    return [] if files is None else _find_folders(files)


def find_file(shards: Shards, number: int, first: int = 0) -> tuple[FileShards, int, int]:
    """Find a shard in the `FileShards` that `shards` are, are part of, or are joined from.

    Returns those `FileShards`, the shard's number in them, and the position there of the id that is
    at position `first` here. `are_files` must be true for the shards.
    """
    if isinstance(shards, PartOfShards):
        low, begin, _ = shards._ranges
        return find_file(shards.whole, low + number, first + int(begin[number]))
    if isinstance(shards, JoinedShards):
        return find_file(*shards._find(number), first)
    assert isinstance(shards, FileShards)
    return shards, number, first


def are_files(shards: Shards) -> bool:
    """Return whether shards are files of plain ids, or parts of such files.

    >>> are_files(ArrayShard(np.arange(5)))
    False
    """
    if isinstance(shards, PartOfShards):
        return are_files(shards.whole)
    if isinstance(shards, JoinedShards):
        return all(map(are_files, shards.parts))
    return isinstance(shards, FileShards)


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
