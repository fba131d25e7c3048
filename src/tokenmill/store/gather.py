"""Copy rows of tokens out of any number of shards at once.

Guarantees: a row is the same however the tokens are divided into shards. If the file of a shard has
the wrong size, an error names the file before any of its tokens is read.

NumPy copies rows of one array in native code, but rows in many shards would need a Python loop. To
avoid it, `MappedRows` finds rows by their memory addresses: all maps of a process are in one address
space. To NumPy, all memory from the first row on looks like one array of overlapping rows. The
caller has checked that each row is inside a shard, and `MappedRows` keeps the maps alive, so no
other memory is ever read.

Costs: a few searches for all rows together, and one copy. Shards are mapped when first used; a
`RowReader` holds the maps of its shards only if these are few. `benchmarks/gather.py` measures the
costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError
from tokenmill.storage import mapping
from tokenmill.store.row_source import RowReader, RowSource
from tokenmill.store.shards import Shards

PIECE = 1 << 18  # bytes that are copied or read ahead at once: well within an L2 cache
MANY = min(max(mapping.OPEN_FILES // 4, 1), 4096)  # shards whose maps are held during a copy
FEW = max(mapping.OPEN_FILES // 64, 1)  # shards whose maps a `RowReader` keeps
_LONG = 1 << 18  # from this many bytes on, a copy takes longer than waking another thread
_MOST_STEPS = 8

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class _Mapped(NamedTuple):
    """The ids of a shard, and the memory address of their array.

    The address is None if ids are missing or the array is not contiguous.
    """

    ids: npt.NDArray[Any]
    address: int | None


class Gatherer(RowSource):
    """Reads rows of tokens from shards as if the shards were joined end to end.

    While rows are copied, the maps of at most `many` shards are held. Between calls, a `RowReader`
    keeps the maps of at most `few` shards.

    >>> from tokenmill.store.shards import ArrayShard
    >>> read = Gatherer(ArrayShard(np.array([5, 6, 7, 8]))).find_rows(np.array([2, 0, 1]), 2)
    >>> read(0, 2).tolist(), read(2, 3).tolist()
    ([[7, 8], [5, 6]], [[6, 7]])
    """

    piece = PIECE

    def __init__(self, shards: Shards, *, many: int = MANY, few: int = FEW) -> None:
        super().__init__(shards.counts, shards.dtype)
        self._shards = shards
        map_shard = partial(_map_shard, shards)
        self._map: Callable[[int], _Mapped] = (
            mapping.Maps(map_shard).__getitem__
            if shards.kept is None
            else lru_cache(maxsize=shards.kept)(map_shard)
        )
        self._many = shards.kept or many
        self._few = min(few, self._many)

    def copy(self, start: int, ids: npt.NDArray[Any]) -> None:
        """Fill `ids` with the tokens from `start` on, from as many shards as needed."""
        done, length = 0, len(ids)
        if not length:
            return
        shard, first = self.locate(start)
        while done < length:
            mapped = self._map(shard).ids
            part = mapped[first : first + length - done]
            if part.nbytes > PIECE:
                mapping.read_ahead(mapped, first, first + len(part))
            ids[done : done + len(part)] = part
            done += len(part)
            shard, first = shard + 1, 0

    def find_rows(self, starts: Integers, length: int) -> RowReader:
        """Return a function that reads rows. Row n is the tokens [starts[n], starts[n] + length).

        All rows must be inside the split.
        """
        if not len(starts):
            return lambda *_: np.empty((0, length), self.dtype)
        if len(self.counts) == 1:
            maps, addresses = self._find_addresses([0])
            return MappedRows(starts * self.dtype.itemsize + addresses, length, self.dtype, maps)
        shards = self._find_shards(starts)
        firsts = starts - self.starts[shards]
        crosses = firsts + length > self.counts[shards]
        crossing = np.flatnonzero(crosses)
        held = None
        if len(self.counts) <= self._few:
            held = self._hold_rows(shards, firsts, crosses, length)

        def read(first: int, last: int) -> npt.NDArray[Any]:
            some = slice(first, last)
            if held is not None:
                rows = held(first, last)
            else:
                rows = self._read_within(shards[some], firsts[some], crosses[some], length)
            for number in crossing[slice(*crossing.searchsorted((first, last)))].tolist():
                self.copy(int(starts[number]), rows[number - first])
            return rows

        return read

    def read_ahead(self, starts: Integers, length: int) -> None:
        """Ask the system to read rows ahead. Useful for rows close together on a slow disk."""
        for start, stop in join_near(np.sort(starts), length, PIECE // self.dtype.itemsize):
            shard, first = self.locate(start)
            while start < stop:
                count = min(stop - start, int(self.counts[shard]) - first)
                mapping.read_ahead(self._map(shard).ids, first, first + count)
                start, shard, first = start + count, shard + 1, 0

    def _read_within(
        self, shards: Integers, firsts: Integers, crosses: Flags, length: int
    ) -> npt.NDArray[Any]:
        """Return rows. Row n starts at position `firsts[n]` of shard `shards[n]`.

        If `crosses[n]`, the row continues in another shard. Its content is then arbitrary, and the
        caller must fill it in.
        """
        if len(self.counts) <= self._many:
            return self._hold_rows(shards, firsts, crosses, length)(0, len(shards))
        rows = np.empty((len(shards), length), self.dtype)
        for some in cut_by_number(shards, self._many):
            part = self._hold_rows(shards[some], firsts[some], crosses[some], length)
            rows[some] = part(0, len(some))
        return rows

    def _hold_rows(
        self, shards: Integers, firsts: Integers, crosses: Flags, length: int
    ) -> RowReader:
        """Like `_read_within`, but returns a reader of the rows, which keeps all shards mapped."""
        if crosses.all():
            return lambda first, last: np.empty((len(crosses[first:last]), length), self.dtype)
        if crosses.any():
            stand_in = crosses.argmin()  # a row that does not cross, read in place of those that do
            shards = np.where(crosses, shards[stand_in], shards)
            firsts = np.where(crosses, firsts[stand_in], firsts)
        needed, which = find_distinct(shards, len(self.counts))
        maps, addresses = self._find_addresses(needed.tolist())
        places = addresses[which] + firsts * self.dtype.itemsize
        return MappedRows(places, length, self.dtype, maps)

    def _find_shards(self, starts: Integers) -> Integers:
        """Return the index of the shard that each row starts in."""
        if len(starts) < len(self.counts):  # making a table would take longer than it saves
            return self.starts.searchsorted(starts, "right") - 1
        return self._shard_finder.find(starts)

    @cached_property
    def _shard_finder(self) -> ShardFinder:
        return ShardFinder(self.starts)

    def _find_addresses(self, shards: list[int]) -> tuple[list[npt.NDArray[Any]], Integers]:
        """Return the token ids of each of these shards, and the memory address of each array.

        Refuses a shard with too few ids.
        """
        maps = [self._map(shard) for shard in shards]
        addresses = [mapped.address for mapped in maps]
        if None in addresses:
            shard = shards[addresses.index(None)]
            raise DatasetError(
                f"{self._shards.name(shard)}: expected {self.counts[shard]:,} tokens, found "
                f"{len(self._map(shard).ids):,}. Copy or download the file again from its source."
            )
        return [mapped.ids for mapped in maps], np.array(addresses, np.int64)


def _map_shard(shards: Shards, number: int) -> _Mapped:
    ids = shards.map(number)
    is_whole = len(ids) == shards.counts[number] and ids.flags.c_contiguous
    return _Mapped(ids, find_address(ids) if is_whole else None)


def find_address(array: npt.NDArray[Any]) -> int:
    """Return the memory address of an array."""
    return int(array.__array_interface__["data"][0])


class MappedRows:
    """A `RowReader` for rows of `length` ids that begin at the given memory addresses.

    All rows are inside memory that the objects in `held` keep alive.

    >>> first, second = np.arange(5), np.arange(50, 55)
    >>> addresses = np.array([find_address(second), find_address(first) + 8, find_address(first)])
    >>> MappedRows(addresses, 3, first.dtype, [first, second])(0, 2)
    array([[50, 51, 52],
           [ 1,  2,  3]])
    """

    def __init__(
        self,
        addresses: Integers,
        length: int,
        dtype: np.dtype[Any],
        held: Sequence[object],
    ) -> None:
        self._length, self._dtype, self._held = length, dtype, held
        self._lowest = int(addresses.min())
        self._places = addresses - self._lowest
        self._bytes = int(self._places.max()) + length * dtype.itemsize

    def __call__(self, first: int, last: int) -> npt.NDArray[Any]:
        places, size = self._places[first:last], self._length * self._dtype.itemsize
        rows = len(places)
        if not rows:
            return np.empty((0, self._length), self._dtype)
        elements = _count_elements(rows, size)
        if elements > 1:
            size //= elements
            places = np.add.outer(places, np.arange(elements) * size).ravel()
        memory = view_memory(self._lowest, self._bytes - size + 1, size, self._held)
        # Each row is one element of a one-dimensional array: this is faster to copy than the rows of a
        # two-dimensional array.
        copied = memory[places]
        return copied.view(np.uint8).view(self._dtype).reshape(rows, self._length)


@lru_cache(maxsize=64)
def _count_elements(rows: int, size: int) -> int:
    """Return how many elements to divide each row into, to copy `rows` rows of `size` bytes.

    Other threads can run while NumPy copies more than 500 elements, but not while it copies fewer. So
    if the rows are few and long, each is divided. Otherwise each row is one element.

    >>> _count_elements(2_048, 4_098), _count_elements(256, 32_772), _count_elements(4, 2_050)
    (1, 2, 1)
    """
    least = -(-501 // rows)
    if least == 1 or rows * size < _LONG:
        return 1
    return next((n for n in range(least, 16 * least) if size % n == 0), 1)


def view_memory(
    address: int, count: int, size: int, held: Sequence[object]
) -> npt.NDArray[np.void]:
    """Return the memory from an address on, as `count` overlapping elements of `size` bytes.

    An element begins at every byte. The array keeps the objects in `held` alive.
    """
    return np.asarray(_Memory(address, count, size, held))


class _Memory:
    """Memory as an array for NumPy, with elements that overlap.

    An element of `size` bytes begins at every byte. NumPy keeps a reference to this object, and so to
    the maps in `held`.
    """

    def __init__(self, address: int, count: int, size: int, held: Sequence[object]) -> None:
        self.held = held
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),
            "shape": (count,),
            "strides": (1,),
            "typestr": f"|V{size}",
        }


class ShardFinder:
    """Finds the shards of many tokens at once.

    Shard n starts at `starts[n]`. The first entry of `starts` is 0, and the last is the end of the
    last shard. A table with four to eight entries per shard gives a first guess. If the guess is too
    low, it moves to the next shard, usually once or twice, for all tokens at once. This is ten times
    as fast as `numpy.searchsorted`. If many shards start close together, that is used.

    >>> ShardFinder(np.array([0, 3, 3, 10])).find(np.array([9, 0, 2, 3]))
    array([2, 0, 0, 2])
    """

    def __init__(self, starts: Integers) -> None:
        self._starts = starts
        end = int(starts[-1])
        self._shift = max(0, (end // (4 * len(starts))).bit_length() - 1)
        places = np.arange((end >> self._shift) + 2) << self._shift
        self._near = starts[:-1].searchsorted(places, "right") - 1
        self._steps = int(np.diff(self._near).max())

    def find(self, tokens: Integers) -> Integers:
        """Return the index of each token's shard. All tokens must be inside the split."""
        if self._steps > _MOST_STEPS:
            return self._starts[:-1].searchsorted(tokens, "right") - 1
        found: Integers = self._near[tokens >> self._shift]
        for _ in range(self._steps):
            found += self._starts[found + 1] <= tokens
        return found


