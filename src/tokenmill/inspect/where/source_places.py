"""Find input files by name, and the documents that came from a place in one.

A split's documents are in input order: `prepare` writes them ordered by source, then by offset. So
the documents of a source are found by two binary searches, and the one at a place by a third. In a
table of up to 2 million documents, all records are read instead, which works for any order.
"""

from __future__ import annotations

import difflib
import heapq
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from tokenmill.inspect.where.keys import SCANNED
from tokenmill.sources.files import name_source
from tokenmill.store.documents import Document, Documents
from tokenmill.store.tables import SourceTable

_PLACE = re.compile(
    r"(?P<name>.+?)(?::|, )(?:(?P<unit>line|byte|row)[ =:]?)?(?P<number>[0-9][0-9,]{0,24})",
    re.DOTALL,
)
_COMPARED = 20_000  # names to compare with a name that no source has


@dataclass(frozen=True, kw_only=True)
class SourcePlace:
    """A file, and a place in it: a line (counted from 1), or a byte or a row (counted from 0).

    `unit` says which. Without a unit, `number` is a row of a Parquet file, or a line of any other
    file. Without a number, the place is the whole file.
    """

    name: str
    unit: str | None = None
    number: int | None = None


def parse_place(text: str) -> SourcePlace:
    """Parse FILE:LINE, FILE:byte=BYTE or FILE:row=ROW, or a place as `peek` shows it: "FILE, byte 12".

    >>> parse_place("a.txt:17")
    SourcePlace(name='a.txt', unit=None, number=17)
    >>> parse_place("s3://b/a.txt, byte 1,200")
    SourcePlace(name='s3://b/a.txt', unit='byte', number=1200)
    >>> parse_place("a.txt").number is None
    True
    """
    match = _PLACE.fullmatch(text)
    if match is None:
        return SourcePlace(name=text)
    number = int(match["number"].replace(",", ""))
    return SourcePlace(name=match["name"], unit=match["unit"], number=number)


def find_sources(sources: SourceTable, name: str) -> list[int]:
    """Return the numbers of the sources that a name may mean; at most 100.

    The name may be the whole path of a source, the end of that path, or a longer path that ends with
    it.

    >>> from tokenmill.store.tables import Source
    >>> sources = [Source(path=path, bytes=1, unit="byte") for path in ("a/x.txt", "b/x.txt", "c.txt")]
    >>> table = SourceTable.of(sources)
    >>> [find_sources(table, name) for name in ("b/x.txt", "x.txt", "/home/me/c.txt", "other/x.txt")]
    [[1], [0, 1], [2], []]
    """
    for given in dict.fromkeys((_strip(name), _strip(name_source(name)))):
        found = sources.find(given) if given else []
        same = [number for number in found if _strip(sources[number].path) == given]
        if same or found:
            return same or found
        parts = given.split("/")
        for start in range(1, len(parts)):
            ending = "/".join(parts[start:])
            found = sources.find(ending) if ending else []
            same = [number for number in found if _strip(sources[number].path) == ending]
            if same:
                return same
    return []


def _strip(path: str) -> str:
    while path.startswith(("./", "../")):
        path = path.partition("/")[2]
    return path


def find_nearest(sources: SourceTable, name: str) -> str | None:
    """Return the path of the source with the most similar name; None if none is similar.

    >>> from tokenmill.store.tables import Source
    >>> find_nearest(SourceTable.of([Source(path="texts/a.jsonl", bytes=1, unit="byte")]), "a.json")
    'texts/a.jsonl'
    """
    paths: dict[str, str] = {}
    for source in islice(sources, _COMPARED):
        paths.setdefault(source.path.rpartition("/")[2], source.path)
    near = difflib.get_close_matches(name.rpartition("/")[2], paths, 1)
    return paths[near[0]] if near else None


class SourceDocuments:
    """The documents that came from one source, in all splits."""

    def __init__(self, tables: Sequence[Documents], source: int) -> None:
        self._tables = tables
        is_small = sum(map(len, tables)) <= SCANNED
        find = _scan if is_small else _search
        self._numbers = [find(table, source) for table in tables]

    @property
    def counts(self) -> dict[str, int]:
        """The number of documents in each split."""
        pairs = zip(self._tables, self._numbers, strict=True)
        return {table.split: len(numbers) for table, numbers in pairs}

    def __iter__(self) -> Iterator[Document]:
        """All documents, in the order of the source."""
        lists = (map(table.__getitem__, numbers) for table, numbers in self._pairs())
        return heapq.merge(*lists, key=lambda document: document.offset or 0)

    def find_before(self, place: int) -> Document | None:
        """Return the last document that starts at a place or before it; None if there is none."""
        found = None
        for table, numbers in self._pairs():
            at = bisect_right(numbers, place, key=partial(_read_offset, table)) - 1
            if at >= 0:
                document = table[numbers[at]]
                if found is None or (document.offset or 0) >= (found.offset or 0):
                    found = document
        return found

    def _pairs(self) -> Iterator[tuple[Documents, Sequence[int]]]:
        return zip(self._tables, self._numbers, strict=True)


def _read_offset(table: Documents, number: int) -> int:
    return int(table.record(number)["offset"])


def _scan(table: Documents, source: int) -> Sequence[int]:
    numbers, offsets = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    for first, records in table.read_records():
        found = np.flatnonzero(records["source"] == source)
        numbers.append(first + found)
        offsets.append(records["offset"][found])
    order = np.argsort(np.concatenate(offsets), kind="stable")
    joined: list[int] = np.concatenate(numbers)[order].tolist()
    return joined


def _search(table: Documents, source: int) -> Sequence[int]:
    def source_of(number: int) -> int:
        return int(table.record(number)["source"])

    first = bisect_left(range(len(table)), source, key=source_of)
    return range(first, bisect_right(range(len(table)), source, lo=first, key=source_of))
