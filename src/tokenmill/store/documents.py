"""The documents of a split: where each is, where it came from, and which begin in a window.

A split's documents tile its tokens: each begins where the one before ends. Finding a document costs
two binary searches in its shard's table, which is mapped, not read. `files.Maps` limits how many
tables stay mapped, together with the shards. `Documents` can be used from several threads and
survives forks and pickling.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError
from tokenmill.storage.mapping import Maps, map_file
from tokenmill.storage.reading import DamagedFileError, check_size, open_inside
from tokenmill.store.manifest import DOCUMENT_DTYPE
from tokenmill.store.tables import ShardTable, Source, SourceTable

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document: where its tokens are, and where its text came from, if that is known."""

    number: int
    split: str
    start: int
    length: int
    key: str | None = None
    source: Source | None = None
    offset: int | None = None


class DocumentTable(Protocol):
    """What `Tokens` asks of a table of the documents of a split."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Document: ...

    def __iter__(self) -> Iterator[Document]: ...

    @property
    def lengths(self) -> Integers:
        """The length of each document in tokens, in order."""

    def at(self, token: int) -> Document:
        """The document that holds a token of the split."""

    def borders(self, first: int, last: int) -> Integers:
        """Where the documents [first, last) begin, and where the last of them ends."""

    def count_before(self, token: int) -> int:
        """How many documents begin before a token of the split, or before its end."""

    def find_edges(self, starts: Integers, length: int) -> Integers:
        """Where documents begin in the rows [start, start + length), laid end to end; sorted."""


class DocumentList(ABC):
    """What every table of documents can do, given `borders` and a length."""

    _split: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, number: int) -> Document: ...

    @abstractmethod
    def borders(self, first: int, last: int) -> Integers:
        """Where the documents [first, last) begin, and where the last of them ends."""

    def __iter__(self) -> Iterator[Document]:
        return (self[number] for number in range(len(self)))

    def __repr__(self) -> str:
        number = len(self)
        return f"<Documents {self._split!r}: {number:,} document{'s' if number != 1 else ''}>"

    @property
    def lengths(self) -> Integers:
        """The length of each document in tokens, in order; takes 8 bytes per document."""
        return np.diff(self.borders(0, len(self)))


class Documents(DocumentList):
    """The documents of a prepared split, in order: `documents[n]`, and `documents.at(token)`."""

    def __init__(self, folder: Path, shards: ShardTable, sources: SourceTable, split: str) -> None:
        self._folder, self._shards, self._sources, self._split = folder, shards, sources, split
        self._token_starts = sums(shards.tokens)
        # starts[n] is the number of the first document that starts in shard n, or after it.
        self._starts = sums(shards.documents)
        self._map = Maps(_Tables(folder, shards).map).__getitem__

    def __reduce__(self) -> tuple[Any, ...]:
        return Documents, (self._folder, self._shards, self._sources, self._split)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, number: int) -> Document:
        number = inside(number, len(self), "document")
        # Of shards in which no document starts, side="right" passes over all.
        shard = int(np.searchsorted(self._starts, number, side="right")) - 1
        record = self._map(shard)[number - int(self._starts[shard])]
        first, length, source = int(record["first"]), int(record["length"]), int(record["source"])
        start = int(self._token_starts[shard]) + first
        if (
            first >= self._shards.tokens[shard]
            or length > int(self._token_starts[-1]) - start
            or source >= len(self._sources)
        ):
            raise self._damaged(shard, f"document {number} has an impossible place or source")
        high, low = record["key"].tolist()
        return Document(
            number=number,
            split=self._split,
            start=start,
            length=length,
            key=f"{high:016x}{low:016x}",
            source=self._sources[source],
            offset=int(record["offset"]),
        )

    def at(self, token: int) -> Document:
        """The document that holds a token of the split."""
        token = inside(token, int(self._token_starts[-1]), "token")
        shard = int(np.searchsorted(self._token_starts, token, side="right")) - 1
        number = int(self._starts[shard]) - 1  # the last one to start before this shard
        if self._shards.documents[shard]:
            place = np.uint64(token - int(self._token_starts[shard]))
            # Same type on both sides, or NumPy would convert the whole column first.
            number += int(np.searchsorted(self._map(shard)["first"], place, side="right"))
        if number >= 0:
            document = self[number]
            if document.start <= token < document.start + document.length:
                return document
        raise self._damaged(shard, f"no document holds token {token} of split {self._split!r}")

    def borders(self, first: int, last: int) -> Integers:
        """Where the documents [first, last) begin, and where the last of them ends."""
        found = np.empty(last - first + 1, np.int64)
        for shard, low, high, place in split_numbers(self._starts, first, last + 1):
            firsts = self._map(shard)["first"][low:high].astype(np.int64)
            found[place : place + high - low] = firsts + self._token_starts[shard]
            if (firsts < 0).any() or (firsts >= self._shards.tokens[shard]).any():
                raise self._disorder(shard)
        if last >= len(self):
            found[-1] = self._token_starts[-1]
        if (wrong := np.diff(found) < 0).any():
            number = first + int(wrong.argmax())
            raise self._disorder(int(np.searchsorted(self._starts, number, side="right")) - 1)
        return found

    def count_before(self, token: int) -> int:
        """How many documents begin before a token of the split, or before its end."""
        shard = int(np.searchsorted(self._token_starts, token, side="left")) - 1
        if shard < 0 or not self._shards.documents[shard]:
            return int(self._starts[max(shard, 0)])
        place = np.uint64(token - int(self._token_starts[shard]))
        return int(self._starts[shard]) + int(np.searchsorted(self._map(shard)["first"], place))

    def find_edges(self, starts: Integers, length: int) -> Integers:
        """Where documents begin in the rows [start, start + length), laid end to end; sorted."""
        return find_by_shard(self._token_starts, starts, length, self._find_in, self._disorder)

    def _find_in(self, shard: int, edges: Integers) -> tuple[Integers, npt.NDArray[Any]]:
        if not self._shards.documents[shard]:
            return np.zeros_like(edges), np.empty(0, np.int64)
        firsts = self._map(shard)["first"]
        # Same type on both sides, or NumPy would convert the whole column first.
        bounds = firsts.searchsorted(edges.view(np.uint64).ravel()).reshape(-1, 2)
        return bounds, firsts[between(bounds)]

    def _disorder(self, shard: int) -> DatasetError:
        return self._damaged(shard, "its documents are not in order")

    def _damaged(self, shard: int, what: str) -> DatasetError:
        return DamagedFileError(self._shards.documents_path[shard], f"is damaged: {what}")


class _Tables:
    """Maps the tables of a split. What it hands out keeps its map alive; it keeps none itself."""

    def __init__(self, folder: Path, shards: ShardTable) -> None:
        self.folder, self.shards = folder, shards

    def map(self, number: int) -> npt.NDArray[Any]:
        shard = self.shards[number]
        with open_inside(self.folder, shard.documents_path) as file:
            offset = read_table_header(file, shard.documents_path, shard.documents)
            return map_file(file, shard.documents_path, DOCUMENT_DTYPE, shard.documents, offset)


def read_table_header(file: BinaryIO, path: str, documents: int) -> int:
    """Check the header and size of a document table; returns where its records begin."""
    try:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"version {version} of the format is not in use here")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except Exception as error:  # whatever NumPy's parser meets in damaged bytes
        raise DamagedFileError(path, f"has no readable .npy header ({str(error)!r})") from None
    if dtype != DOCUMENT_DTYPE:
        raise DamagedFileError(path, "holds other records than a table of documents")
    if shape != (documents,):
        raise DamagedFileError(
            path, f"has the shape {shape}, and by the manifest it should hold {documents:,} records"
        )
    offset = file.tell()
    check_size(file, path, offset + documents * DOCUMENT_DTYPE.itemsize)
    return offset


def find_by_shard(
    token_starts: Integers,
    starts: Integers,
    length: int,
    find: Callable[[int, Integers], tuple[Integers, npt.NDArray[Any]]],
    damaged: Callable[[int], DatasetError],
) -> Integers:
    """Where documents begin in the rows [start, start + length), laid end to end; sorted, each once.

    A row is cut where it crosses shards; all pieces in one shard are looked up together. `find` is
    told a shard and where pieces begin and end in it, (pieces, 2). It tells how many documents begin
    before each of these, and the starts of those between, in order.
    """
    # In order, because searches for neighbours look at the same places of a table.
    order = starts.argsort()
    starts = starts[order]
    first = token_starts.searchsorted(starts, "right") - 1
    last = token_starts.searchsorted(starts + (length - 1), "right") - 1
    at, offsets = spread(last - first + 1)
    shards = first[at] + offsets
    by_shard = shards.argsort(kind="stable")
    at, shards = at[by_shard], shards[by_shard]
    rows, begins = order[at], starts[at] - token_starts[shards]
    edges = np.maximum(np.stack((begins, begins + length), axis=1), 0)
    bounds, found = np.zeros_like(edges), [np.empty(0, np.int64)]
    cuts = (shards[1:] != shards[:-1]).nonzero()[0] + 1
    for low, high in pairwise([0, *cuts.tolist(), len(shards)] if len(shards) else ()):
        bounds[low:high], some = find(int(shards[low]), edges[low:high])
        found.append(some)
    counts = bounds[:, 1] - bounds[:, 0]
    if (counts < 0).any():
        raise damaged(int(shards[counts.argmin()]))
    at = np.repeat(np.arange(len(rows)), counts)
    places = np.concatenate(found, dtype=np.int64, casting="unsafe") - begins[at]
    wrong = (places < 0) | (places >= length)
    if wrong.any():
        raise damaged(int(shards[at[wrong.argmax()]]))
    found_at: Integers = rows[at] * length + places
    found_at.sort()
    fresh = found_at[1:] != found_at[:-1]
    if not fresh.all():  # an empty document begins nowhere
        found_at = found_at[np.append(True, fresh)]
    return found_at


def split_numbers(starts: Integers, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
    """Divide the numbers [first, last) among the parts that begin at `starts`.

    Yields the part, the first and last number within it, and how many numbers came before.

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
    """All whole numbers from the first to below the second of each pair, (pairs, 2).

    >>> between(np.array([[3, 5], [9, 9], [0, 1]])).tolist()
    [3, 4, 0]
    """
    at, offsets = spread(np.maximum(bounds[:, 1] - bounds[:, 0], 0))
    numbers: Integers = bounds[at, 0] + offsets
    return numbers


def spread(counts: Integers) -> tuple[Integers, Integers]:
    """For each count n, its index n times, beside 0 to n - 1.

    >>> [part.tolist() for part in spread(np.array([2, 0, 3]))]
    [[0, 0, 2, 2, 2], [0, 1, 0, 1, 2]]
    """
    at = np.repeat(np.arange(len(counts)), counts)
    return at, np.arange(len(at)) - (np.cumsum(counts) - counts)[at]


def sums(counts: npt.ArrayLike) -> Integers:
    """0, and the sum of the first n counts for every n."""
    numbers = np.asarray(counts, np.int64)
    result = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(numbers, out=result[1:])
    return result


def inside(index: int, length: int, what: str) -> int:
    """An index as Python counts it, from the end when negative."""
    place = operator.index(index)
    place += length if place < 0 else 0
    if not 0 <= place < length:
        raise IndexError(f"{what} {index} is not one of the {length:,} there are")
    return place
