"""Sift a segment: decide which documents to keep, and in which split each belongs.

Long documents that a judge dropped (`judges.py`), and documents that the user listed, are left out,
with all their copies (`exclusion.py`). If other documents are equal, the first in input order stays. The split follows from a salted hash of the
document's key, so equal texts are never in both splits, and adding to a corpus does not move its
earlier documents. Segments are sifted independently, after the repeats among all keys are marked.

A document's fate says which split it belongs to, or that it is dropped. Fates are stored on disk, one
byte per document. Memory holds one block of records at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenmill.preparation.engine import Worker
from tokenmill.preparation.key_files import LISTED, NEAR, REPEATED, Flags, Marks, PartMarks
from tokenmill.preparation.near_choice import PartRemovals
from tokenmill.preparation.near_edges import EDGE, Edges
from tokenmill.preparation.near_reports import RemovalReporter
from tokenmill.preparation.reports import Reporter, SourceCounts
from tokenmill.preparation.sampling import NOT_SAMPLED
from tokenmill.preparation.segment import (
    BAD_TEXT,
    CONTINUES,
    REASON,
    REPAIRED,
    UNFINISHED,
    UNSAMPLED,
    Bundle,
    Receipt,
    Records,
    has_key,
    read_document_records,
)
from tokenmill.preparation.settings import SPLITS
from tokenmill.preparation.spanning import Whole

DROPPED = 0  # the fate of a document that is not dropped is 1 + the number of its split
NEAR_DUPLICATE = "near duplicate"  # in the ledger
EXCLUDED = "excluded"  # in the ledger, the reason of documents that the user listed
_SALT = np.uint64(0x746F6B656E6D696C)  # the ASCII codes of "tokenmil"

Mask = npt.NDArray[np.bool_]
Fates = npt.NDArray[np.uint8]


def belongs_to_val(keys: npt.NDArray[np.uint64], fraction: float) -> Mask:
    """Return which documents belong to validation. That depends on their keys alone.

    The finalizer of SplitMix64 mixes the low half of the key with a salt. If the result divided by
    2**64 is below `fraction`, the document belongs to validation.

    >>> keys = np.array([[0, 1], [0, 2], [0, 3]], np.uint64)
    >>> belongs_to_val(keys, 0.5).tolist(), belongs_to_val(keys, 0.0).any().tolist()
    ([True, False, True], False)
    """
    x = keys[:, 1] ^ _SALT
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x < np.uint64(min(int(fraction * 2.0**64), 2**64 - 1))


@dataclass(frozen=True, kw_only=True)
class SiftSegment:
    """A task: decide which documents of a segment to keep, and in which split, and write its reports."""

    name: str  # of the bundle to make
    folder: Path
    segment: Path
    val_fraction: float
    marks: PartMarks | None  # None: equal documents are all kept, and none is listed
    near: PartRemovals | None  # None: no document is a near duplicate
    removals: RemovalReporter | None
    begins: Whole | None  # the document that begins here and ends in a later part
    continued: int  # the fate of the document that begins in an earlier part
    reporter: Reporter
    records: int  # read at once
    reasons: tuple[str, ...] = ()  # of the judges

    def run(self, worker: Worker) -> Receipt:
        """Write each document's fate (its split, or dropped) and the reports. Returns a receipt."""
        with Bundle(self.folder, self.name) as bundle:
            bundle.write("fates", b"")
            totals, sources = Totals(), SourceCounts()
            for line in self.reporter.list_rejections(self.segment):
                bundle.write("rejected", line)
            for records, fates, excluded, removed, edges in self._decide(totals):
                bundle.write("fates", fates.data)
                sources.add(records)
                for line in self.reporter.list_repairs(records[fates != DROPPED], self.begins):
                    bundle.write("repaired", line)
                for line in self.reporter.list_excluded(records[excluded], self.begins):
                    bundle.write("excluded", line)
                if self.removals is not None and len(edges):
                    begins = self.begins if self._begins_in(records[removed]) else None
                    lines = self.removals.list_removed(records[removed], edges, begins)
                    bundle.write("removed", compress(b"".join(lines)))
                for number in range(len(SPLITS)):
                    totals.tokens[number] += int(records["length"][fates == 1 + number].sum())
                totals.records += len(records)
                worker.report(records.nbytes)
            return bundle.finish(vars(totals) | {"sources": sources.entries})

    def _begins_in(self, records: Records) -> bool:
        """Return whether the last of some records is the document that ends in a later part."""
        return self.begins is not None and bool((records["flags"][-1:] & UNFINISHED).any())

    def _decide(self, totals: Totals) -> Iterator[tuple[Records, Fates, Mask, Mask, Edges]]:
        """Yield the segment's records and their fates, some at a time. Counts them in `totals`.

        A fate is 0 if the document is dropped, 1 for train, 2 for val. The third array says which
        records begin a document that is excluded, and the fourth which begin a near duplicate. The
        edges say which documents these resemble.
        """
        near = _NearMarks(self.near, self.records)
        marks = Marks(self.marks.read() if self.marks is not None else ())
        for records in read_document_records(self.segment, self.records):
            known = has_key(records)
            marked = np.zeros(len(records), np.uint8)
            own = marks.take(int(np.count_nonzero(known)))
            edges = near.mark(own)
            marked[known] = own
            starts = (records["flags"] & CONTINUES) == 0
            if self.begins is not None and self._begins_in(records[starts]):
                marked[-1] = self.begins.mark
                edges = np.concatenate((edges, near.mark(marked[-1:])))
            documents, removed = records[starts], marked == NEAR
            if self.begins is not None and self._begins_in(documents):
                documents[-1:] = self.begins.record()
            marked = marked[starts]
            fates = np.full(len(records), self.continued, np.uint8)
            excluded = np.zeros(len(records), np.bool_)
            fates[starts], excluded[starts] = choose_fates(
                documents, marked, self.val_fraction, totals, self.reasons
            )
            yield records, fates, excluded, removed, edges


