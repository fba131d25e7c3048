"""Compressed files as streams of what is in them: gzip, zstd, bz2 and xz.

A stream is read to its trailer: one that is cut short or altered raises OSError, EOFError or
LZMAError, and is never taken for a short one. A file may hold several streams in a row.
"""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol, cast

__all__ = ["Stream", "decompress"]

_COMPRESSED = 1 << 16  # bytes given to a decompressor at once


class Stream(Protocol):
    """What can be read in blocks."""

    def read(self, size: int, /) -> bytes:
        """Some bytes, at most `size`; none at the end."""


def decompress(raw: BinaryIO, compression: str) -> Stream:
    """What is in a file that is open.

    >>> import gzip, io
    >>> decompress(io.BytesIO(gzip.compress(b"text")), "gzip").read(100)
    b'text'
    """
    if compression in ("xz", "bz2"):
        return _Members(raw, lzma.LZMADecompressor if compression == "xz" else bz2.BZ2Decompressor)
    import pyarrow as pa

    # Arrow checks the trailers, and that the last stream in the file is complete.
    stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), compression)
    return cast("Stream", stream)


class _Members:
    """The streams of a bz2 or xz file, one after another.

    Python's own readers take a damaged stream behind the first one for the end of the file; Arrow
    fails where a stream of nothing comes before another.
    """

    def __init__(self, raw: BinaryIO, start: Callable[[], Any]) -> None:
        self._raw = raw
        self._start = start
        self._decompressor = start()

    def read(self, size: int) -> bytes:
        """Some bytes, at most `size`; none at the end of the last stream."""
        while True:
            if self._decompressor.eof:
                more = self._decompressor.unused_data.lstrip(b"\0")  # xz files may be padded
                while not more:
                    if not (data := self._raw.read(_COMPRESSED)):
                        return b""
                    more = data.lstrip(b"\0")
                self._decompressor = self._start()
            elif self._decompressor.needs_input:
                if not (more := self._raw.read(_COMPRESSED)):
                    raise EOFError
            else:
                more = b""
            if block := self._decompressor.decompress(more, size):
                return cast("bytes", block)
