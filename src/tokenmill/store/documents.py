"""The documents of a split: their positions, their sources, and where they start inside rows.

A split's documents cover all its tokens: each starts where the one before ends. Finding a document
takes a few binary searches, in the list of shards and in the table of one shard. That table is
mapped, not read. `mapping.Maps` limits how many tables and shards together stay mapped. All tables
can be used from several threads and survive forks and pickling.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError
from tokenmill.html import render
from tokenmill.storage.mapping import Maps, map_file
from tokenmill.storage.reading import DamagedFileError, check_size, open_inside
from tokenmill.store.fields import FieldsReader
from tokenmill.store.manifest import DOCUMENT_DTYPE
from tokenmill.store.tables import ShardTable, Source, SourceTable

Integers = npt.NDArray[np.int64]

# Python's parser raises MemoryError if thousands of these are nested in a header.
_NESTING = (b"(", b"[", b"{", b"-", b"+", b"~")
_MOST_NESTING = 100
_BLOCK = 1 << 16  # records read at once


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document: the place of its tokens, and the source of its text, if known."""

    number: int
    split: str
    start: int
    length: int
    key: str | None = None
    source: Source | None = None
    offset: int | None = None
    # Not fields of the dataclass, because they are not part of what a document is.
    _reader: ClassVar[FieldsReader | None] = None
    _line: ClassVar[int] = 0

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields that `prepare` kept; reads them from the disk. Empty if there are none."""
        return {} if self._reader is None else self._reader.read(self._line)

    def attach_fields(self, reader: FieldsReader, line: int) -> None:
        """Say that the kept fields of the document are in a line that `reader` reads."""
        vars(self).update(_reader=reader, _line=line)


class DocumentTable(ABC):
    """The documents of a split, in order.

    `documents[n]` is document n, and `documents.at(token)` is the document that contains a token.
    """

    _split: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, number: int) -> Document: ...

    @abstractmethod
    def at(self, token: int) -> Document:
        """Return the document that contains a token of the split."""

    @abstractmethod
    def starts(self, first: int, last: int) -> Integers:
        """Return where the documents [first, last) start, and where the last of them ends."""

    @abstractmethod
    def count_before(self, token: int) -> int:
        """Return how many documents start before a token. `token` may be the length of the split."""

    @abstractmethod
    def find_starts(self, rows: Integers, length: int) -> Integers:
        """Return where documents start in the rows [row, row + length).

        Returns sorted positions in the rows joined end to end. With a length of 3, position 5 is the
        last token of the second row.
        """

    @property
    def split(self) -> str:
        """The name of the split."""
        return self._split

    def __iter__(self) -> Iterator[Document]:
        return (self[number] for number in range(len(self)))

    def __repr__(self) -> str:
        return f"<Documents {self._split!r}: {self.describe_length()}>"

    def _repr_html_(self) -> str:
        return render(f"Documents of {self._split}", [("length", self.describe_length())])

    def describe_length(self) -> str:
        """Return the number of documents in words, without reading an index to count them."""
        number = self.known_length()
        if number is None:
            return "not counted yet"
        return f"{number:,} document{'s' if number != 1 else ''}"

    def known_length(self) -> int | None:
        """Return the number of documents, or None if an index would have to be read to count them."""
        return len(self)

    @property
    def lengths(self) -> Integers:
        """The length of each document in tokens, in order; takes 8 bytes per document."""
        return np.diff(self.starts(0, len(self)))


class Documents(DocumentTable):
    """The documents of a prepared split."""

    def __init__(
        self,
        folder: Path,
        shards: ShardTable,
        sources: SourceTable,
        split: str,
        fields: FieldsReader | None = None,
    ) -> None:
        self._folder, self._shards, self._sources, self._split = folder, shards, sources, split
        self._fields = fields
        self._token_starts = sums(shards.tokens)
        # numbers[n] is the number of the first document that starts in shard n, or after it.
        self._numbers = sums(shards.documents)
        self._map = Maps(partial(_map_table, folder, shards)).__getitem__

    def __reduce__(self) -> tuple[Any, ...]:
        return Documents, (self._folder, self._shards, self._sources, self._split, self._fields)

    def __len__(self) -> int:
        return int(self._numbers[-1])

    def __getitem__(self, number: int) -> Document:
        number = inside(number, len(self), "document")
        # side="right" skips shards in which no document starts.
        shard = int(np.searchsorted(self._numbers, number, side="right")) - 1
        record = self._map(shard)[number - int(self._numbers[shard])]
        first, length, source = int(record["first"]), int(record["length"]), int(record["source"])
        start = int(self._token_starts[shard]) + first
        if (
            first >= self._shards.tokens[shard]
            or length > int(self._token_starts[-1]) - start
            or source >= len(self._sources)
        ):
            raise self._damaged(
                shard, f"document {number} has a position or source that does not exist"
            )
        high, low = record["key"].tolist()
        document = Document(
            number=number,
            split=self._split,
            start=start,
            length=length,
            key=f"{high:016x}{low:016x}",
            source=self._sources[source],
            offset=int(record["offset"]),
        )
        if self._fields is not None:
            document.attach_fields(self._fields, number)
        return document

    def at(self, token: int) -> Document:
        """Return the document that contains a token of the split."""
        token = inside(token, int(self._token_starts[-1]), "token")
        shard = int(np.searchsorted(self._token_starts, token, side="right")) - 1
        number = int(self._numbers[shard]) - 1  # the last document that starts before this shard
        if self._shards.documents[shard]:
            place = np.uint64(token - int(self._token_starts[shard]))
            # uint64 on both sides: otherwise NumPy would first convert the whole column.
            number += int(np.searchsorted(self._map(shard)["first"], place, side="right"))
        if number >= 0:
            document = self[number]
            if document.start <= token < document.start + document.length:
                return document
        raise self._damaged(shard, f"no document contains token {token} of split {self._split!r}")

    def starts(self, first: int, last: int) -> Integers:
        """Return where the documents [first, last) start, and where the last of them ends."""
        found = np.empty(last - first + 1, np.int64)
        for shard, low, high, place in split_numbers(self._numbers, first, last + 1):
            firsts = self._map(shard)["first"][low:high].astype(np.int64)
            found[place : place + high - low] = firsts + self._token_starts[shard]
            if (firsts < 0).any() or (firsts >= self._shards.tokens[shard]).any():
                raise self._disorder(shard)
        if last >= len(self):
            found[-1] = self._token_starts[-1]
        if (wrong := np.diff(found) < 0).any():
            number = first + int(wrong.argmax())
            raise self._disorder(int(np.searchsorted(self._numbers, number, side="right")) - 1)
        return found

    def count_before(self, token: int) -> int:
        """Return how many documents start before a token. `token` may be the length of the split."""
        shard = int(np.searchsorted(self._token_starts, token, side="left")) - 1
        if shard < 0 or not self._shards.documents[shard]:
            return int(self._numbers[max(shard, 0)])
        place = np.uint64(token - int(self._token_starts[shard]))
        return int(self._numbers[shard]) + int(np.searchsorted(self._map(shard)["first"], place))

    def find_starts(self, rows: Integers, length: int) -> Integers:
        """Return where documents start in rows: see `DocumentTable.find_starts`."""
        return find_by_shard(self._token_starts, rows, length, self._find_in, self._disorder)

    @property
    def checksums(self) -> Sequence[str]:
        """The checksums of the tables' files, from the manifest."""
        return self._shards.documents_xxh3_128

    def record(self, number: int) -> Any:
        """Return the record of a document, whose dtype is `DOCUMENT_DTYPE`."""
        shard = int(np.searchsorted(self._numbers, number, side="right")) - 1
        return self._map(shard)[number - int(self._numbers[shard])]

    def read_records(
        self, first: int = 0, block: int = _BLOCK
    ) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield all records from document `first` on, some at a time, each time with the first number.

        Reads the files in order, without mapping them, so memory holds `block` records.
        """
        for shard, low, high, before in split_numbers(self._numbers, first, len(self)):
            path = self._shards.documents_path[shard]
            with open_inside(self._folder, path) as file:
                offset = read_table_header(file, path, int(self._shards.documents[shard]))
                file.seek(offset + low * DOCUMENT_DTYPE.itemsize)
                for place in range(low, high, block):
                    wanted = min(block, high - place) * DOCUMENT_DTYPE.itemsize
                    data = file.read(wanted)
                    if len(data) != wanted:
                        raise DamagedFileError(path, "became shorter while it was being read")
                    yield first + before + place - low, np.frombuffer(data, DOCUMENT_DTYPE)

    def _find_in(self, shard: int, ranges: Integers) -> tuple[Integers, npt.NDArray[Any]]:
        if not self._shards.documents[shard]:
            return np.zeros_like(ranges), np.empty(0, np.int64)
        firsts = self._map(shard)["first"]
        # uint64 on both sides: otherwise NumPy would first convert the whole column.
        numbers = firsts.searchsorted(ranges.view(np.uint64).ravel()).reshape(-1, 2)
        return numbers, firsts[between(numbers)]

    def _disorder(self, shard: int) -> DatasetError:
        return self._damaged(shard, "its documents are not in order")

    def _damaged(self, shard: int, what: str) -> DatasetError:
        return DamagedFileError(self._shards.documents_path[shard], f"is damaged: {what}")


class JoinedDocuments(DocumentTable):
    """The documents of several tables end to end; `tokens[n]` is the number of tokens of table n."""

    def __init__(self, parts: Sequence[DocumentTable], tokens: Sequence[int], split: str) -> None:
        self._parts, self._split = list(parts), split
        self._token_starts = sums(tokens)

    @cached_property
    def _numbers(self) -> Integers:
        return sums([len(part) for part in self._parts])

    def __len__(self) -> int:
        return int(self._numbers[-1])

    def known_length(self) -> int | None:
        known = [part.known_length() for part in self._parts]
        counts = [count for count in known if count is not None]
        return sum(counts) if len(counts) == len(known) else None

    def __getitem__(self, number: int) -> Document:
        number = inside(number, len(self), "document")
        part = int(np.searchsorted(self._numbers, number, side="right")) - 1
        return self._place(part, self._parts[part][number - int(self._numbers[part])])

    def at(self, token: int) -> Document:
        """Return the document that contains a token of the split."""
        token = inside(token, int(self._token_starts[-1]), "token")
        part = int(np.searchsorted(self._token_starts, token, side="right")) - 1
        return self._place(part, self._parts[part].at(token - int(self._token_starts[part])))

    def _place(self, part: int, document: Document) -> Document:
        return replace(
            document,
            split=self._split,
            number=document.number + int(self._numbers[part]),
            start=document.start + int(self._token_starts[part]),
        )

    def starts(self, first: int, last: int) -> Integers:
        """Return where the documents [first, last) start, and where the last of them ends."""
        found = np.empty(last - first + 1, np.int64)
        for part, low, high, place in split_numbers(self._numbers, first, last + 1):
            starts = self._parts[part].starts(low, high)[:-1]
            found[place : place + high - low] = starts + self._token_starts[part]
        if last >= len(self):
            found[-1] = self._token_starts[-1]
        return found

    def count_before(self, token: int) -> int:
        """Return how many documents start before a token. `token` may be the length of the split."""
        part = int(np.searchsorted(self._token_starts, token, side="left")) - 1
        if part < 0:
            return 0
        before = self._parts[part].count_before(token - int(self._token_starts[part]))
        return int(self._numbers[part]) + before

    def find_starts(self, rows: Integers, length: int) -> Integers:
        """Return where documents start in rows: see `DocumentTable.find_starts`."""
        bounds = self._token_starts
        first = bounds.searchsorted(rows, "right") - 1
        last = bounds.searchsorted(rows + (length - 1), "right") - 1
        found = [np.empty(0, np.int64)]
        for part in np.unique(first[first == last]).tolist():
            numbers = np.flatnonzero((first == part) & (last == part))
            starts = self._parts[part].find_starts(rows[numbers] - bounds[part], length)
            found.append(numbers[starts // length] * length + starts % length)
        for number in np.flatnonzero(first != last).tolist():
            row = int(rows[number])
            for part in range(int(first[number]), int(last[number]) + 1):
                low = max(row, int(bounds[part]))
                high = min(row + length, int(bounds[part + 1]))
                if low < high:
                    own = np.array([low - bounds[part]])
                    starts = self._parts[part].find_starts(own, high - low)
                    found.append(starts + (number * length + low - row))
        return np.sort(np.concatenate(found))


def _map_table(folder: Path, shards: ShardTable, number: int) -> npt.NDArray[Any]:
    shard = shards[number]
    with open_inside(folder, shard.documents_path) as file:
        offset = read_table_header(file, shard.documents_path, shard.documents)
        return map_file(file, shard.documents_path, DOCUMENT_DTYPE, shard.documents, offset)


def read_table_header(file: BinaryIO, path: str, documents: int) -> int:
    """Check the header and size of a document table; returns where its records begin."""
    try:
        header = file.read(10)
        text = file.read(int.from_bytes(header[8:], "little"))
        if sum(map(text.count, _NESTING)) > _MOST_NESTING:
            raise ValueError("it is nested too deeply")
        file.seek(0)
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"version {version} of the format is not supported")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except MemoryError:
        raise
    except Exception as error:  # NumPy's parser raises anything on damaged bytes
        raise DamagedFileError(path, f"has no readable .npy header ({str(error)!r})") from None
    if dtype != DOCUMENT_DTYPE:
        raise DamagedFileError(path, "is not a table of documents: its records have other fields")
    if shape != (documents,):
        raise DamagedFileError(
            path, f"has the shape {shape}; the manifest says {documents:,} records"
        )
    offset = file.tell()
    check_size(file, path, offset + documents * DOCUMENT_DTYPE.itemsize)
    return offset


def find_by_shard(
    token_starts: Integers,
    rows: Integers,
    length: int,
    find: Callable[[int, Integers], tuple[Integers, npt.NDArray[Any]]],
    damaged: Callable[[int], DatasetError],
) -> Integers:
    """Return where documents start in the rows [row, row + length), which may be in several shards.

    Returns sorted positions in the rows joined end to end. An empty document starts where the next
    one does; such a position is returned only once. `token_starts` is where each shard starts.

    A row is divided where it crosses shards. All ranges in one shard are looked up together, by
    `find(shard, ranges)`. `ranges` has the shape (ranges, 2) and counts tokens from the start of the
    shard. `find` returns two arrays. The first has, for each range, how many documents start before
    its beginning and how many before its end. The second has the starts of the documents inside the
    ranges, in order. `damaged(shard)` is the error for a table with impossible numbers.
    """
    # Sorted, because searches for neighbours read the same places of a table.
    order = rows.argsort()
    rows = rows[order]
    first = token_starts.searchsorted(rows, "right") - 1
    last = token_starts.searchsorted(rows + (length - 1), "right") - 1
    at, offsets = spread(last - first + 1)
    shards = first[at] + offsets
    by_shard = shards.argsort(kind="stable")
    at, shards = at[by_shard], shards[by_shard]
    numbers, begins = order[at], rows[at] - token_starts[shards]
    ranges = np.maximum(np.stack((begins, begins + length), axis=1), 0)
    bounds, found = np.zeros_like(ranges), [np.empty(0, np.int64)]
    changes = (shards[1:] != shards[:-1]).nonzero()[0] + 1
    for low, high in pairwise([0, *changes.tolist(), len(shards)] if len(shards) else ()):
        bounds[low:high], some = find(int(shards[low]), ranges[low:high])
        found.append(some)
    counts = bounds[:, 1] - bounds[:, 0]
    if (counts < 0).any():
        raise damaged(int(shards[counts.argmin()]))
    at = np.repeat(np.arange(len(numbers)), counts)
    places = np.concatenate(found, dtype=np.int64, casting="unsafe") - begins[at]
    wrong = (places < 0) | (places >= length)
    if wrong.any():
        raise damaged(int(shards[at[wrong.argmax()]]))
    starts: Integers = numbers[at] * length + places
    starts.sort()
    fresh = starts[1:] != starts[:-1]
    if not fresh.all():  # an empty document starts where the next one does
        starts = starts[np.append(True, fresh)]
    return starts


def split_numbers(starts: Integers, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
    """Divide the numbers [first, last) among the parts that start at `starts`.

    For each part with some of these numbers, yields (index of the part, low, high, before). Counted
    from the start of the part, its numbers are [low, high). `before` is how many of the numbers are
    in earlier parts.

    >>> list(split_numbers(np.array([0, 3, 3, 9]), 1, 5))
    [(0, 1, 3, 0), (2, 0, 2, 2)]
    """
    part = int(np.searchsorted(starts, first, side="right")) - 1
    number = first
    while number < min(last, int(starts[-1])):
        stop = min(last, int(starts[part + 1]))
        if stop > number:
            begin = int(starts[part])
            yield part, number - begin, stop - begin, number - first
            number = stop
        part += 1


def between(bounds: Integers) -> Integers:
    """Return all integers in the ranges [first, second), joined. `bounds` has the shape (ranges, 2).

    >>> between(np.array([[3, 5], [9, 9], [0, 1]])).tolist()
    [3, 4, 0]
    """
    at, offsets = spread(np.maximum(bounds[:, 1] - bounds[:, 0], 0))
    numbers: Integers = bounds[at, 0] + offsets
    return numbers


def spread(counts: Integers) -> tuple[Integers, Integers]:
    """Return two arrays: for each count n, its index n times, and the numbers from 0 to n - 1.

    >>> [part.tolist() for part in spread(np.array([2, 0, 3]))]
    [[0, 0, 2, 2, 2], [0, 1, 0, 1, 2]]
    """
    at = np.repeat(np.arange(len(counts)), counts)
    return at, np.arange(len(at)) - (np.cumsum(counts) - counts)[at]


def sums(counts: npt.ArrayLike) -> Integers:
    """Return the running sums of counts, starting with 0."""
    numbers = np.asarray(counts, np.int64)
    result = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(numbers, out=result[1:])
    return result


def inside(index: int, length: int, what: str) -> int:
    """Return an index counted from the start. A negative `index` counts from the end.

    Raises an IndexError, which calls the item `what`, unless the index is one of `length` items.
    """
    place = operator.index(index)
    place += length if place < 0 else 0
    if not 0 <= place < length:
        raise IndexError(f"{what} {index} is out of range: there are {length:,}")
    return place
