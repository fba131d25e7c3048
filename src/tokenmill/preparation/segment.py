"""The files of a segment, the result of processing a part: complete, or absent.

A bundle is `NAME.tokens`, `NAME.docs`, … and a receipt `NAME.json` that is written last: if the
receipt is there, the files are complete. The files are not flushed to the disk one by one, which
would take longer than making them. Instead the receipt holds their checksums and its own, and a
resumed run checks what it finds. A file that a crash damaged is made again.

The bundle of a segment has the tokens, one `RECORD` per document, the rejected records, and the
texts of documents that continue in another part.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from tokenmill.preparation.engine import Worker

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

_READ_BYTES = 4 << 20


class Bundle:
    """Writes one bundle. Unless `finish` is called, the `with` block removes its files."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._files: dict[str, BinaryIO] = {}
        self._hashes: dict[str, xxhash.xxh3_64] = {}
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
            self._hashes[file] = xxhash.xxh3_64()
        self._files[file].write(data)
        self._hashes[file].update(data)

    def cut_back(self, file: str, size: int) -> None:
        """Remove the last `size` bytes of a file."""
        handle = self._files[file]
        os.ftruncate(handle.fileno(), handle.seek(-size, os.SEEK_CUR))
        self._cut.add(file)

    def finish(self, facts: dict[str, Any]) -> Receipt:
        """Give the files their names and write the receipt; returns it."""
        written = {}
        for name, file in self._files.items():
            size, temporary = file.tell(), self._temporary(name)
            file.close()
            digest = _digest(temporary) if name in self._cut else self._hashes[name].hexdigest()
            written[name] = [size, digest]
            temporary.replace(self._folder / f"{self._name}.{name}")
        self._files.clear()
        receipt = {"name": self._name, "files": written, "facts": facts}
        content = orjson.dumps(receipt)
        temporary = self._temporary("json")
        temporary.write_bytes(xxhash.xxh3_64_hexdigest(content).encode() + b"\n" + content)
        temporary.replace(self._folder / f"{self._name}.json")
        return receipt


def read_receipt(folder: Path, name: str) -> Receipt | None:
    """The receipt of a bundle, or None if there is no complete one."""
    try:
        digest, _, content = (folder / f"{name}.json").read_bytes().partition(b"\n")
        if digest != xxhash.xxh3_64_hexdigest(content).encode():
            return None
        receipt: Receipt = orjson.loads(content)
        sizes = {file: entry[0] for file, entry in receipt["files"].items()}
        whole = all((folder / f"{name}.{file}").stat().st_size == n for file, n in sizes.items())
    except (OSError, ValueError):
        return None
    return receipt if whole else None


@dataclass(frozen=True)
class CheckBundle:
    """A task: check the files of a bundle against their checksums."""

    folder: Path
    name: str

    def run(self, worker: Worker) -> bool:  # noqa: ARG002  the interface of tasks
        """Whether the bundle is intact."""
        receipt = read_receipt(self.folder, self.name)
        return receipt is not None and all(
            _digest(self.folder / f"{self.name}.{file}") == digest
            for file, (_, digest) in receipt["files"].items()
        )


def _digest(path: Path) -> str:
    state = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            state.update(block)
    return state.hexdigest()


def read_document_records(segment: Path, count: int) -> Iterator[tuple[int, Records]]:
    """The records of a segment, `count` at a time, with the number of the first in each group."""
    start = 0
    with segment.with_suffix(".docs").open("rb") as file:
        while data := file.read(count * RECORD.itemsize):
            records = np.frombuffer(data, RECORD)
            yield start, records
            start += len(records)


def read_end_records(segment: Path) -> list[tuple[int, Any]]:
    """The first and the last record with their numbers; only one if they are the same."""
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
            length -= len(block)
            yield block
