"""Sift segments: decide which documents to keep, and in which split each belongs.

Of equal documents, the first in input order stays. The split follows from a salted hash of the
document's key, so equal texts are never in both splits, and adding to a corpus does not move its
earlier documents. Documents and bytes are counted, and the counts must add up before anything is
written.

Memory holds one segment's records at a time, plus the memory for sorting keys. Fates take one byte
per document on disk.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.errors import FolderError
from tokenmill.preparation.repeats import mark_repeats
from tokenmill.preparation.reports import REPAIR, FileRepairs, RepairLog
from tokenmill.preparation.segment import (
    BAD_TEXT,
    CONTINUES,
    REPAIRED,
    UNFINISHED,
    Receipt,
    Records,
    read_document_records,
    read_end_records,
    read_fragment,
)
from tokenmill.preparation.settings import PrepareSettings

SPLITS = ("train", "val")
DROPPED = 0  # otherwise the fate of a record is 1 + the number of its split
_SALT = np.uint64(0x746F6B656E6D696C)  # "tokenmil"


@dataclass(frozen=True)
class Stitched:
    """The key and length of a document that spans parts."""

    key: tuple[int, int]
    length: int


@dataclass
class Sifted:
    """The fates, on disk, and the number of tokens that each split takes from each segment."""

    fates: Path
    first_record: list[int]  # of each segment, in the numbering of all records
    tokens: dict[str, list[int]]  # a split: tokens from each segment
    documents: dict[str, int]
    stitched: dict[int, Stitched]  # by the number of the document's first record
    repairs: Path  # one REPAIR for each document that was repaired and kept
    repaired_files: dict[int, FileRepairs] = field(default_factory=dict)  # by number of the source
    ledger: dict[str, Any] = field(default_factory=dict)


def belongs_to_val(keys: npt.NDArray[np.uint64], fraction: float) -> npt.NDArray[np.bool_]:
    """Which documents belong to validation: a function of the key alone.

    The key's low half is mixed with a salt by the finalizer of SplitMix64; the document is in
    validation if the result, as a fraction of 2**64, is below `fraction`.

    >>> keys = np.array([[0, 1], [0, 2], [0, 3]], np.uint64)
    >>> belongs_to_val(keys, 0.5).tolist(), belongs_to_val(keys, 0.0).any().tolist()
    ([True, False, True], False)
    """
    x = keys[:, 1] ^ _SALT
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x < np.uint64(min(int(fraction * 2.0**64), 2**64 - 1))


def sift(
    segments: Sequence[Path],
    receipts: Sequence[Receipt],
    settings: PrepareSettings,
    folder: Path,
    *,
    sorted_keys: int,
    count: int,
) -> Sifted:
    """Decide the fate of every document. Segments are given in input order.

    `sorted_keys` is how many keys to sort in memory, `count` how many records to read at once.
    """
    counts = [receipt["facts"]["records"] for receipt in receipts]
    first_record = [0, *np.cumsum(counts, dtype=np.int64).tolist()]
    spanning = _stitch(segments, receipts, first_record)
    marks = folder / "repeats"
    if settings.dedup == "documents":
        keys = _all_keys(segments, first_record, spanning, count)
        mark_repeats(keys, first_record[-1], marks, folder / "spill", sorted_keys)
    else:
        with marks.open("wb") as file:
            os.ftruncate(file.fileno(), first_record[-1])  # repeated after a signal
    result = Sifted(
        fates=folder / "fates",
        first_record=first_record[:-1],
        tokens={split: [] for split in SPLITS},
        documents=dict.fromkeys(SPLITS, 0),
        stitched={number: whole.stitched for number, whole in spanning.wholes.items()},
        repairs=folder / "repairs",
    )
    totals = _decide(result, segments, settings, marks, spanning, count)
    result.ledger = _ledger(totals, receipts, sum(map(sum, result.tokens.values())))
    return result


@dataclass
class _Whole:
    """A document that spans parts, joined from its records."""

    raw: int = 0
    text: int = 0
    characters: int = 0
    flags: int = 0
    replaced: int = 0
    line: tuple[int, int] = (0, 0)  # of the first replaced byte: the segment, and the line in it
    stitched: Stitched = Stitched((0, 0), 0)


class _Spanning:
    """All documents that span parts, by the number of their first record."""

    def __init__(self) -> None:
        self.wholes: dict[int, _Whole] = {}
        self.followers: dict[int, int] = {}  # a later record: the document's first one
        self._firsts: list[int] = []
        self._later: list[int] = []

    def freeze(self) -> _Spanning:
        """Make the numbers searchable; they were added in ascending order."""
        self._firsts, self._later = list(self.wholes), list(self.followers)
        return self

    def firsts(self, start: int, count: int) -> list[int]:
        """The first records of spanning documents among `count` records from `start` on."""
        return self._firsts[
            bisect_left(self._firsts, start) : bisect_left(self._firsts, start + count)
        ]

    def later(self, start: int, count: int) -> list[int]:
        """The other records of spanning documents among `count` records from `start` on."""
        return self._later[
            bisect_left(self._later, start) : bisect_left(self._later, start + count)
        ]


def _stitch(
    segments: Sequence[Path], receipts: Sequence[Receipt], first_record: list[int]
) -> _Spanning:
    """Find the documents that span parts, and compute their keys from their texts."""
    spanning = _Spanning()
    wholes, followers = spanning.wholes, spanning.followers
    current: int | None = None
    state = xxhash.xxh3_128()
    length = 0
    for i, segment in enumerate(segments):
        if "text" not in receipts[i]["files"] or not first_record[i + 1] - first_record[i]:
            continue
        for index, record in read_end_records(segment):
            number = first_record[i] + index
            if not record["flags"] & (CONTINUES | UNFINISHED):
                continue
            if record["flags"] & CONTINUES:
                assert current is not None, (
                    "a part continues a document that no part left unfinished"
                )
                followers[number] = current
            else:
                current, length = number, 0
                state = xxhash.xxh3_128()
                wholes[current] = _Whole()
            whole = wholes[current]
            for block in read_fragment(segment, record):
                state.update(block)
            length += int(record["length"])
            whole.raw += int(record["raw"])
            whole.text += int(record["text"])
            whole.characters += int(record["characters"])
            whole.flags |= int(record["flags"])
            whole.replaced += int(record["replaced"])
            if not whole.line[1]:
                whole.line = i, int(record["line"])
            if not record["flags"] & UNFINISHED:
                digest = state.intdigest()
                whole.stitched = Stitched((digest >> 64, digest & (2**64 - 1)), length)
                current = None
    return spanning.freeze()


def _all_keys(
    segments: Sequence[Path], first_record: list[int], spanning: _Spanning, count: int
) -> Iterator[npt.NDArray[np.uint64]]:
    for i, segment in enumerate(segments):
        for start, records in read_document_records(segment, count):
            keys = np.array(records["key"], np.uint64)
            first = first_record[i] + start
            bad = (records["flags"] & np.uint64(BAD_TEXT)) != 0
            for number in spanning.firsts(first, len(keys)):
                whole = spanning.wholes[number]
                keys[number - first] = whole.stitched.key
                bad[number - first] = whole.flags & BAD_TEXT != 0
            # Bad documents get unique keys, so that they are not duplicates of any other.
            alone = np.flatnonzero(bad)
            keys[alone, 0], keys[alone, 1] = 0, first + alone
            for number in spanning.later(first, len(keys)):
                keys[number - first] = (0, number)
            yield keys


@dataclass
class _Totals:
    """Counts of kept and dropped documents. `dropped` maps a reason to documents and bytes."""

    kept: int = 0
    kept_bytes: int = 0
    text: int = 0
    characters: int = 0
    repaired: int = 0
    dropped: dict[str, list[int]] = field(default_factory=dict)

    def drop(self, reason: str, documents: int, size: int) -> None:
        if documents:
            entry = self.dropped.setdefault(reason, [0, 0])
            entry[0] += documents
            entry[1] += size


def _ledger(totals: _Totals, receipts: Sequence[Receipt], tokens: int) -> dict[str, Any]:
    """The ledger. Checks that documents and bytes in = kept + dropped."""
    facts = [receipt["facts"] for receipt in receipts]
    for fact in facts:
        for reason, (documents, size) in fact["dropped"].items():
            totals.drop(reason, documents, size)
    documents_in = sum(fact["documents_in"] for fact in facts)
    bytes_in = sum(fact["bytes_in"] for fact in facts)
    documents, size = (sum(entry[i] for entry in totals.dropped.values()) for i in (0, 1))
    if (documents_in, bytes_in) != (totals.kept + documents, totals.kept_bytes + size):
        raise FolderError(
            f"The unfinished run is damaged: read {documents_in:,} documents ({bytes_in:,} bytes), kept "
            f"{totals.kept:,} ({totals.kept_bytes:,}), dropped {documents:,} ({size:,}), which does not "
            "add up. Add `restart=True` to start over."
        )
    return {
        "documents_in": documents_in,
        "bytes_in": bytes_in,
        "documents_kept": totals.kept,
        "bytes_kept": totals.kept_bytes,
        "dropped": {
            reason: {"documents": entry[0], "bytes": entry[1]}
            for reason, entry in sorted(totals.dropped.items())
        },
        "text_bytes": totals.text,
        "characters": totals.characters,
        "tokens": tokens,
        "repaired_documents": totals.repaired,
        "duplicate_lines": sum(fact["repeated_lines"] for fact in facts),
    }


def _decide(
    result: Sifted,
    segments: Sequence[Path],
    settings: PrepareSettings,
    marks: Path,
    spanning: _Spanning,
    count: int,
) -> _Totals:
    """Write the fate of every record, and count."""
    totals = _Totals()
    fate_of_first: dict[int, int] = {}
    with (
        result.fates.open("wb") as fates,
        marks.open("rb") as repeats,
        result.repairs.open("wb") as file,
    ):
        log = RepairLog(file)
        result.repaired_files = log.files
        for i, segment in enumerate(segments):
            tokens = dict.fromkeys(SPLITS, 0)
            for start, records in read_document_records(segment, count):
                first = result.first_record[i] + start
                repeated = np.frombuffer(repeats.read(len(records)), np.bool_)
                fate = _fates(records, repeated, first, settings, spanning, totals)
                for number in spanning.firsts(first, len(records)):
                    fate_of_first[number] = int(fate[number - first])
                for number in spanning.later(first, len(records)):
                    fate[number - first] = fate_of_first[spanning.followers[number]]
                fates.write(fate.tobytes())
                log.count(records)
                log.add(_find_repairs(i, first, records, fate, spanning))
                starts = (records["flags"] & np.uint64(CONTINUES)) == 0
                for number, split in enumerate(SPLITS, 1):
                    chosen = fate == number
                    tokens[split] += int(records["length"][chosen].sum())
                    result.documents[split] += int(np.count_nonzero(chosen & starts))
            for split in SPLITS:
                result.tokens[split].append(tokens[split])
    return totals


def _find_repairs(
    segment: int, first: int, records: Records, fate: npt.NDArray[np.uint8], spanning: _Spanning
) -> Records:
    """The records that are repaired and kept, one REPAIR each."""
    repairs = np.zeros(len(records), REPAIR)
    repairs["segment"] = segment
    for name in ("source", "line", "offset", "replaced"):
        repairs[name] = records[name]
    for number in spanning.firsts(first, len(records)):
        whole, repair = spanning.wholes[number], repairs[number - first]
        repair["replaced"] = whole.replaced
        repair["segment"], repair["line"] = whole.line
    for number in spanning.later(first, len(records)):
        repairs[number - first]["replaced"] = 0
    kept: Records = repairs[(fate != DROPPED) & (repairs["replaced"] > 0)]
    return kept


def _fates(
    records: Records,
    repeated: npt.NDArray[np.bool_],
    first: int,
    settings: PrepareSettings,
    spanning: _Spanning,
    totals: _Totals,
) -> npt.NDArray[np.uint8]:
    """The fates of some records. Documents that continue from another part are filled in later."""
    records = records.copy()
    for number in spanning.firsts(first, len(records)):
        whole, record = spanning.wholes[number], records[number - first]
        record["key"], record["flags"] = whole.stitched.key, whole.flags & ~CONTINUES
        record["raw"], record["text"] = whole.raw, whole.text
        record["characters"], record["length"] = whole.characters, whole.stitched.length
    starts = np.ones(len(records), np.bool_)
    for number in spanning.later(first, len(records)):
        starts[number - first] = False
    bad = starts & ((records["flags"] & np.uint64(BAD_TEXT)) != 0)
    empty = starts & ~bad & (records["text"] == 0)
    # Some tokenizers remove characters, possibly all of a text.
    mute = starts & ~bad & ~empty & (records["length"] == 0)
    twice = starts & ~bad & ~empty & ~mute & repeated
    kept = starts & ~bad & ~empty & ~mute & ~twice
    for reason, mask in (
        ("invalid UTF-8", bad),
        ("only repeated lines", empty),
        ("no tokens", mute),
        ("duplicate", twice),
    ):
        totals.drop(reason, int(np.count_nonzero(mask)), int(records["raw"][mask].sum()))
    chosen = records[kept]
    totals.kept += len(chosen)
    totals.kept_bytes += int(chosen["raw"].sum())
    totals.text += int(chosen["text"].sum())
    totals.characters += int(chosen["characters"].sum())
    totals.repaired += int(np.count_nonzero(chosen["flags"] & np.uint64(REPAIRED)))
    val = belongs_to_val(records["key"], settings.val_fraction)
    return np.where(kept, np.where(val, 2, 1), DROPPED).astype(np.uint8)
