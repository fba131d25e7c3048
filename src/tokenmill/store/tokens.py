"""The shards of a split as one long array, and the documents in it.

Guarantees: a slice is the same whatever the sharding; a file whose size or header disagrees with
the manifest is refused by name before a token of it is read; no file outside the dataset's folder
is opened. Checksums are the business of `tokenmill verify`, not of opening.

Costs: making a `Tokens` opens nothing, so 150,000 shards cost two arrays of 150,000 numbers. A
file is mapped when first touched, and at most `OPEN_FILES` of each kind stay mapped, the least
recently used one going first. A slice costs one copy of what it returns. Finding a document costs
two binary searches. Threads may share a `Tokens`, a fork and a pickle start with no maps of their
own to mind: the cache holds no lock in Python.
"""

from __future__ import annotations

import mmap
import operator
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError, UsageError
from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest, Shard, Source

__all__ = [
    "CURE",
    "DamagedFileError",
    "Document",
    "Documents",
    "Tokens",
    "check_size",
    "open_inside",
    "read_table_header",
]

OPEN_FILES = 128  # of tokens, and as many of documents: a process may often open only 1,024
CURE = "Copy the file again from where it came, or run the same prepare command with --restart."


class DamagedFileError(DatasetError):
    """A DatasetError about one file that keeps its parts: the file, what it is or has, the cure."""

    def __init__(self, file: str, what: str, cure: str = CURE) -> None:
        super().__init__(file, what, cure)
        self.file, self.what, self.cure = file, what, cure

    def __str__(self) -> str:
        return f"{self.file} {self.what}. {self.cure}"


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document: where its tokens are, and where its text came from."""

    number: int
    split: str
    start: int
    length: int
    key: str
    source: Source
    offset: int


class Tokens:
    """All tokens of a split as one array of ids: `tokens[a:b]` is a fresh array of them."""

    def __init__(self, folder: Path, manifest: Manifest, split: str) -> None:
        self.split = split
        self.shards = manifest.splits[split].shards
        self.dtype: np.dtype[Any] = np.dtype(manifest.dtype).newbyteorder("<")
        self._folder = folder
        self._manifest = manifest
        # starts[n] is where shard n begins in the split; the last entry is the split's length.
        self._starts = _sums([shard.tokens for shard in self.shards])
        files = _Files(folder, self.shards, self.dtype)
        self._map = lru_cache(maxsize=OPEN_FILES)(files.tokens)
        self.documents = Documents(self, manifest, files)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokens, (self._folder, self._manifest, self.split)

    def __repr__(self) -> str:
        return f"<Tokens {self.split!r}: {len(self):,} {self.dtype.name} in {len(self.shards):,} shards>"

    def __len__(self) -> int:
        return int(self._starts[-1])

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> npt.NDArray[Any]: ...
    def __getitem__(self, index: int | slice) -> int | npt.NDArray[Any]:
        if not isinstance(index, slice):
            shard, position = self.locate(_inside(index, len(self), "token"))
            return int(self._map(shard)[position])
        start, stop, step = index.indices(len(self))
        if step != 1:
            raise UsageError("tokens are read in order; take every n-th as tokens[a:b][::n].")
        ids = np.empty(max(stop - start, 0), self.dtype)
        done = 0
        for shard, first, last in self._ranges(start, stop):
            ids[done : done + last - first] = self._map(shard)[first:last]
            done += last - first
        return ids

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        # Without this, NumPy would ask for the tokens one by one.
        if copy is False:
            raise ValueError("the tokens of several shards become one array only by a copy")
        return np.asarray(self[:], dtype)

    def locate(self, token: int) -> tuple[int, int]:
        """The shard (a number in `shards`) that holds a token, and the token's place in it."""
        shard = int(np.searchsorted(self._starts, token, side="right")) - 1
        return shard, token - int(self._starts[shard])

    def _ranges(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The pieces (shard, first, last) that tokens start to stop are made of."""
        if start >= stop:
            return
        shard, first = self.locate(start)
        while start < stop:
            last = min(first + stop - start, self.shards[shard].tokens)
            if last > first:
                yield shard, first, last
            start += last - first
            shard, first = shard + 1, 0


class Documents:
    """The documents of a split, in order: `documents[n]`, and `documents.at(token)`."""

    def __init__(self, tokens: Tokens, manifest: Manifest, files: _Files) -> None:
        self._split = tokens.split
        self._shards = tokens.shards
        self._sources = manifest.sources
        self._token_starts = tokens._starts
        # starts[n] is the number of the first document that starts in shard n, or after it.
        self._starts = _sums([shard.documents for shard in tokens.shards])
        self._map = lru_cache(maxsize=OPEN_FILES)(files.documents)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, number: int) -> Document:
        number = _inside(number, len(self), "document")
        # Of shards in which no document starts, side="right" passes over all.
        shard = int(np.searchsorted(self._starts, number, side="right")) - 1
        record = self._map(shard)[number - int(self._starts[shard])]
        first, length, source = int(record["first"]), int(record["length"]), int(record["source"])
        start = int(self._token_starts[shard]) + first
        if (
            first >= self._shards[shard].tokens
            or length > int(self._token_starts[-1]) - start
            or source >= len(self._sources)
        ):
            raise self._damaged(shard, f"document {number} has an impossible place or source")
        high, low = record["key"].tolist()
        return Document(
            number=number,
            split=self._split,
            start=start,
            length=length,
            key=f"{high:016x}{low:016x}",
            source=self._sources[source],
            offset=int(record["offset"]),
        )

    def at(self, token: int) -> Document:
        """The document that holds a token of the split."""
        token = _inside(token, int(self._token_starts[-1]), "token")
        shard = int(np.searchsorted(self._token_starts, token, side="right")) - 1
        number = int(self._starts[shard]) - 1  # the last one to start before this shard
        if self._shards[shard].documents:
            place = np.uint64(token - int(self._token_starts[shard]))
            # Same type on both sides, or NumPy would convert the whole column first.
            number += int(np.searchsorted(self._map(shard)["first"], place, side="right"))
        if number >= 0:
            document = self[number]
            if document.start <= token < document.start + document.length:
                return document
        raise self._damaged(shard, f"no document holds token {token} of split {self._split!r}")

    def _damaged(self, shard: int, what: str) -> DatasetError:
        return DamagedFileError(self._shards[shard].documents_path, f"is damaged: {what}")


class _Files:
    """Maps the files of a split. What it hands out keeps its map alive; it keeps none itself."""

    def __init__(self, folder: Path, shards: tuple[Shard, ...], dtype: np.dtype[Any]) -> None:
        self.folder, self.shards, self.dtype = folder, shards, dtype

    def tokens(self, number: int) -> npt.NDArray[Any]:
        shard = self.shards[number]
        with open_inside(self.folder, shard.path) as file:
            check_size(file, shard.path, shard.tokens * self.dtype.itemsize)
            return _map(file, shard.path, self.dtype, shard.tokens, 0)

    def documents(self, number: int) -> npt.NDArray[Any]:
        shard = self.shards[number]
        with open_inside(self.folder, shard.documents_path) as file:
            offset = read_table_header(file, shard.documents_path, shard.documents)
            return _map(file, shard.documents_path, DOCUMENT_DTYPE, shard.documents, offset)


def open_inside(folder: Path, path: str) -> BinaryIO:
    """Open a file of a dataset to read; links that lead out of the folder are not followed.

    >>> open_inside(Path("/nowhere"), "train/shard_00000.bin")
    Traceback (most recent call last):
    ...
    tokenmill.store.tokens.DamagedFileError: train/shard_00000.bin is missing from /nowhere. Copy the \
file again from where it came, or run the same prepare command with --restart.
    """
    try:
        root = folder.resolve()
        target = (root / path).resolve()
        if not target.is_relative_to(root):
            raise DamagedFileError(
                path,
                f"leads out of {folder}, to {str(target)!r}, by a link",
                "Such links are not followed: put the file itself in its place.",
            )
        # A pipe or a device would block, or never end.
        if not stat.S_ISREG(target.stat().st_mode):
            raise DamagedFileError(path, f"in {folder} is not a regular file")
        return target.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise DamagedFileError(path, f"is missing from {folder}") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        reason = getattr(error, "strerror", None) or error
        raise DamagedFileError(path, f"in {folder} cannot be read: {reason}") from error


def check_size(file: BinaryIO, path: str, expected: int) -> None:
    """Refuse a file that is not exactly as long as the manifest says."""
    size = os.fstat(file.fileno()).st_size
    if size != expected:
        kind = "short" if size < expected else "long"
        raise DamagedFileError(
            path,
            f"is {abs(size - expected):,} bytes too {kind}: it has {size:,}, and by the manifest "
            f"it should have {expected:,}",
        )


def read_table_header(file: BinaryIO, path: str, documents: int) -> int:
    """Check the header and size of a document table; returns where its records begin."""
    try:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"version {version} of the format is not in use here")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except Exception as error:  # whatever NumPy's parser meets in damaged bytes
        raise DamagedFileError(path, f"has no readable .npy header ({str(error)!r})") from None
    if dtype != DOCUMENT_DTYPE:
        raise DamagedFileError(path, "holds other records than a table of documents")
    if shape != (documents,):
        raise DamagedFileError(
            path, f"has the shape {shape}, and by the manifest it should hold {documents:,} records"
        )
    offset = file.tell()
    check_size(file, path, offset + documents * DOCUMENT_DTYPE.itemsize)
    return offset


def _map(
    file: BinaryIO, path: str, dtype: np.dtype[Any], count: int, offset: int
) -> npt.NDArray[Any]:
    if not count:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    try:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(mapped, dtype, count, offset)
    except (OSError, ValueError) as error:  # ValueError: cut short since its size was checked
        raise DamagedFileError(path, f"cannot be mapped into memory: {error}") from error


def _sums(counts: list[int]) -> npt.NDArray[np.int64]:
    """0, and the sum of the first n counts for every n."""
    sums = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(np.array(counts, np.int64), out=sums[1:])
    return sums


def _inside(index: int, length: int, what: str) -> int:
    """An index as Python counts it, from the end when negative."""
    place = operator.index(index)
    place += length if place < 0 else 0
    if not 0 <= place < length:
        raise IndexError(f"{what} {index} is not one of the {length:,} there are")
    return place
