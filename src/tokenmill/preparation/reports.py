"""Reports about the input: rejected records, repaired and excluded documents, files that may not be
UTF-8.

A segment is the result of processing a part of the input, and counts lines from the part's start.
When the documents of a segment are chosen (`sift.py`), its reports are written with the line
numbers of the input files. A report of the dataset joins those of all segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tokenmill.errors import FolderError
from tokenmill.preparation.plan import Plan
from tokenmill.preparation.segment import CONTINUES, UNFINISHED, Receipt, Records
from tokenmill.preparation.spanning import Whole
from tokenmill.sources.encodings import guess_encoding
from tokenmill.sources.files import BadFileError, SourceFile, open_source
from tokenmill.sources.read import read_head
from tokenmill.storage.decoding import load_json
from tokenmill.storage.files import AtomicFile
from tokenmill.wording import counted

_SUSPICIOUS = 200  # if one byte in this many was replaced, a file is probably not UTF-8
_SAMPLE = 1 << 16
_EXAMPLES = 20
_COPY = 4 << 20  # bytes to copy at once


@dataclass(frozen=True, kw_only=True)
class Reporter:
    """Writes the reports of one segment."""

    sources: Mapping[int, SourceFile]  # of the part
    lines_before: int  # how many lines of the part's first source are in earlier parts
    has_rejections: bool
    # The line of the first replaced byte in the document that continues in the next part.
    first_repair: int | None

    def list_rejections(self, segment: Path) -> Iterator[bytes]:
        """Yield the rejected records as JSON lines."""
        if self.has_rejections:
            with segment.with_suffix(".rejected").open("rb") as file:
                for record in file:
                    number, line, offset, reason = load_json(record)
                    if line is not None:
                        line += 1 + self._count_before(number)
                    yield self._encode(number, line, offset, reason=reason)

    def list_repairs(self, kept: Records, begins: Whole | None) -> Iterator[bytes]:
        """Yield the repaired documents among some kept records, as JSON lines.

        `begins` is the document that begins in this segment and ends in a later one, if any.
        """
        replaced = kept["replaced"].astype(np.int64)
        replaced[(kept["flags"] & CONTINUES) != 0] = 0
        last = int(kept["flags"][-1]) & (CONTINUES | UNFINISHED) if len(kept) else 0
        if begins is not None and last == UNFINISHED:
            replaced[-1] = begins.replaced
        for i in np.flatnonzero(replaced).tolist():
            number, line = int(kept["source"][i]), int(kept["line"][i])
            known = line + self._count_before(number) if line else None
            if kept["flags"][i] & UNFINISHED:
                known = self.first_repair
            offset = int(kept["offset"][i])
            yield self._encode(number, known, offset, replaced_bytes=int(replaced[i]))

    def list_excluded(self, excluded: Records, begins: Whole | None) -> Iterator[bytes]:
        """Yield the documents among some records that were left out because the user listed them.

        `begins` is the document that begins in this segment and ends in a later one, if any.
        """
        for record in excluded:
            high, low = record["key"].tolist()
            if begins is not None and record["flags"] & UNFINISHED:
                high, low = begins.key
            source = self.sources[int(record["source"])]
            place = {source.unit if source.unit == "row" else "offset": int(record["offset"])}
            entry = {"source": source.path} | place | {"key": f"{high:016x}{low:016x}"}
            yield orjson.dumps(entry) + b"\n"

    def _count_before(self, number: int) -> int:
        return self.lines_before if number == next(iter(self.sources)) else 0

    def _encode(self, number: int, line: int | None, offset: int, **more: Any) -> bytes:
        source = self.sources[number]
        place = {"row": offset} if source.unit == "row" else {"line": line, "offset": offset}
        return orjson.dumps({"source": source.path} | place | more) + b"\n"


class SourceCounts:
    """Counts the replaced bytes of each source, from a segment's records in input order.

    An entry has four numbers: the number of a source, the offset of its first repaired document,
    how many bytes were replaced, and how many bytes its documents have. A source without replaced
    bytes has no entry, unless it is the first or last source of the segment.
    """

    def __init__(self) -> None:
        self.entries: list[list[int]] = []

    def add(self, records: Records) -> None:
        """Count the replaced bytes in some more records."""
        if not len(records):
            return
        sources = records["source"]
        starts = np.concatenate(([0], np.flatnonzero(np.diff(sources)) + 1))
        replaced = np.add.reduceat(records["replaced"], starts, dtype=np.int64)
        sizes = np.add.reduceat(records["raw"], starts, dtype=np.int64)
        ends = np.append(starts[1:], len(records))
        for run, source in enumerate(sources[starts].tolist()):
            if not self.entries or self.entries[-1][0] != source:
                if len(self.entries) > 1 and not self.entries[-1][2]:
                    self.entries.pop()
                self.entries.append([source, 0, 0, 0])
            entry = self.entries[-1]
            if replaced[run] and not entry[2]:
                inside = records[starts[run] : ends[run]]
                entry[1] = int(inside["offset"][inside["replaced"] > 0][0])
            entry[2] += int(replaced[run])
            entry[3] += int(sizes[run])


@dataclass
class FileRepairs:
    """The repairs in one file."""

    first: int  # the offset of the first repaired document
    replaced: int = 0
    size: int = 0  # bytes of all documents of the file


def sum_repairs(entries: Iterable[Sequence[int]]) -> dict[int, FileRepairs]:
    """Add up the `SourceCounts` entries of all segments, in input order. Returns repairs by source."""
    files: dict[int, FileRepairs] = {}
    current, size_so_far = -1, 0
    for source, first, replaced, size in entries:
        if source != current:
            current, size_so_far = source, 0
        size_so_far += size
        if replaced and source not in files:
            files[source] = FileRepairs(first)
        if source in files:
            files[source].replaced += replaced
            files[source].size = size_so_far
    return files


def describe_files(
    files: Mapping[int, FileRepairs], sources: Sequence[SourceFile]
) -> dict[str, Any]:
    """Return how many files had many bytes replaced, and the likely encoding of some of them."""
    much = [number for number, file in files.items() if file.replaced * _SUSPICIOUS >= file.size]
    return {
        "files": len(much),
        "examples": [
            {
                "source": sources[number].path,
                "bytes": files[number].size,
                "replaced_bytes": files[number].replaced,
                "encoding": guess_encoding(_read_sample(sources[number], files[number].first)),
            }
            for number in much[:_EXAMPLES]
        ],
    }


def _read_sample(source: SourceFile, offset: int) -> bytes:
    """Read some bytes of a file from an offset on. Returns no bytes if the file cannot be read.

    A compressed file is read from its beginning, and a file of rows not at all.
    """
    try:
        if source.unit == "row":
            return b""
        if source.compression:
            return read_head(source, _SAMPLE)
        with open_source(source.place) as file:
            file.seek(offset)
            return file.read(_SAMPLE)
    except (OSError, BadFileError):
        return b""


def count_lines_before(plan: Plan, receipts: Sequence[Receipt]) -> Iterator[int]:
    """Yield, for each part, how many lines of its first source are in earlier parts."""
    before: dict[int, int] = {}
    for part, receipt in zip(plan.parts, receipts, strict=True):
        yield before.get(part.ranges[0].source, 0)
        facts = receipt["facts"]
        skipped = dict(facts["skipped"])
        read = [one.source for one in part.ranges if one.source not in skipped]
        if len(read) != len(facts["lines"]):
            raise FolderError(
                f"The unfinished run is damaged: the receipt of {receipt['name']} lists "
                f"{counted(len(facts['lines']), 'file')}, expected {len(read):,}. Add `restart=True` to "
                "start over."
            )
        for source, count in zip(read, facts["lines"], strict=True):
            before[source] = before.get(source, 0) + count


def join_reports(paths: Iterable[Path], target: Path) -> None:
    """Join the reports of segments into the file `target`. Without any report, remove that file."""
    some = iter(paths)
    first = next(some, None)
    if first is None:
        target.unlink(missing_ok=True)
        return
    with AtomicFile(target) as file:
        for path in chain([first], some):
            with path.open("rb") as report:
                while block := report.read(_COPY):
                    file.write(block)
        file.finish()
