"""Genuine NumPy files: integers in one dimension, in one file or in numbered shards.

Headers are parsed by NumPy and never read as tokens. No pickle is loaded. Everything is checked at
opening, for which every file is opened once; sizes again when they are mapped.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from tokenmill.errors import DatasetError
from tokenmill.formats.folder import (
    are_numbered,
    check_gaps,
    list_shards,
    split_by_name,
)
from tokenmill.formats.protocol import DTYPES, Asked, Contents, NotThisFormat
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError, open_foreign
from tokenmill.store.shards import FileShards

NAME = "npy"
MAGIC = b"\x93NUMPY"
MOST = 1 << 16  # bytes of a header; a longer one is no array of integers


def read(asked: Asked) -> Contents:
    """What a .npy file or a folder of numbered ones holds."""
    splits = _list(asked) if asked.is_folder else {"train": [asked.path.name]}
    first = next(iter(splits.values()))[0]
    if not asked.read_head(first).startswith(MAGIC):
        reason = f"{first} does not begin with NumPy's magic bytes"
        if first.endswith(".npy"):
            reason += ", so it is cut, damaged, or a headerless file such as OLMo's, with ids alone"
        raise NotThisFormat(reason)
    return Contents(splits={split: _shards(asked, names) for split, names in splits.items()})


def _list(asked: Asked) -> dict[str, list[str]]:
    """The files of each split of a folder, if they surely belong together."""
    names = list_shards(asked, ".npy")
    if not names or list_shards(asked, ".bin"):
        raise NotThisFormat("it is a folder, and not one of .npy files alone")
    splits = {split: some for split, some in split_by_name(names).items() if some}
    for some in splits.values():
        if len(some) > 1 and not asked.chosen and not are_numbered(some):
            raise NotThisFormat("its .npy files are not numbered shards; open one by itself")
        check_gaps(asked, some)
    return splits


def _shards(asked: Asked, names: list[str]) -> FileShards:
    found = [_look(asked, name) for name in names]
    dtype = found[0][0]
    for name, (other, *_) in zip(names, found, strict=True):
        if other != dtype:
            raise DatasetError(f"{name} holds {other}, and the shards before it hold {dtype}.")
    counts, offsets, sizes = np.array([places for _, *places in found], np.int64).T.copy()
    return FileShards(
        folder=asked.folder.absolute(),
        names=names,
        dtype=dtype,
        counts=counts,
        offsets=offsets,
        sizes=sizes,
        foreign=True,
    )


def _look(asked: Asked, name: str) -> tuple[np.dtype[Any], int, int, int]:
    """The dtype and the number of a file's ids, where they begin, and the file's bytes."""
    with open_foreign(asked.folder, name) as file:
        start = file.read(MOST)
        size = file.seek(0, io.SEEK_END)
    count, dtype, offset = parse_header(name, start)
    asked.agree(dtype, name)
    expected = offset + count * dtype.itemsize
    if size != expected:
        raise DamagedFileError(
            name,
            f"has {size:,} bytes, and by its header it should have {expected:,}",
            FOREIGN_CURE,
        )
    return dtype, count, offset, size


def parse_header(name: str, start: bytes) -> tuple[int, np.dtype[Any], int]:
    """The number of ids, their dtype and where they begin, from a file's first bytes."""
    # From memory: NumPy's parser would read as much as a damaged length says.
    file = io.BytesIO(start)
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        elif version in ((2, 0), (3, 0)):  # which differ in the names of fields alone
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise ValueError(f"version {version} is not one that integers are saved with")
    except Exception as error:  # whatever NumPy's parser meets in damaged bytes
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DamagedFileError(
            name, f"has no readable .npy header ({reason!r})", FOREIGN_CURE
        ) from None
    if dtype.name not in DTYPES:
        raise DatasetError(
            f"{name} holds {dtype}, and tokens are integers. Save it as such: "
            "np.save(path, ids.astype(np.uint16)), or uint32 for a vocabulary over 65,536."
        )
    if len(shape) != 1 or not 0 <= shape[0] < 1 << 56:
        raise DatasetError(
            f"{name} has the shape {shape}, and tokens are in one dimension. "
            "Save them so: np.save(path, ids.reshape(-1))."
        )
    return int(shape[0]), dtype, file.tell()
