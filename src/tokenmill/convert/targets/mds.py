"""MosaicML Streaming's shards: one folder per split with `index.json`, one sample per document.

The encoding cannot store empty arrays, so empty documents are left out. The column is `tokens`, of
`ndarray:uint16` or `ndarray:uint32`. Shards are not compressed, and byte for byte what `MDSWriter`
writes without a size limit.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.convert.borders import SpilledStarts
from tokenmill.convert.targets.indexed import IndexedFolders, Written, check_offsets
from tokenmill.convert.targets.protocol import BLOCK, Advance, TokenRange
from tokenmill.storage.files import AtomicFile
from tokenmill.store.tokens import cast


def _config(dtype: np.dtype[Any]) -> dict[str, Any]:
    """What both the index and every shard say."""
    return {
        "column_encodings": [f"ndarray:{dtype.name}"],
        "column_names": ["tokens"],
        "column_sizes": [None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": None,
        "version": 2,
    }


def _write_shard(part: TokenRange, path: Path, advance: Advance) -> None:
    config = json.dumps(_config(part.dtype), sort_keys=True).encode()
    width = part.dtype.itemsize
    with (
        SpilledStarts(part.tokens, part.start, part.stop, path.parent, empty=False) as spilled,
        AtomicFile(path) as file,
    ):
        place = 4 * (spilled.count + 2) + len(config)
        file.write(spilled.count.to_bytes(4, "little"))
        for starts in spilled.blocks():
            lengths = np.diff(starts)
            ends = place + np.cumsum(4 + 1 + _shape_widths(lengths) + lengths * width)
            check_offsets(part.tokens, int(ends[-1]))
            file.write(np.concatenate(([place], ends[:-1])).astype("<u4"))
            place = int(ends[-1])
        file.write(place.to_bytes(4, "little"))
        file.write(config)
        for starts in spilled.blocks():
            _write_samples(file, part, (starts + part.start).tolist(), advance)
        file.finish()


def _shape_widths(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bytes that a length is told with: the least of 1, 2 and 4 that hold it."""
    return np.where(lengths < 1 << 8, 1, np.where(lengths < 1 << 16, 2, 4))


def _write_samples(
    file: AtomicFile, part: TokenRange, borders: list[int], advance: Advance
) -> None:
    """The documents between some borders, as many at a time as are in a block of tokens."""
    low, width = 0, part.dtype.itemsize
    while low < len(borders) - 1:
        high = bisect_right(borders, borders[low] + BLOCK) - 1
        if high == low:  # one that is longer than a block
            sample = replace(part, start=borders[low], stop=borders[low + 1])
            file.write(_sample_header(len(sample), width))
            sample.copy(file, advance)
            low += 1
            continue
        ids = np.empty(borders[high] - borders[low], part.dtype)
        cast(part.tokens.read(borders[low], borders[high]), ids)
        data = ids.data.cast("B")
        parts: list[bytes | memoryview] = []
        for start, stop in pairwise(borders[low : high + 1]):
            parts.append(_sample_header(stop - start, width))
            parts.append(data[(start - borders[low]) * width : (stop - borders[low]) * width])
        file.write(b"".join(parts))
        advance(len(ids))
        low = high


def _sample_header(length: int, width: int) -> bytes:
    """A size, a byte for one dimension and the width of its length, and the length."""
    told = 1 if length < 1 << 8 else 2 if length < 1 << 16 else 4
    size = 1 + told + length * width
    shape = bytes([1 << 2 | told.bit_length() - 1]) + length.to_bytes(told, "little")
    return size.to_bytes(4, "little") + shape


def _make_index(files: list[Written], dtype: np.dtype[Any], _: int) -> bytes:
    shards = [
        {
            **_config(dtype),
            "raw_data": {"basename": file.name, "bytes": file.size, "hashes": {}},
            "samples": file.documents,
            "zip_data": None,
        }
        for file in files
    ]
    return json.dumps({"shards": shards, "version": 2}, sort_keys=True).encode()


MDS = IndexedFolders(
    format="mds",
    name="shard.{:05}.mds",
    wide="<u4",
    write=_write_shard,
    index=_make_index,
    keeps_empty=False,
)
