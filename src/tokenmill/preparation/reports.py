"""Reports about the input: rejected records, repaired documents, files in other encodings.

Positions are computed only here: segments count lines from their own start. The list of repairs is
written to disk in input order, 40 bytes per repaired document, while `sift` decides which documents
to keep. Memory holds a few numbers for each file with repaired documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.errors import FolderError
from tokenmill.preparation.plan import Plan
from tokenmill.preparation.segment import Receipt
from tokenmill.sources.encodings import guess_encoding
from tokenmill.sources.files import BadFileError, SourceFile, open_source
from tokenmill.sources.read import read_head
from tokenmill.storage.files import AtomicFile
from tokenmill.wording import counted

REPAIR = np.dtype(
    [
        ("segment", "<u8"),  # the line is counted from its start
        ("source", "<u8"),
        ("line", "<u8"),  # of the first invalid byte within the segment's range, from 1; 0: unknown
        ("offset", "<u8"),  # of the document
        ("replaced", "<u8"),  # number of bytes
    ]
)
_SUSPICIOUS = 200  # if one byte in this many was replaced, a file is not UTF-8
_SAMPLE = 1 << 16
_EXAMPLES = 20
_READ = 1 << 16  # records


@dataclass
class FileRepairs:
    """The repairs in one file."""

    first: int  # the offset of the first repaired document
    replaced: int = 0
    size: int = 0  # bytes of all documents of the file


class RepairLog:
    """Writes the list, and sums up each file. Records are added in input order."""

    def __init__(self, file: BinaryIO) -> None:
        self.files: dict[int, FileRepairs] = {}
        self._file = file
        self._source, self._size = -1, 0  # the file of the last record, and its bytes so far

    def add(self, repairs: npt.NDArray[np.void]) -> None:
        """Add some documents, one REPAIR each."""
        self._file.write(repairs.tobytes())

    def count(self, records: npt.NDArray[np.void]) -> None:
        """Sum up the files of some records."""
        if not len(records):
            return
        sources = records["source"]
        starts = np.concatenate(([0], np.flatnonzero(np.diff(sources)) + 1))
        replaced = np.add.reduceat(records["replaced"], starts, dtype=np.int64)
        sizes = np.add.reduceat(records["raw"], starts, dtype=np.int64)
        ends = np.append(starts[1:], len(records))
        for run, source in enumerate(sources[starts].tolist()):
            if source != self._source:
                self._source, self._size = source, 0
            self._size += int(sizes[run])
            if replaced[run] and source not in self.files:
                inside = records[starts[run] : ends[run]]
                first = int(inside["offset"][inside["replaced"] > 0][0])
                self.files[source] = FileRepairs(first)
            if source in self.files:
                self.files[source].replaced += int(replaced[run])
                self.files[source].size = self._size


def _read_repairs(path: Path) -> Iterator[tuple[int, int, int, int, int]]:
    """The list, one document at a time: segment, source, line, offset, replaced bytes."""
    with path.open("rb") as file:
        while data := file.read(_READ * REPAIR.itemsize):
            yield from np.frombuffer(data, REPAIR).tolist()


def describe_files(
    files: Mapping[int, FileRepairs], sources: Sequence[SourceFile]
) -> dict[str, Any]:
    """How many files had many bytes replaced, and the likely encoding of some of them."""
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
    """Some bytes of a file, from an offset, or from the beginning if it is compressed."""
    try:
        if source.kind == "parquet":
            return b""
        if source.compression:
            return read_head(source, _SAMPLE)
        with open_source(source.path) as file:
            file.seek(offset)
            return file.read(_SAMPLE)
    except (OSError, BadFileError):
        return b""


def list_rejections(
    plan: Plan, receipts: Sequence[Receipt], folder: Path
) -> Iterator[dict[str, Any]]:
    """The rejected records of all segments, with their position in their file."""
    for receipt, before in zip(receipts, _lines_before(plan, receipts), strict=True):
        if "rejected" in receipt["files"]:
            with (folder / f"{receipt['name']}.rejected").open("rb") as file:
                for record in file:
                    number, line, offset, reason = orjson.loads(record)
                    if line is not None:
                        line += 1 + before.get(number, 0)
                    yield _position(plan, number, line, offset) | {"reason": reason}


def list_repairs(
    plan: Plan, receipts: Sequence[Receipt], repairs: Path
) -> Iterator[dict[str, Any]]:
    """The documents that were repaired and kept, with their position in their file."""
    parts = enumerate(_lines_before(plan, receipts))
    part, before = next(parts)
    for segment, number, line, offset, replaced in _read_repairs(repairs):
        while part < segment:
            part, before = next(parts)
        known = line + before.get(number, 0) if line else None
        yield _position(plan, number, known, offset) | {"replaced_bytes": replaced}


def _lines_before(plan: Plan, receipts: Sequence[Receipt]) -> Iterator[dict[int, int]]:
    """For each part, the number of lines of each source in the parts before it."""
    before: dict[int, int] = {}
    for part, receipt in zip(plan.parts, receipts, strict=True):
        yield before
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


def _position(plan: Plan, number: int, line: int | None, offset: int) -> dict[str, Any]:
    source = plan.sources[number]
    if source.unit == "row":
        return {"source": source.path, "row": offset}
    return {"source": source.path, "line": line, "offset": offset}


def write_json_lines(path: Path, entries: Iterator[dict[str, Any]]) -> None:
    """Write a report; without entries, no file is written."""
    first = next(entries, None)
    if first is None:
        path.unlink(missing_ok=True)
        return
    with AtomicFile(path) as file:
        for entry in chain([first], entries):
            file.write(orjson.dumps(entry) + b"\n")
        file.finish()
