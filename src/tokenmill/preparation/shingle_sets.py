"""Files of shingle sets, and the numbers of documents in the whole input.

The sets of a part's documents are in two files of its segment, in the order of their keys:

    shingles   the sets, one after the other: sorted 32-bit numbers
    sets       an `ENTRY` for each document: where its set ends, its record, how its set was sampled

A document that spans parts has its set in a bundle of its own. The `Catalog` numbers the documents of
the whole input, in input order: those with a key in the first part, then the document that begins in it
and ends in a later part, then those of the second part, and so on. It holds a few numbers for each part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.preparation.key_files import damaged, read_range
from tokenmill.preparation.shingles import Hashes, Places, Shingler, are_long, shingle_texts
from tokenmill.storage.receipts import read_receipt
from tokenmill.store.tables import Count

ENTRY = np.dtype(
    [
        ("end", "<u8"),  # shingles up to here, in the file
        ("record", "<u4"),  # the number of the document's record in its segment
        ("level", "<u4"),  # how often the threshold of the sample was halved
    ]
)
_SHINGLE = 4  # bytes
_GAP = 1 << 14  # shingles or entries that are read in vain, rather than read separately
_SETS = 1 << 13  # to read at once: each gets hundreds of bytes of band hashes
_SPAN = 1 << 18  # shingles that are read at once, at least

Entries = npt.NDArray[np.void]  # of ENTRY
Numbers = npt.NDArray[np.int64]  # of documents


class SetWriter:
    """Writes the shingle sets of documents. `write` receives the name of a file, and bytes."""

    def __init__(self, write: Callable[[str, Any], None]) -> None:
        self._write = write
        self._end = 0
        self.count = 0
        write("shingles", b"")
        write("sets", b"")

    def add_texts(self, block: bytes, starts: Places, ends: Places, record: int) -> None:
        """Add the sets of whole documents, whose records are `record` and the following ones."""
        long = np.flatnonzero(are_long(ends - starts)).tolist()
        first = 0
        for number in [*long, len(starts)]:
            if first < number:
                shingles, sizes = shingle_texts(block, starts[first:number], ends[first:number])
                self._add(shingles, sizes, np.arange(first, number) + record)
            if number < len(starts):
                shingler = Shingler()
                shingler.add(memoryview(block)[int(starts[number]) : int(ends[number])])
                self.add(shingler, record + number)
            first = number + 1

    def add(self, shingler: Shingler, record: int) -> None:
        """Add the set of one document, whose text the shingler has."""
        shingles, level = shingler.finish()
        self._add(shingles, np.array([len(shingles)]), np.array([record]), level)

    def _add(self, shingles: Hashes, sizes: Places, records: Places, level: int = 0) -> None:
        entries = np.zeros(len(sizes), ENTRY)
        entries["end"] = np.cumsum(sizes) + self._end
        entries["record"], entries["level"] = records, level
        self._end += len(shingles)
        self.count += len(sizes)
        self._write("shingles", shingles.astype("<u4").data)
        self._write("sets", entries.data)


def read_sets(path: Path, count: int, limit: int) -> Iterator[tuple[Hashes, Places]]:
    """Yield the sets of the first `count` documents in order, some at a time, and their sizes.

    `path` is that of the files, without their suffixes. At most `limit` shingles, or one set, and at
    most `_SETS` sets are read at once.
    """
    if not count:
        return
    before = 0
    with (
        path.with_suffix(".sets").open("rb") as sets,
        path.with_suffix(".shingles").open("rb") as file,
    ):
        for start in range(0, count, _SETS):
            entries = _read_entries(sets, start, min(count, start + _SETS))
            bounds = np.concatenate(([before], entries["end"].astype(np.int64)))
            sizes: Places = bounds[1:] - bounds[:-1]
            if (sizes < 0).any():
                raise damaged(path.with_suffix(".sets"))
            ends = np.cumsum(sizes)
            first = 0
            while first < len(sizes):
                room = (ends[first - 1] if first else 0) + limit
                stop = max(first + 1, int(ends.searchsorted(room, "right")))
                here = sizes[first:stop]
                size = int(here.sum())
                data = read_range(file, _SHINGLE * before, _SHINGLE * size)
                yield np.frombuffer(data, "<u4"), here
                before += size
                first = stop


def _read_entries(file: BinaryIO, first: int, stop: int) -> Entries:
    data = read_range(file, ENTRY.itemsize * first, ENTRY.itemsize * (stop - first))
    return np.frombuffer(data, ENTRY)


class SpanningSet(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A document that spans parts: where its first record and its shingle set are, and its key."""

    part: Count
    record: Count
    bundle: str
    place: Count
    key: tuple[int, int]


class SetFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shingle sets of the whole input: the segments in input order, and spanning documents."""

    segments: list[tuple[str, Count]]  # the name, and the number of documents with a set
    spanning: list[SpanningSet]


@dataclass(frozen=True)
class Place:
    """Where a document is: its part's number, its record in the segment, and its key if it spans parts."""

    part: int
    record: int
    key: tuple[int, int] | None


@dataclass(frozen=True)
class Found:
    """Where the sets of some documents are. `source` is the number of the file of each."""

    numbers: Numbers
    source: Places
    start: Places
    size: Places
    level: Places
    record: Places


