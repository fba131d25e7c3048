"""Documents that span parts: join their records, and compute their keys from their texts.

A part is the input of one task. If the border between two parts cuts a document, each part has a
fragment of the document's text, and a record of the fragment. The first fragment is the last record of
its part, the last fragment is the first record of its part, and a fragment in the middle is the only
record of its part. One document may be most of the input. So its fragments are read by tasks of the
engine, and not by the process that joins the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xxhash

from tokenmill.errors import FolderError
from tokenmill.preparation.engine import Worker
from tokenmill.preparation.segment import (
    BAD_TEXT,
    CONTINUES,
    RECORD,
    REPAIRED,
    UNFINISHED,
    UNSAMPLED,
    Fragment,
    Receipt,
    Records,
    read_fragment,
)

_AT_ONCE = 64  # documents for one task


@dataclass(frozen=True)
class Whole:
    """A document that spans parts: its fragments, each with the number of its part."""

    fragments: tuple[tuple[int, Fragment], ...]
    key: tuple[int, int] = (0, 0)
    mark: int = 0  # REPEATED, LISTED or 0
    is_sampled: bool = True

    @property
    def first_part(self) -> int:
        """The number of the part in which the document begins."""
        return self.fragments[0][0]

    @property
    def length(self) -> int:
        """The number of tokens in the document."""
        return sum(fragment.length for _, fragment in self.fragments)

    @property
    def is_bad(self) -> bool:
        """Whether the document is dropped because of invalid UTF-8."""
        return any(fragment.flags & BAD_TEXT for _, fragment in self.fragments)

    @property
    def has_mark(self) -> bool:
        """Whether the document is compared with others: it is neither bad nor left out of a sample."""
        return self.is_sampled and not self.is_bad

    @property
    def replaced(self) -> int:
        """The number of bytes that were not UTF-8."""
        return sum(fragment.replaced for _, fragment in self.fragments)

    @property
    def line(self) -> tuple[int, int]:
        """Where the first replaced byte is: the part, and the line in that part (0 if unknown)."""
        lines = ((part, fragment.line) for part, fragment in self.fragments if fragment.line)
        return next(lines, (self.first_part, 0))

    def record(self) -> Records:
        """Return one record for the whole document, with its key, length, sizes and flags."""
        record = np.zeros(1, RECORD)
        record["key"] = self.key
        for name in ("length", "raw", "text", "characters"):
            record[name] = sum(getattr(fragment, name) for _, fragment in self.fragments)
        flags = 0
        for _, fragment in self.fragments:
            flags |= fragment.flags
        record["flags"] = flags & (BAD_TEXT | REPAIRED) | (0 if self.is_sampled else UNSAMPLED)
        return record


def find_spanning(receipts: Sequence[Receipt]) -> list[Whole]:
    """Return the documents that span parts, in input order. Their keys are not computed yet."""
    found: list[Whole] = []
    fragments: list[tuple[int, Fragment]] = []
    for number, receipt in enumerate(receipts):
        for fragment in receipt["facts"]["fragments"]:
            if bool(fragments) != bool(fragment.flags & CONTINUES):
                raise FolderError(
                    "The unfinished run is damaged: a part of a document is missing. "
                    "Add `restart=True` to start over."
                )
            fragments.append((number, fragment))
            if not fragment.flags & UNFINISHED:
                found.append(Whole(tuple(fragments)))
                fragments = []
    return found


@dataclass(frozen=True)
class HashDocuments:
    """A task: compute the keys (hashes of the text) of some documents that span parts."""

    documents: tuple[Whole, ...]
    segments: dict[int, Path]  # by the number of the part

    def run(self, worker: Worker) -> list[Whole]:
        """Return the documents with their keys."""
        return [self._hash(document, worker) for document in self.documents]

    def _hash(self, document: Whole, worker: Worker) -> Whole:
        state = xxhash.xxh3_128()
        for part, fragment in document.fragments:
            for block in read_fragment(self.segments[part], fragment):
                state.update(block)
                worker.report(len(block))
        digest = state.intdigest()
        return replace(document, key=(digest >> 64, digest & (2**64 - 1)))


def plan_hashing(documents: Sequence[Whole], segments: Sequence[Path]) -> Iterator[HashDocuments]:
    """Yield the tasks that compute the keys of all documents."""
    for start in range(0, len(documents), _AT_ONCE):
        some = tuple(documents[start : start + _AT_ONCE])
        parts = {part for document in some for part, _ in document.fragments}
        yield HashDocuments(some, {part: segments[part] for part in parts})
