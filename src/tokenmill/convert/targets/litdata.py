"""LitData's chunks, for its `TokensLoader`: a folder a split, with `index.json`; an item a document.

Ids are tensors of uint16 or int32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tokenmill.convert.borders import SpilledStarts
from tokenmill.convert.targets.indexed import IndexedFolders, Written, check_offsets
from tokenmill.convert.targets.protocol import Advance, TokenRange
from tokenmill.formats import litdata
from tokenmill.storage.files import AtomicFile

# How LitData describes an item that is one leaf and no tree.
_LEAF = '[1, {"type": null, "context": null, "children_spec": []}]'


def _write_chunk(part: TokenRange, path: Path, advance: Advance) -> None:
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


def _make_index(files: list[Written], dtype: np.dtype[Any], tokens_per_shard: int) -> bytes:
    code = next(code for code, one in litdata.TENSORS.items() if np.dtype(f"<{one}") == dtype)
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
    # A time would make two equal exports differ.
    told = {"chunks": chunks, "config": config, "updated_at": "0.0"}
    return orjson.dumps(told, option=orjson.OPT_SORT_KEYS)


LITDATA = IndexedFolders(
    format="litdata",
    name="chunk-0-{}.bin",
    wide="<i4",
    write=_write_chunk,
    index=_make_index,
    keeps_empty=True,
)