class Catalog:
    """Finds the shingle sets of documents by their numbers in the whole input.

    The first `len(segments)` sources are the files of segments; the others are bundles of spanning
    documents.
    """

    def __init__(self, folder: Path, files: SetFiles) -> None:
        self.folder = folder
        self.files = files

    @classmethod
    def read(cls, folder: Path, path: Path) -> Catalog:
        """Read a stored `SetFiles`. `folder` has the segments."""
        files = read_receipt(path, SetFiles)
        if files is None:
            raise damaged(path)
        return cls(folder, files)

    @cached_property
    def bases(self) -> Numbers:
        """The number of the first document of each part; the last entry is the number of documents."""
        counts = np.array([count for _, count in self.files.segments], np.int64)
        counts[[one.part for one in self.files.spanning]] += 1
        return np.concatenate(([0], np.cumsum(counts)))

    @property
    def total(self) -> int:
        """The number of documents."""
        return int(self.bases[-1])

    @cached_property
    def bits(self) -> int:
        """How many bits a number of a document has, at most."""
        return max(1, (self.total - 1).bit_length())

    @cached_property
    def _spanning(self) -> tuple[Numbers, Places]:
        """The numbers of the documents that span parts, and the places of their sets in the bundles."""
        numbers = [self.number_of(one) for one in self.files.spanning]
        places = [one.place for one in self.files.spanning]
        return np.array(numbers, np.int64), np.array(places, np.int64)

    def number_of(self, one: SpanningSet) -> int:
        """Return the number of a document that spans parts."""
        return int(self.bases[one.part + 1]) - 1

    def _path(self, source: int) -> Path:
        segments = self.files.segments
        if source < len(segments):
            return self.folder / segments[source][0]
        return self.folder / self.files.spanning[source - len(segments)].bundle

    def _sources(self, numbers: Numbers) -> tuple[Places, Places]:
        """Return the number of the file that has each document's set, and its place in the file."""
        parts = self.bases.searchsorted(numbers, "right") - 1
        places = numbers - self.bases[parts]
        spanning, their_places = self._spanning
        if len(spanning):
            at = np.minimum(spanning.searchsorted(numbers), len(spanning) - 1)
            span = np.flatnonzero(spanning[at] == numbers)
            parts[span] = len(self.files.segments) + at[span]
            places[span] = their_places[at[span]]
        return parts, places

    def find(self, numbers: Numbers) -> Found:
        """Find the sets of some documents, whose numbers are sorted."""
        source, place = self._sources(numbers)
        start, size, level, record = (np.zeros(len(numbers), np.int64) for _ in range(4))
        for which in np.unique(source).tolist():
            here = np.flatnonzero(source == which)
            path = self._path(which).with_suffix(".sets")
            with path.open("rb") as file:
                for low, high in _spans(place[here], place[here] + 1, _GAP):
                    some = here[low:high]
                    first, stop = int(place[some[0]]), int(place[some[-1]]) + 1
                    entries = _read_entries(file, max(0, first - 1), stop)
                    ends = entries["end"].astype(np.int64)
                    at = place[some] - first
                    if first:
                        at += 1
                    start[some] = np.where(place[some] > 0, ends[at - 1], 0)
                    size[some] = ends[at] - start[some]
                    level[some], record[some] = entries["level"][at], entries["record"][at]
            if (size[here] < 0).any() or (level[here] > 31).any():
                raise damaged(path)
        return Found(numbers, source, start, size, level, record)

    def load(self, found: Found, chosen: Places) -> tuple[Hashes, Places]:
        """Return the sets of the chosen documents, one after the other, and where each begins.

        `chosen` are ascending places in `found`.
        """
        sizes = found.size[chosen]
        starts = np.cumsum(sizes) - sizes
        made = np.empty(int(sizes.sum()), np.uint32)
        order = np.argsort(found.source[chosen], kind="stable")
        edges = np.flatnonzero(np.diff(found.source[chosen][order], prepend=-1))
        for here in np.split(order, edges[1:]) if len(order) else []:
            own = chosen[here]
            path = self._path(int(found.source[own[0]])).with_suffix(".shingles")
            with path.open("rb") as file:
                for low, high in _spans(found.start[own], found.start[own] + found.size[own], _GAP):
                    first = int(found.start[own[low]])
                    last = int(found.start[own[high - 1]] + found.size[own[high - 1]])
                    data = np.frombuffer(
                        read_range(file, _SHINGLE * first, _SHINGLE * (last - first)), "<u4"
                    )
                    for i in range(low, high):
                        at, size = int(found.start[own[i]]) - first, int(sizes[here[i]])
                        begin = int(starts[here[i]])
                        made[begin : begin + size] = data[at : at + size]
        return made, starts

    def places(self, numbers: Numbers) -> list[Place]:
        """Return where some documents are, whose numbers are sorted."""
        found = self.find(numbers)
        places, segments = [], len(self.files.segments)
        for source, record in zip(found.source.tolist(), found.record.tolist(), strict=True):
            if source < segments:
                places.append(Place(source, record, None))
            else:
                one = self.files.spanning[source - segments]
                places.append(Place(one.part, one.record, one.key))
        return places


def _spans(starts: Places, ends: Places, gap: int) -> Iterator[tuple[int, int]]:
    """Divide ascending ranges into groups to be read at once. Yields the first and last of each."""
    first = 0
    begins, stops = starts.tolist(), ends.tolist()
    for i in range(1, len(begins) + 1):
        if i == len(begins) or begins[i] - stops[i - 1] > gap or stops[i] - begins[first] > _SPAN:
            yield first, i
            first = i
