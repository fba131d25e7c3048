"""MosaicML streaming's shards: a folder a split, with `index.json`; a sample a document.

The column is `tokens`, of `ndarray:uint16` or `ndarray:uint32`. Shards are raw, not compressed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

import tokenmill.store.dataset
from tokenmill.convert.borders import SpilledStarts, cut_between
from tokenmill.convert.targets.litdata import check_offsets
from tokenmill.convert.targets.protocol import BLOCK, Advance, FileJob, TokenRange, choose_dtype
from tokenmill.store.dataset import Dataset
from tokenmill.store.formats.json_index import INDEX
from tokenmill.store.manifest import write_atomically
from tokenmill.store.tokens import Tokens, cast
from tokenmill.store.writer import AtomicFile

__all__ = ["Mds"]


class Mds:
    """Shards of at least `tokens_per_shard` tokens."""

    keeps_documents = True

    def plan(self, dataset: Dataset, splits: list[str], tokens_per_shard: int) -> Iterator[FileJob]:
        dtype = choose_dtype(dataset)
        for split in splits:
            tokens, names = dataset[split], []
            for number, (start, stop) in enumerate(cut_between(tokens, tokens_per_shard)):
                part = TokenRange(tokens=tokens, start=start, stop=stop, dtype=dtype)
                names.append(f"shard.{number:05}.mds")
                yield FileJob(
                    name=f"{split}/{names[-1]}",
                    tokens=len(part),
                    write=partial(_write_shard, part),
                )
            yield FileJob(
                name=f"{split}/{INDEX}", tokens=0, write=partial(_write_index, names, dtype)
            )

    def open(self, folder: Path, splits: list[str]) -> dict[str, Tokens]:
        return {
            split: tokenmill.store.dataset.open(folder / split, format="mds")["train"]
            for split in splits
        }


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
    config = orjson.dumps(_config(part.dtype), option=orjson.OPT_SORT_KEYS)
    width = part.dtype.itemsize
    with (
        SpilledStarts(part.tokens, part.start, part.stop, path.parent) as spilled,
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


def _write_index(names: list[str], dtype: np.dtype[Any], path: Path, _: Advance) -> None:
    """The index, from the shards as they are on disk."""
    shards = []
    for name in names:
        with (path.parent / name).open("rb") as file:
            samples = int.from_bytes(file.read(4), "little")
            size = file.seek(0, 2)
        raw = {"basename": name, "bytes": size, "hashes": {}}
        shards.append({**_config(dtype), "raw_data": raw, "samples": samples, "zip_data": None})
    told = {"shards": shards, "version": 2}
    write_atomically(path, orjson.dumps(told, option=orjson.OPT_SORT_KEYS))
