"""ArrayRecord files whose records are the bytes of token ids, as used with Grain.

Reading needs the package `array_record`, which also checks the checksum of every record. The files
do not store the dtype; the user passes it. If the records differ in length, each record is a
document. If all records have the same length, they are slices of one stream of tokens, and only the
end-of-text id separates documents.

Records can only be read whole, so opening reads all of them once to find their lengths. About
`SHARD_BYTES` of records form a shard. A shard is read into memory when it is used, and the last few
shards stay in memory. For training, run `tokenmill import` first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError
from tokenmill.formats.base import Contents, Format, NotThisFormat, OpenRequest, fix_byte_order
from tokenmill.formats.file_documents import DocumentIndexes, DocumentStarts, FileDocuments
from tokenmill.formats.shard_names import list_shards, split_shards
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError
from tokenmill.store.documents import sums

SHARD_BYTES = 32 << 20
_KEPT = 8  # shards that stay in memory
_MOST_RECORDS, _MOST_BYTES = 64, 4 << 20  # of one read, approximately
_ENDINGS = (".array_record", ".arrayrecord")
_MAGIC = bytes.fromhex("83af70d10d884a3f")

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class _RecordRange:
    """The records [first, last) of a file; `tokens` is their total number of tokens."""

    name: str
    first: int
    last: int
    tokens: int


class ArrayRecord(Format):
    """Reads an .array_record file, or a folder of such files."""

    name = "array_record"

    def __init__(self, shard_bytes: int = SHARD_BYTES) -> None:
        self.shard_bytes = shard_bytes

    def read(self, request: OpenRequest) -> Contents:
        names = [name for ending in _ENDINGS for name in list_shards(request, ending)]
        if not names:
            raise NotThisFormat("it is neither an .array_record file nor a folder of such files")
        splits = split_shards(request, names)
        if not request.read_head(names[0]).startswith(_MAGIC):
            what = "does not start with the magic bytes of an ArrayRecord file"
            raise DamagedFileError(names[0], what, FOREIGN_CURE)
        if request.dtype is None:
            raise NotThisFormat("the file does not store the dtype of its ids; pass `dtype`")
        folder, dtype = request.folder.absolute(), fix_byte_order(request.dtype)
        shards, documents = {}, {}
        for split, some in splits.items():
            ranges, varied = self._find_ranges(folder, some, dtype)
            shards[split] = RecordShards(folder=folder, ranges=ranges, dtype=dtype)
            if varied:
                indexes = DocumentIndexes(
                    names=[one.name for one in ranges],
                    counts=[one.last - one.first for one in ranges],
                    read=partial(_read_starts, shards[split]),
                )
                documents[split] = FileDocuments(indexes, shards[split].counts, split, _KEPT)
        return Contents(splits=shards, documents=documents)

    def _find_ranges(
        self, folder: Path, names: list[str], dtype: np.dtype[Any]
    ) -> tuple[tuple[_RecordRange, ...], bool]:
        """Return ranges of consecutive records, and whether records differ in length.

        Each range has about `shard_bytes` bytes and becomes one shard.
        """
        ranges: list[_RecordRange] = []
        lengths: set[int] = set()
        for name in names:
            first = number = tokens = 0
            for record in _read_records(folder, name, 0, None):
                length = _count_tokens(name, number, record, dtype)
                if len(lengths) < 2:
                    lengths.add(length)
                number, tokens = number + 1, tokens + length
                if tokens * dtype.itemsize >= self.shard_bytes:
                    ranges.append(_RecordRange(name=name, first=first, last=number, tokens=tokens))
                    first, tokens = number, 0
            if number > first:
                ranges.append(_RecordRange(name=name, first=first, last=number, tokens=tokens))
        return tuple(ranges), len(lengths) > 1


def _count_tokens(name: str, number: int, record: bytes, dtype: np.dtype[Any]) -> int:
    length, rest = divmod(len(record), dtype.itemsize)
    if rest:
        raise DamagedFileError(
            name,
            f"has {len(record):,} bytes in record {number:,}, which is not a multiple of the "
            f"size of {dtype.name}",
            "Pass the right `dtype`. Records must hold only token ids, not protocol buffers.",
        )
    return length


def _read_records(folder: Path, name: str, first: int, last: int | None) -> Iterator[bytes]:
    """Yield the records [first, last) of a file. If `last` is None, read to the end."""
    try:
        module = import_module("array_record.python.array_record_module")
    except ModuleNotFoundError:
        raise DatasetError(
            f"{name} is an ArrayRecord file. To read it, install its package: "
            "pip install array_record"
        ) from None
    options = "readahead_buffer_size:0,max_parallelism:0"  # read without threads and buffers
    try:
        reader = module.ArrayRecordReader(str(folder / name), options)
        try:
            stop = reader.num_records() if last is None else last
            many = 1
            while first < stop:
                some = reader.read(first, min(first + many, stop))
                yield from some
                first += many
                # Read more records at once if the last ones were short.
                longest = max(map(len, some), default=0)
                many = max(1, min(2 * many, _MOST_RECORDS, _MOST_BYTES // (longest + 1)))
        finally:
            reader.close()
    except (RuntimeError, ValueError, IndexError, OSError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise DamagedFileError(name, f"cannot be read: {reason}", FOREIGN_CURE) from error


@dataclass(frozen=True, kw_only=True)
class RecordShards:
    """The shards of a split. Each is a range of records, read into memory when it is used."""

    folder: Path
    ranges: tuple[_RecordRange, ...]
    dtype: np.dtype[Any]

    @property
    def counts(self) -> Integers:
        return np.array([one.tokens for one in self.ranges], np.int64)

    @property
    def checksum(self) -> None:
        return None

    @property
    def kept(self) -> int:
        return _KEPT

    def name(self, number: int) -> str:
        return self.ranges[number].name

    def map(self, number: int) -> npt.NDArray[Any]:
        return _load(self.folder, self.ranges[number], self.dtype)

    def read(self, number: int, first: int, last: int) -> npt.NDArray[Any]:
        """Return the ids [first, last) of a shard. The last shard that was read is cached."""
        records = self.ranges[number]
        try:
            changed = (self.folder / records.name).stat().st_mtime_ns
        except OSError:
            changed = 0  # `_load_cached` raises the error
        return _load_cached(self.folder, records, self.dtype, changed)[first:last].copy()

    def count_tokens(self, number: int) -> Integers:
        """Return the number of tokens in each record of a shard."""
        some = self.ranges[number]
        records = _read_records(self.folder, some.name, some.first, some.last)
        return np.array([len(record) // self.dtype.itemsize for record in records], np.int64)


def _load(folder: Path, records: _RecordRange, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    data = b"".join(_read_records(folder, records.name, records.first, records.last))
    if len(data) != records.tokens * dtype.itemsize:
        raise DamagedFileError(records.name, "changed since it was opened", FOREIGN_CURE)
    return np.frombuffer(data, dtype)


@lru_cache(maxsize=1)
def _load_cached(
    folder: Path,
    records: _RecordRange,
    dtype: np.dtype[Any],
    changed: int,  # noqa: ARG001  (part of the cache key)
) -> npt.NDArray[Any]:
    return _load(folder, records, dtype)


def _read_starts(shards: RecordShards, number: int) -> DocumentStarts:
    starts = sums(shards.count_tokens(number))
    return DocumentStarts(len(starts) - 1, starts.__getitem__)
