"""The files of a segment, the result of processing a part: complete, or absent.

A bundle is `NAME.tokens`, `NAME.docs`, … and a receipt `NAME.json` that is written last: if the
receipt is there, the files are complete. The files are not flushed to the disk one by one, which
would take longer than making them. Instead the receipt holds their checksums and its own, and a
resumed run checks them. A file damaged by a crash is made again.

The bundle of a segment has the tokens, one `RECORD` per document, the rejected records, and the
texts of documents that continue in another part.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypedDict

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.errors import FolderError
from tokenmill.preparation.engine import Worker
from tokenmill.storage.files import hash_file
from tokenmill.storage.reading import DamagedFileError, check_size, open_inside
from tokenmill.storage.receipts import encode_receipt, read_receipt
from tokenmill.store.tables import Count

RECORD = np.dtype(
    [
        ("key", "<u8", (2,)),
        ("length", "<u8"),  # tokens, including the end-of-text token
        ("source", "<u4"),
        ("line", "<u4"),  # line of the first replaced byte within its range, from 1; 0: unknown
        ("offset", "<u8"),
        ("raw", "<u8"),  # bytes as they were read
        ("text", "<u8"),  # bytes after cleaning
        ("characters", "<u8"),
        ("flags", "<u4"),
        ("replaced", "<u4"),  # bytes that were not UTF-8
    ]
)
# Flags of a record: the document begins in an earlier part, ends in a later one; its text is
# invalid UTF-8 and dropped, or repaired.
CONTINUES, UNFINISHED, BAD_TEXT, REPAIRED = 1, 2, 4, 8

Records = npt.NDArray[np.void]  # of RECORD


Receipt = dict[str, Any]
_Skipped = list[tuple[Count, str]]  # bad files: the number of the source, and its fault


class _ScanFacts(TypedDict):
    lines: Count
    skipped: _Skipped


class _SegmentFacts(TypedDict):
    tokens: Count
    records: Count
    documents_in: Count
    bytes_in: Count
    dropped: dict[str, tuple[Count, Count]]  # documents and bytes by reason
    repeated_lines: Count
    lines: list[Count]  # line ends of each range that was read
    skipped: _Skipped


class ScanReceipt(TypedDict):
    """The receipt of a part's line keys: the size and checksum of each file, and facts."""

    name: str
    files: dict[Literal["lines"], tuple[Count, str]]
    facts: _ScanFacts


class SegmentReceipt(TypedDict):
    """The receipt of a segment."""

    name: str
    files: dict[Literal["tokens", "docs", "rejected", "text"], tuple[Count, str]]
    facts: _SegmentFacts


_READ_BYTES = 4 << 20


class Bundle:
    """Writes one bundle. Unless `finish` is called, the `with` block removes its files."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._files: dict[str, BinaryIO] = {}
        self._hashes: dict[str, xxhash.xxh3_128] = {}
        self._cut: set[str] = set()

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        for name, file in self._files.items():
            with suppress(OSError):  # the disk is full
                file.close()
            self._temporary(name).unlink(missing_ok=True)

    def _temporary(self, file: str) -> Path:
        # The process number separates a new run from one that is still being killed.
        return self._folder / f"{self._name}.{file}.{os.getpid()}.tmp"

    def write(self, file: str, data: Any) -> None:
        """Append to one of the bundle's files."""
        if file not in self._files:
            self._files[file] = self._temporary(file).open("wb")
            self._hashes[file] = xxhash.xxh3_128()
        self._files[file].write(data)
        self._hashes[file].update(data)

    def cut_back(self, file: str, size: int) -> None:
        """Remove the last `size` bytes of a file."""
        handle = self._files[file]
        os.ftruncate(handle.fileno(), handle.seek(-size, os.SEEK_CUR))
        self._cut.add(file)

    def finish(self, facts: dict[str, Any]) -> Receipt:
        """Give the files their final names, then write and return the receipt."""
        written = {}
        for name, file in self._files.items():
            size, temporary = file.tell(), self._temporary(name)
            file.close()
            written[name] = [size, self._hash(name)]
            temporary.replace(self._folder / f"{self._name}.{name}")
        self._files.clear()
        receipt = {"name": self._name, "files": written, "facts": facts}
        temporary = self._temporary("json")
        temporary.write_bytes(encode_receipt(receipt))
        temporary.replace(self._folder / f"{self._name}.json")
        return receipt

    def _hash(self, name: str) -> str:
        if name not in self._cut:
            return self._hashes[name].hexdigest()
        with self._temporary(name).open("rb") as file:
            return hash_file(file)


def find_bundle(folder: Path, name: str, kind: type[Any]) -> Receipt | None:
    """The `ScanReceipt` or `SegmentReceipt` of a bundle; None if it is absent or damaged."""
    receipt: Receipt | None = read_receipt(folder / f"{name}.json", kind)
    if receipt is None or receipt["name"] != name:
        return None
    files, facts = receipt["files"], receipt["facts"]
    # These counts decide how much memory is allocated.
    if kind is ScanReceipt:
        is_right = files.keys() == {"lines"} and files["lines"][0] == facts["lines"] * 16
    else:
        is_right = files.keys() >= {"tokens", "docs"} and (
            files["docs"][0] == facts["records"] * RECORD.itemsize
        )
    return receipt if is_right else None


@dataclass(frozen=True)
class CheckBundle:
    """A task: check the files of a bundle against their sizes and checksums."""

    folder: Path
    receipt: Receipt

    def run(self, worker: Worker) -> bool:  # noqa: ARG002  the interface of tasks
        """Whether the bundle is intact."""
        try:
            for file, (size, digest) in self.receipt["files"].items():
                path = f"{self.receipt['name']}.{file}"
                with open_inside(self.folder, path) as opened:
                    check_size(opened, path, size)
                    if hash_file(opened) != digest:
                        return False
        except (DamagedFileError, OSError):
            return False
        return True


def read_document_records(segment: Path, count: int) -> Iterator[tuple[int, Records]]:
    """The records of a segment, `count` at a time, with the number of the first in each group."""
    start = 0
    with segment.with_suffix(".docs").open("rb") as file:
        while data := file.read(count * RECORD.itemsize):
            records = np.frombuffer(data, RECORD)
            yield start, records
            start += len(records)


def read_end_records(segment: Path) -> list[tuple[int, Any]]:
    """The first and the last record with their numbers; one entry if they are the same record."""
    path = segment.with_suffix(".docs")
    count = path.stat().st_size // RECORD.itemsize
    with path.open("rb") as file:
        first = np.frombuffer(file.read(RECORD.itemsize), RECORD)[0]
        file.seek(-RECORD.itemsize, os.SEEK_END)
        last = np.frombuffer(file.read(RECORD.itemsize), RECORD)[0]
    return [(0, first)] if count == 1 else [(0, first), (count - 1, last)]


def read_fragment(segment: Path, record: Any) -> Iterator[bytes]:
    """The text of a document that continues in another part, block by block.

    In the file, the text that continues from an earlier part is first, and the unfinished one last.
    """
    path = segment.with_suffix(".text")
    length = int(record["text"])
    with path.open("rb") as file:
        if not record["flags"] & CONTINUES:
            file.seek(-length, os.SEEK_END)
        while length > 0:
            block = file.read(min(_READ_BYTES, length))
            if not block:
                raise FolderError(f"{path} is damaged. Add `restart=True` to start over.")
            length -= len(block)
            yield block
