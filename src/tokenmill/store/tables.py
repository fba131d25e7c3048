"""The shards and the input files of a dataset, as tables.

A dataset may have 150,000 shards and millions of input files, so neither table is a list of objects.

Shards are stored as columns. Input files are in `sources.jsonl`, one line per file. The manifest has
only the number of these lines, the total size of the input files and the checksum of
`sources.jsonl`. So opening a dataset costs the same for one source as for a million. The first
lookup maps `sources.jsonl`, checks it and finds its lines. This takes about 1 s per GB, and 8 bytes
of memory per source. Each later lookup parses one line. The file may be untrusted, so every line is
checked when it is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.storage.mapping import Maps, map_file
from tokenmill.storage.names import SOURCES_NAME
from tokenmill.storage.reading import DamagedFileError, open_inside
from tokenmill.store.frames import Compression

MOST = 1 << 56  # tokens of a split, so that sums of byte positions fit in 64 bits

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
# A limit on length, because one wide character quadruples the memory that a string takes.
Name = Annotated[str, msgspec.Meta(max_length=4096)]


@dataclass(frozen=True, kw_only=True)
class ShardName:
    """The split and number of a shard, and the paths of its files.

    >>> ShardName(split="train", number=3).documents_path
    'train/shard_00003.docs.npy'
    """

    split: str
    number: int
    compression: Compression | None = None

    @property
    def path(self) -> str:
        ending = ".bin" if self.compression is None else ".bin.zst"
        return f"{self.split}/shard_{self.number:05}{ending}"

    @property
    def library(self) -> str:
        """The version of libzstd that compresses the file; empty for a plain file."""
        return "" if self.compression is None else self.compression.library

    @property
    def documents_path(self) -> str:
        return f"{self.split}/shard_{self.number:05}.docs.npy"


class CompressedFile(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False
):
    """The size and the checksum of a compressed file."""

    bytes: Count
    xxh3_128: Name


class Shard(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    gc=False,
):
    """One file of tokens and the table of the documents that start in it.

    `xxh3_128` is the checksum of the ids. If the file is not compressed, this is its checksum too.
    """

    path: Name
    tokens: Count
    documents: Count
    xxh3_128: Name
    documents_path: Name
    documents_xxh3_128: Name
    compressed: CompressedFile | None = None

    def measure_file(self, width: int) -> int:
        """Return the size in bytes of the file of tokens, if an id has `width` bytes."""
        return self.tokens * width if self.compressed is None else self.compressed.bytes

    @property
    def file_xxh3_128(self) -> str:
        """The checksum of the file of tokens, as it is on disk."""
        return self.xxh3_128 if self.compressed is None else self.compressed.xxh3_128


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardTable:
    """The shards of a split, stored as columns; `table[n]` makes a `Shard`.

    `compressed` is None for plain shards. Shards of one split are all compressed, or all plain.

    Columns pickle faster than 150,000 objects, and reading tokens needs only some columns.

    >>> shard = Shard(
    ...     path="a", tokens=3, documents=1, xxh3_128="", documents_path="b", documents_xxh3_128=""
    ... )
    >>> table = ShardTable.of([shard, shard])
    >>> table[1] == shard, table.tokens.tolist(), len(table)
    (True, [3, 3], 2)
    """

    path: Sequence[str]
    tokens: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int64]
    xxh3_128: Sequence[str]
    documents_path: Sequence[str]
    documents_xxh3_128: Sequence[str]
    compressed: CompressedFiles | None = None

    @classmethod
    def of(cls, shards: Iterable[Shard]) -> ShardTable:
        """Make a table from shards."""
        rows = list(shards)
        return cls(
            path=[shard.path for shard in rows],
            tokens=np.array([shard.tokens for shard in rows], np.int64),
            documents=np.array([shard.documents for shard in rows], np.int64),
            xxh3_128=[shard.xxh3_128 for shard in rows],
            documents_path=[shard.documents_path for shard in rows],
            documents_xxh3_128=[shard.documents_xxh3_128 for shard in rows],
            compressed=CompressedFiles.of([shard.compressed for shard in rows if shard.compressed]),
        )

    def __len__(self) -> int:
        return len(self.path)

    def first(self, count: int) -> ShardTable:
        """Return the table of the first `count` shards."""
        files = self.compressed
        return ShardTable(
            path=self.path[:count],
            tokens=self.tokens[:count],
            documents=self.documents[:count],
            xxh3_128=self.xxh3_128[:count],
            documents_path=self.documents_path[:count],
            documents_xxh3_128=self.documents_xxh3_128[:count],
            compressed=CompressedFiles(files.bytes[:count], files.xxh3_128[:count])
            if files is not None and count
            else None,
        )

    def __getitem__(self, index: int) -> Shard:
        return Shard(
            path=self.path[index],
            tokens=int(self.tokens[index]),
            documents=int(self.documents[index]),
            xxh3_128=self.xxh3_128[index],
            documents_path=self.documents_path[index],
            documents_xxh3_128=self.documents_xxh3_128[index],
            compressed=None if self.compressed is None else self.compressed[index],
        )

    def measure_files(self, width: int) -> npt.NDArray[np.int64]:
        """Return the size in bytes of each file of tokens, if an id has `width` bytes."""
        return self.tokens * width if self.compressed is None else self.compressed.bytes

    def __iter__(self) -> Iterator[Shard]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardTable) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self.xxh3_128))


@dataclass(frozen=True, eq=False)
class CompressedFiles:
    """The sizes and the checksums of compressed files, as columns."""

    bytes: npt.NDArray[np.int64]
    xxh3_128: Sequence[str]

    @classmethod
    def of(cls, files: Sequence[CompressedFile]) -> CompressedFiles | None:
        """Return the columns of some files; None if there are none."""
        if not files:
            return None
        sizes = np.array([file.bytes for file in files], np.int64)
        return cls(sizes, [file.xxh3_128 for file in files])

    def __getitem__(self, index: int) -> CompressedFile:
        return CompressedFile(bytes=int(self.bytes[index]), xxh3_128=self.xxh3_128[index])


@dataclass(frozen=True, kw_only=True)
class Source:
    """One input file, by the name that the user gave. `unit` is the unit of offsets in the file."""

    path: str
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    unit: Annotated[str, msgspec.Meta(pattern=r"^(byte|row)\Z")]


class _Lines(NamedTuple):
    data: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]  # the end of each line, after its newline


class SourceTable:
    """The input files of a dataset. Two tables are equal if their checksums are.

    >>> table = SourceTable.of([Source(path="a.txt", bytes=5, unit="byte")])
    >>> table[0].path, len(table), table.bytes
    ('a.txt', 1, 5)
    >>> SourceTable.of(list(table)) == table
    True
    """

    def __init__(
        self, count: int, bytes: int, xxh3_128: str, path: str, where: Path | bytes
    ) -> None:
        self._count, self.bytes, self.xxh3_128 = count, bytes, xxh3_128
        self._facts: tuple[Any, ...] = (count, bytes, xxh3_128)
        self.path = path
        self._where = where  # the dataset's folder, or the lines themselves
        self._maps = Maps(partial(_read, where, path, count, xxh3_128))

    @classmethod
    def of(cls, sources: Iterable[Source], path: str = SOURCES_NAME) -> SourceTable:
        """Make a table in memory. `path` is the name of its file in the dataset's folder."""
        count = total = 0
        lines = bytearray()
        for source in sources:
            lines += msgspec.json.encode(source) + b"\n"
            count, total = count + 1, total + source.bytes
        data = bytes(lines)
        return cls(count, total, xxhash.xxh3_128_hexdigest(data), path, data)

    @property
    def parts(self) -> tuple[SourceTable, ...]:
        """The tables that this table consists of, one for each generation of the dataset."""
        return (self,)

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceTable, (*self._facts, self.path, self._where)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SourceTable) and self._facts == other._facts

    def __hash__(self) -> int:
        return hash(self._facts)

    def __repr__(self) -> str:
        return f"<SourceTable: {self._count:,} sources, {self.bytes:,} bytes>"

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Source:
        if not 0 <= number < self._count:
            raise IndexError(f"source {number} is out of range: there are {self._count:,}")
        data, ends = self._lines
        start = int(ends[number - 1]) if number else 0
        try:
            return _SOURCE.decode(data[start : ends[number]].tobytes())
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            raise DamagedFileError(
                self.path, f"does not describe a source in line {number + 1:,}"
            ) from None

    def __iter__(self) -> Iterator[Source]:
        return (self[number] for number in range(self._count))

    def find(self, name: str, most: int = 100) -> list[int]:
        """Return the numbers of the sources whose path is `name`, or ends with a slash and `name`.

        Returns at most `most` numbers. Searches the bytes of the file, so a million sources take
        some hundredths of a second.

        >>> sources = (Source(path=path, bytes=1, unit="byte") for path in ("a/x", "b/x", "b/xx"))
        >>> SourceTable.of(sources).find("x")
        [0, 1]
        """
        data, ends = self._lines
        try:
            ending = msgspec.json.encode(name)[1:]
        except UnicodeEncodeError:  # the table is UTF-8
            return []
        found: list[int] = []
        for match in re.finditer(re.escape(ending), data.data):
            number = int(ends.searchsorted(match.start(), side="right"))
            path = self[number].path
            if (path == name or path.endswith(f"/{name}")) and found[-1:] != [number]:
                found.append(number)
                if len(found) == most:
                    break
        return found

    def encode(self) -> memoryview:
        """Return the bytes of `sources.jsonl`, after checking their checksum and number of lines."""
        return self._lines.data.data

    def check(self) -> None:
        """Read the file and parse every line; raises DamagedFileError."""
        if (total := sum(source.bytes for source in self)) != self.bytes:
            raise DamagedFileError(
                self.path,
                f"has sources of {total:,} bytes in total, but the manifest says {self.bytes:,}",
            )

    @property
    def _lines(self) -> _Lines:
        return self._maps[0]


