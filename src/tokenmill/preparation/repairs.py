"""Record which documents were repaired, and which files do not look like UTF-8 at all.

The list is written to disk in input order, 40 bytes per repaired document, while `sift` decides
which documents to keep. Memory holds a few numbers for each file with repaired documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tokenmill.sources.encodings import guess_encoding
from tokenmill.sources.read import BadFileError, open_source, read_head
from tokenmill.sources.recognize import SourceFile

REPAIR = np.dtype(
    [
        ("segment", "<u8"),  # the line is counted from its start
        ("source", "<u8"),
        ("line", "<u8"),  # of the first invalid byte within the segment's piece, from 1; 0: unknown
        ("offset", "<u8"),  # of the document
        ("replaced", "<u8"),  # number of bytes
    ]
)
_MUCH = 200  # if one byte in this many was replaced, a file is not UTF-8
_SAMPLE = 1 << 16
_EXAMPLES = 20
_READ = 1 << 16  # records


@dataclass
class FileRepairs:
    """What was repaired in one file."""

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


def read_repairs(path: Path) -> Iterator[tuple[int, int, int, int, int]]:
    """The list, one document at a time: segment, source, line, offset, replaced bytes."""
    with path.open("rb") as file:
        while data := file.read(_READ * REPAIR.itemsize):
            yield from np.frombuffer(data, REPAIR).tolist()


def describe_files(
    files: Mapping[int, FileRepairs], sources: Sequence[SourceFile]
) -> dict[str, Any]:
    """How many files had many bytes replaced, and the likely encoding of some of them."""
    much = [number for number, file in files.items() if file.replaced * _MUCH >= file.size]
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