class _NearMarks:
    """Marks the near duplicates among the documents of a part, in order."""

    def __init__(self, near: PartRemovals | None, limit: int) -> None:
        self._edges = near.read(limit) if near is not None else iter(())
        self._number = near.base if near is not None else 0
        self._held = np.zeros(0, EDGE)

    def mark(self, marks: Flags) -> Edges:
        """Mark the near duplicates among the next documents. Returns an edge for each."""
        end = self._number + len(marks)
        while not len(self._held) or self._held["later"][-1] < end:
            more = next(self._edges, None)
            if more is None:
                break
            self._held = np.concatenate((self._held, more))
        count = int(self._held["later"].searchsorted(np.uint64(end)))
        found, self._held = self._held[:count], self._held[count:]
        marks[found["later"].astype(np.int64) - self._number] = NEAR
        self._number = end
        return found


def compress(data: bytes) -> bytes:
    """Return a zstd frame. Several frames, one after the other, are a file for `zstd -d`."""
    import zstandard

    return zstandard.ZstdCompressor().compress(data)


@dataclass
class Totals:
    """Counts of kept and dropped documents. `dropped` maps a reason to documents and bytes."""

    records: int = 0
    tokens: list[int] = field(default_factory=lambda: [0] * len(SPLITS))
    kept: int = 0
    kept_bytes: int = 0
    text: int = 0
    characters: int = 0
    repaired: int = 0
    dropped: dict[str, list[int]] = field(default_factory=dict)

    def drop(self, reason: str, documents: int, size: int) -> None:
        """Count documents that are dropped for one reason, and their bytes."""
        if documents:
            entry = self.dropped.setdefault(reason, [0, 0])
            entry[0] += documents
            entry[1] += size


def choose_fates(
    records: Records,
    marks: Flags,
    val_fraction: float,
    totals: Totals,
    reasons: Sequence[str] = (),
) -> tuple[Fates, Mask]:
    """Return the fate of each document: 0 if it is dropped, 1 for train, 2 for val.

    `marks` say which documents are listed, and which others repeat or resemble an earlier one.
    `reasons` are those of the judges. Also returns which documents are excluded, because they are
    listed. Adds all documents to `totals`.
    """
    bad = (records["flags"] & BAD_TEXT) != 0
    judged = ~bad & (records["flags"] >= REASON)
    for number in np.unique(records["flags"][judged] // REASON).tolist():
        mask = judged & (records["flags"] // REASON == number)
        size = int(records["raw"][mask].sum())
        totals.drop(reasons[number - 1], int(np.count_nonzero(mask)), size)
    bad |= judged
    empty = ~bad & (records["text"] == 0)
    unsampled = ~bad & ~empty & ((records["flags"] & UNSAMPLED) != 0)
    # Some tokenizers remove characters, possibly all of a text.
    mute = ~bad & ~empty & ~unsampled & (records["length"] == 0)
    usable = ~bad & ~empty & ~unsampled & ~mute
    excluded = usable & (marks == LISTED)
    twice = usable & (marks == REPEATED)
    near = usable & (marks == NEAR)
    kept = usable & ~excluded & ~twice & ~near
    for reason, mask in (
        ("invalid UTF-8", bad & ~judged),
        ("only repeated lines", empty),
        (NOT_SAMPLED, unsampled),
        ("no tokens", mute),
        (EXCLUDED, excluded),
        ("duplicate", twice),
        (NEAR_DUPLICATE, near),
    ):
        totals.drop(reason, int(np.count_nonzero(mask)), int(records["raw"][mask].sum()))
    chosen = records[kept]
    totals.kept += len(chosen)
    totals.kept_bytes += int(chosen["raw"].sum())
    totals.text += int(chosen["text"].sum())
    totals.characters += int(chosen["characters"].sum())
    totals.repaired += int(np.count_nonzero(chosen["flags"] & REPAIRED))
    val = belongs_to_val(records["key"], val_fraction)
    return np.where(kept, np.where(val, 2, 1), DROPPED).astype(np.uint8), excluded


def fate_of(document: Whole, val_fraction: float, reasons: Sequence[str]) -> int:
    """Return the fate of a document that spans parts: 0 if dropped, 1 for train, 2 for val."""
    mark = np.array([document.mark], np.uint8)
    fates, _ = choose_fates(document.record(), mark, val_fraction, Totals(), reasons)
    return int(fates[0])
