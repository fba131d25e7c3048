"""Documents that span parts: join their records, and compute their keys from their texts.

A part has only a fragment of such a document. It begins as the last record of a part, continues as
the only record of others, and ends as the first record of one. There is at most one for each border
between two parts. Their texts are read by tasks, because one document may be most of the input.
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
    Fragment,
    Receipt,
    Records,
    read_fragment,
)

_AT_ONCE = 64  # documents for one task


@dataclass(frozen=True)
class Whole:
    """A document that spans parts. `fragments` has the number of the part of each."""

    fragments: tuple[tuple[int, Fragment], ...]
    key: tuple[int, int] = (0, 0)
    repeated: bool = False  # whether an equal document is earlier in the input

    @property
    def first_part(self) -> int:
        """The part in which it begins."""
        return self.fragments[0][0]

    @property
    def length(self) -> int:
        """The number of its tokens."""
        return sum(fragment.length for _, fragment in self.fragments)

    @property
    def is_bad(self) -> bool:
        """Whether it is dropped because of invalid UTF-8."""
        return any(fragment.flags & BAD_TEXT for _, fragment in self.fragments)

    @property
    def replaced(self) -> int:
        """The bytes that were not UTF-8."""
        return sum(fragment.replaced for _, fragment in self.fragments)

    @property
    def line(self) -> tuple[int, int]:
        """Of its first replaced byte: the part, and the line in the part's range; 0 if unknown."""
        lines = ((part, fragment.line) for part, fragment in self.fragments if fragment.line)
        return next(lines, (self.first_part, 0))

    def record(self) -> Records:
        """Its record, as if it were in one part: key, length, sizes and flags."""
        record = np.zeros(1, RECORD)
        record["key"] = self.key
        for name in ("length", "raw", "text", "characters"):
            record[name] = sum(getattr(fragment, name) for _, fragment in self.fragments)
        flags = 0
        for _, fragment in self.fragments:
            flags |= fragment.flags
        record["flags"] = flags & (BAD_TEXT | REPAIRED)
        return record


def find_spanning(receipts: Sequence[Receipt]) -> list[Whole]:
    """The documents that span parts, in input order, without their keys."""
    found: list[Whole] = []
    fragments: list[tuple[int, Fragment]] = []
    for number, receipt in enumerate(receipts):
        for fragment in receipt["facts"]["fragments"]:
            if bool(fragments) != bool(fragment.flags & CONTINUES):
                raise FolderError(
                    "The unfinished run is damaged: the parts of a document do not fit together. "
                    "Add `restart=True` to start over."
                )
            fragments.append((number, fragment))
            if not fragment.flags & UNFINISHED:
                found.append(Whole(tuple(fragments)))
                fragments = []
    return found


@dataclass(frozen=True)
class HashDocuments:
    """A task: compute the keys of some documents that span parts."""

    documents: tuple[Whole, ...]
    segments: dict[int, Path]  # by the number of the part

    def run(self, worker: Worker) -> list[Whole]:
        """The documents with their keys."""
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
    """The tasks that compute all keys."""
    for start in range(0, len(documents), _AT_ONCE):
        some = tuple(documents[start : start + _AT_ONCE])
        parts = {part for document in some for part, _ in document.fragments}
        yield HashDocuments(some, {part: segments[part] for part in parts})
