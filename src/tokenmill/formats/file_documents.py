"""Document tables for formats that store only where each document starts.

`DocumentStarts` looks up the first token of a document by its number, for example in a
memory-mapped index. The documents of a row are found by binary search, so memory does not grow with
the number of documents. No document crosses from one file into the next.

When the documents of a file are first used, one pass over its index checks that they are in order
and cover the file from its first to its last token. An empty document has a number,
and the same start as the next document; `find_starts` returns a start that is shared only once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.storage.mapping import Maps
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError
from tokenmill.store.documents import (
    Document,
    DocumentTable,
    between,
    find_by_shard,
    inside,
    split_numbers,
    sums,
)

BLOCK = 1 << 18  # starts that are checked at once

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DocumentStarts:
    """The positions where the `count` documents of a file start.

    `find` takes an array of document numbers, counted from 0, and returns the position of the first
    token of each. For the number `count`, it returns the end of the last document.

    >>> check_coverage("x", DocumentStarts(2, lambda numbers: np.array([0, 5, 7])[numbers]), tokens=7)
    """

    count: int
    find: Callable[[Integers], Integers]

    def count_before(self, tokens: Integers, *, inclusive: bool = False) -> Integers:
        """Return how many documents start before each token; if `inclusive`, before or at it."""
        low = np.zeros(len(tokens), np.int64)
        high = np.full(len(tokens), self.count, np.int64)
        while (low < high).any():
            middle = (low + high) >> 1
            found = self.find(middle)
            beyond = (found <= tokens) if inclusive else (found < tokens)
            beyond &= low < high
            low = np.where(beyond, middle + 1, low)
            high = np.where(beyond, high, np.minimum(high, middle))
        return low


@dataclass(frozen=True, kw_only=True)
class DocumentIndexes:
    """The document indexes of several files.

    `names` are the names of the index files. `counts` has the number of documents of each file;
    without `counts`, all indexes are read to count the documents. `read` takes the number of a
    file, counted from 0, and returns its document starts. `read` must be picklable: a function of a
    module, or a `partial` of such a function.
    """

    names: Sequence[str]
    read: Callable[[int], DocumentStarts]
    counts: Sequence[int] | None = None

    def name(self, number: int) -> str:
        return self.names[number]


def check_coverage(name: str, starts: DocumentStarts, tokens: int) -> None:
    """Raise an error if documents are not in order or do not cover all tokens of their file."""

    def refuse(what: str) -> None:
        raise DamagedFileError(name, what, FOREIGN_CURE)

    first, last = starts.find(np.array([0, starts.count])).tolist()
    if last != tokens:
        refuse(f"ends its last document at token {last:,}, expected {tokens:,}")
    if first != 0:
        refuse(f"starts its first document at token {first:,}, expected 0")
    for low in range(0, starts.count, BLOCK):
        high = min(low + BLOCK, starts.count)
        found = starts.find(np.arange(low, high + 1))
        if (wrong := found[1:] < found[:-1]).any():
            number = low + int(wrong.argmax())
            refuse(f"ends document {number:,} before it starts")


class FileDocuments(DocumentTable):
    """The documents of a split that is stored in another program's files.

    `tokens` has the number of tokens of each file. By default, indexes are memory-mapped. If an
    index cannot be mapped, pass `kept`: the document starts of the `kept` most recently used files
    stay in memory.

    >>> starts = DocumentStarts(2, lambda numbers: np.array([0, 3, 9])[numbers])
    >>> indexes = DocumentIndexes(names=["x.idx"], counts=[2], read=lambda _: starts)
    >>> documents = FileDocuments(indexes, [9], "train")
    >>> documents.at(3).number, documents[0].length, len(documents)
    (1, 3, 2)
    """

    def __init__(
        self, indexes: DocumentIndexes, tokens: npt.ArrayLike, split: str, kept: int | None = None
    ) -> None:
        self._indexes, self._split, self._kept = indexes, split, kept
        self._tokens = np.asarray(tokens, np.int64)
        self._token_starts = sums(self._tokens)
        self._read: Callable[[int], DocumentStarts] = (
            lru_cache(maxsize=kept)(self._read_and_check)
            if kept
            else Maps(self._read_and_check).__getitem__
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return FileDocuments, (self._indexes, self._tokens, self._split, self._kept)

    @cached_property
    def _numbers(self) -> Integers:
        """For each file, how many documents come before it; then the total number of documents."""
        counts = self._indexes.counts
        if counts is None:
            counts = [self._indexes.read(file).count for file in range(len(self._tokens))]
        return sums(counts)

    def __len__(self) -> int:
        return int(self._numbers[-1])

    def known_length(self) -> int | None:
        is_known = self._indexes.counts is not None or "_numbers" in self.__dict__
        return len(self) if is_known else None

    def __getitem__(self, number: int) -> Document:
        number = inside(number, len(self), "document")
        file = int(np.searchsorted(self._numbers, number, side="right")) - 1
        place = number - int(self._numbers[file])
        start, end = self._read(file).find(np.array([place, place + 1])).tolist()
        if not 0 <= start <= end <= self._tokens[file]:
            raise self._damaged(file)
        before = int(self._token_starts[file])
        return Document(number=number, split=self._split, start=before + start, length=end - start)

    def at(self, token: int) -> Document:
        token = inside(token, int(self._token_starts[-1]), "token")
        file = int(np.searchsorted(self._token_starts, token, side="right")) - 1
        place = np.array([token - int(self._token_starts[file])])
        # If several documents start at this token, only the last of them is not empty.
        number = int(self._read(file).count_before(place, inclusive=True)[0]) - 1
        if number < 0:
            raise self._damaged(file)
        return self[int(self._numbers[file]) + number]

    def starts(self, first: int, last: int) -> Integers:
        found = np.empty(last - first + 1, np.int64)
        for file, low, high, place in split_numbers(self._numbers, first, last + 1):
            starts = self._read(file).find(np.arange(low, high))
            if (starts < 0).any() or (starts > self._tokens[file]).any():
                raise self._damaged(file)
            found[place : place + high - low] = starts + self._token_starts[file]
        if last >= len(self):
            found[-1] = self._token_starts[-1]
        return found

    def count_before(self, token: int) -> int:
        file = int(np.searchsorted(self._token_starts, token, side="left")) - 1
        if file < 0:
            return 0
        place = np.array([token - int(self._token_starts[file])])
        return int(self._numbers[file]) + int(self._read(file).count_before(place)[0])

    def find_starts(self, rows: Integers, length: int) -> Integers:
        return find_by_shard(self._token_starts, rows, length, self._find_in, self._damaged)

    def _find_in(self, file: int, edges: Integers) -> tuple[Integers, npt.NDArray[Any]]:
        index = self._read(file)
        bounds = index.count_before(np.minimum(edges, self._tokens[file]).ravel()).reshape(-1, 2)
        return bounds, index.find(between(bounds))

    def _read_and_check(self, file: int) -> DocumentStarts:
        starts = self._indexes.read(file)
        check_coverage(self._indexes.name(file), starts, int(self._tokens[file]))
        return starts

    def _damaged(self, file: int) -> DamagedFileError:
        what = "changed since it was opened: its documents are not in order"
        return DamagedFileError(self._indexes.name(file), what, FOREIGN_CURE)


class PartOfDocuments(DocumentTable):
    """The documents in the tokens [start, stop) of a split. The first and the last may be cut."""

    def __init__(self, whole: DocumentTable, start: int, stop: int, split: str) -> None:
        self._whole, self._start, self._stop, self._split = whole, start, stop, split

    @cached_property
    def _first(self) -> int:
        """The number, in the whole split, of the first document in the tokens [start, stop).

        This document may begin before `start`.
        """
        number = self._whole.count_before(self._start)
        begins_here = (
            number < len(self._whole) and self._whole.starts(number, number)[0] == self._start
        )
        return number if begins_here or not number else number - 1

    @cached_property
    def _last(self) -> int:
        """One more than the number, in the whole split, of the last document in [start, stop).

        If `stop` is the end of the split, empty documents at that end are included.
        """
        number = self._whole.count_before(self._stop)
        at_end = number < len(self._whole) and (
            self._whole.starts(len(self._whole), len(self._whole))[0] == self._stop
        )
        return len(self._whole) if at_end else number

    def __len__(self) -> int:
        return self._last - self._first

    def known_length(self) -> int | None:
        return len(self) if {"_first", "_last"} <= self.__dict__.keys() else None

    def starts(self, first: int, last: int) -> Integers:
        found = self._whole.starts(first + self._first, last + self._first)
        return np.clip(found - self._start, 0, self._stop - self._start)

    def count_before(self, token: int) -> int:
        if token <= 0:
            return 0
        return self._whole.count_before(token + self._start) - self._first

    def __getitem__(self, number: int) -> Document:
        return self._cut(self._whole[inside(number, len(self), "document") + self._first])

    def at(self, token: int) -> Document:
        return self._cut(
            self._whole.at(inside(token, self._stop - self._start, "token") + self._start)
        )

    def find_starts(self, rows: Integers, length: int) -> Integers:
        found = self._whole.find_starts(rows + self._start, length)
        # The first token of a part starts a document, even if that document is cut.
        return np.union1d(found, np.flatnonzero(rows == 0) * length)

    def _cut(self, whole: Document) -> Document:
        start = max(whole.start, self._start)
        stop = min(whole.start + whole.length, self._stop)
        return Document(
            number=whole.number - self._first,
            split=self._split,
            start=start - self._start,
            length=max(stop - start, 0),
            key=whole.key,
            source=whole.source,
            offset=whole.offset,
        )
