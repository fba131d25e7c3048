"""Read compressed files as streams: gzip, zstd, bz2 and xz.

A stream is read to its trailer. A truncated or altered stream raises one of the errors in
`DAMAGED`; it never just ends early. A file may hold several streams in a row, with zeros between
and after them (tapes and block devices pad that way). Anything else after a stream is damage.
Memory holds the window of one stream, up to the caller's limit: zstd and xz files can ask for
gigabytes.
"""

from __future__ import annotations

import bz2
import lzma
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol, cast

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

DAMAGED = (OSError, EOFError, lzma.LZMAError, zlib.error, zstd.ZstdError)
USUAL_WINDOW = 1 << 27  # the largest that zstd uses without --long
LARGEST_WINDOW = (1 << 32) + (1 << 24)  # for xz, including the overhead of its decoder
_LARGEST_ZSTD = 31  # --long=31, as a power of 2
_XZ_HEADERS = 2048  # bytes for the headers of a stream and of its first block
_COMPRESSED = 1 << 18  # bytes per call of a decompressor
_ZSTD = b"\x28\xb5\x2f\xfd"
_LONGEST_HEADER = 18  # of a zstd frame


class Stream(Protocol):
    """Anything with a `read` method."""

    def read(self, size: int, /) -> bytes:
        """Read at most `size` bytes. Returns no bytes at the end."""


class WindowError(Exception):
    """A valid stream needs a window of `window` bytes, which is more than allowed."""

    def __init__(self, window: int) -> None:
        super().__init__(f"a window of {window:,} bytes")
        self.window = window


def decompress(raw: BinaryIO, compression: str, *, window: int = USUAL_WINDOW) -> Stream:
    """Return a stream that decompresses an open file as it is read.

    `window` limits, in bytes, the memory of a zstd or xz stream.

    >>> import gzip, io
    >>> decompress(io.BytesIO(gzip.compress(b"text") + bytes(512)), "gzip").read(100)
    b'text'
    """
    start: dict[str, Callable[[], Any]] = {
        "gzip": _Gzip,
        "zstd": lambda: _Zstd(window),
        "bz2": bz2.BZ2Decompressor,
        "xz": lambda: _Xz(window),
    }
    return _Members(raw, start[compression])


class _Members:
    """Decompresses a file that holds one or more compressed streams in a row.

    Python's own readers are not used: they can mistake a damaged second stream for the end of the
    file.
    """

    def __init__(self, raw: BinaryIO, start: Callable[[], Any]) -> None:
        self._raw = raw
        self._start = start
        self._decompressor = start()

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes. Returns no bytes at the end of the last stream."""
        blocks: list[bytes] = []
        while size and (block := self._read(size)):
            blocks.append(block)
            size -= len(block)
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def _read(self, size: int) -> bytes:
        while True:
            if self._decompressor.eof:
                more = self._decompressor.unused_data.lstrip(b"\0")
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


class _Gzip:
    """Decompresses one gzip stream, with the interface of Python's other decompressors."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)

    def decompress(self, data: bytes, size: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail or data, size)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


class _Limited(ABC):
    """A decompressor with a limit on memory.

    Keeps the first bytes of the stream: if the limit is too low, they show how much memory is needed.
    """

    _longest_head: int
    _inner: zstd.ZstdDecompressor | lzma.LZMADecompressor

    def __init__(self) -> None:
        self._head = b""

    def decompress(self, data: bytes, size: int) -> bytes:
        if len(self._head) < self._longest_head:
            self._head = (self._head + data)[: self._longest_head]
        try:
            return self._inner.decompress(data, size)
        except (zstd.ZstdError, lzma.LZMAError) as error:
            if needed := self._find_needed(error):
                raise WindowError(needed) from None
            raise

    @abstractmethod
    def _find_needed(self, error: Exception) -> int | None:
        """Return how much memory is enough, or None if the limit is not the cause of `error`."""

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return self._inner.needs_input

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


class _Zstd(_Limited):
    """Decompresses one zstd frame. Raises WindowError if the frame's window is too large."""

    _longest_head = _LONGEST_HEADER

    def __init__(self, window: int) -> None:
        super().__init__()
        self._limit = min(_LARGEST_ZSTD, window.bit_length() - 1)
        option = zstd.DecompressionParameter.window_log_max
        self._inner = zstd.ZstdDecompressor(options={option: self._limit})

    def _find_needed(self, error: Exception) -> int | None:  # noqa: ARG002
        window = _find_window(self._head)
        return window if 1 << self._limit < window <= 1 << _LARGEST_ZSTD else None


class _Xz(_Limited):
    """Decompresses one xz stream. Raises WindowError if it needs more memory than allowed.

    The older format LZMA is refused: it has no checksum, and a file of zeros would be a valid empty
    file.
    """

    _longest_head = _XZ_HEADERS

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._inner = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=limit)

    def _find_needed(self, error: Exception) -> int | None:
        return _find_xz_memory(self._head, self._limit) if _needs_memory(error) else None


def _needs_memory(error: Exception) -> bool:
    return "Memory usage limit" in str(error)


def _find_xz_memory(head: bytes, limit: int) -> int:
    """Return how much memory is enough for a stream with these first bytes.

    Doubles the limit until the stream can be read. So the result is at most twice what is needed.
    """
    while (limit := 2 * limit) < LARGEST_WINDOW:
        try:
            lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=limit).decompress(head, 1)
            return limit
        except lzma.LZMAError as error:
            if not _needs_memory(error):
                break
        except MemoryError:
            break
    return LARGEST_WINDOW


def _find_window(header: bytes) -> int:
    """Return the window in bytes that a zstd frame asks for (RFC 8878, 3.1.1.1).

    Returns 0 if `header` is not the header of a zstd frame.
    """
    if len(header) < 6 or not header.startswith(_ZSTD):
        return 0
    descriptor = header[4]
    if not descriptor & 0x20:
        base = 1 << (10 + (header[5] >> 3))
        return base + base // 8 * (header[5] & 7)
    # In a single-segment frame, the window is as large as the content.
    start = 5 + (0, 1, 2, 4)[descriptor & 3]
    width = 1 << (descriptor >> 6)
    return int.from_bytes(header[start : start + width], "little") + (256 if width == 2 else 0)
