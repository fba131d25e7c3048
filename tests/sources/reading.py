"""Shared by the tests of sources: read a file, and collect what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenmill.sources.files import SourceFile
from tokenmill.sources.read import Reading, read_range
from tokenmill.sources.records import Chunk

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}


def source_of(
    path: Path, *, kind: str = "text", compression: str | None = None, size: int = 10
) -> SourceFile:
    return SourceFile(path=str(path), kind=kind, compression=compression, size=size, modified=0)


def read(path: Path, *, groups: tuple[int, int] | None = None, **how: Any) -> list[Chunk]:
    """The chunks of a whole file, or of some row groups."""
    compression = COMPRESSIONS.get(path.suffix)
    inner = path.with_suffix("").suffix if compression else path.suffix
    kind = {".jsonl": "jsonl", ".parquet": "parquet"}.get(inner, "text")
    size = path.stat().st_size
    source = source_of(path, kind=kind, compression=compression, size=size)
    if "cutter" in how:
        how["border_cutter"] = how["cutter"]
    how = {"separator": b"<|endoftext|>", "step": 1 << 20, **how}
    return list(read_range(source, *(groups or (0, size)), Reading(**how)))


def texts_of(chunks: list[Chunk]) -> list[bytes]:
    return [text for chunk in chunks for text in chunk.texts]


def offsets_of(chunks: list[Chunk]) -> list[int]:
    return [offset for chunk in chunks for offset in chunk.offsets]


def rejections_of(chunks: list[Chunk]) -> list[tuple[int | None, int, str]]:
    found, lines = [], 0
    for chunk in chunks:
        for rejection in chunk.rejections:
            line = None if rejection.line is None else lines + rejection.line
            found.append((line, rejection.offset, rejection.kind))
        lines += chunk.lines
    return found
