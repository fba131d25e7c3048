"""Megatron-LM's pairs of `prefix.bin` (ids) and `prefix.idx` (sequences and documents).

Given by the prefix, by either file, or as a folder of several pairs with ids of one dtype. A split
is what its files hold, in order; documents are Megatron's documents, of one sequence or several.

Checked at opening: every index's header and size. Checked when a pair is first touched, in one pass
over its index: that the sequences follow each other in the `.bin` without a gap, from its first
byte to its last. Megatron could read sequences in any order, but writes no others.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError
from tokenmill.formats.folder import check_gaps, list_shards, split_by_name
from tokenmill.formats.protocol import Asked, Contents, NotThisFormat
from tokenmill.formats.starts import BLOCK, FileDocuments, Starts
from tokenmill.storage.mapping import map_file
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError, open_foreign
from tokenmill.store.shards import FileShards

NAME = "megatron"
MAGIC = b"MMIDIDX\0\0"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = {6: "float64", 7: "float32"}

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class _Header:
    dtype: np.dtype[Any]
    sequences: int
    indices: int


def read(asked: Asked) -> Contents:
    """What a pair of files or a folder of pairs holds."""
    files, splits = _list(asked)
    parts, documents = {}, {}
    for split, names in splits.items():
        headers = [_read_header(asked, name) for name in names]
        shards = _shards(asked, names, headers, files)
        parts[split] = shards
        indexes = _Indexes(
            folder=asked.folder.absolute(),
            names=names,
            counts=[header.indices - 1 for header in headers],
            sizes=[files[name] for name in names],
        )
        documents[split] = FileDocuments(indexes, shards.counts, split)
    dtypes = {shards.dtype for shards in parts.values()}
    if len(dtypes) > 1:
        told = " and ".join(sorted(dtype.name for dtype in dtypes))
        raise DatasetError(f"the splits of {asked.path} hold {told}. Open one by its prefix.")
    return Contents(splits=parts, documents=documents)


def _list(asked: Asked) -> tuple[Mapping[str, int], dict[str, list[str]]]:
    """The sizes of the files, and the `.bin` files of each split."""
    if not asked.is_folder:
        prefix, ending = asked.path.with_suffix(""), asked.path.suffix
        index, ids = (prefix.with_name(prefix.name + end) for end in (".idx", ".bin"))
        if ending not in (".bin", ".idx") or not index.is_file():
            raise NotThisFormat("it is not one of a pair of files, .bin and .idx")
        if not asked.read_head(index.name).startswith(MAGIC):
            raise NotThisFormat(f"{index.name} does not begin with its magic bytes")
        if not ids.is_file():
            raise DamagedFileError(ids.name, f"is missing from {asked.folder}", FOREIGN_CURE)
        return {ids.name: ids.stat().st_size}, {"train": [ids.name]}
    indexes = list_shards(asked, ".idx")
    if not indexes or not asked.read_head(indexes[0]).startswith(MAGIC):
        raise NotThisFormat("it has no .idx file with Megatron's magic bytes")
    names = list_shards(asked, ".bin")
    alone = {name[:-4] for name in names} ^ {name[:-4] for name in indexes}
    if alone:
        raise DatasetError(
            f"{min(alone)} in {asked.path} has a .bin or an .idx file, and not both. Fetch the "
            "other one, or open the pairs one by one, by prefix."
        )
    splits = {split: some for split, some in split_by_name(names).items() if some}
    for some in splits.values():
        check_gaps(asked, some)
    return asked.files, splits


def _read_header(asked: Asked, name: str) -> _Header:
    index = _index_name(name)
    with open_foreign(asked.folder, index) as file:
        header = _parse(file, index)
    asked.agree(header.dtype, index)
    return header


def _parse(file: BinaryIO, name: str) -> _Header:
    """The header of an index whose size fits it."""
    size = os.fstat(file.fileno()).st_size
    head = file.read(HEADER.size)
    if len(head) < HEADER.size or not head.startswith(MAGIC):
        raise DamagedFileError(name, "does not begin with Megatron's header", FOREIGN_CURE)
    _, version, code, sequences, indices = HEADER.unpack(head)
    if version != VERSION:
        raise DatasetError(
            f"{name} has version {version} of Megatron's index, and only {VERSION} is known."
        )
    if code in _FLOATS:
        raise DatasetError(
            f"{name} says that its file holds {_FLOATS[code]}, which are not tokens."
        )
    if code not in CODES:
        raise DamagedFileError(name, f"has the dtype code {code}, which is none", FOREIGN_CURE)
    expected = HEADER.size + 12 * sequences + 8 * indices
    # One byte a sequence more where modes of sequences are stored.
    if size not in (expected, expected + sequences) or not indices:
        raise DamagedFileError(
            name,
            f"has {size:,} bytes, and by its header ({sequences:,} sequences, {indices:,} borders "
            f"of documents) it should have {expected:,}",
            FOREIGN_CURE,
        )
    return _Header(dtype=np.dtype(CODES[code]), sequences=sequences, indices=indices)


def _shards(
    asked: Asked, names: list[str], headers: list[_Header], files: Mapping[str, int]
) -> FileShards:
    dtype = headers[0].dtype
    for name, header in zip(names, headers, strict=True):
        if header.dtype != dtype:
            raise DatasetError(
                f"{name} holds {header.dtype}, and those before it hold {dtype}. Open it by itself."
            )
        if files[name] % dtype.itemsize:
            what = f"has {files[name]:,} bytes, which is not a whole number of {dtype.name}"
            raise DamagedFileError(name, what, FOREIGN_CURE)
    sizes = np.fromiter(map(files.__getitem__, names), np.int64, len(names))
    return FileShards(
        folder=asked.folder.absolute(),
        names=names,
        dtype=dtype,
        counts=sizes // dtype.itemsize,
        offsets=np.zeros_like(sizes),
        sizes=sizes,
        check=_check_pair,
        foreign=True,
    )


@dataclass(frozen=True, kw_only=True)
class _Indexes:
    folder: Path
    names: list[str]
    counts: list[int]
    sizes: list[int]

    def name(self, number: int) -> str:
        return _index_name(self.names[number])

    def read(self, number: int) -> Starts:
        name = self.name(number)
        return _Index(self.folder, name).check(self.sizes[number]).starts


class _Index:
    """An index, mapped. What it hands out keeps the map."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        with open_foreign(folder, name) as file:
            header = _parse(file, name)
            self.dtype, count = header.dtype, header.sequences
            size = 12 * count + 8 * header.indices
            # One map for all three, because each keeps a file open.
            whole = map_file(file, name, np.dtype("u1"), size, HEADER.size)
        self.lengths = whole[: 4 * count].view("<i4")
        self.pointers = whole[4 * count : 12 * count].view("<i8")
        self.borders = whole[12 * count :].view("<i8")

    def check(self, size: int) -> _Index:
        """Refuse sequences that do not follow each other through the `.bin`, of `size` bytes."""
        count, width = len(self.pointers), self.dtype.itemsize
        self._size = size
        if int(self.borders[-1]) != count:
            self._refuse(f"ends its documents at sequence {self.borders[-1]} of {count:,}")
        ends = int(self.pointers[-1]) + int(self.lengths[-1]) * width if count else 0
        if ends != size:
            self._refuse(f"ends its last sequence at byte {ends:,}, and the .bin has {size:,}")
        due = 0
        for low in range(0, count, BLOCK):
            pointers = self.pointers[low : low + BLOCK].astype(np.int64)
            lengths = self.lengths[low : low + BLOCK].astype(np.int64)
            following = np.concatenate(([due], pointers[:-1] + lengths[:-1] * width))
            if (wrong := (lengths < 0) | (pointers != following)).any():
                number = low + int(wrong.argmax())
                self._refuse(
                    f"has sequence {number:,} of {lengths[number - low]} tokens at byte "
                    f"{pointers[number - low]}, not where the one before ends"
                )
            due = int(pointers[-1] + lengths[-1] * width)
        return self

    @property
    def starts(self) -> Starts:
        """Where documents begin: two looks into the map for each."""
        return Starts(len(self.borders) - 1, self._look)

    def _look(self, numbers: Integers) -> Integers:
        sequences = self.borders[numbers].astype(np.int64)
        count = len(self.pointers)
        if ((sequences < 0) | (sequences > count)).any():
            self._refuse("has documents of sequences that there are not")
        if not count:
            return np.zeros_like(sequences)
        places = self.pointers[np.minimum(sequences, count - 1)].astype(np.int64)
        return np.where(sequences == count, self._size, places) // self.dtype.itemsize

    def _refuse(self, what: str) -> None:
        raise DamagedFileError(self.name, what, FOREIGN_CURE)


def _check_pair(file: BinaryIO, name: str) -> None:
    """Look at the index of a `.bin`, once as long as neither changes."""
    path = Path(file.name)
    index = path.with_name(_index_name(path.name))
    try:
        changed = index.stat().st_mtime_ns
    except OSError as error:
        raise DamagedFileError(
            _index_name(name), f"cannot be read: {error.strerror}", FOREIGN_CURE
        ) from error
    _check_index(index, changed, os.fstat(file.fileno()).st_size)


@lru_cache(maxsize=4096)
def _check_index(index: Path, changed: int, size: int) -> None:  # noqa: ARG001  (what is cached)
    _Index(index.parent, index.name).check(size)


def _index_name(name: str) -> str:
    return name[:-4] + ".idx"
