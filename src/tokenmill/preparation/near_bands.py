"""Compute the band hashes of the documents that may be near duplicates, for some parts at once.

Documents take part if they would otherwise be kept: repeats of an earlier document, excluded documents
and documents without tokens do not. A band hash is a key (see `key_files.py`) whose high half is the
number of the document in the whole input, so that the task of a partition finds equal hashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from tokenmill.preparation.engine import Worker
from tokenmill.preparation.key_files import Flags, KeyLayout, KeyWriter, Marks, PartMarks
from tokenmill.preparation.segment import (
    Bundle,
    Receipt,
    has_key,
    read_document_records,
    read_fragment,
)
from tokenmill.preparation.shingle_sets import Catalog, Numbers, SetWriter, read_sets
from tokenmill.preparation.shingles import Hashes, Places, Shingler
from tokenmill.preparation.signatures import Bands
from tokenmill.preparation.spanning import Whole

_AT_ONCE = 1 << 19  # shingles


@dataclass(frozen=True)
class ShingleDocuments:
    """A task: compute the shingle sets of some documents that span parts."""

    name: str
    folder: Path
    documents: tuple[Whole, ...]
    segments: dict[int, Path]  # by the number of the part

    def run(self, worker: Worker) -> Receipt:
        """Write the sets to a bundle, and return its receipt."""
        with Bundle(self.folder, self.name) as bundle:
            sets = SetWriter(bundle.write)
            for number, document in enumerate(self.documents):
                shingler = Shingler()
                for part, fragment in document.fragments:
                    for block in read_fragment(self.segments[part], fragment):
                        shingler.add(block)
                        worker.report(len(block))
                sets.add(shingler, number)
            return bundle.finish({"documents": sets.count})


@dataclass(frozen=True)
class PartOfBands:
    """A part whose documents get band hashes. `is_chosen` is about the document that begins in the
    part and ends in a later one, if any: whether it takes part."""

    part: int
    marks: PartMarks
    is_chosen: bool


@dataclass(frozen=True, kw_only=True)
class HashBands:
    """A task: write the band hashes of the documents of some consecutive parts to a bundle."""

    name: str
    folder: Path  # of segments, and for the bundle
    files: Path  # the file that stores a `SetFiles`
    parts: tuple[PartOfBands, ...]
    bands: Bands
    layout: KeyLayout
    records: int  # read at once

    def run(self, worker: Worker) -> Receipt:
        """Write the band hashes, and return the receipt of the bundle."""
        catalog = Catalog.read(self.folder, self.files)
        documents = 0
        with Bundle(self.folder, self.name) as bundle:
            writer = KeyWriter(self.layout, partial(bundle.write, "bands"))
            for one in self.parts:
                documents += self._write(one, catalog, writer, worker)
            writer.flush()
            return bundle.finish({"keys": writer.count, "documents": documents})

    def _write(self, one: PartOfBands, catalog: Catalog, writer: KeyWriter, worker: Worker) -> int:
        """Write the band hashes of one part. Returns how many of its documents have some."""
        name, count = catalog.files.segments[one.part]
        base, documents = int(catalog.bases[one.part]), 0
        path = self.folder / name
        takes_part = Marks(_choose(path, one.marks, self.records))
        for shingles, sizes in read_sets(path, count, _AT_ONCE):
            chosen = takes_part.take(len(sizes)) != 0
            numbers = np.flatnonzero(chosen) + base
            if not chosen.all():
                shingles, sizes = shingles[np.repeat(chosen, sizes)], sizes[chosen]
            documents += self._add(numbers, shingles, sizes, writer)
            base += len(chosen)
            worker.report(shingles.nbytes)
        if one.is_chosen:
            found = catalog.find(np.array([base]))
            shingles, _ = catalog.load(found, np.array([0]))
            documents += self._add(found.numbers, shingles, found.size, writer)
        return documents

    def _add(self, numbers: Numbers, shingles: Hashes, sizes: Places, writer: KeyWriter) -> int:
        places, hashes = self.bands.hash(shingles, sizes)
        keys = np.empty((len(hashes), 2), np.uint64)
        keys[:, 0], keys[:, 1] = numbers[places], hashes
        writer.add(keys)
        return int(np.count_nonzero(sizes))


def _choose(segment: Path, marks: PartMarks, count: int) -> Iterator[Flags]:
    """Yield, for each document of a segment that has a key, 1 if it takes part, else 0."""
    marked = Marks(marks.read())
    for records in read_document_records(segment, count):
        known = records[has_key(records)]
        yield ((marked.take(len(known)) == 0) & (known["length"] > 0)).view(np.uint8)
