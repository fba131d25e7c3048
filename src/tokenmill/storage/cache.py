"""A bounded cache of pieces of remote files, on local disk, shared by all processes of a machine.

The cache is two files of fixed layout: `pieces.bin`, a row of equal slots with one piece each, and
`index.bin`, a record for each slot: the key of the piece, a hash of key and bytes, and when the piece
was last used. The key chooses a set of `WAYS` slots, and a new piece replaces the least recently used
one of its set. A slot may hold a part of its piece, so that a range of a file is fetched as it is.

Guarantees: the files never take more than the limit, because no slot is beyond it; no number of
processes can change that. A piece is hashed before its bytes are used, so one that was damaged, half
written by a killed process, or replaced while it was read counts as missing. `hold` hashes a piece
once, for many reads of some of its bytes; a new stamp in its record shows that it was replaced.
Nothing has to be cleaned up: there are no temporary files, and the system releases the claims of a
dead process. The cache survives restarts and a change of the limit; what is beyond a lower limit is
dropped.

Costs: a lookup reads 4 kB of the index (5 µs). Reading a piece hashes it (20 µs); reading 2 kB of a
piece that is held takes 2 µs. The limit is reached set by set: a cache that is 90% full may have
dropped about 1% of its pieces already.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.errors import TokenmillError, UsageError
from tokenmill.storage.files import make_folder, open_entry

PIECE = 1 << 17  # bytes
WAYS = 64  # slots of a set
_INDEX = "index.bin"
_RECORD = np.dtype(
    [
        ("key", "V16"),
        ("digest", "V16"),
        ("used", "<u8"),
        ("first", "<u4"),  # where the bytes start in the piece
        ("length", "<u4"),
        ("stamp", "<u8"),  # another one whenever a piece is stored
        ("is_part", "u1"),  # 1 if bytes of the piece are missing
        ("spare", "V7"),
    ]
)
_SIZE = _RECORD.itemsize  # 64 bytes
_SET_RECORDS = WAYS * _SIZE
SET_BYTES = WAYS * PIECE + _SET_RECORDS  # the smallest cache
_LIMIT = 16 << 30  # bytes
_SET_PAUSE, _SET_PATIENCE = 0.0002, 0.5  # seconds to wait for a set that another process changes
_TOUCH = 2_000_000_000  # nanoseconds until a use is recorded again
_HAS_CLAIMS = sys.platform.startswith("linux") and hasattr(fcntl, "F_OFD_SETLK")


def open_cache(folder: str | os.PathLike[str] | None, limit: int | None) -> PieceCache | None:
    """The cache in a folder, or None if neither folder nor limit is given.

    By default, the folder is `tokenmill` in the user's cache folder, and the limit is the one that
    the cache has, or 17 GB, or less on a small disk.
    """
    if folder is None and limit is None:
        return None
    where = find_cache_folder(folder)
    if limit is None:
        make_folder(where)
        limit = find_limit(where) or _choose_limit(where)
    return PieceCache(where, limit)


def open_default_cache() -> PieceCache | None:
    """The cache in the default folder; None, with a warning, if the folder cannot be used."""
    where = find_cache_folder(None)
    try:
        return open_cache(where, None)
    except (OSError, TokenmillError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        warnings.warn(
            f"There is no cache in {where} ({reason}). Reading continues without one, but slowly. "
            "Choose a folder with `cache_dir`, or turn the cache off with `cache_bytes=0`.",
            stacklevel=2,
        )
        return None


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


def _choose_limit(folder: Path) -> int:
    """The limit of a new cache: at most half of the free space.

    It is a power of two, so that processes that start at the same time choose the same.
    """
    limit = _LIMIT
    while limit > shutil.disk_usage(folder).free // 2:
        limit //= 2
    return limit


def read_keys(folder: Path) -> npt.NDArray[np.uint64]:
    """The first 8 bytes of the keys of all whole pieces in the cache of a folder, sorted.

    This reads the index only, a 2,000th of the cache. Piece by piece, 8 bytes are enough to count
    what is there.
    """
    try:
        data = (folder / _INDEX).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return np.empty(0, np.uint64)
    size = _RECORD.itemsize
    records = np.frombuffer(data[: len(data) // size * size], _RECORD)
    is_whole = (records["length"] > 0) & (records["is_part"] == 0)
    keys = np.ascontiguousarray(records["key"][is_whole])
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
        # A lower limit cuts off records before their pieces, so that `is_held` notices.
        self._index = self._open(_INDEX, self._sets * _SET_RECORDS)
        # So that its size says what the limit is. The bytes that were never written take no space.
        os.ftruncate(self._index, self._sets * _SET_RECORDS)
        self._pieces = self._open("pieces.bin", self._sets * WAYS * PIECE)
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
        """The bytes of a whole piece, or None if it is not in the cache, or damaged."""
        for held, data in self._read_slots(key):
            if not held.is_part:
                self.touch(held)
                return data
        return None

    def has(self, key: bytes) -> bool:
        """Whether a whole piece is in the cache; does not read it, so it may be damaged."""
        return any(not held.is_part for held in self._find_slots(key))

    def covers(self, key: bytes, first: int, last: int) -> bool:
        """Whether the bytes [first, last) of a piece are in the cache; they may be damaged."""
        return any(held.first <= first and last <= held.last for held in self._find_slots(key))

    def hold(self, key: bytes) -> Held | None:
        """Check a piece, to read bytes of it with `read`; None if it is missing or damaged."""
        return next((held for held, _ in self._read_slots(key)), None)

    def copy(self, key: bytes, first: int, target: memoryview) -> bool:
        """Copy the bytes of a piece from `first` on to memory; False if they are not there."""
        for held, data in self._read_slots(key):
            start, stop = first - held.first, first - held.first + len(target)
            if start >= 0 and stop <= len(data):
                target[:] = data[start:stop]
                return True
        return False

    def read(
        self,
        places: list[int],
        targets: list[memoryview],
        between: Callable[[], None] | None = None,
    ) -> None:
        """Copy bytes from places in the file of pieces; see `Held.start`. Calls `between` each time.

        What was copied counts only if `is_held` is true afterwards.
        """
        handle, preadv = self._pieces, os.preadv
        for place, target in zip(places, targets, strict=True):
            if between is not None:
                between()
            preadv(handle, (target,), place)

    def is_held(self, held: Held) -> bool:
        """Whether a piece is unchanged. If so, what was read of it before this call is right."""
        data = os.pread(self._index, _SIZE, held.slot * _SIZE)
        if data[:32] != held.seal[:32] or data[40:] != held.seal[32:]:
            return False
        if time.time_ns() - int.from_bytes(data[32:40], "little") > _TOUCH:
            self.touch(held)
        return True

    def put(self, key: bytes, data: bytes | memoryview) -> None:
        """Store a piece. If the disk is full, a warning is issued and nothing is stored."""
        self.put_part(key, data, 0, len(data))

    def put_part(self, key: bytes, data: bytes | memoryview, first: int, size: int) -> None:
        """Store bytes of a piece of `size` bytes, from its byte `first` on.

        They are joined with those that are there, if there is no gap between them.
        """
        assert first + len(data) <= size <= PIECE
        try:
            # The record first: then no other process chooses the slot. Until the bytes are written,
            # the digest does not match.
            slot, first, data = self._choose_slot(key, data, first, size)
            _write(self._pieces, data, slot * PIECE + first)
        except OSError as error:
            self._warn(error)

    def _choose_slot(
        self, key: bytes, data: bytes | memoryview, first: int, size: int
    ) -> tuple[int, int, bytes | memoryview]:
        """Choose the slot for a piece, and write its record; returns what to write to the slot."""
        number = self._find_set(key)
        deadline = time.monotonic() + _SET_PATIENCE
        while True:
            # Two processes that chose the same slot would lose one of the pieces, no more than that.
            with self.claim((number << 2).to_bytes(8, "little")) as is_claimed:
                if is_claimed or time.monotonic() > deadline:
                    if len(data) < size:
                        for held, there in self._read_slots(key):
                            first, data = _join(first, data, held.first, there)
                    records = self._read_records(number)
                    ways = _find_ways(records, key)
                    used = np.frombuffer(records, _RECORD)["used"]
                    slot = number * WAYS + (ways[0] if ways else int(used.argmin()))
                    _write(self._index, _make_record(key, data, first, size), slot * _SIZE)
                    return slot, first, data
            time.sleep(_SET_PAUSE)

    def _find_slots(self, key: bytes) -> list[Held]:
        """The slots that hold a piece, according to their records."""
        number = self._find_set(key)
        records = self._read_records(number)
        return [
            _parse_record(number * WAYS + way, records[_SIZE * way : _SIZE * (way + 1)])
            for way in _find_ways(records, key)
        ]

    def _read_slots(self, key: bytes) -> Iterator[tuple[Held, bytes]]:
        """The slots that hold a piece, and their bytes, if these are as they were stored."""
        for held in self._find_slots(key):
            data = os.pread(self._pieces, max(0, held.last - held.first), held.start + held.first)
            if _digest(key, data, held.first, held.is_part) == held.seal[16:32]:
                yield held, data

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

    def _read_records(self, number: int) -> bytes:
        """The records of a set."""
        data = os.pread(self._index, _SET_RECORDS, number * _SET_RECORDS)
        return data.ljust(_SET_RECORDS, b"\0")

    def touch(self, held: Held) -> None:
        """Record that a piece was used. If it has just been replaced, the new one counts as used."""
        place = held.slot * _SIZE + 32
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


class Held(NamedTuple):
    """A slot that holds the bytes [first, last) of a piece."""

    slot: int
    first: int
    last: int
    is_part: bool
    seal: bytes  # the record, without the time of the last use

    @property
    def start(self) -> int:
        """Where byte 0 of the piece would be in the file of pieces."""
        return self.slot * PIECE


def _digest(key: bytes, data: bytes | memoryview, first: int, is_part: bool) -> bytes:
    digest = xxhash.xxh3_128(key + first.to_bytes(4, "little") + bytes([is_part]))
    digest.update(data)
    return digest.digest()


def _make_record(key: bytes, data: bytes | memoryview, first: int, size: int) -> bytes:
    is_part = len(data) < size
    record = np.zeros(1, _RECORD)
    record["key"] = np.void(key)
    record["digest"] = np.void(_digest(key, data, first, is_part))
    record["used"], record["stamp"] = time.time_ns(), int.from_bytes(os.urandom(8), "little")
    record["first"], record["length"], record["is_part"] = first, len(data), is_part
    return record.tobytes()


def _parse_record(slot: int, record: bytes) -> Held:
    first, length = (int.from_bytes(record[place : place + 4], "little") for place in (40, 44))
    first = min(first, PIECE)
    seal = record[:32] + record[40:]
    return Held(slot, first, min(first + length, PIECE), bool(record[56]), seal)


def _find_ways(records: bytes, key: bytes) -> list[int]:
    """The ways of a set that have a key.

    >>> _find_ways(b"b" * _SIZE + 2 * b"key".ljust(_SIZE), b"key")
    [1, 2]
    """
    found, place = [], records.find(key)
    while place >= 0:
        if place % _SIZE == 0:
            found.append(place // _SIZE)
        place = records.find(key, place + 1)
    return found


def _join(
    first: int, data: bytes | memoryview, other: int, there: bytes
) -> tuple[int, bytes | memoryview]:
    """Join bytes with those that are there; returns the given ones if there is a gap between them.

    >>> _join(2, b"cde", 0, b"abc"), _join(0, b"abc", 2, b"cde"), _join(0, b"a", 2, b"c")
    ((0, b'abcde'), (0, b'abcde'), (0, b'a'))
    """
    last, end = first + len(data), other + len(there)
    if end < first or last < other:
        return first, data
    before, after = there[: max(0, first - other)], there[max(0, last - other) :]
    return min(first, other), b"".join((before, data, after))


def _choose_set(number: int, sets: int) -> int:
    """Jump consistent hashing (Lamping and Veach): a cache that grows keeps most of its pieces."""
    chosen, following = -1, 0
    while following < sets:
        chosen = following
        number = (number * 2862933555777941757 + 1) % (1 << 64)
        following = ((chosen + 1) << 31) // ((number >> 33) + 1)
    return chosen


def _write(handle: int, data: bytes | memoryview, place: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(handle, view, place)
        view, place = view[count:], place + count