def find_distinct(numbers: Integers, limit: int) -> tuple[Integers, Integers]:
    """Like `numpy.unique(numbers, return_inverse=True)`, for numbers in [0, limit).

    If there are at least `limit` numbers, this is faster than NumPy.

    >>> [part.tolist() for part in find_distinct(np.array([7, 2, 7, 2]), 10)]
    [[2, 7], [1, 0, 1, 0]]
    """
    if len(numbers) < limit:
        return np.unique(numbers, return_inverse=True)
    marks = np.bincount(numbers) > 0
    return np.flatnonzero(marks), (np.cumsum(marks) - 1)[numbers]


def cut_by_number(numbers: Integers, most: int) -> list[Integers]:
    """Divide the indices of `numbers` into parts. Each part refers to at most `most` distinct numbers.

    >>> [part.tolist() for part in cut_by_number(np.array([9, 4, 9, 7]), 2)]
    [[1, 3], [0, 2]]
    """
    order = numbers.argsort(kind="stable")
    runs = (np.diff(numbers[order], prepend=-1) != 0).cumsum() - 1
    runs //= most
    return np.split(order, np.flatnonzero(np.diff(runs)) + 1)


def join_near(starts: Integers, length: int, gap: int) -> list[tuple[int, int]]:
    """Return the ranges that sorted rows cover; ranges at most `gap` apart become one.

    >>> join_near(np.array([0, 10, 90]), 10, gap=5)
    [(0, 20), (90, 100)]
    """
    breaks = np.flatnonzero(np.diff(starts) > length + gap) + 1
    firsts = starts[np.concatenate(([0], breaks))]
    lasts = starts[np.concatenate((breaks - 1, [len(starts) - 1]))] + length
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
