"""A bounded cache of pieces of remote files, on local disk, shared by all processes of a machine.

The cache is two files of fixed layout: `pieces.bin`, a row of equal slots with one piece each, and
`index.bin`, a record for each slot: the key of the piece, a hash of key and bytes, and when the piece
was last used. The key chooses a set of `WAYS` slots, and a new piece replaces the least recently used
one of its set.

Guarantees: the files never take more than the limit, because no slot is beyond it; no number of
processes can change that. A piece is hashed whenever it is read, so one that was damaged, half
written by a killed process, or replaced while it was read counts as missing. Nothing has to be
cleaned up: there are no temporary files, and the system releases the claims of a dead process. The
cache survives restarts and a change of the limit; what is beyond a lower limit is dropped.

Costs: a lookup reads 4 kB of the index (10 µs). Reading a piece hashes it (20 µs). The limit is
reached set by set: a cache that is 90% full may have dropped about 1% of its pieces already.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.errors import UsageError
from tokenmill.storage.files import make_folder, open_entry

PIECE = 1 << 17  # bytes
WAYS = 64  # slots of a set
_INDEX = "index.bin"
_RECORD = np.dtype(
    [("key", "V16"), ("digest", "V16"), ("used", "<u8"), ("length", "<u4"), ("spare", "V20")]
)
_SET_RECORDS = WAYS * _RECORD.itemsize
SET_BYTES = WAYS * PIECE + _SET_RECORDS  # the smallest cache
_LIMIT = 16 << 30  # bytes
_SET_PAUSE, _SET_PATIENCE = 0.0002, 0.5  # seconds to wait for a set that another process changes
_HAS_CLAIMS = sys.platform.startswith("linux") and hasattr(fcntl, "F_OFD_SETLK")

Records = npt.NDArray[np.void]


def open_cache(folder: str | os.PathLike[str] | None, limit: int | None) -> PieceCache | None:
    """The cache in a folder, or None if neither folder nor limit is given.

    By default, the folder is `tokenmill` in the user's cache folder, and the limit is the one that
    the cache has, or 17 GB.
    """
    if folder is None and limit is None:
        return None
    where = find_cache_folder(folder)
    if limit is None:
        limit = find_limit(where) or _LIMIT
    return PieceCache(where, limit)


def find_cache_folder(folder: str | os.PathLike[str] | None) -> Path:
    """The folder of a cache; by default, `tokenmill` in the user's cache folder."""
    if folder is None:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "tokenmill"
    return Path(folder).expanduser()


def find_limit(folder: Path) -> int | None:
    """The limit of the cache in a folder, in whole sets; None if there is no cache."""
    try:
        sets = (folder / _INDEX).stat().st_size // _SET_RECORDS
    except (FileNotFoundError, NotADirectoryError):
        return None
    return sets * SET_BYTES or None


