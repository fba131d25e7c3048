"""Read an object in an object store like a file.

If the object is replaced after it was opened, the next read raises an OSError. Reading in order
fetches larger and larger blocks, and fetches the next block in the background. Other reads fetch
little more than they need. At most two blocks are in memory.
"""

from __future__ import annotations

import io
import os
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.storage.interface import Entry, Storage
from tokenmill.storage.object_store import LONGEST, start_request

_LEAST = 64 << 10  # bytes of the first block


class ObjectFile(io.RawIOBase):
    """An object that is open for reading. `name` is its path, `version` the version that is read."""

    def __init__(self, path: Path, storage: Storage, entry: Entry) -> None:
        super().__init__()
        self.name = path
        self.size, self.version = entry.size, entry.version
        self._storage, self._entry = storage, entry
        self._place = 0
        self._start, self._block = 0, b""  # where the current block starts, and its bytes
        self._next: Future[bytes] | None = None  # the block after the current one

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        self._place = place + (0, self._place, self.size)[whence]
        return self._place

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        """Return the next `size` bytes; fewer only at the end of the object."""
        stop = self.size
        if size is not None and size >= 0:
            stop = min(self._place + size, stop)
        pieces = []
        while self._place < stop:
            offset = self._place - self._start
            if not 0 <= offset < len(self._block):
                self._fetch(stop - self._place)
                continue
            piece = self._block[offset : offset + stop - self._place]
            self._place += len(piece)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def peek(self, size: int = 0) -> bytes:  # noqa: ARG002  makes `readline` fast
        """Return the next bytes without moving the position: the rest of the block in memory."""
        if self._place >= self.size:
            return b""
        offset = self._place - self._start
        if not 0 <= offset < len(self._block):
            self._fetch(_LEAST)
            offset = 0
        return self._block[offset:]

    def readall(self) -> bytes:
        return self.read()

    def read_ranges(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of ranges [start, stop), with few requests. Leaves the position as it is."""
        return list(self._storage.read_ranges(self._entry.name, ranges, self._entry.version))

    def read_array(self, dtype: np.dtype[Any], count: int, offset: int) -> npt.NDArray[Any]:
        """Return `count` elements from byte `offset` on, as an array."""
        stop = offset + count * dtype.itemsize
        if stop > self.size:
            raise ValueError(f"the object has {self.size:,} bytes, expected {stop:,}")
        cuts = [*range(offset, stop, LONGEST), stop]
        data = b"".join(self.read_ranges(list(pairwise(cuts))))
        return np.frombuffer(data, dtype, count)

    def _fetch(self, wanted: int) -> None:
        """Replace the current block with a block that starts at the current position."""
        end = self._start + len(self._block)
        if self._block and self._place == end:  # reading in order
            length = min(2 * len(self._block), LONGEST)
            block = self._next.result() if self._next is not None else None
            self._next = None
            if block is None:
                block = self._read(end, max(length, min(wanted, LONGEST)))
            self._start, self._block = end, block
            after = end + len(block)
            if after < self.size:
                self._next = start_request(self._read, after, min(2 * len(block), LONGEST))
        else:
            self._next = None
            length = max(_LEAST, min(wanted, LONGEST))
            self._start, self._block = self._place, self._read(self._place, length)

    def _read(self, start: int, length: int) -> bytes:
        (data,) = self.read_ranges([(start, min(start + length, self.size))])
        return data

    def close(self) -> None:
        self._block, self._next = b"", None
        super().close()
