"""The kept fields of a split's documents: one JSON object per document, in a compressed file.

`SPLIT/fields.jsonl.zst` has a line for each document, in order, so `zstd -d` gives JSON lines. Each
zstd frame has the lines of `documents_per_frame` documents, and the seek table of zstd's "seekable
format" follows the last frame. So the fields of a document are read by decoding one small frame.

The file may be untrusted. The size of a frame is checked before it is decoded, and a line is parsed
on its own. `tokenmill verify` checks the checksum of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.storage.decoding import load_json
from tokenmill.storage.files import AtomicFile
from tokenmill.storage.reading import DamagedFileError, check_size, open_inside
from tokenmill.store.frames import FrameError, Packer, count_frames, decode, make_header
from tokenmill.store.tables import Count, Name

DOCUMENTS_PER_FRAME = 64
MOST_DOCUMENTS = 1 << 12  # of a frame
MOST_BYTES = 2 << 20  # of a frame, decoded
LEVEL = 3
_HEAD, _FOOT = 8, 9  # bytes of a seek table before and after its entries
_ENTRY = np.dtype([("packed", "<u4"), ("plain", "<u4")])


class FieldsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file with the fields of a split's documents."""

    path: Name
    bytes: Count
    xxh3_128: Name


class KeptFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The entry of the manifest: the names of the fields, and the file of each split."""

    names: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=1000)]
    documents_per_frame: Annotated[int, msgspec.Meta(ge=1, le=MOST_DOCUMENTS)]
    library: Annotated[str, msgspec.Meta(max_length=100)]  # the version of libzstd
    files: dict[Name, FieldsFile]


def name_file(split: str) -> str:
    """Return the path of the file of a split.

    >>> name_file("train")
    'train/fields.jsonl.zst'
    """
    return f"{split}/fields.jsonl.zst"


def find_library() -> str:
    """Return the version of libzstd, which affects the bytes."""
    import zstandard

    return ".".join(map(str, zstandard.ZSTD_VERSION))


class FieldsWriter:
    """Writes the file of a split. It has a temporary name until `finish`."""

    def __init__(self, folder: Path, split: str) -> None:
        self._path = name_file(split)
        self._file = AtomicFile(folder / self._path)
        self._packer = Packer(level=LEVEL, frame_bytes=MOST_BYTES)
        self._lines: list[bytes] = []

    def __enter__(self) -> FieldsWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def add(self, line: bytes) -> None:
        """Add the fields of the next document: a JSON object and a line end."""
        self._lines.append(line)
        if len(self._lines) == DOCUMENTS_PER_FRAME:
            self._flush()

    def finish(self) -> FieldsFile:
        """Make the file durable, and return its entry for the manifest."""
        if self._lines:
            self._flush()
        self._file.write(self._packer.finish())
        size = self._file.size
        return FieldsFile(path=self._path, bytes=size, xxh3_128=self._file.finish())

    def _flush(self) -> None:
        self._file.write(self._packer.pack_frame(b"".join(self._lines)))
        self._lines.clear()


class FieldsReader:
    """Reads the fields of a split with `documents` documents, on demand.

    The first read loads the table of frames: 8 bytes for every 64 documents.
    """

    def __init__(self, folder: Path, file: FieldsFile, documents: int, per_frame: int) -> None:
        self._folder, self._file = folder, file
        self._documents, self._per_frame = documents, per_frame
        self._table: tuple[npt.NDArray[np.int64], npt.NDArray[Any]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return FieldsReader, (self._folder, self._file, self._documents, self._per_frame)

    def read(self, number: int) -> dict[str, Any]:
        """Return the fields of a document."""
        frame, place = divmod(number, self._per_frame)
        (lines,) = self._read_frames(frame, frame + 1)
        return self.parse(lines[place])

    def read_lines(self) -> Iterator[bytes]:
        """Yield the lines of all documents, in order, without their line ends."""
        for lines in self._read_frames(0, int(count_frames(self._documents, self._per_frame))):
            yield from lines

    def parse(self, line: bytes) -> dict[str, Any]:
        """Return the fields in a line. Raises DamagedFileError if it is not a JSON object."""
        try:
            found = load_json(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise DamagedFileError(self._file.path, "has a line that is not a JSON object")
        return found

    def _read_frames(self, first: int, stop: int) -> Iterator[list[bytes]]:
        name = self._file.path
        with open_inside(self._folder, name) as file:
            check_size(file, name, self._file.bytes)
            if self._table is None:
                self._table = self._read_table(file)
            starts, entries = self._table
            for number in range(first, stop):
                file.seek(int(starts[number]))
                data = file.read(int(entries["packed"][number]))
                plain = int(entries["plain"][number])
                yield self._split(data, plain, number)

    def _split(self, data: bytes, plain: int, number: int) -> list[bytes]:
        name = self._file.path
        if not data.startswith(make_header(plain)):
            raise DamagedFileError(name, f"has a wrong header in frame {number:,}")
        try:
            memory, _ = decode([data], np.array([plain], np.int64))
        except FrameError as error:
            raise DamagedFileError(
                name, f"is damaged in frame {number:,} ({error.reason})"
            ) from None
        buffer: Any = memory[0]
        lines: list[bytes] = buffer[0].tobytes().split(b"\n")
        rest = lines.pop()
        expected = min(self._per_frame, self._documents - number * self._per_frame)
        if len(lines) != expected or rest:
            raise DamagedFileError(
                name, f"has {len(lines):,} lines in frame {number:,}, expected {expected:,}"
            )
        return lines

    def _read_table(self, file: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        name, size = self._file.path, self._file.bytes
        frames = int(count_frames(self._documents, self._per_frame))
        length = _HEAD + frames * _ENTRY.itemsize + _FOOT
        if length > size:
            raise DamagedFileError(name, f"is too short for a table of {frames:,} frames")
        file.seek(size - length)
        data = file.read(length)
        entries = np.frombuffer(data, _ENTRY, frames, _HEAD)
        starts = np.zeros(frames + 1, np.int64)
        np.cumsum(entries["packed"], out=starts[1:])
        if int(starts[-1]) + length != size or (entries["plain"] > MOST_BYTES).any():
            raise DamagedFileError(name, f"does not end with a valid table of {frames:,} frames")
        return starts, entries
