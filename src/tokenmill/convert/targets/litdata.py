"""LitData's chunks, for its `TokensLoader`: a folder a split, with `index.json`; an item a document.

Ids are tensors of uint16 or int32. No document crosses chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import orjson

import tokenmill.store.dataset
from tokenmill.convert.borders import SpilledStarts, cut_between
from tokenmill.convert.targets.protocol import Advance, FileJob, TokenRange, choose_dtype
from tokenmill.errors import DatasetError
from tokenmill.store.dataset import Dataset
from tokenmill.store.formats import litdata
from tokenmill.store.formats.json_index import INDEX
from tokenmill.store.manifest import write_atomically
from tokenmill.store.tokens import Tokens
from tokenmill.store.writer import AtomicFile

__all__ = ["LitData", "check_offsets"]

# How LitData describes an item that is one leaf and no tree.
_LEAF = '[1, {"type": null, "context": null, "children_spec": []}]'


class LitData:
    """Chunks of at least `tokens_per_shard` tokens."""

    keeps_documents = True

    def plan(self, dataset: Dataset, splits: list[str], tokens_per_shard: int) -> Iterator[FileJob]:
        dtype = choose_dtype(dataset)
        if dtype.itemsize == 4:
            dtype = np.dtype("<i4")
        for split in splits:
            tokens, names = dataset[split], []
            for number, (start, stop) in enumerate(cut_between(tokens, tokens_per_shard)):
                part = TokenRange(tokens=tokens, start=start, stop=stop, dtype=dtype)
                names.append(f"chunk-0-{number}.bin")
                yield FileJob(
                    name=f"{split}/{names[-1]}",
                    tokens=len(part),
                    write=partial(_write_chunk, part),
                )
            yield FileJob(
                name=f"{split}/{INDEX}",
                tokens=0,
                write=partial(_write_index, names, dtype, tokens_per_shard),
            )

    def open(self, folder: Path, splits: list[str]) -> dict[str, Tokens]:
        return {
            split: tokenmill.store.dataset.open(folder / split, format="litdata")["train"]
            for split in splits
        }


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


def check_offsets(tokens: Tokens, size: int) -> None:
    """Refuse a file whose places do not fit in 32 bits."""
    if size >= 1 << 32:
        raise DatasetError(
            f"a file of split {tokens.split!r} would have {size:,} bytes, and the format has places "
            "below 2**32. Give fewer --tokens-per-shard; a single document cannot be cut."
        )


def _write_index(
    names: list[str], dtype: np.dtype[np.generic], tokens_per_shard: int, path: Path, _: Advance
) -> None:
    """The index, from the chunks as they are on disk."""
    chunks = []
    for name in names:
        with (path.parent / name).open("rb") as file:
            count = int.from_bytes(file.read(4), "little")
            size = file.seek(0, 2)
        chunks.append(
            {
                "chunk_bytes": size,
                "chunk_size": count,
                "dim": (size - 4 * (count + 2)) // dtype.itemsize,
                "filename": name,
            }
        )
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
    # A time would make two equal exports differ.
    told = {"chunks": chunks, "config": config, "updated_at": "0.0"}
    write_atomically(path, orjson.dumps(told, option=orjson.OPT_SORT_KEYS))
