"""The tokens of a split as one long array.

Guarantees: a slice or a row is the same however the tokens are divided into shards. If a file has
the wrong size or header, an error names the file before any of its tokens is read. Opening does not
compare checksums; `tokenmill verify` does.

Costs: making a `Tokens` opens nothing. A shard is mapped when first used, and at most
`mapping.OPEN_FILES` files of the process stay mapped. A slice costs one copy of its tokens.
`gather` copies as many rows as fit in the CPU's cache, casts them to the result's dtype, and
repeats. This takes little longer than the cast alone (`benchmarks/gather.py`). Threads and forks
may share a `Tokens`; a pickle contains no maps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.errors import DatasetError, UsageError
from tokenmill.html import render
from tokenmill.storage.cache import PieceCache
from tokenmill.store.cached_rows import CachedRows
from tokenmill.store.casting import cast, cast_rows
from tokenmill.store.documents import DocumentTable, inside
from tokenmill.store.file_rows import FileRows, copy_range
from tokenmill.store.frame_rows import FrameRows, find_stored
from tokenmill.store.gather import PIECE, Gatherer
from tokenmill.store.range_reader import RangeReader
from tokenmill.store.row_source import RowReader, RowSource
from tokenmill.store.shards import (
    ArrayShard,
    JoinedShards,
    Shards,
    are_files,
    combine_checksums,
    find_object_folder,
)
from tokenmill.store.tables import ShardTable

RUNS, RUN = 64, 256  # the fingerprint covers this many runs of this many tokens

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Earlier:
    """A split in an earlier generation of its dataset: its number of tokens, in the first shards."""

    tokens: int
    shards: int
    table: ShardTable  # of the whole split
    dtype: np.dtype[Any]

    @property
    def checksum(self) -> str | None:
        """The checksum of the tokens, as in `Shards.checksum`."""
        table, end = self.table, self.shards
        return combine_checksums(self.dtype, table.tokens[:end], table.xxh3_128[:end])


class Tokens:
    """All tokens of a split as one array of ids. `tokens[a:b]` copies a range to a NumPy array.

    `eot_id` is the end-of-text id before or after each document (`eot` says which), or None.

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
        earlier: Sequence[Earlier] = (),
    ) -> None:
        self.split = split
        self.dtype: np.dtype[Any] = shards.dtype
        self.documents = documents
        self.eot_id = eot_id
        self.eot = eot
        self.earlier = tuple(earlier)  # the same split before its dataset grew
        self._shards = shards
        self._gatherer = self._make_gatherer(shards)
        self._length = int(self._gatherer.starts[-1])

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
        """Make `Tokens` from a one-dimensional array of integers, without copying it.

        >>> Tokens.of([5, 6, 7])
        <Tokens 'train': 3 tokens (int64) in 1 shard>
        """
        array = np.asarray(ids)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise UsageError(
                "tokens must be integers in one dimension; this array has the shape "
                f"{array.shape} and the dtype {array.dtype}."
            )
        shard = ArrayShard(np.ascontiguousarray(array))
        return cls(shard, split, documents=documents, eot_id=eot_id, eot=eot)

    def _make_gatherer(self, shards: Shards) -> RowSource:
        remote = find_object_folder(shards) is not None  # its files cannot be mapped
        if (compressed := FrameRows.of(shards, mapped=not remote)) is not None:
            return compressed
        return FileRows(shards) if remote else Gatherer(shards)

    @property
    def _known(self) -> dict[str, Any]:
        """The arguments of `Tokens` besides the shards and the split."""
        known = {"documents": self.documents, "eot_id": self.eot_id, "eot": self.eot}
        return {**known, "earlier": self.earlier} if self.earlier else known

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Tokens, **self._known), (self._shards, self.split)

    def __repr__(self) -> str:
        number = f"{self.shard_count:,} shard{'s' if self.shard_count != 1 else ''}"
        tokens = f"{len(self):,} token{'s' if len(self) != 1 else ''}"
        return f"<Tokens {self.split!r}: {tokens} ({self.dtype.name}) in {number}>"

    def _repr_html_(self) -> str:
        place = "an object store" if self.is_remote else "files or memory"
        facts = [
            ("tokens", f"{len(self):,}"),
            ("dtype", self.dtype.name),
            ("shards", f"{self.shard_count:,}"),
            ("read from", f"{place}, through a cache" if self.cache is not None else place),
        ]
        if self.documents is not None:
            facts.append(("documents", self.documents.describe_length()))
        if self.eot_id is not None:
            facts.append(("end-of-text id", f"{self.eot_id} {self.eot} each document"))
        return render(f"Tokens of {self.split}", facts)

    def __len__(self) -> int:
        return self._length

    @property
    def shard_count(self) -> int:
        """How many shards the tokens are in."""
        return len(self._gatherer.counts)

    def shard_name(self, number: int) -> str:
        """Return the path of a shard's file, relative to the path that was opened."""
        return self._shards.name(number)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> npt.NDArray[Any]: ...
    def __getitem__(self, index: int | slice) -> int | npt.NDArray[Any]:
        if not isinstance(index, slice):
            return self._gatherer.read_token(inside(index, len(self), "token"))
        start, stop, step = index.indices(len(self))
        if step != 1:
            raise UsageError("slices of tokens cannot have a step; use tokens[a:b][::n].")
        ids = np.empty(max(stop - start, 0), self.dtype)
        self._gatherer.copy(start, ids)
        return ids

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the tokens [start, stop), without keeping maps: for reading all tokens in order.

        >>> Tokens.of([5, 6, 7]).read(1, 3)
        array([6, 7])
        """
        if not 0 <= start < stop <= len(self):
            return self[start:stop]
        ids = np.empty(stop - start, self.dtype)
        if isinstance(self._gatherer, FrameRows):
            self._gatherer.copy(start, ids)  # it keeps frames that the next call needs
        else:
            copy_range(self._shards, self._gatherer.counts, *self.locate(start), ids)
        return ids

    def viewer(self) -> Callable[[int, int], AbstractContextManager[npt.NDArray[Any]]]:
        """Return a function for reading many ranges: `view(start, stop)` yields these tokens.

        They must not be used after the `with` block, because their memory is used again.

        >>> view = Tokens.of([5, 6, 7]).viewer()
        >>> with view(1, 3) as ids:
        ...     ids
        array([6, 7])
        """
        if isinstance(self._gatherer, Gatherer) and are_files(self._shards):
            return RangeReader(self._shards, self._gatherer).view
        return lambda start, stop: nullcontext(self.read(start, stop))

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self), PIECE):
            yield from self[start : start + PIECE].tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        # Without this, NumPy would read the tokens one by one.
        if copy is False:
            raise ValueError("tokens cannot become an array without a copy: omit copy=False")
        return np.asarray(self[:], dtype)

    def locate(self, token: int) -> tuple[int, int]:
        """Return the index of the shard that holds a token, and the token's position in that shard."""
        return self._gatherer.locate(token)

    def gather(
        self,
        starts: Integers,
        length: int,
        dtype: npt.DTypeLike = np.int64,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """Return the rows [start, start + length) for each of `starts`, as one array of `dtype`.

        `out` is an array to write the rows to. Its shape must be (len(starts), length); its dtype may
        be any integer type. An id that the dtype cannot hold is an error, never wrapped.

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
                f"`out` has the shape {out.shape}, but the rows have the shape {(rows, length)}."
            )
        if out.dtype.kind not in "iu":
            raise UsageError(f"ids are integers, but the dtype is {out.dtype}. Use int64.")
        cast_rows(read, out, self.dtype, self._gatherer.piece)
        return out

    def find_rows(self, starts: Integers, length: int) -> RowReader:
        """Return a function that reads the same rows as `gather`, some at a time.

        The function `read(first, last)` returns the rows [first, last), in the dtype of the tokens.
        If the shards are few, the function keeps them mapped.

        >>> read = Tokens.of([5, 6, 7, 8]).find_rows(np.array([2, 0, 1]), 2)
        >>> read(0, 2).tolist(), read(2, 3).tolist()
        ([[7, 8], [5, 6]], [[6, 7]])
        """
        return self._gatherer.find_rows(self._check_rows(starts, length), length)

    def read_ahead(self, starts: Integers, length: int) -> None:
        """Ask the system to read rows ahead. Useful for rows close together on a slow disk."""
        self._gatherer.read_ahead(starts, length)

    def fetch(
        self, starts: Integers, length: int, is_stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Fetch rows into the cache before they are read. May take long.

        Without a cache, calls `read_ahead`. Ends early once `is_stopped` returns True.
        """
        self._gatherer.fetch(self._check_rows(starts, length), length, is_stopped)

    def stream(self, is_streaming: bool) -> None:
        """Set whether whole blocks of rows are being fetched into the cache in the background.

        If so, reading a row that is not in the cache yet fetches only that row. Otherwise, it
        fetches whole pieces. Without a cache, does nothing.
        """

    @property
    def is_remote(self) -> bool:
        """Whether the tokens are in an object store."""
        return find_object_folder(self._shards) is not None

    @property
    def is_cacheable(self) -> bool:
        """Whether `cached` can read the tokens through a cache."""
        return are_files(find_stored(self._shards))

    @property
    def cache(self) -> PieceCache | None:
        """The cache through which the tokens are read; see `cached`."""
        return None

    def _check_rows(self, starts: Integers, length: int) -> Integers:
        starts = np.asarray(starts)
        if starts.ndim != 1 or (starts.dtype.kind not in "iu" and starts.size):
            raise UsageError("the starts of rows must be integers in one dimension.")
        if length < 1:
            raise UsageError(f"rows must have 1 token or more, not {length}.")
        starts = starts.astype(np.int64, copy=False)
        # As unsigned integers, negative numbers are huge: one comparison finds both kinds of errors.
        if starts.size and (
            length > self._length
            or int(np.maximum.reduce(starts.view(np.uint64))) > self._length - length
        ):
            wrong = starts[(starts < 0) | (starts > self._length - length)]
            raise IndexError(
                f"the row of {length:,} tokens from token {wrong[0]} on is not inside split "
                f"{self.split!r}, which has {self._length:,} tokens"
            )
        return starts

    def find_document_starts(
        self, starts: Integers, length: int, rows: npt.NDArray[Any] | None = None
    ) -> Integers:
        """Return where documents start in the rows [start, start + length).

        Returns sorted positions in the rows joined end to end. With a length of 3, position 5 is the
        last token of the second row.

        The starts come from the table of documents. If there is no table, they come from the
        end-of-text id. The first token of the split always starts a document. If the rows were read
        already, pass them as `rows`: an array of shape (len(starts), length or more).

        >>> Tokens.of([5, 0, 6, 7, 0, 8], eot_id=0).find_document_starts(np.array([0, 3]), 3)
        array([0, 2, 5])
        """
        starts = self._check_rows(starts, length)
        if self.documents is None and self.eot_id is None:
            raise DatasetError(
                f"{self.split!r} has neither a document table nor an end-of-text id, so the starts of "
                "its documents are unknown. If the tokens have an end-of-text id, pass `eot_id=ID` when "
                "you open them."
            )
        if not len(starts):
            return np.empty(0, np.int64)
        if self.documents is not None:
            return self.documents.find_starts(starts, length)
        if rows is None:
            rows = self.find_rows(starts, length)(0, len(starts))
        found = np.flatnonzero(rows.ravel() == self.eot_id)
        at = found // rows.shape[1]
        places = found - at * rows.shape[1]
        begins = starts == 0  # the first token always starts a document
        if self.eot == "before":
            begins &= rows[:, 0] != self.eot_id
        else:
            places += 1
            before = self.find_rows(np.maximum(starts - 1, 0), 1)(0, len(starts))
            begins |= before[:, 0] == self.eot_id
        inner = (at * length + places)[places < length]
        found = np.concatenate((np.flatnonzero(begins) * length, inner))
        found.sort()
        return found

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the number of tokens and of 64 runs of tokens at evenly spaced places.

        The same tokens have the same fingerprint in any format, dtype and number of shards.

        >>> Tokens.of([1, 2, 3]).fingerprint == Tokens.of(np.arange(1, 4, dtype="u2")).fingerprint
        True
        """
        run = min(RUN, len(self))
        digest = xxhash.xxh3_128(len(self).to_bytes(8, "little"))
        if run:
            room = len(self) - run
            places = sorted({room * number // (RUNS - 1) for number in range(RUNS)})
            ids = np.empty((len(places), run), np.int64)
            reader = FileRows(self._shards) if self.cache is None else self._gatherer
            if isinstance(reader, CachedRows):
                reader.fetch(np.array(places), run, lambda: False, exact=True)
            cast(reader.find_rows(np.array(places), run)(0, len(places)), ids)
            digest.update(np.ascontiguousarray(ids, "<i8").data)
        return digest.hexdigest()

    @property
    def identity(self) -> str:
        """A string that identifies the tokens in a saved state; compare two with `is_same_data`.

        With a manifest, the string depends on the checksums of all shards, so it changes if any token
        changes. Without a manifest, it is only the fingerprint, which is computed from a sample.
        """
        checksum = self._shards.checksum
        return self.fingerprint if checksum is None else f"{self.fingerprint}:{checksum}"

    @property
    def generation(self) -> int:
        """The generation of the dataset: 1, and one more each time that the dataset grew."""
        return len(self.earlier) + 1

    def find_generation(self, count: object, identity: object) -> int | None:
        """Return which earlier generation has `count` tokens with a saved identity; None if none has.

        Reads no tokens: it compares lengths and the checksums in the manifest.
        """
        fingerprint = str(identity).partition(":")[0]
        for number, one in enumerate(self.earlier, 1):
            if one.tokens == count and is_same_data(f"{fingerprint}:{one.checksum}", identity):
                return number
        return None

    def learn_fingerprint(self, identity: object) -> None:
        """Take the fingerprint from a saved identity, if tokens are slow to read.

        Only done if the identity has the checksums of these tokens. It saves two requests when a
        run over tokens in an object store resumes.
        """

    def in_memory(self) -> Tokens:
        """Return the same tokens, copied into one array of the process's memory."""
        return Tokens(ArrayShard(self[:], self._shards.checksum), self.split, **self._known)

    def unmapped(self, between: Callable[[], None] | None = None) -> Tokens:
        """Return the same tokens, read from their files instead of through memory maps.

        If a file is truncated while it is in use, reading it raises a DatasetError that names the
        file; with a map, the process is killed. `between` is called before each row.

        >>> Tokens.of([5, 6, 7, 8]).unmapped().gather(np.array([2, 0]), 2).tolist()
        [[7, 8], [5, 6]]
        """
        return _UnmappedTokens(self._shards, self.split, between, **self._known)

    def cached(self, cache: PieceCache, between: Callable[[], None] | None = None) -> Tokens:
        """Return the same tokens, read through a cache on local disk: for files on slow storage.

        Tokens in memory need no cache, and are returned as they are. `between` is called before
        each piece.
        """
        if not self.is_cacheable:
            if self._shards.kept is None:
                return self
            raise UsageError(
                f"{self.shard_name(0)} cannot be cached, because it holds more than ids. Omit `cache_dir` "
                "and `cache_bytes`, or convert the data: tokenmill import DATA --out FOLDER"
            )
        return _CachedTokens(self._shards, self.split, cache, between, **self._known)

    def _with_shards(self, shards: Shards) -> Tokens:
        """Return the tokens of `shards`, read like these: mapped, unmapped or cached."""
        return Tokens(shards, self.split)


class _UnmappedTokens(Tokens):
    """Tokens that are read without memory maps: see `Tokens.unmapped`."""

    def __init__(
        self, shards: Shards, split: str, between: Callable[[], None] | None, **known: Any
    ) -> None:
        self._between = between
        super().__init__(shards, split, **known)

    def _make_gatherer(self, shards: Shards) -> RowSource:
        compressed = FrameRows.of(shards, mapped=False, between=self._between)
        return compressed or FileRows(shards, self._between)

    def _with_shards(self, shards: Shards) -> Tokens:
        return _UnmappedTokens(shards, self.split, self._between)

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(_UnmappedTokens, **self._known)
        return make, (self._shards, self.split, self._between)


class _CachedTokens(Tokens):
    """Tokens that are read through a cache on local disk: see `Tokens.cached`."""

    def __init__(
        self,
        shards: Shards,
        split: str,
        cache: PieceCache,
        between: Callable[[], None] | None,
        **known: Any,
    ) -> None:
        self._cache, self._between = cache, between
        super().__init__(shards, split, **known)

    @property
    def cache(self) -> PieceCache:
        return self._cache

    def learn_fingerprint(self, identity: object) -> None:
        fingerprint, _, checksum = str(identity).partition(":")
        if checksum and checksum == self._shards.checksum:
            self.__dict__.setdefault("fingerprint", fingerprint)

    def stream(self, is_streaming: bool) -> None:
        if isinstance(self._gatherer, CachedRows):
            self._gatherer.is_streaming = is_streaming

    def _make_gatherer(self, shards: Shards) -> RowSource:
        compressed = FrameRows.of(shards, cache=self._cache, between=self._between)
        return compressed or CachedRows(shards, self._cache, self._between)

    def _with_shards(self, shards: Shards) -> Tokens:
        return _CachedTokens(shards, self.split, self._cache, self._between)

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        return self[start:stop]

    def unmapped(self, between: Callable[[], None] | None = None) -> Tokens:
        return self.cached(self._cache, between)

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(_CachedTokens, **self._known)
        return make, (self._shards, self.split, self._cache, self._between)


def is_same_data(one: Any, other: Any) -> bool:
    """Return whether two identities can belong to the same tokens.

    An identity is "FINGERPRINT" or, with a manifest, "FINGERPRINT:CUT:SUM". CUT is a hash of the
    dtype and of the number of tokens in each file. SUM is a hash of the files' checksums.

    The fingerprints must be equal. If both identities have the same CUT, SUM must be equal too. If
    CUT differs, SUM proves nothing: the tokens may have been resharded or converted.

    >>> is_same_data("f:cut:sum", "f:cut:other"), is_same_data("f:cut:sum", "other:cut:sum")
    (False, False)
    >>> is_same_data("f:cut:sum", "f:other:other"), is_same_data("f:cut:sum", "f")
    (True, True)
    """
    if not isinstance(one, str) or not isinstance(other, str):
        return bool(one == other)
    (fingerprint, *checksum), (theirs, *their_checksum) = one.split(":"), other.split(":")
    is_comparable = bool(checksum and their_checksum) and checksum[0] == their_checksum[0]
    return fingerprint == theirs and (not is_comparable or checksum == their_checksum)


def join(sources: Sequence[Tokens]) -> Tokens | None:
    """Return the tokens of all sources end to end; None if they cannot be joined.

    All sources must have the same dtype and be read in the same way: mapped, unmapped or cached.
    Their shards must not be copies in memory (see `Shards.kept`).

    >>> both = join([Tokens.of([1, 2, 3]), Tokens.of([10, 20, 30])])
    >>> both.gather(np.array([3, 1]), 2).tolist()
    [[10, 20], [2, 3]]
    """
    shards = [tokens._shards for tokens in sources]
    ways = {(tokens.dtype, type(tokens)) for tokens in sources}
    if len(ways) > 1 or any(one.kept is not None for one in shards):
        return None
    return sources[0]._with_shards(JoinedShards(tuple(shards)))
