"""What the tests of sources share: a whole file read, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenmill.sources.read import read_piece
from tokenmill.sources.records import Chunk, Cutter


@dataclass
class Origin:
    path: str
    kind: str
    compression: str | None
    size: int


COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}


def read(
    path: Path,
    *,
    text_field: str = "text",
    separator: bytes | None = b"<|endoftext|>",
    cutter: Cutter | None = None,
    groups: tuple[int, int] | None = None,
    window: int = 1 << 27,
) -> list[Chunk]:
    compression = COMPRESSIONS.get(path.suffix)
    inner = path.with_suffix("").suffix if compression else path.suffix
    kind = {".jsonl": "jsonl", ".parquet": "parquet"}.get(inner, "text")
    size = path.stat().st_size
    start, end = groups or (0, size)
    return list(
        read_piece(
            Origin(str(path), kind, compression, size),
            start,
            end,
            1 << 20,
            separator=separator,
            text_field=text_field,
            cutter=cutter,
            border_cutter=cutter,
            window=window,
        )
    )


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
