"""NumPy files: one-dimensional arrays of integers, in one file or in numbered shards.

NumPy parses the headers, so a header is not mistaken for tokens. No pickle is loaded. Opening opens
every file once and checks its header and size. Exports have one file per split, with the bytes that
`np.save` would write.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.errors import DatasetError
from tokenmill.formats.base import DTYPES, Contents, Format, NotThisFormat, OpenRequest
from tokenmill.formats.shard_names import are_numbered, list_shards, split_by_name, split_shards
from tokenmill.formats.writing import FileJob, WriteRequest
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError, open_foreign
from tokenmill.store.shards import FileShards

MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 1 << 16  # bytes; more than the header of an array of integers has


class Npy(Format):
    """Reads and writes .npy files: one file, or a folder of numbered files."""

    name = "npy"

    def read(self, request: OpenRequest) -> Contents:
        splits = _list_splits(request) if request.is_folder else {"train": [request.path.name]}
        first = next(iter(splits.values()))[0]
        if not request.read_head(first).startswith(MAGIC):
            reason = f"{first} does not begin with NumPy's magic bytes"
            if first.endswith(".npy"):
                reason += ": it is damaged, or it has no header, like OLMo's files"
            raise NotThisFormat(reason)
        return Contents(
            splits={split: _make_shards(request, names) for split, names in splits.items()}
        )

    def plan(self, request: WriteRequest) -> Iterator[FileJob]:
        dtype = request.choose_dtype()
        for split in request.splits:
            whole = request.take_all(split, dtype)
            header = io.BytesIO()
            fields = {"descr": dtype.str, "fortran_order": False, "shape": (len(whole),)}
            np.lib.format.write_array_header_1_0(header, fields)
            write = partial(whole.write, header=header.getvalue())
            yield FileJob(name=f"{split}.npy", tokens=len(whole), write=write)

    def read_written(self, folder: Path, splits: list[str]) -> Contents:
        return self.read_each({split: folder / f"{split}.npy" for split in splits})


def _list_splits(request: OpenRequest) -> dict[str, list[str]]:
    """Return the files of each split.

    Raise an error if a split has several files that are neither numbered nor named by the user.
    """
    names = list_shards(request, ".npy")
    if not names or list_shards(request, ".bin"):
        raise NotThisFormat("it is not a folder with only .npy files")
    for some in split_by_name(names).values():
        if len(some) > 1 and not request.chosen and not are_numbered(some):
            raise NotThisFormat("its .npy files are not numbered shards; open one file at a time")
    return split_shards(request, names)


def _make_shards(request: OpenRequest, names: list[str]) -> FileShards:
    found = [_read_header(request, name) for name in names]
    dtype = found[0][0]
    for name, (other, *_) in zip(names, found, strict=True):
        if other != dtype:
            raise DatasetError(
                f"{name} has ids of {other}, expected {dtype} as in the earlier shards. "
                "Open this file separately."
            )
    counts, offsets, sizes = np.array([places for _, *places in found], np.int64).T.copy()
    return FileShards(
        folder=request.folder.absolute(),
        names=names,
        dtype=dtype,
        counts=counts,
        offsets=offsets,
        sizes=sizes,
        foreign=True,
    )


def _read_header(request: OpenRequest, name: str) -> tuple[np.dtype[Any], int, int, int]:
    """Return the ids' dtype, how many there are, the byte where they start, and the file's size."""
    with open_foreign(request.folder, name) as file:
        start = file.read(LONGEST_HEADER)
        size = file.seek(0, io.SEEK_END)
    count, dtype, offset = parse_header(name, start)
    request.check_dtype(dtype, name)
    expected = offset + count * dtype.itemsize
    if size != expected:
        what = f"has {size:,} bytes, expected {expected:,} according to its header"
        raise DamagedFileError(name, what, FOREIGN_CURE)
    return dtype, count, offset, size


def parse_header(name: str, start: bytes) -> tuple[int, np.dtype[Any], int]:
    """Parse a header; return how many ids there are, their dtype, and the byte where they start."""
    shape, _, dtype, offset = parse_any_header(name, start)
    if dtype.name not in DTYPES:
        raise DatasetError(
            f"{name} has values of {dtype}, but tokens are integers. Save it as integers: "
            "np.save(path, ids.astype(np.uint16)), or uint32 for a vocabulary over 65,536."
        )
    if len(shape) != 1 or not 0 <= shape[0] < 1 << 56:
        raise DatasetError(
            f"{name} has the shape {_describe_shape(shape)}, but tokens have one dimension. "
            "Save it with: np.save(path, ids.reshape(-1))."
        )
    return int(shape[0]), dtype, offset


def parse_any_header(name: str, start: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Parse the header of an array of any kind, which may be damaged or forged.

    Returns the shape, whether the order is Fortran's, the dtype, and the byte where the values start.
    """
    # Parse from memory: from a file, NumPy would read as many bytes as a damaged header says.
    file = io.BytesIO(start)
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            found = np.lib.format.read_array_header_1_0(file)
        elif version in ((2, 0), (3, 0)):  # versions 2 and 3 differ only in the names of fields
            found = np.lib.format.read_array_header_2_0(file)
        else:
            raise ValueError(f"version {version} is not supported")
    except Exception as error:  # NumPy's parser can raise any error for damaged bytes
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        what = f"has no readable .npy header ({reason!r})"
        raise DamagedFileError(name, what, FOREIGN_CURE) from None
    return *found, file.tell()


def _describe_shape(shape: tuple[int, ...]) -> str:
    """Format a shape without huge numbers: Python refuses to print over 4,300 digits."""
    sizes = [str(size) if abs(size) < 1 << 63 else "…" for size in shape[:8]]
    return f"({', '.join(sizes)}{', …' if len(shape) > 8 else ''})"
