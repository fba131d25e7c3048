"""One genuine NumPy file: integers in one dimension.

Its header is parsed by NumPy and never read as tokens. No pickle is loaded. Everything is checked
at opening; the size again when it is mapped.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from tokenmill.errors import DatasetError
from tokenmill.store.files import FOREIGN_CURE, DamagedFileError, open_foreign
from tokenmill.store.formats.protocol import DTYPES, Asked, Contents, NotThisFormat
from tokenmill.store.shards import FileShards

NAME = "npy"
MAGIC = b"\x93NUMPY"
MOST = 1 << 16  # bytes of a header; a longer one is no array of integers


def read(asked: Asked) -> Contents:
    """What a .npy file holds."""
    if asked.is_folder:
        raise NotThisFormat("it is a folder, and a .npy is opened by itself")
    name = asked.path.name
    if not asked.head.startswith(MAGIC):
        reason = "it does not begin with NumPy's magic bytes"
        if name.endswith(".npy"):
            reason += ", so it is cut, damaged, or a headerless file such as OLMo's, with ids alone"
        raise NotThisFormat(reason)
    with open_foreign(asked.folder, name) as file:
        start = file.read(MOST)
        size = file.seek(0, io.SEEK_END)
    count, dtype, offset = parse_header(name, start)
    asked.agree(dtype, name)
    if size != offset + count * dtype.itemsize:
        raise DamagedFileError(
            name,
            f"has {size:,} bytes, and by its header it should have "
            f"{offset + count * dtype.itemsize:,}",
            FOREIGN_CURE,
        )
    if not count:
        raise DatasetError(f"{name} holds no tokens.")
    shards = FileShards(
        folder=asked.folder.absolute(),
        names=[name],
        dtype=dtype,
        counts=np.array([count], np.int64),
        offsets=np.array([offset], np.int64),
        sizes=np.array([size], np.int64),
        foreign=True,
    )
    return Contents(splits={"train": shards})


def parse_header(name: str, start: bytes) -> tuple[int, np.dtype[Any], int]:
    """The number of ids, their dtype and where they begin, from a file's first bytes."""
    # From memory: NumPy's parser would read as much as a damaged length says.
    file = io.BytesIO(start)
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
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
