"""Megatron-LM's pairs of `prefix.bin` (ids) and `prefix.idx` (sequences and documents).

The path is the prefix, one of the two files, or a folder of pairs whose ids have the same dtype.
The files of a split are joined in order. A document has one or more of Megatron's sequences; in
exports, it has exactly one. Exports store ids as Megatron does: as uint16 for vocabularies below
65,500, else as int32.

Checked at opening: every index's header and size. Checked when a pair is first used, in one pass
over its index: that the sequences cover the `.bin` in order and without a gap. Megatron can read
sequences in any order, but it always writes them in order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError
from tokenmill.formats.base import Contents, Format, NotThisFormat, OpenRequest, check_same_dtype
from tokenmill.formats.document_starts import SpilledStarts
from tokenmill.formats.file_documents import BLOCK, DocumentIndexes, DocumentStarts, FileDocuments
from tokenmill.formats.shard_names import list_shards, split_shards
from tokenmill.formats.writing import Advance, FileJob, TokenRange, WriteRequest
from tokenmill.storage.files import AtomicFile
from tokenmill.storage.mapping import map_file
from tokenmill.storage.object_path import as_path
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError, measure_file, open_foreign
from tokenmill.store.shards import FileShards

_MAGIC = b"MMIDIDX\0\0"
_VERSION = 1
_HEADER = struct.Struct("<9sQBQQ")
_CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = {6: "float64", 7: "float32"}
_UINT16_VOCABULARY = 65_499  # the largest vocabulary that Megatron stores as uint16
_LONGEST = (1 << 31) - 1  # most tokens of a sequence

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class _Header:
    dtype: np.dtype[Any]
    sequences: int
    indices: int


class Megatron(Format):
    """Reads and writes a pair of files, or a folder of pairs."""

    name = "megatron"
    keeps_documents = True
    keeps_empty = True

    def read(self, request: OpenRequest) -> Contents:
        files, splits = _list_splits(request)
        shards, documents = {}, {}
        for split, names in splits.items():
            headers = [_read_header(request, name) for name in names]
            shards[split] = _make_shards(request, names, headers, files)
            indexed, sizes = [_index_name(name) for name in names], [files[name] for name in names]
            indexes = DocumentIndexes(
                names=indexed,
                counts=[header.indices - 1 for header in headers],
                read=partial(_read_starts, request.folder.absolute(), indexed, sizes),
            )
            documents[split] = FileDocuments(indexes, shards[split].counts, split)
        check_same_dtype(request.path, shards)
        return Contents(splits=shards, documents=documents)

    def plan(self, request: WriteRequest) -> Iterator[FileJob]:
        dtype = request.choose_dtype(_UINT16_VOCABULARY, wide="<i4")
        for split in request.splits:
            whole = request.take_all(split, dtype)
            # The index comes first, because writing it fails if a document is too long.
            yield FileJob(name=f"{split}.idx", tokens=0, write=partial(_write_index, whole))
            yield FileJob(name=f"{split}.bin", tokens=len(whole), write=whole.write)

    def read_written(self, folder: Path, splits: list[str]) -> Contents:
        return self.read_each({split: folder / f"{split}.idx" for split in splits})


def _write_index(whole: TokenRange, path: Path, _: Advance) -> None:
    tokens, dtype = whole.tokens, whole.dtype
    code = next(code for code, name in _CODES.items() if np.dtype(name) == dtype)
    with (
        SpilledStarts(tokens, 0, len(tokens), path.parent) as spilled,
        AtomicFile(path) as file,
    ):
        count = spilled.count
        file.write(_HEADER.pack(_MAGIC, _VERSION, code, count, count + 1))
        for starts in spilled.blocks():
            lengths = np.diff(starts)
            if lengths.max(initial=0) > _LONGEST:
                raise DatasetError(
                    f"a document of split {tokens.split!r} has {lengths.max():,} tokens; in "
                    f"Megatron's format, it may have at most {_LONGEST:,}. Export to another format."
                )
            file.write(lengths.astype("<i4"))
        for starts in spilled.blocks():
            file.write((starts[:-1] * dtype.itemsize).astype("<i8"))
        for low in range(0, count + 1, whole.block):
            file.write(np.arange(low, min(low + whole.block, count + 1), dtype="<i8"))
        file.finish()


def _list_splits(request: OpenRequest) -> tuple[Mapping[str, int], dict[str, list[str]]]:
    """Return the sizes of the files, and the `.bin` files of each split."""
    if not request.is_folder:
        prefix, ending = request.path.with_suffix(""), request.path.suffix
        index, ids = (prefix.with_name(prefix.name + end) for end in (".idx", ".bin"))
        if ending not in (".bin", ".idx") or not index.is_file():
            raise NotThisFormat("it is not part of a pair of a .bin and an .idx file")
        if not request.read_head(index.name).startswith(_MAGIC):
            raise NotThisFormat(f"{index.name} does not start with Megatron's magic bytes")
        if not ids.is_file():
            raise DamagedFileError(ids.name, f"is missing from {request.folder}", FOREIGN_CURE)
        return {ids.name: ids.stat().st_size}, {"train": [ids.name]}
    indexes = list_shards(request, ".idx")
    if not indexes or not request.read_head(indexes[0]).startswith(_MAGIC):
        raise NotThisFormat("it has no .idx file with Megatron's magic bytes")
    names = list_shards(request, ".bin")
    alone = {name[:-4] for name in names} ^ {name[:-4] for name in indexes}
    if alone:
        raise DatasetError(
            f"{min(alone)} in {request.path} has a .bin or an .idx file, but not both. Download the "
            "missing file, or open each pair separately: FOLDER/PREFIX."
        )
    return request.files, split_shards(request, names)


def _read_header(request: OpenRequest, name: str) -> _Header:
    index = _index_name(name)
    with open_foreign(request.folder, index) as file:
        header = _parse(file, index)
    request.check_dtype(header.dtype, index)
    return header


def _parse(file: BinaryIO, name: str) -> _Header:
    """Parse the header of an index; raise an error if it does not match the file's size."""
    size = measure_file(file)
    head = file.read(_HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise DamagedFileError(name, "does not start with Megatron's header", FOREIGN_CURE)
    _, version, code, sequences, indices = _HEADER.unpack(head)
    if version != _VERSION:
        raise DatasetError(
            f"{name} has version {version} of Megatron's index; only {_VERSION} is supported. Make "
            "the pair again with Megatron-LM's tools/preprocess_data.py."
        )
    if code in _FLOATS:
        raise DatasetError(
            f"{name} is an index of {_FLOATS[code]} values, but tokens are integers. Open a pair "
            "that holds token ids."
        )
    if code not in _CODES:
        raise DamagedFileError(name, f"has the unknown dtype code {code}", FOREIGN_CURE)
    expected = _HEADER.size + 12 * sequences + 8 * indices
    # If the index stores sequence modes, it has one more byte per sequence.
    if size not in (expected, expected + sequences) or not indices:
        raise DamagedFileError(
            name,
            f"has {size:,} bytes, expected {expected:,} according to its header of {sequences:,} "
            f"sequences and {indices:,} document indices",
            FOREIGN_CURE,
        )
    return _Header(dtype=np.dtype(_CODES[code]), sequences=sequences, indices=indices)


def _make_shards(
    request: OpenRequest, names: list[str], headers: list[_Header], files: Mapping[str, int]
) -> FileShards:
    dtype = headers[0].dtype
    for name, header in zip(names, headers, strict=True):
        if header.dtype != dtype:
            raise DatasetError(
                f"{name} has ids of {header.dtype}, expected {dtype} as in the earlier files. "
                "Open this file separately."
            )
        if files[name] % dtype.itemsize:
            what = f"has {files[name]:,} bytes, which is not a multiple of the size of {dtype.name}"
            raise DamagedFileError(name, what, FOREIGN_CURE)
    sizes = np.fromiter(map(files.__getitem__, names), np.int64, len(names))
    return FileShards(
        folder=request.folder.absolute(),
        names=names,
        dtype=dtype,
        counts=sizes // dtype.itemsize,
        offsets=np.zeros_like(sizes),
        sizes=sizes,
        check=_check_pair,
        foreign=True,
    )


def _read_starts(folder: Path, names: list[str], sizes: list[int], number: int) -> DocumentStarts:
    index = _Index(folder, names[number])
    index.check(sizes[number])
    return DocumentStarts(len(index.documents) - 1, index.find_starts)


class _Index:
    """A memory-mapped index. Its arrays keep the map open."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        with open_foreign(folder, name) as file:
            header = _parse(file, name)
            self.dtype, count = header.dtype, header.sequences
            size = 12 * count + 8 * header.indices
            # One map for all three arrays, because each map keeps a file open.
            whole = map_file(file, name, np.dtype("u1"), size, _HEADER.size)
        self.lengths = whole[: 4 * count].view("<i4")
        self.pointers = whole[4 * count : 12 * count].view("<i8")
        self.documents = whole[12 * count :].view("<i8")

    def check(self, size: int) -> None:
        """Raise an error unless the sequences cover all `size` bytes of the `.bin`, in order."""
        count, width = len(self.pointers), self.dtype.itemsize
        self._size = size
        if int(self.documents[-1]) != count:
            last = self.documents[-1]
            self._refuse(f"ends its last document at sequence {last}, expected {count:,}")
        ends = int(self.pointers[-1]) + int(self.lengths[-1]) * width if count else 0
        if ends != size:
            self._refuse(
                f"ends its last sequence at byte {ends:,}, but the .bin has {size:,} bytes"
            )
        due = 0
        for low in range(0, count, BLOCK):
            pointers = self.pointers[low : low + BLOCK].astype(np.int64)
            lengths = self.lengths[low : low + BLOCK].astype(np.int64)
            following = np.concatenate(([due], pointers[:-1] + lengths[:-1] * width))
            if (wrong := (lengths < 0) | (pointers != following)).any():
                number = low + int(wrong.argmax())
                self._refuse(
                    f"has sequence {number:,} of {lengths[number - low]} tokens at byte "
                    f"{pointers[number - low]}, not where the previous one ends"
                )
            due = int(pointers[-1] + lengths[-1] * width)

    def find_starts(self, numbers: Integers) -> Integers:
        """Return where each document starts, in tokens. Each takes two lookups in the index."""
        sequences = self.documents[numbers].astype(np.int64)
        count = len(self.pointers)
        if ((sequences < 0) | (sequences > count)).any():
            self._refuse("has a document with a sequence that does not exist")
        if not count:
            return np.zeros_like(sequences)
        places = self.pointers[np.minimum(sequences, count - 1)].astype(np.int64)
        return np.where(sequences == count, self._size, places) // self.dtype.itemsize

    def _refuse(self, what: str) -> NoReturn:
        raise DamagedFileError(self.name, what, FOREIGN_CURE)


def _check_pair(file: BinaryIO, name: str) -> None:
    """Check the index of a `.bin`, and cache the result until the index or the `.bin` changes."""
    path = as_path(file.name)
    index = path.with_name(_index_name(path.name))
    try:
        changed = index.stat().st_mtime_ns
    except OSError as error:
        raise DamagedFileError(
            _index_name(name), f"cannot be read: {error.strerror}", FOREIGN_CURE
        ) from error
    _check_index(index, changed, measure_file(file))


@lru_cache(maxsize=4096)
def _check_index(index: Path, changed: int, size: int) -> None:  # noqa: ARG001  (part of the cache key)
    _Index(index.parent, index.name).check(size)


def _index_name(name: str) -> str:
    return name[:-4] + ".idx"
