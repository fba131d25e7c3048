"""Megatron-LM's pairs: `train.bin` and `train.idx`, one sequence a document.

Ids are uint16 for vocabularies below 65,500, as Megatron chooses it, else int32. The starts of
documents are spilled to disk while the index is made, so that memory does not grow with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

import tokenmill.dataset.opening
from tokenmill.convert.borders import SpilledStarts
from tokenmill.convert.targets.protocol import (
    BLOCK,
    Advance,
    FileJob,
    TokenRange,
    choose_dtype,
    take_all,
)
from tokenmill.dataset.opening import Dataset
from tokenmill.errors import DatasetError
from tokenmill.formats import megatron
from tokenmill.storage.files import AtomicFile
from tokenmill.store.tokens import Tokens

_BELOW = 65_500  # of a vocabulary that Megatron itself stores as uint16
_LONGEST = (1 << 31) - 1  # tokens of a sequence


class Megatron:
    """A pair of files a split."""

    keeps_documents = True
    keeps_empty = True
    eot = None

    def plan(
        self, dataset: Dataset, splits: list[str], _tokens_per_shard: int
    ) -> Iterator[FileJob]:
        dtype = choose_dtype(dataset, _BELOW - 1)
        if dtype.itemsize == 4:
            dtype = np.dtype("<i4")
        for split in splits:
            whole = take_all(dataset[split], dtype)
            yield FileJob(name=f"{split}.bin", tokens=len(whole), write=whole.write)
            yield FileJob(name=f"{split}.idx", tokens=0, write=partial(_write_index, whole))

    def open(
        self, folder: Path, splits: list[str], _eot_id: int | None = None
    ) -> dict[str, Tokens]:
        return {
            split: tokenmill.dataset.opening.open(folder / split, format="megatron")["train"]
            for split in splits
        }


def _write_index(whole: TokenRange, path: Path, _: Advance) -> None:
    tokens, dtype = whole.tokens, whole.dtype
    code = next(code for code, name in megatron.CODES.items() if np.dtype(name) == dtype)
    with (
        SpilledStarts(tokens, 0, len(tokens), path.parent) as spilled,
        AtomicFile(path) as file,
    ):
        count = spilled.count
        file.write(megatron.HEADER.pack(megatron.MAGIC, megatron.VERSION, code, count, count + 1))
        for starts in spilled.blocks():
            lengths = np.diff(starts)
            if lengths.max(initial=0) > _LONGEST:
                raise DatasetError(
                    f"a document of split {tokens.split!r} has {lengths.max():,} tokens, and "
                    f"Megatron's index holds at most {_LONGEST:,} in a sequence."
                )
            file.write(lengths.astype("<i4"))
        for starts in spilled.blocks():
            file.write((starts[:-1] * dtype.itemsize).astype("<i8"))
        for low in range(0, count + 1, BLOCK):
            file.write(np.arange(low, min(low + BLOCK, count + 1), dtype="<i8"))
        file.finish()
