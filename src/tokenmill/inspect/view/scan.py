"""Find documents by source, length and number, with bounded work for each request.

A search goes forward from a document. It ends when the page is full, or after `MOST_RECORDS`
records or `SECONDS`, and says from which document to continue. Records are read from their files
in blocks, so memory holds one block, however many documents there are.

`prepare` writes documents in the order of their sources. If the table is in this order at `SAMPLES`
evenly spaced places and around the first document found, a source's documents are found by binary
search instead.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tokenmill.store.documents import Documents, DocumentTable

MOST_RECORDS = 2_000_000
SECONDS = 0.05
SAMPLES = 200
_BLOCK = 1 << 16

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which documents to find. `sources` has the numbers of their sources; None means all."""

    sources: tuple[int, ...] | None = None
    least: int | None = None
    most: int | None = None

    def __bool__(self) -> bool:
        return self != Filter()

    def matches(self, lengths: Integers, sources: Integers | None) -> Booleans:
        """Return a mask of the documents that match, given their lengths and sources."""
        found = np.ones(len(lengths), np.bool_)
        if self.least is not None:
            found &= lengths >= self.least
        if self.most is not None:
            found &= lengths <= self.most
        if self.sources is not None:
            if sources is None:
                found[:] = False
            elif len(self.sources) == 1:
                found &= sources == self.sources[0]
            else:
                found &= np.isin(sources, np.array(self.sources, np.uint64))
        return found


@dataclass(frozen=True, kw_only=True)
class Found:
    """Documents that were found, by number.

    `next` is the document to continue from, or None at the end of the split. `last` is one more
    than the last document that was examined. `used_order` says whether documents before the first
    one found, or after the last one, were skipped because the table is in the order of sources.
    """

    numbers: tuple[int, ...]
    first: int
    last: int
    next: int | None
    used_order: bool = False


def find_documents(
    documents: DocumentTable,
    wanted: Filter,
    *,
    first: int,
    limit: int,
    by_order: bool = True,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """Return up to `limit` documents from document `first` on that match a filter."""
    count = len(documents)
    first = min(first, count)
    if not wanted:
        last = min(first + limit, count)
        numbers = tuple(range(first, last))
        return Found(numbers=numbers, first=first, last=last, next=last if last < count else None)
    start, stop, used_order = first, count, False
    if wanted.sources == ():
        return Found(numbers=(), first=first, last=count, next=None)
    if wanted.sources is not None and by_order and isinstance(documents, Documents):
        bounds = _find_by_order(documents, min(wanted.sources), max(wanted.sources))
        if bounds is not None:
            start, stop = max(first, bounds[0]), bounds[1]
            used_order = True
    until = clock() + seconds
    found: list[int] = []
    place = start
    for number, lengths, sources in _read(documents, start, stop):
        hits = np.flatnonzero(wanted.matches(lengths, sources))
        room = limit - len(found)
        found += (hits[:room] + number).tolist()
        if len(hits) >= room:
            place = found[-1] + 1
            break
        place = number + len(lengths)
        if place - start >= MOST_RECORDS or clock() >= until:
            break
    is_end = place >= stop
    return Found(
        numbers=tuple(found),
        first=first,
        last=count if is_end else place,
        next=None if is_end else place,
        used_order=used_order,
    )


def _read(
    documents: DocumentTable, start: int, stop: int
) -> Iterator[tuple[int, Integers, Integers | None]]:
    """Yield the documents [start, stop) in blocks: (number of the first, lengths, sources)."""
    if start >= stop:
        return
    if isinstance(documents, Documents):
        for number, records in documents.read_records(start):
            some = records[: stop - number]
            yield number, some["length"].astype(np.int64), some["source"]
            if number + len(records) >= stop:
                return
    else:
        for number in range(start, stop, _BLOCK):
            bounds = documents.starts(number, min(number + _BLOCK, stop))
            yield number, np.diff(bounds), None


def _find_by_order(documents: Documents, low: int, high: int) -> tuple[int, int] | None:
    """Return where the documents of the sources [low, high] start and end.

    Returns None unless the table seems to be in the order of sources.
    """
    count = len(documents)
    places, sampled = _sample_sources(documents)
    if any(later < earlier for earlier, later in pairwise(sampled)):
        return None

    def search(is_before: Callable[[int], bool]) -> int:
        at = bisect_left(sampled, True, key=lambda source: not is_before(source))
        begin = places[at - 1] if at else 0
        end = places[at] if at < len(places) else count
        while begin < end:
            middle = (begin + end) // 2
            if is_before(_find_source(documents, middle)):
                begin = middle + 1
            else:
                end = middle
        return begin

    return search(lambda source: source < low), search(lambda source: source <= high)


@lru_cache(maxsize=64)
def _sample_sources(documents: Documents) -> tuple[list[int], list[int]]:
    """Return the numbers of evenly spaced documents, and their sources."""
    count = len(documents)
    numbers = (
        sorted({place * (count - 1) // (SAMPLES - 1) for place in range(SAMPLES)}) if count else []
    )
    return numbers, [_find_source(documents, number) for number in numbers]


def _find_source(documents: Documents, number: int) -> int:
    # Do not use the map: touching one record of a mapped file may add 2 MB to the process's memory.
    _, records = next(documents.read_records(number, block=1))
    return int(records[0]["source"])
