"""Documents that span parts: join their records, compute their keys, and judge their texts.

A part is the input of one task. If the border between two parts cuts a document, each part has a
fragment of the document's text, and a record of the fragment. The first fragment is the last record of
its part, the last fragment is the first record of its part, and a fragment in the middle is the only
record of its part. One document may be most of the input. So its fragments are read by tasks of the
engine, and not by the process that joins the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import xxhash

from tokenmill.errors import FolderError
from tokenmill.preparation.engine import Worker
from tokenmill.preparation.examples import SHOWN_BYTES, show_beginning
from tokenmill.preparation.judges import JudgeRecipe, Verdict, open_panel
from tokenmill.preparation.segment import (
    BAD_TEXT,
    CONTINUES,
    REASON,
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
    verdict: Verdict = field(default_factory=Verdict)  # of the judges
    beginning: str = ""  # of the text, if a judge drops the document
    is_sampled: bool = True

    @property
    def first_part(self) -> int:
        """The number of the part in which the document begins."""
        return self.fragments[0][0]

    @property
    def place(self) -> tuple[int, int]:
        """Where the document begins: the number of its source, and the offset."""
        first = self.fragments[0][1]
        return first.source, first.offset

    @property
    def length(self) -> int:
        """The number of tokens in the document."""
        return sum(fragment.length for _, fragment in self.fragments)

    @property
    def is_bad(self) -> bool:
        """Whether the document is dropped because of invalid UTF-8."""
        return any(fragment.flags & BAD_TEXT for _, fragment in self.fragments)

    @property
    def has_key(self) -> bool:
        """Whether the key takes part in finding repeats: see `has_key` in `segment.py`."""
        return self.is_sampled and not self.is_bad and not self.verdict.number

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
        flags = flags & (BAD_TEXT | REPAIRED) | (0 if self.is_sampled else UNSAMPLED)
        record["flags"] = flags | REASON * self.verdict.number
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
    """A task: compute the keys (hashes of the text) of some documents that span parts, and judge them."""

    documents: tuple[Whole, ...]
    segments: dict[int, Path]  # by the number of the part
    judges: tuple[JudgeRecipe, ...] = ()

    def run(self, worker: Worker) -> list[Whole]:
        """Return the documents with their keys and the verdicts of the judges."""
        return [self._hash(document, worker) for document in self.documents]

    def _hash(self, document: Whole, worker: Worker) -> Whole:
        state = xxhash.xxh3_128()
        panel = open_panel(self.judges)
        hearing = panel.begin() if panel and not document.is_bad else None
        beginning = bytearray()
        for part, fragment in document.fragments:
            for block in read_fragment(self.segments[part], fragment):
                state.update(block)
                if hearing is not None:
                    hearing.add(block)
                    beginning += block[: max(0, SHOWN_BYTES - len(beginning))]
                worker.report(len(block))
        digest = state.intdigest()
        document = replace(document, key=(digest >> 64, digest & (2**64 - 1)))
        if hearing is None:
            return document
        verdict = hearing.finish()
        shown = show_beginning(beginning) if verdict.number else ""
        return replace(document, verdict=verdict, beginning=shown)


def plan_hashing(
    documents: Sequence[Whole], segments: Sequence[Path], judges: tuple[JudgeRecipe, ...]
) -> Iterator[HashDocuments]:
    """Yield the tasks that compute the keys of all documents, and judge them."""
    for start in range(0, len(documents), _AT_ONCE):
        some = tuple(documents[start : start + _AT_ONCE])
        parts = {part for document in some for part, _ in document.fragments}
        yield HashDocuments(some, {part: segments[part] for part in parts}, judges)
