"""The shards of a split as one long array.

Guarantees: a slice or a row is the same whatever the sharding; a file whose size or header is not
what it must be is refused by name before a token of it is read. Checksums are the business of
`tokenmill verify`, not of opening.

Costs: making a `Tokens` opens nothing. A shard is mapped when first touched, and of all shards of
the process at most `OPEN_FILES` stay mapped (`mapping.Maps`), with a few more in the hands of those
who read rows. A slice costs one copy of what it returns. `gather` copies rows in their own dtype,
as many as the cache holds, and casts those: it takes little more than the cast alone
(`benchmarks/gather.py`). Threads and forks may share a `Tokens`; a pickle starts with no maps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.errors import DatasetError, UsageError
from tokenmill.storage import mapping
from tokenmill.store.addresses import RowsInMemory, find_address
from tokenmill.store.documents import DocumentTable, inside, sums
from tokenmill.store.intervals import Intervals, cut_by_number, find_distinct, join_near
from tokenmill.store.shards import ArrayShard, JoinedShards, Shards

PIECE = 1 << 18  # bytes of rows that are gathered before they are cast: well within an L2 cache
MANY = min(
    max(mapping.OPEN_FILES // 4, 16), 4096
)  # shards whose maps are held while rows are copied
HELD = max(
    mapping.OPEN_FILES // 64, 1
)  # shards whose maps are held by those who read rows in parts
RUNS, RUN = 64, 256  # how many runs of how many tokens make the fingerprint

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
RowReader = Callable[[int, int], npt.NDArray[Any]]
_NONE = np.empty(0, np.int64)

_can_cast = lru_cache(maxsize=64)(np.can_cast)


class _Mapped(NamedTuple):
    """The ids of a shard, and where they are in memory, if all are there, one after another."""

    ids: npt.NDArray[Any]
    address: int | None


def _map_shard(shards: Shards, number: int) -> _Mapped:
    ids = shards.map(number)
    is_whole = len(ids) == shards.counts[number] and ids.flags.c_contiguous
    return _Mapped(ids, find_address(ids) if is_whole else None)


class Tokens:
    """All tokens of a split as one array of ids: `tokens[a:b]` is a fresh array of them.

    `eot_id` is the id that stands before or after each document (`eot` says which), where known.

    >>> tokens = Tokens.of(np.arange(10, dtype=np.uint16))
    >>> tokens[3:6], tokens.gather(np.array([0, 5]), 3).tolist()
    (array([3, 4, 5], dtype=uint16), [[0, 1, 2], [5, 6, 7]])
    """

    def __init__(
        self,
        shards: Shards,
        split: str,
        *,
        documents: DocumentTable | None = None,
        eot_id: int | None = None,
        eot: str = "after",
    ) -> None:
        self.split = split
        self.dtype: np.dtype[Any] = shards.dtype
        self.documents = documents
        self.eot_id = eot_id
        self.eot = eot
        self._shards = shards
        self._counts = shards.counts
        # starts[n] is where shard n begins in the split; the last entry is the split's length.
        self._starts = sums(self._counts)
        self._length = int(self._starts[-1])
        map_shard = partial(_map_shard, shards)
        self._map: Callable[[int], _Mapped] = (
            mapping.Maps(map_shard).__getitem__
            if shards.kept is None
            else lru_cache(maxsize=shards.kept)(map_shard)
        )
        self._most_held = shards.kept or MANY

    @classmethod
    def of(
        cls,
        ids: npt.ArrayLike,
        *,
        split: str = "train",
        documents: DocumentTable | None = None,
        eot_id: int | None = None,
        eot: str = "after",
    ) -> Tokens:
        """Tokens from a one-dimensional array of integers, without copying it.

        >>> Tokens.of([5, 6, 7])
        <Tokens 'train': 3 tokens (int64) in 1 shard>
        """
        array = np.asarray(ids)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise UsageError(
                f"tokens are integers in one dimension, and this array has the shape {array.shape} "
                f"and the dtype {array.dtype}."
            )
        shard = ArrayShard(np.ascontiguousarray(array))
        return cls(shard, split, documents=documents, eot_id=eot_id, eot=eot)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (self._shards, self.split, self.documents, self.eot_id, self.eot)

    def __repr__(self) -> str:
        number = f"{self.shard_count:,} shard{'s' if self.shard_count != 1 else ''}"
        tokens = f"{len(self):,} token{'s' if len(self) != 1 else ''}"
        return f"<Tokens {self.split!r}: {tokens} ({self.dtype.name}) in {number}>"

    def __len__(self) -> int:
        return self._length

    @property
    def shard_count(self) -> int:
        """How many shards the tokens are in."""
        return len(self._counts)

    def shard_name(self, number: int) -> str:
        """The file of a shard, relative to what was opened."""
        return self._shards.name(number)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> npt.NDArray[Any]: ...
    def __getitem__(self, index: int | slice) -> int | npt.NDArray[Any]:
        if not isinstance(index, slice):
            shard, position = self.locate(inside(index, len(self), "token"))
            return int(self._map(shard).ids[position])
        start, stop, step = index.indices(len(self))
        if step != 1:
            raise UsageError("tokens are read in order; take every n-th as tokens[a:b][::n].")
        ids = np.empty(max(stop - start, 0), self.dtype)
        self._copy(start, ids)
        return ids

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """The tokens [start, stop), without maps that stay: for going through all of them.

        >>> Tokens.of([5, 6, 7]).read(1, 3)
        array([6, 7])
        """
        if not 0 <= start < stop <= len(self):
            return self[start:stop]
        ids = np.empty(stop - start, self.dtype)
        shard, first = self.locate(start)
        done = 0
        while done < len(ids):
            count = min(len(ids) - done, int(self._counts[shard]) - first)
            if count:
                ids[done : done + count] = self._shards.read(shard, first, first + count)
            done, shard, first = done + count, shard + 1, 0
        return ids

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self), PIECE):
            yield from self[start : start + PIECE].tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        # Without this, NumPy would ask for the tokens one by one.
        if copy is False:
            raise ValueError("the tokens of several shards become one array only by a copy")
        return np.asarray(self[:], dtype)

    def locate(self, token: int) -> tuple[int, int]:
        """The number of the shard that holds a token, and the token's place in it."""
        shard = int(np.searchsorted(self._starts, token, side="right")) - 1
        return shard, token - int(self._starts[shard])

    def gather(
        self,
        starts: Integers,
        length: int,
        dtype: npt.DTypeLike = np.int64,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """The rows [start, start + length) for each of `starts`, as one array of `dtype`.

        With `out`, of shape (len(starts), length) and of any integer dtype and strides, the rows
        are written there. An id that the dtype cannot hold is an error, never wrapped.

        >>> Tokens.of([5, 6, 7, 8]).gather(np.array([2, 0]), 2, dtype=np.int32)
        array([[7, 8],
               [5, 6]], dtype=int32)
        """
        read, rows = self.find_rows(starts, length), len(starts)
        if out is None:
            if dtype == self.dtype:
                return read(0, rows)
            out = np.empty((rows, length), dtype)
        elif out.shape != (rows, length):
            raise UsageError(
                f"rows of the shape {(rows, length)} do not go into an array of {out.shape}."
            )
        if out.dtype.kind not in "iu":
            raise UsageError(f"ids are integers; the dtype {out.dtype} does not hold them.")
        step = max(1, PIECE // (length * self.dtype.itemsize))
        for first in range(0, rows, step):
            cast(read(first, first + step), out[first : first + step])
        return out

    def find_rows(self, starts: Integers, length: int) -> RowReader:
        """How to read the rows of `gather`: called with two numbers, it reads those from the first to
        before the second, in an array of their own dtype. They are found once, and read in parts; if
        the tokens are in few shards, it holds the maps of these.

        >>> read = Tokens.of([5, 6, 7, 8]).find_rows(np.array([2, 0, 1]), 2)
        >>> read(0, 2).tolist(), read(2, 3).tolist()
        ([[7, 8], [5, 6]], [[6, 7]])
        """
        starts = self._check_rows(starts, length)
        if not len(starts):
            return lambda *_: np.empty((0, length), self.dtype)
        if len(self._counts) == 1:
            maps, addresses = self._find_addresses([0])
            return RowsInMemory(starts * self.dtype.itemsize + addresses, length, self.dtype, maps)
        shards = self._find_shards(starts)
        firsts = starts - self._starts[shards]
        crosses = firsts + length > self._counts[shards]
        crossing = np.flatnonzero(crosses)
        held = None
        if len(self._counts) <= min(HELD, self._most_held):
            held = self._hold_rows(shards, firsts, crosses, length)

        def read(first: int, last: int) -> npt.NDArray[Any]:
            some = slice(first, last)
            if held is not None:
                rows = held(first, last)
            else:
                rows = self._read_within(shards[some], firsts[some], crosses[some], length)
            for number in crossing[slice(*crossing.searchsorted((first, last)))].tolist():
                self._copy(int(starts[number]), rows[number - first])
            return rows

        return read

    def read_ahead(self, starts: Integers, length: int) -> None:
        """Let the system read some rows soon: for rows that are near each other on a slow disk."""
        for start, stop in join_near(np.sort(starts), length, PIECE // self.dtype.itemsize):
            shard, first = self.locate(start)
            while start < stop:
                count = min(stop - start, int(self._counts[shard]) - first)
                mapping.read_ahead(self._map(shard).ids, first, first + count)
                start, shard, first = start + count, shard + 1, 0

    def _check_rows(self, starts: Integers, length: int) -> Integers:
        starts = np.asarray(starts)
        if starts.ndim != 1 or (starts.dtype.kind not in "iu" and starts.size):
            raise UsageError("the starts of rows are integers in one dimension.")
        if length < 1:
            raise UsageError(f"rows have 1 token or more, not {length}.")
        starts = starts.astype(np.int64, copy=False)
        # As unsigned numbers, negative ones are the largest: one look finds both kinds.
        if starts.size and (
            length > self._length
            or int(np.maximum.reduce(starts.view(np.uint64))) > self._length - length
        ):
            wrong = starts[(starts < 0) | (starts > self._length - length)]
            raise IndexError(
                f"a row of {length:,} tokens from token {wrong[0]} on is not within the "
                f"{self._length:,} there are in split {self.split!r}"
            )
        return starts

    def _read_within(
        self, shards: Integers, firsts: Integers, crosses: Flags, length: int
    ) -> npt.NDArray[Any]:
        """The rows that begin at these places of these shards; in the places of those that cross
        into another shard is anything."""
        if len(self._counts) <= self._most_held:
            return self._hold_rows(shards, firsts, crosses, length)(0, len(shards))
        rows = np.empty((len(shards), length), self.dtype)
        for some in cut_by_number(shards, self._most_held):
            part = self._hold_rows(shards[some], firsts[some], crosses[some], length)
            rows[some] = part(0, len(some))
        return rows

    def _hold_rows(
        self, shards: Integers, firsts: Integers, crosses: Flags, length: int
    ) -> RowReader:
        """How to read what `_read_within` reads, with the maps of all shards in hand."""
        if crosses.all():
            return lambda first, last: np.empty((len(crosses[first:last]), length), self.dtype)
        if crosses.any():
            stand_in = crosses.argmin()
            shards = np.where(crosses, shards[stand_in], shards)
            firsts = np.where(crosses, firsts[stand_in], firsts)
        needed, which = find_distinct(shards, len(self._counts))
        maps, addresses = self._find_addresses(needed.tolist())
        places = addresses[which] + firsts * self.dtype.itemsize
        return RowsInMemory(places, length, self.dtype, maps)

    def _find_shards(self, starts: Integers) -> Integers:
        """The shard that each row begins in."""
        if len(starts) < len(self._counts):  # a table would take longer than it saves
            return self._starts.searchsorted(starts, "right") - 1
        return self._intervals.find(starts)

    @cached_property
    def _intervals(self) -> Intervals:
        return Intervals(self._starts)

    def _find_addresses(self, shards: list[int]) -> tuple[list[npt.NDArray[Any]], Integers]:
        """The ids of shards of which surely all are there, and where they begin in memory."""
        maps = [self._map(shard) for shard in shards]
        addresses = [mapped.address for mapped in maps]
        if None in addresses:
            shard = shards[addresses.index(None)]
            raise DatasetError(
                f"{self.shard_name(shard)}: expected {self._counts[shard]:,} tokens, found "
                f"{len(self._map(shard).ids):,}."
            )
        return [mapped.ids for mapped in maps], np.array(addresses, np.int64)

    def _copy(self, start: int, ids: npt.NDArray[Any]) -> None:
        """Fill `ids` with the tokens from `start` on, over as many shards as they are in."""
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

    def find_edges(
        self, starts: Integers, length: int, rows: npt.NDArray[Any] | None = None
    ) -> Integers:
        """Where documents begin in the rows [start, start + length), laid end to end; sorted.

        From the table of documents where there is one, else by the end-of-text id; the first
        token of the split always begins one. `rows` are the tokens themselves, if they are at hand,
        (rows, length or more).

        >>> Tokens.of([5, 0, 6, 7, 0, 8], eot_id=0).find_edges(np.array([0, 3]), 3)
        array([0, 2, 5])
        """
        starts = self._check_rows(starts, length)
        if self.documents is None and self.eot_id is None:
            raise DatasetError(
                f"{self.split!r} has neither a document table nor an end-of-text id, so the starts of "
                "its documents are unknown. If its tokens have such an id, open it with "
                "`eot_id=ID`."
            )
        if not len(starts):
            return _NONE
        if self.documents is not None:
            return self.documents.find_edges(starts, length)
        if rows is None:
            rows = self.find_rows(starts, length)(0, len(starts))
        found = np.flatnonzero(rows.ravel() == self.eot_id)
        at = found // rows.shape[1]
        places = found - at * rows.shape[1]
        begins = starts == 0  # the first token always begins a document, and ends none
        if self.eot == "before":
            begins &= rows[:, 0] != self.eot_id
        else:
            places += 1
            before = self.find_rows(np.maximum(starts - 1, 0), 1)(0, len(starts))
            begins |= before[:, 0] == self.eot_id
        edges = (at * length + places)[places < length]
        edges = np.concatenate((np.flatnonzero(begins) * length, edges))
        edges.sort()
        return edges

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the content: of the number of tokens and of 64 runs at places fixed by it.

        The same tokens have the same one in any format, dtype and number of shards.

        >>> Tokens.of([1, 2, 3]).fingerprint == Tokens.of(np.arange(1, 4, dtype="u2")).fingerprint
        True
        """
        run = min(RUN, len(self))
        digest = xxhash.xxh3_128(len(self).to_bytes(8, "little"))
        if run:
            room = len(self) - run
            places = sorted({room * number // (RUNS - 1) for number in range(RUNS)})
            ids = np.empty((len(places), run), np.int64)
            for place, row in zip(places, ids, strict=True):
                cast(self.read(place, place + run), row)
            digest.update(np.ascontiguousarray(ids, "<i8").data)
        return digest.hexdigest()

    def in_memory(self) -> Tokens:
        """The same tokens, copied into one array of the process's memory."""
        return Tokens.of(
            self[:],
            split=self.split,
            documents=self.documents,
            eot_id=self.eot_id,
            eot=self.eot,
        )


def join(sources: Sequence[Tokens]) -> Tokens | None:
    """The tokens of all sources, end to end, if they can be one array: they have one dtype, and
    their shards are files or arrays.

    >>> both = join([Tokens.of([1, 2, 3]), Tokens.of([10, 20, 30])])
    >>> both.gather(np.array([3, 1]), 2).tolist()
    [[10, 20], [2, 3]]
    """
    shards = [tokens._shards for tokens in sources]
    if len({one.dtype for one in shards}) > 1 or any(one.kept is not None for one in shards):
        return None
    return type(sources[0])(JoinedShards(tuple(shards)), sources[0].split)


def cast(ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Copy ids to an array of another integer dtype; one that it cannot hold is an error."""
    if not _can_cast(ids.dtype, out.dtype):
        limits = np.iinfo(out.dtype)
        for one in (ids.min(initial=0), ids.max(initial=0)):
            if not limits.min <= int(one) <= limits.max:
                raise DatasetError(
                    f"the tokens hold the id {one}, which {out.dtype} cannot hold. Ask for a wider "
                    "dtype, such as int64; if no vocabulary is that large, the file is not what it "
                    "was taken for."
                )
    np.copyto(out, ids, casting="unsafe")


def _make(
    shards: Shards, split: str, documents: DocumentTable | None, eot_id: int | None, eot: str
) -> Tokens:
    return Tokens(shards, split, documents=documents, eot_id=eot_id, eot=eot)
