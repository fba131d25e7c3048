"""Claims on keys, so that only one thread of one process on a machine works on a key at a time."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import threading
from pathlib import Path

from tokenmill.storage.files import open_entry

_HAS_CLAIMS = sys.platform.startswith("linux") and hasattr(fcntl, "F_OFD_SETLK")


class Claims:
    """Claims on keys: at most one thread of one process has the claim on a key.

    A claim is a lock on one byte of an empty file, at an offset made from the key. The system
    releases the locks of a process that ends. Only Linux has such locks. On other systems, two
    processes may claim the same key and do the same work, which only costs time.
    """

    def __init__(self, path: Path) -> None:
        self.process, self._handle = os.getpid(), open_entry(path)
        self._own: set[bytes] = set()  # keys claimed by this process, whose threads share its locks
        self._guard = threading.Lock()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    def take(self, key: bytes) -> bool:
        """Claim a key. Return False if another thread or process has the claim."""
        with self._guard:
            if key in self._own or not self._lock(key, fcntl.F_WRLCK):
                return False
            self._own.add(key)
            return True

    def release(self, key: bytes) -> None:
        """Give up the claim on a key."""
        with self._guard:
            self._own.discard(key)
            self._lock(key, fcntl.F_UNLCK)

    def _lock(self, key: bytes, kind: int) -> bool:
        if not _HAS_CLAIMS:
            return True
        offset = int.from_bytes(key[:8], "little") >> 2
        request = struct.pack("hhqqi0q", kind, os.SEEK_SET, offset, 1, 0)
        try:
            fcntl.fcntl(self._handle, fcntl.F_OFD_SETLK, request)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:  # a file system without locks
            return True
        return True
