"""LitData's chunks of tokens, as its `TokensLoader` reads them: a folder with `index.json`.

A chunk holds the number of its items, the start of each item, and the ids. The ids are
memory-mapped. Each item is a document. Items other than tokens, and compressed or encrypted chunks,
are refused. Exports store ids as tensors of uint16 or int32.

Checked at opening: the index. Checked when a chunk is first used: its size, and the first and last
offset in its header. Checked when the documents of a chunk are first used: the whole header.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.errors import DatasetError
from tokenmill.formats.base import Contents, OpenRequest, check_same_dtype
from tokenmill.formats.document_starts import SpilledStarts
from tokenmill.formats.file_documents import DocumentIndexes, DocumentStarts, FileDocuments
from tokenmill.formats.indexed_folder import (
    Entry,
    IndexedFolder,
    WrittenFile,
    check_offsets,
    read_indexes,
)
from tokenmill.formats.writing import Advance, TokenRange
from tokenmill.storage.files import AtomicFile
from tokenmill.storage.mapping import map_file
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError, check_size, open_foreign
from tokenmill.store.shards import FileShards

TENSORS = {11: "u1", 12: "i1", 13: "i2", 14: "i2", 15: "i4", 16: "i4", 17: "i8", 18: "i8", 20: "u2"}
_ARRAYS = {0: "i1", 1: "i2", 2: "i4", 3: "i8", 4: "u1", 5: "u2", 6: "u4", 7: "u8"}
_KINDS = {"no_header_tensor": TENSORS, "no_header_numpy": _ARRAYS}
_WORD = np.dtype("<u4")
_MOST_BYTES = 1 << 60  # limit for the total size of all chunks, so that sums fit in 64 bits
# How LitData describes an item that is a single value, not a tree of values.
_LEAF = '[1, {"type": null, "context": null, "children_spec": []}]'

Integers = npt.NDArray[np.int64]


class LitData(IndexedFolder):
    """Reads and writes a folder of chunks, or a folder with a subfolder of chunks per split."""

    name = "litdata"
    keeps_empty = True
    file_name = "chunk-0-{}.bin"
    wide_dtype = "<i4"

    def read(self, request: OpenRequest) -> Contents:
        shards, documents = {}, {}
        for split, (inner, index) in read_indexes(request, "chunks").items():
            dtype = _find_dtype(index.entry("config"))
            request.check_dtype(dtype, index.where)
            shards[split], items = _read_chunks(inner, index, dtype)
            indexes = DocumentIndexes(
                names=shards[split].names,
                counts=items,
                read=partial(_read_starts, shards[split], items),
            )
            documents[split] = FileDocuments(indexes, shards[split].counts, split)
        check_same_dtype(request.path, shards)
        return Contents(splits=shards, documents=documents)

    def write_shard(self, part: TokenRange, path: Path, advance: Advance) -> None:
        with (
            SpilledStarts(part.tokens, part.start, part.stop, path.parent) as spilled,
            AtomicFile(path) as file,
        ):
            header = 4 * (spilled.count + 2)
            width = part.dtype.itemsize
            check_offsets(part.tokens, header + len(part) * width)
            file.write(spilled.count.to_bytes(4, "little"))
            for starts in spilled.blocks():
                file.write((header + starts[:-1] * width).astype("<u4"))
            file.write((header + len(part) * width).to_bytes(4, "little"))
            part.copy(file, advance)
            file.finish()

    def make_index(
        self, files: list[WrittenFile], dtype: np.dtype[Any], tokens_per_shard: int
    ) -> bytes:
        code = next(code for code, one in TENSORS.items() if np.dtype(f"<{one}") == dtype)
        config = {
            "chunk_bytes": None,
            "chunk_size": tokens_per_shard,
            "compression": None,
            "data_format": [f"no_header_tensor:{code}"],
            "data_spec": _LEAF,
            "encryption": None,
            "item_loader": "TokensLoader",
        }
        chunks = [
            {
                "chunk_bytes": file.size,
                "chunk_size": file.documents,
                "dim": (file.size - 4 * (file.documents + 2)) // dtype.itemsize,
                "filename": file.name,
            }
            for file in files
        ]
        # `updated_at` is constant: with the real time, two exports of the same data would differ.
        index = {"chunks": chunks, "config": config, "updated_at": "0.0"}
        return orjson.dumps(index, option=orjson.OPT_SORT_KEYS)


def _find_dtype(config: Entry) -> np.dtype[Any]:
    for key in ("compression", "encryption"):
        if config.value.get(key):
            raise DatasetError(
                f"{config.where} uses {key}, which is not supported. Write the chunks again without "
                f"{key}."
            )
    formats = config.get("data_format", list)
    kind, _, code = str(formats[0] if len(formats) == 1 else "").partition(":")
    known = _KINDS.get(kind, {})
    if not re.fullmatch("[0-9]{1,3}", code) or int(code) not in known:
        raise DatasetError(
            f"{config.where} has items of the format {str(formats)[:80]}, which are not tokens. "
            "Write the chunks for litdata's TokensLoader: no_header_tensor or no_header_numpy of "
            "integers."
        )
    return np.dtype("<" + known[int(code)])


def _read_chunks(
    request: OpenRequest, index: Entry, dtype: np.dtype[Any]
) -> tuple[FileShards, list[int]]:
    """Return the chunks that an index lists, and the number of items in each."""
    names, items, places = [], [], []
    for chunk in index.entries("chunks"):
        name, count = chunk.name("filename"), chunk.get("chunk_size", int)
        tokens = chunk.get("dim", int)
        offset = _WORD.itemsize * (count + 2)
        size = offset + tokens * dtype.itemsize
        if size != chunk.get("chunk_bytes", int):
            raise chunk.damaged(
                f"{name} with {count:,} items and {tokens:,} tokens of {dtype.name} must have "
                f"{size:,} bytes, not {chunk.value['chunk_bytes']:,}"
            )
        names.append(name)
        items.append(count)
        places.append((tokens, offset, size))
    if sum(size for *_, size in places) >= _MOST_BYTES:
        raise index.damaged(f"its chunks have over {_MOST_BYTES:,} bytes")
    counts, offsets, sizes = np.array(places, np.int64).reshape(-1, 3).T.copy()
    shards = FileShards(
        folder=request.path.absolute(),
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
    """Check that the first item starts after the header, and that the last ends with the file."""
    size = file.seek(0, 2)
    file.seek(0)
    count = int.from_bytes(file.read(4), "little")
    first = int.from_bytes(file.read(4), "little")
    file.seek(4 * (count + 1))
    last = int.from_bytes(file.read(4), "little")
    if first != 4 * (count + 2) or last != size:
        raise DamagedFileError(
            name,
            f"has {size:,} bytes, but its header says that it has {count:,} items from byte "
            f"{first:,} to {last:,}",
            FOREIGN_CURE,
        )


def _read_starts(shards: FileShards, counts: list[int], number: int) -> DocumentStarts:
    name, count, width = shards.name(number), counts[number], shards.dtype.itemsize
    with open_foreign(shards.folder, name) as file:
        check_size(file, name, int(shards.sizes[number]), foreign=True)
        found = int.from_bytes(file.read(4), "little")
        if found != count:
            what = f"has {found:,} items, expected {count:,} according to the index"
            raise DamagedFileError(name, what, FOREIGN_CURE)
        offsets = map_file(file, name, _WORD, count + 1, _WORD.itemsize)

    def find(numbers: Integers) -> Integers:
        places = offsets[numbers].astype(np.int64) - _WORD.itemsize * (count + 2)
        if (places % width).any():
            raise DamagedFileError(
                name, "has an item that starts in the middle of an id", FOREIGN_CURE
            )
        return places // width

    return DocumentStarts(count, find)
