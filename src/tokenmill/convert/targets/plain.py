"""Targets that store only ids: llm.c, nanoGPT and NumPy.

They have no table of documents. Readers find documents by the end-of-text id, on the side `eot` of
each.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import orjson

import tokenmill.dataset.opening
from tokenmill.convert.targets.protocol import (
    Advance,
    FileJob,
    TokenRange,
    choose_dtype,
    take_all,
)
from tokenmill.dataset.opening import Dataset
from tokenmill.errors import UsageError
from tokenmill.formats import llmc
from tokenmill.storage.files import AtomicFile, write_file
from tokenmill.store.tokens import Tokens


class Llmc:
    """Shards with llm.c's header: magic number 20240520 for uint16, 20240801 for uint32."""

    keeps_documents = False
    keeps_empty = False
    eot = "before"

    def plan(self, dataset: Dataset, splits: list[str], tokens_per_shard: int) -> Iterator[FileJob]:
        if tokens_per_shard >= 1 << 31:
            raise UsageError(
                f"`tokens_per_shard` is {tokens_per_shard:,}; llm.c's header needs less than 2**31."
            )
        dtype = choose_dtype(dataset)
        for split in splits:
            tokens = dataset[split]
            for number, start in enumerate(range(0, len(tokens), tokens_per_shard)):
                stop = min(start + tokens_per_shard, len(tokens))
                part = TokenRange(tokens=tokens, start=start, stop=stop, dtype=dtype)
                yield FileJob(
                    name=f"tokens_{split}_{number:06}.bin",
                    tokens=len(part),
                    write=partial(_write_llmc, part),
                )

    def open(self, folder: Path, splits: list[str], eot_id: int | None = None) -> dict[str, Tokens]:
        # Where no file is for validation, the last would be held out.
        val_fraction = None if "val" in splits else 0
        opened = tokenmill.dataset.opening.open(
            folder, format="llmc", val_fraction=val_fraction, eot_id=eot_id
        )
        return {split: opened[split] for split in splits}


def _write_llmc(part: TokenRange, path: Path, advance: Advance) -> None:
    magic, version = (20240520, 1) if part.dtype.itemsize == 2 else (20240801, 7)
    with AtomicFile(path) as file:
        file.write(struct.pack("<3i", magic, version, len(part)).ljust(llmc.HEADER, b"\0"))
        part.copy(file, advance)
        file.finish()


class NanoGPT:
    """`train.bin` and `val.bin`, with `meta.json` to tell the dtype, which nanoGPT does not read."""

    keeps_documents = False
    keeps_empty = False
    eot = "after"

    def plan(
        self, dataset: Dataset, splits: list[str], _tokens_per_shard: int
    ) -> Iterator[FileJob]:
        dtype = choose_dtype(dataset)
        known = {"vocab_size": dataset.vocab_size, "eot_id": dataset.eot_id}
        told = orjson.dumps(
            {"dtype": dtype.name} | {key: one for key, one in known.items() if one is not None}
        )
        yield FileJob(
            name="meta.json", tokens=0, write=lambda path, _: write_file(path, told + b"\n")
        )
        for split in splits:
            whole = take_all(dataset[split], dtype)
            yield FileJob(name=f"{split}.bin", tokens=len(whole), write=whole.write)

    def open(self, folder: Path, splits: list[str], eot_id: int | None = None) -> dict[str, Tokens]:
        opened = tokenmill.dataset.opening.open(folder, format="nanogpt", eot_id=eot_id)
        return {split: opened[split] for split in splits}


class Npy:
    """One NumPy file a split."""

    keeps_documents = False
    keeps_empty = False
    eot = "after"

    def plan(
        self, dataset: Dataset, splits: list[str], _tokens_per_shard: int
    ) -> Iterator[FileJob]:
        dtype = choose_dtype(dataset)
        for split in splits:
            whole = take_all(dataset[split], dtype)
            yield FileJob(name=f"{split}.npy", tokens=len(whole), write=partial(_write_npy, whole))

    def open(self, folder: Path, splits: list[str], eot_id: int | None = None) -> dict[str, Tokens]:
        return {
            split: tokenmill.dataset.opening.open(
                folder / f"{split}.npy", format="npy", eot_id=eot_id
            )["train"]
            for split in splits
        }


def _write_npy(whole: TokenRange, path: Path, advance: Advance) -> None:
    """The bytes that `np.save` would write."""
    header = io.BytesIO()
    told = {"descr": whole.dtype.str, "fortran_order": False, "shape": (len(whole),)}
    np.lib.format.write_array_header_1_0(header, told)
    with AtomicFile(path) as file:
        file.write(header.getvalue())
        whole.copy(file, advance)
        file.finish()
