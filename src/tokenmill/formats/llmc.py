"""llm.c's shards, which modded-nanogpt and the FineWeb token files on the Hub share.

A header of 256 int32 (magic number, version, number of tokens), then ids. The end-of-text id is
before each document, and documents cross shards. The header implies a vocabulary but names no
tokenizer: a file with the first magic number is assumed to be GPT-2's.

The shards of a folder are assigned to splits by their names (`val`); if no name says `val`, the last
shard is held out. Files that the user named are split only by their names. Checked at opening: all
sizes, and the headers of the first and last shard. Checked when a shard is first used: its header.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tokenmill.errors import DatasetError
from tokenmill.formats.folder import check_gaps, list_shards, split_by_name
from tokenmill.formats.protocol import Asked, Contents, NotThisFormat
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError, open_foreign
from tokenmill.store.shards import FileShards

NAME = "llmc"
HEADER = 1024


@dataclass(frozen=True, kw_only=True)
class Kind:
    version: int
    dtype: np.dtype[Any]
    vocab_size: int
    eot_id: int
    tokenizer: str | None


_KINDS = {
    20240520: Kind(
        version=1, dtype=np.dtype("<u2"), vocab_size=50257, eot_id=50256, tokenizer="gpt2"
    ),
    20240801: Kind(
        version=7, dtype=np.dtype("<u4"), vocab_size=128256, eot_id=128000, tokenizer=None
    ),
}


def read(asked: Asked) -> Contents:
    """What one shard or a folder of shards holds."""
    files = asked.files if asked.is_folder else {asked.path.name: asked.path.stat().st_size}
    names = list_shards(asked, ".bin") if asked.is_folder else [asked.path.name]
    if not names:
        raise NotThisFormat("it has no .bin files")
    kind = _recognize(asked, names[0])
    asked.agree(kind.dtype, names[0])
    splits = {"train": names}
    if asked.is_folder:
        splits = {split: some for split, some in split_by_name(names).items() if some}
        for some in splits.values():
            check_gaps(asked, some)
    alone = asked.val_fraction is None and "val" not in splits
    if asked.is_folder and not asked.chosen and alone and len(splits["train"]) > 1:
        splits = {**splits, "train": splits["train"][:-1], "val": splits["train"][-1:]}
    contents = Contents(
        splits={split: _shards(asked, some, files, kind) for split, some in splits.items()},
        eot_id=kind.eot_id,
        eot="before",
        vocab_size=kind.vocab_size,
        tokenizer=kind.tokenizer,
    )
    for name in {names[0], names[-1]}:
        with open_foreign(asked.folder, name) as file:
            check_header(file, name, kind.version)
    return contents


def find_kind(dtype: np.dtype[Any]) -> Kind:
    """The kind of shard that readers expect for ids of this dtype."""
    return next(kind for kind in _KINDS.values() if kind.dtype == dtype)


def begins_like_shard(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a shard with a header."""
    magic, version = _unpack(head)
    return magic in _KINDS and version == _KINDS[magic].version


def check_file(path: Path) -> None:
    """Refuse a shard whose header does not fit its size. Files without a header are not checked."""
    with path.open("rb") as file:
        magic, version = _unpack(file.read(8))
        if magic in _KINDS:
            check_header(file, path.name, version)


def _unpack(head: bytes) -> tuple[int, int]:
    """The magic number and the version."""
    return struct.unpack("<ii", head[:8]) if len(head) >= 8 else (0, 0)


def _recognize(asked: Asked, name: str) -> Kind:
    magic, version = _unpack(asked.read_head(name))
    if magic not in _KINDS:
        raise NotThisFormat(f"{name} does not begin with its magic number")
    kind = _KINDS[magic]
    if version != kind.version:
        raise DatasetError(
            f"{name} has the magic number {magic} of llm.c with version {version}, and only version "
            f"{kind.version} is known. If it is ids and nothing else, open it as the format raw."
        )
    return kind


def _shards(asked: Asked, names: list[str], files: Mapping[str, int], kind: Kind) -> FileShards:
    sizes = np.fromiter(map(files.__getitem__, names), np.int64, len(names))
    counts, rest = np.divmod(sizes - HEADER, kind.dtype.itemsize)
    wrong = (counts < 1) | (rest != 0)
    if wrong.any():
        number = int(wrong.argmax())
        raise DamagedFileError(
            names[number],
            f"has {sizes[number]:,} bytes, and a shard has {HEADER:,} and then "
            f"{kind.dtype.itemsize} for each token, of which there is at least one",
            FOREIGN_CURE,
        )
    return FileShards(
        folder=asked.folder.absolute(),
        names=names,
        dtype=kind.dtype,
        counts=counts,
        offsets=np.full_like(counts, HEADER),
        sizes=sizes,
        check=partial(check_header, version=kind.version),
        foreign=True,
    )


def check_header(file: BinaryIO, name: str, version: int) -> None:
    """Refuse a shard whose header does not fit its size, or is not of this version."""
    file.seek(0)
    head = file.read(12)
    magic, said, count = struct.unpack("<iii", head) if len(head) == 12 else (0, 0, 0)
    kind = _KINDS.get(magic)
    if kind is None or said != kind.version or said != version:
        raise DamagedFileError(
            name,
            f"does not begin with the header of its fellows (magic number {magic}, version {said})",
            "Remove it from the folder, or fetch it again.",
        )
    expected = HEADER + count * kind.dtype.itemsize
    if (size := os.fstat(file.fileno()).st_size) != expected:
        raise DamagedFileError(
            name,
            f"has {size:,} bytes, and its header says {count:,} tokens, which take {expected:,}",
            FOREIGN_CURE,
        )
