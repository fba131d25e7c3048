"""ArrayRecord files whose records are the bytes of tokens, as JAX's Grain and others read them.

Needs the package `array_record`, which also checks every record's checksum. Nothing tells the
dtype: the user does. Each record is a document; if all have one length, they are cuts through a
stream, and documents are told by the end-of-text id alone.

Records can only be read as a whole, so that opening reads everything once, to learn how long each
is. Afterwards about `PIECE` bytes of records make a shard, which is read into memory when it is
touched; a few of them stay there. For training, `tokenmill import` first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError
from tokenmill.formats.folder import check_gaps, list_shards, split_by_name
from tokenmill.formats.protocol import Asked, Contents, NotThisFormat
from tokenmill.formats.starts import FileDocuments, Starts
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError
from tokenmill.store.documents import sums

NAME = "array_record"
PIECE = 32 << 20
_KEPT = 8
_TOGETHER, _AT_ONCE = 64, 4 << 20  # records and about how many bytes are read at once
_ENDINGS = (".array_record", ".arrayrecord")
_MAGIC = bytes.fromhex("83af70d10d884a3f")

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """The records `first` to `last` of a file, with this many tokens in all."""

    name: str
    first: int
    last: int
    tokens: int


def read(asked: Asked) -> Contents:
    """What a file or a folder of them holds."""
    if asked.is_folder:
        names = [name for ending in _ENDINGS for name in list_shards(asked, ending)]
        splits = {split: some for split, some in split_by_name(names).items() if some}
        for some in splits.values():
            check_gaps(asked, some)
    else:
        names = [asked.path.name] if asked.path.suffix in _ENDINGS else []
        splits = {"train": names}
    if not names:
        raise NotThisFormat("it is neither an .array_record file nor a folder of them")
    if not asked.read_head(names[0]).startswith(_MAGIC):
        what = "does not begin with the magic bytes of an ArrayRecord file"
        raise DamagedFileError(names[0], what, FOREIGN_CURE)
    if asked.dtype is None:
        raise NotThisFormat("nothing in it says the dtype of its tokens; give it as `dtype`")
    dtype = asked.dtype if asked.dtype.byteorder == ">" else asked.dtype.newbyteorder("<")
    shards, documents = {}, {}
    for split, some in splits.items():
        pieces, varied = _list_pieces(asked.folder.absolute(), some, dtype)
        shards[split] = RecordShards(folder=asked.folder.absolute(), pieces=pieces, dtype=dtype)
        if varied:
            documents[split] = FileDocuments(
                _Indexes(shards[split]), shards[split].counts, split, _KEPT
            )
    return Contents(splits=shards, documents=documents)


def _list_pieces(
    folder: Path, names: list[str], dtype: np.dtype[Any]
) -> tuple[tuple[_Piece, ...], bool]:
    """All pieces of some files, and whether their records have different lengths."""
    pieces: list[_Piece] = []
    lengths: set[int] = set()
    for name in names:
        first = number = tokens = 0
        for record in _records(folder, name, 0, None):
            length = _length(name, number, record, dtype)
            if len(lengths) < 2:
                lengths.add(length)
            number, tokens = number + 1, tokens + length
            if tokens * dtype.itemsize >= PIECE:
                pieces.append(_Piece(name=name, first=first, last=number, tokens=tokens))
                first, tokens = number, 0
        if number > first:
            pieces.append(_Piece(name=name, first=first, last=number, tokens=tokens))
    return tuple(pieces), len(lengths) > 1


def _length(name: str, number: int, record: bytes, dtype: np.dtype[Any]) -> int:
    length, rest = divmod(len(record), dtype.itemsize)
    if rest:
        raise DamagedFileError(
            name,
            f"has {len(record):,} bytes in record {number:,}, which is not a whole number of {dtype.name}",
            "Give its `dtype`; records that are messages, not tokens, cannot be read.",
        )
    return length


def _records(folder: Path, name: str, first: int, last: int | None) -> Iterator[bytes]:
    """The records of a file, or some of them, in order."""
    try:
        module = import_module("array_record.python.array_record_module")
    except ImportError:
        raise DatasetError(
            f"{name} is an ArrayRecord file; to read it, install its package: "
            "pip install array_record"
        ) from None
    options = "readahead_buffer_size:0,max_parallelism:0"  # no threads, no memory of their own
    try:
        reader = module.ArrayRecordReader(str(folder / name), options)
        try:
            stop = reader.num_records() if last is None else last
            many = 1
            while first < stop:
                some = reader.read(first, min(first + many, stop))
                yield from some
                first += many
                # As many at once as are not long, by those that were just read.
                longest = max(map(len, some), default=0)
                many = max(1, min(2 * many, _TOGETHER, _AT_ONCE // (longest + 1)))
        finally:
            reader.close()
    except (RuntimeError, ValueError, IndexError, OSError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise DamagedFileError(name, f"cannot be read: {reason}", FOREIGN_CURE) from error


@dataclass(frozen=True, kw_only=True)
class RecordShards:
    """Pieces of ArrayRecord files as shards, read into memory when they are touched."""

    folder: Path
    pieces: tuple[_Piece, ...]
    dtype: np.dtype[Any]

    @property
    def counts(self) -> Integers:
        return np.array([piece.tokens for piece in self.pieces], np.int64)

    @property
    def kept(self) -> int:
        return _KEPT

    def name(self, number: int) -> str:
        return self.pieces[number].name

    def map(self, number: int) -> npt.NDArray[Any]:
        return _load(self.folder, self.pieces[number], self.dtype)

    def read(self, number: int, first: int, last: int) -> npt.NDArray[Any]:
        """Some ids of a piece, for which all of it is read, unless it is the last that was."""
        piece = self.pieces[number]
        try:
            changed = (self.folder / piece.name).stat().st_mtime_ns
        except OSError:
            changed = 0  # opening it will say what is wrong
        return _keep(self.folder, piece, self.dtype, changed)[first:last].copy()

    def lengths(self, number: int) -> Integers:
        """The number of tokens in each record of a piece."""
        piece = self.pieces[number]
        records = _records(self.folder, piece.name, piece.first, piece.last)
        return np.array([len(record) // self.dtype.itemsize for record in records], np.int64)


def _load(folder: Path, piece: _Piece, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    data = b"".join(_records(folder, piece.name, piece.first, piece.last))
    if len(data) != piece.tokens * dtype.itemsize:
        raise DamagedFileError(piece.name, "changed since it was opened", FOREIGN_CURE)
    return np.frombuffer(data, dtype)


@lru_cache(maxsize=1)
def _keep(
    folder: Path,
    piece: _Piece,
    dtype: np.dtype[Any],
    changed: int,  # noqa: ARG001  (a file that changed is read anew)
) -> npt.NDArray[Any]:
    return _load(folder, piece, dtype)


@dataclass(frozen=True)
class _Indexes:
    shards: RecordShards

    @property
    def counts(self) -> list[int]:
        return [piece.last - piece.first for piece in self.shards.pieces]

    def name(self, number: int) -> str:
        return self.shards.name(number)

    def read(self, number: int) -> Starts:
        borders = sums(self.shards.lengths(number))
        return Starts(len(borders) - 1, borders.__getitem__)
