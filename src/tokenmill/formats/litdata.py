"""LitData's chunks of tokens, as its `TokensLoader` reads them: a folder with `index.json`.

A chunk is the number of its items, where each begins, and then their ids in a row, which are mapped
as they are. Each item is a document. Other items than tokens, compressed and encrypted chunks are
refused.

Checked at opening: the index. Checked when a chunk is first touched: its size, and that its header
is the one that the index tells. Checked when its documents are first looked at: all of its header.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError
from tokenmill.formats.json_index import Entry, read_indexes
from tokenmill.formats.protocol import Asked, Contents
from tokenmill.formats.starts import FileDocuments, Starts
from tokenmill.storage.mapping import map_file
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError, check_size, open_foreign
from tokenmill.store.shards import FileShards

NAME = "litdata"
TENSORS = {11: "u1", 12: "i1", 13: "i2", 14: "i2", 15: "i4", 16: "i4", 17: "i8", 18: "i8", 20: "u2"}
_ARRAYS = {0: "i1", 1: "i2", 2: "i4", 3: "i8", 4: "u1", 5: "u2", 6: "u4", 7: "u8"}
_KINDS = {"no_header_tensor": TENSORS, "no_header_numpy": _ARRAYS}
_WORD = np.dtype("<u4")

Integers = npt.NDArray[np.int64]


def read(asked: Asked) -> Contents:
    """What a folder of chunks, or of splits, holds."""
    shards, documents = {}, {}
    for split, (inner, index) in read_indexes(asked, "chunks").items():
        dtype = _find_dtype(index.entry("config"))
        asked.agree(dtype, index.where)
        shards[split], items = _read_chunks(inner, index, dtype)
        chunks = _Indexes(shards=shards[split], counts=items)
        documents[split] = FileDocuments(chunks, shards[split].counts, split)
    if len({one.dtype for one in shards.values()}) > 1:
        raise DatasetError(f"the splits of {asked.path} have ids of different dtypes. Open one.")
    return Contents(splits=shards, documents=documents)


def _find_dtype(config: Entry) -> np.dtype[Any]:
    for key in ("compression", "encryption"):
        if config.value.get(key):
            raise DatasetError(
                f"{config.where} has {key}, and such chunks cannot be read. Make them without, or "
                "read them with litdata."
            )
    formats = config.get("data_format", list)
    kind, _, code = str(formats[0] if len(formats) == 1 else "").partition(":")
    known = _KINDS.get(kind, {})
    if not code.isdigit() or len(code) > 3 or int(code) not in known:
        raise DatasetError(
            f"{config.where} has items of the format {str(formats)[:80]}, which are not tokens: "
            "those are no_header_tensor or no_header_numpy of integers, as for TokensLoader."
        )
    return np.dtype("<" + known[int(code)])


def _read_chunks(asked: Asked, index: Entry, dtype: np.dtype[Any]) -> tuple[FileShards, list[int]]:
    """The chunks of an index, and the number of items in each."""
    names, items, places = [], [], []
    for chunk in index.entries("chunks"):
        name, count, tokens = (
            chunk.name("filename"),
            chunk.get("chunk_size", int),
            chunk.get("dim", int),
        )
        offset = _WORD.itemsize * (count + 2)
        size = offset + tokens * dtype.itemsize
        if size != chunk.get("chunk_bytes", int):
            raise chunk.fail(
                f"{name} with {count:,} items and {tokens:,} tokens of {dtype.name} has {size:,} "
                f"bytes, not {chunk.value['chunk_bytes']:,}"
            )
        names.append(name)
        items.append(count)
        places.append((tokens, offset, size))
    counts, offsets, sizes = np.array(places, np.int64).reshape(-1, 3).T.copy()
    shards = FileShards(
        folder=asked.path.absolute(),
        names=names,
        dtype=dtype,
        counts=counts,
        offsets=offsets,
        sizes=sizes,
        check=_check_chunk,
        foreign=True,
    )
    return shards, items


def _check_chunk(file: BinaryIO, name: str) -> None:
    """Refuse a chunk whose header does not cover it."""
    size = file.seek(0, 2)
    file.seek(0)
    count = int.from_bytes(file.read(4), "little")
    first = int.from_bytes(file.read(4), "little")
    file.seek(4 * (count + 1))
    last = int.from_bytes(file.read(4), "little")
    if first != 4 * (count + 2) or last != size:
        raise DamagedFileError(
            name,
            f"has a header of {count:,} items from byte {first:,} to {last:,}, which does not fit "
            f"its {size:,} bytes",
            FOREIGN_CURE,
        )


@dataclass(frozen=True, kw_only=True)
class _Indexes:
    shards: FileShards
    counts: list[int]

    def name(self, number: int) -> str:
        return self.shards.name(number)

    def read(self, number: int) -> Starts:
        name, count = self.name(number), self.counts[number]
        with open_foreign(self.shards.folder, name) as file:
            check_size(file, name, int(self.shards.sizes[number]), foreign=True)
            found = int.from_bytes(file.read(4), "little")
            if found != count:
                what = f"holds {found:,} items, and the index says {count:,}"
                raise DamagedFileError(name, what, FOREIGN_CURE)
            offsets = map_file(file, name, _WORD, count + 1, _WORD.itemsize)
        return Starts(count, _Offsets(name, offsets, self.shards.dtype.itemsize).look)


@dataclass(frozen=True)
class _Offsets:
    name: str
    offsets: npt.NDArray[np.uint32]
    width: int

    def look(self, numbers: Integers) -> Integers:
        places = self.offsets[numbers].astype(np.int64) - _WORD.itemsize * (len(self.offsets) + 1)
        if (places % self.width).any():
            what = "has an item that begins within an id"
            raise DamagedFileError(self.name, what, FOREIGN_CURE)
        return places // self.width