def read_keys(folder: Path) -> npt.NDArray[np.uint64]:
    """The first 8 bytes of the keys of all pieces in the cache of a folder, sorted.

    This reads the index only, a 2,000th of the cache. Piece by piece, 8 bytes are enough to count
    what is there.
    """
    try:
        data = (folder / _INDEX).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return np.empty(0, np.uint64)
    size = _RECORD.itemsize
    records = np.frombuffer(data[: len(data) // size * size], _RECORD)
    keys = np.ascontiguousarray(records["key"][records["length"] > 0])
    return np.unique(keys.view("<u8")[::2])


class PieceCache:
    """Pieces of at most `PIECE` bytes by key, in a folder, with at most `limit` bytes on disk.

    >>> import tempfile
    >>> cache = PieceCache(tempfile.mkdtemp(), limit=10 << 20)
    >>> key = make_piece_key("s3://bucket/train.bin", 0)
    >>> cache.get(key), cache.put(key, b"tokens"), cache.get(key)
    (None, None, b'tokens')
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int) -> None:
        self.folder, self.limit = Path(folder), limit
        self._sets = limit // SET_BYTES
        if self._sets < 1:
            raise UsageError(
                f"`cache_bytes` is {limit:,}; a cache needs at least {SET_BYTES:,} bytes."
            )
        make_folder(self.folder)
        self._pieces = self._open("pieces.bin", self._sets * WAYS * PIECE)
        self._index = self._open(_INDEX, self._sets * _SET_RECORDS)
        # So that its size says what the limit is. The bytes that were never written take no space.
        os.ftruncate(self._index, self._sets * _SET_RECORDS)
        self._claims = _Claims(self.folder / "claims")
        self._is_full = False  # whether the disk is full

    def __reduce__(self) -> tuple[Any, ...]:
        return PieceCache, (self.folder, self.limit)

    def __del__(self) -> None:
        for name in ("_pieces", "_index"):
            if hasattr(self, name):
                os.close(getattr(self, name))

    @property
    def capacity(self) -> int:
        """The bytes of pieces that fit."""
        return self._sets * WAYS * PIECE

    def get(self, key: bytes) -> bytes | None:
        """The bytes of a piece, or None if it is not in the cache, or damaged."""
        number = self._find_set(key)
        records = self._read_records(number)
        for way in _find_ways(records, key):
            slot, record = number * WAYS + way, records[way]
            data = os.pread(self._pieces, min(int(record["length"]), PIECE), slot * PIECE)
            if _digest(key, data) == record["digest"].tobytes():
                self._touch(slot)
                return data
        return None

    def has(self, key: bytes) -> bool:
        """Whether a piece is in the cache; does not read it, so it may be damaged."""
        return bool(_find_ways(self._read_records(self._find_set(key)), key))

    def put(self, key: bytes, data: bytes) -> None:
        """Store a piece. If the disk is full, a warning is issued and nothing is stored."""
        assert len(data) <= PIECE
        record = np.zeros(1, _RECORD)
        record["key"], record["digest"] = np.void(key), np.void(_digest(key, data))
        record["used"], record["length"] = time.time_ns(), len(data)
        try:
            # The record first: then no other process chooses the slot. Until the bytes are written,
            # the digest does not match.
            slot = self._choose_slot(key, record.tobytes())
            _write(self._pieces, data, slot * PIECE)
        except OSError as error:
            self._warn(error)

    def _choose_slot(self, key: bytes, record: bytes) -> int:
        """Choose the slot for a piece, and write its record."""
        number = self._find_set(key)
        deadline = time.monotonic() + _SET_PATIENCE
        while True:
            # Two processes that chose the same slot would lose one of the pieces, no more than that.
            with self.claim((number << 2).to_bytes(8, "little")) as is_claimed:
                if is_claimed or time.monotonic() > deadline:
                    records = self._read_records(number)
                    ways = _find_ways(records, key)
                    way = ways[0] if ways else int(records["used"].argmin())
                    slot = number * WAYS + way
                    _write(self._index, record, slot * _RECORD.itemsize)
                    return slot
            time.sleep(_SET_PAUSE)

    @contextmanager
    def claim(self, key: bytes) -> Iterator[bool]:
        """Claim a piece in order to fetch it: False if a thread or a process has claimed it."""
        claims = self._claims
        if claims.process != os.getpid():  # a fork would share the claims of its parent
            claims = self._claims = _Claims(self.folder / "claims")
        is_claimed = claims.take(key)
        try:
            yield is_claimed
        finally:
            if is_claimed:
                claims.release(key)

    def _open(self, name: str, size: int) -> int:
        handle = open_entry(self.folder / name)
        if os.fstat(handle).st_size > size:
            os.ftruncate(handle, size)
        return handle

    def _find_set(self, key: bytes) -> int:
        return _choose_set(int.from_bytes(key[:8], "little"), self._sets)

    def _read_records(self, number: int) -> Records:
        """The records of a set."""
        data = os.pread(self._index, _SET_RECORDS, number * _SET_RECORDS)
        return np.frombuffer(data.ljust(_SET_RECORDS, b"\0"), _RECORD)

    def _touch(self, slot: int) -> None:
        """Record that a piece was used. If it has just been replaced, the new one counts as used."""
        place = slot * _RECORD.itemsize + 32
        try:
            _write(self._index, time.time_ns().to_bytes(8, "little"), place)
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._is_full:
            self._is_full = True
            warnings.warn(
                f"The cache in {self.folder} cannot be written ({error.strerror}). Reading continues "
                "without it, but slowly. Free some space, or choose another `cache_dir`.",
                stacklevel=2,
            )


class _Claims:
    """Claims on keys, held by threads of this and other processes.

    A claim is a lock on one byte of an empty file, at an offset made from the key. The system
    releases the locks of a process that ends. Without such locks (they are Linux's), two processes
    may fetch the same piece; that costs time only.
    """

    def __init__(self, path: Path) -> None:
        self.process, self._handle = os.getpid(), open_entry(path)
        self._own: set[bytes] = set()  # locks do not exclude threads of one process
        self._guard = threading.Lock()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    def take(self, key: bytes) -> bool:
        with self._guard:
            if key in self._own or not self._lock(key, fcntl.F_WRLCK):
                return False
            self._own.add(key)
            return True

    def release(self, key: bytes) -> None:
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


def make_piece_key(file: str, number: int) -> bytes:
    """The key of a piece. `file` identifies the file and its version."""
    return xxhash.xxh3_128_digest(f"{file}\n{number}".encode("utf-8", "surrogatepass"))


def _digest(key: bytes, data: bytes) -> bytes:
    digest = xxhash.xxh3_128(key)
    digest.update(data)
    return digest.digest()


def _find_ways(records: Records, key: bytes) -> list[int]:
    return np.flatnonzero(records["key"] == np.void(key)).tolist()


def _choose_set(number: int, sets: int) -> int:
    """Jump consistent hashing (Lamping and Veach): a cache that grows keeps most of its pieces."""
    chosen, following = -1, 0
    while following < sets:
        chosen = following
        number = (number * 2862933555777941757 + 1) % (1 << 64)
        following = ((chosen + 1) << 31) // ((number >> 33) + 1)
    return chosen


def _write(handle: int, data: bytes, place: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(handle, view, place)
        view, place = view[count:], place + count