_SOURCE = msgspec.json.Decoder(Source)
_BLOCK = 1 << 20  # bytes that are searched at once
_LEAST_LINE = len('{"path":"","bytes":0,"unit":"row"}\n')


def _read(where: Path | bytes, path: str, count: int, xxh3_128: str, _: int) -> _Lines:
    if isinstance(where, bytes):
        data = np.frombuffer(where, np.uint8)
    else:
        with open_inside(where, path) as file:
            data = map_file(file, path, np.dtype(np.uint8), file.seek(0, os.SEEK_END), 0)
    if (found := xxhash.xxh3_128_hexdigest(data.data)) != xxh3_128:
        raise DamagedFileError(
            path, f"does not match its checksum: it has {found}, the manifest says {xxh3_128!r}"
        )
    # In blocks, and counting before allocating: a damaged file may be nothing but newlines.
    blocks = [slice(start, start + _BLOCK) for start in range(0, len(data), _BLOCK)]
    lines = sum(int(np.count_nonzero(data[block] == ord("\n"))) for block in blocks)
    if lines != count or (len(data) and data[-1] != ord("\n")):
        raise DamagedFileError(path, f"has {lines:,} lines, but the manifest says {count:,}")
    if len(data) < lines * _LEAST_LINE:
        raise DamagedFileError(
            path, f"has {len(data):,} bytes, which is too short to describe {lines:,} sources"
        )
    ends, filled = np.empty(count, np.int64), 0
    for block in blocks:
        some = np.flatnonzero(data[block] == ord("\n")) + (block.start + 1)
        ends[filled : filled + len(some)] = some
        filled += len(some)
    return _Lines(data, ends)
