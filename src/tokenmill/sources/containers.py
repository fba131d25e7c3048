"""Join the records of many small texts in one file, such as the members of an archive.

Each chunk costs time, however little it has. So small chunks are joined, up to a megabyte. Lines are
not counted, because a container has none: the position of a record is its offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tokenmill.sources.records import MOST_RECORDS, Chunk, Rejection

_ENOUGH = 1 << 20  # bytes


class Joiner:
    """Joins chunks and rejections. Take the result of every call, and at the end of `flush`."""

    def __init__(self) -> None:
        self._joined = Chunk([], [])
        self._size = 0

    def reject(self, offset: int, size: int, kind: str, reason: str) -> Iterator[Chunk]:
        """Add a record that is not read. Without a `reason`, it is counted, but not listed."""
        self._joined.rejections.append(Rejection(None, offset, kind, reason, size))
        if len(self._joined.rejections) >= MOST_RECORDS:
            yield from self.flush()

    def add(self, chunk: Chunk) -> Iterator[Chunk]:
        """Add a chunk."""
        rejections = [replace(one, line=None) for one in chunk.rejections]
        size = sum(map(len, chunk.texts))
        if chunk.continues or chunk.unfinished or size > _ENOUGH:
            yield from self.flush()
            chunk.rejections, chunk.lines, chunk.whole = rejections, 0, b""
            yield chunk
            return
        joined = self._joined
        joined.texts += chunk.texts
        joined.offsets += chunk.offsets
        joined.rejections += rejections
        joined.bad_bytes.update(chunk.bad_bytes)
        self._size += size
        if self._size > _ENOUGH or len(joined.texts) >= MOST_RECORDS:
            yield from self.flush()

    def flush(self) -> Iterator[Chunk]:
        """Yield what is held back."""
        if self._joined.texts or self._joined.rejections:
            yield self._joined
        self._joined, self._size = Chunk([], []), 0
