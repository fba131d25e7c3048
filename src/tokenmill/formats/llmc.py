"""llm.c's shards, also used by modded-nanogpt and the FineWeb token files on the Hub.

A shard is a header of 256 int32 (magic number, version, number of tokens), then ids. The
end-of-text id is before each document, and documents cross shards. The header does not name a
tokenizer. The magic number 20240520 is taken to mean the tokenizer of GPT-2. The magic number
20240801 is taken to mean Llama 3's vocabulary size and end-of-text id; its tokenizer stays unknown.

The shards of a folder are assigned to splits by words in their names, such as `val`. If no name
says `val`, the last shard becomes `val`, unless the user named the files or passed `val_fraction`.
Checked at opening: all sizes, and the headers of the first and last shard. Checked when a shard is
first used: its header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tokenmill.errors import DatasetError, UsageError
from tokenmill.formats.base import Contents, Format, NotThisFormat, OpenRequest
from tokenmill.formats.shard_names import list_shards, split_shards
from tokenmill.formats.writing import FileJob, WriteRequest
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError, measure_file, open_foreign
from tokenmill.store.shards import FileShards

_HEADER = 1024


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of shard, identified by the magic number in the header."""

    magic: int
    version: int
    dtype: np.dtype[Any]
    vocab_size: int
    eot_id: int
    tokenizer: str | None


_GPT2 = Kind(
    magic=20240520,
    version=1,
    dtype=np.dtype("<u2"),
    vocab_size=50257,
    eot_id=50256,
    tokenizer="gpt2",
)
_LLAMA3 = Kind(
    magic=20240801,
    version=7,
    dtype=np.dtype("<u4"),
    vocab_size=128256,
    eot_id=128000,
    tokenizer=None,
)
_KINDS = {kind.magic: kind for kind in (_GPT2, _LLAMA3)}


class Llmc(Format):
    """Reads and writes llm.c's shards: one shard, or a folder of shards."""

    name = "llmc"
    aliases = ("llm.c",)
    eot = "before"

    def read(self, request: OpenRequest) -> Contents:
        names = list_shards(request, ".bin") if request.is_folder else [request.path.name]
        if not names:
            raise NotThisFormat("it has no .bin files")
        kind = _recognize(request, names[0])
        request.check_dtype(kind.dtype, names[0])
        splits = split_shards(request, names)
        alone = request.val_fraction is None and "val" not in splits
        if request.is_folder and not request.chosen and alone and len(splits["train"]) > 1:
            splits = {**splits, "train": splits["train"][:-1], "val": splits["train"][-1:]}
        contents = Contents(
            splits={split: _make_shards(request, some, kind) for split, some in splits.items()},
            eot_id=kind.eot_id,
            eot="before",
            vocab_size=kind.vocab_size,
            tokenizer=kind.tokenizer,
        )
        for name in {names[0], names[-1]}:
            with open_foreign(request.folder, name) as file:
                check_header(file, name, kind.version)
        return contents

    def plan(self, request: WriteRequest) -> Iterator[FileJob]:
        if request.tokens_per_shard >= 1 << 31:
            raise UsageError(
                f"`tokens_per_shard` is {request.tokens_per_shard:,}; for the format llmc, it must be "
                "below 2**31."
            )
        kind = _find_kind(request.choose_dtype())
        for split in request.splits:
            for number, part in enumerate(request.cut_into_shards(split, kind.dtype)):
                header = struct.pack("<3i", kind.magic, kind.version, len(part))
                yield FileJob(
                    name=f"tokens_{split}_{number:06}.bin",
                    tokens=len(part),
                    write=partial(part.write, header=header.ljust(_HEADER, b"\0")),
                )

    def find_assumed_eot(self, request: WriteRequest) -> int:
        return _find_kind(request.choose_dtype()).eot_id


def _find_kind(dtype: np.dtype[Any]) -> Kind:
    """Return the kind of shard with ids of this dtype."""
    return next(kind for kind in _KINDS.values() if kind.dtype == dtype)


def has_header(head: bytes) -> bool:
    """Return whether a file that begins with `head` is a shard with a header."""
    magic, version = _unpack(head)
    return magic in _KINDS and version == _KINDS[magic].version


def check_file(path: Path) -> None:
    """Raise an error if a file has a header and the header does not match the file's size."""
    with path.open("rb") as file:
        magic, version = _unpack(file.read(8))
        if magic in _KINDS:
            check_header(file, path.name, version)


def check_header(file: BinaryIO, name: str, version: int) -> None:
    """Raise an error if a shard has another `version`, or another size than its header says."""
    file.seek(0)
    head = file.read(12)
    magic, found, count = struct.unpack("<iii", head) if len(head) == 12 else (0, 0, 0)
    kind = _KINDS.get(magic)
    if kind is None or found != kind.version or found != version:
        raise DamagedFileError(
            name,
            f"has magic number {magic} and version {found}, unlike the header of the other shards",
            "Remove this file from the folder, or download it again.",
        )
    expected = _HEADER + count * kind.dtype.itemsize
    if (size := measure_file(file)) != expected:
        raise DamagedFileError(
            name,
            f"has {size:,} bytes, expected {expected:,} according to its header of {count:,} tokens",
            FOREIGN_CURE,
        )


def _unpack(head: bytes) -> tuple[int, int]:
    """Return the magic number and the version in a header."""
    return struct.unpack("<ii", head[:8]) if len(head) >= 8 else (0, 0)


def _recognize(request: OpenRequest, name: str) -> Kind:
    magic, version = _unpack(request.read_head(name))
    if magic not in _KINDS:
        raise NotThisFormat(f"{name} does not start with llm.c's magic number")
    kind = _KINDS[magic]
    if version != kind.version:
        raise DatasetError(
            f"{name} has llm.c's magic number {magic} with version {version}; only version "
            f"{kind.version} is supported. If the file has only ids, pass `format='raw'`."
        )
    return kind


def _make_shards(request: OpenRequest, names: list[str], kind: Kind) -> FileShards:
    sizes = np.fromiter(map(request.files.__getitem__, names), np.int64, len(names))
    counts, rest = np.divmod(sizes - _HEADER, kind.dtype.itemsize)
    wrong = (counts < 1) | (rest != 0)
    if wrong.any():
        number = int(wrong.argmax())
        raise DamagedFileError(
            names[number],
            f"has {sizes[number]:,} bytes, expected a header of {_HEADER:,} bytes and one or more "
            f"tokens of {kind.dtype.itemsize} bytes",
            FOREIGN_CURE,
        )
    return FileShards(
        folder=request.folder.absolute(),
        names=names,
        dtype=kind.dtype,
        counts=counts,
        offsets=np.full_like(counts, _HEADER),
        sizes=sizes,
        check=partial(check_header, version=kind.version),
        foreign=True,
    )
