"""A bounded cache of pieces of remote files, on local disk, shared by all processes of a machine.

Every remote file is divided into pieces of `PIECE` bytes. The cache is two files. `pieces.bin` is
an array of slots, each with room for one piece. `index.bin` has a record for each slot: the piece's
key, a hash of key and bytes, and when the piece was last used. The key chooses a set of `WAYS`
slots, and a new piece replaces the least recently used piece of the set. A slot may hold only some
bytes of its piece, so that a range of a file can be cached without the bytes around it.

Guarantees: the files never take more than the limit, however many processes write to them. Bytes
are used only if their hash is right. So a piece counts as missing if it was damaged, half written
by a killed process, or replaced while it was being read. Nothing has to be cleaned up: there are no
temporary files, and the system releases the claims of a dead process. The cache survives restarts
and a change of the limit. A lower limit drops the pieces that no longer fit.

Costs: a lookup reads 4 kB of the index (5 µs). `get` hashes the whole piece (20 µs). After `hold`,
which hashes the piece once, reading 2 kB of the piece takes 2 µs. Some sets fill up before others:
a cache that is 90% full may have dropped about 1% of its pieces already. After the limit grows, some
pieces belong to other sets. Their old copies are of no use, and take up to a tenth of the cache until
newer pieces replace them.
"""

from __future__ import annotations

import os
import shutil
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
from tokenmill.storage.claims import Claims
from tokenmill.storage.files import make_folder, open_entry

PIECE = 1 << 17  # bytes
WAYS = 64  # slots in a set
_INDEX = "index.bin"
_RECORD = np.dtype(
    [
        ("key", "V16"),
        ("digest", "V16"),
        ("used", "<u8"),
        ("first", "<u4"),  # where the bytes start in the piece
        ("length", "<u4"),
        ("stamp", "<u8"),  # random, new whenever a piece is stored
        ("is_part", "u1"),  # 1 if bytes of the piece are missing
        ("spare", "V7"),
    ]
)
_SIZE = _RECORD.itemsize  # 64 bytes
_SET_RECORDS = WAYS * _SIZE
SET_BYTES = WAYS * PIECE + _SET_RECORDS  # the smallest cache
_LIMIT = 16 << 30  # bytes
# Seconds between tries, and in total, to claim a set that another process changes.
_SET_PAUSE, _SET_PATIENCE = 0.0002, 0.5
_TOUCH = 2_000_000_000  # nanoseconds until a use is recorded again


def open_cache(folder: str | os.PathLike[str] | None, limit: int | None) -> PieceCache | None:
    """Return the cache in a folder, or None if neither folder nor limit is given.

    The default folder is `tokenmill` in the user's cache folder. By default, an existing cache
    keeps its limit, and a new cache gets 17 GB, or less on a small disk.
    """
    if folder is None and limit is None:
        return None
    where = find_cache_folder(folder)
    if limit is None:
        make_folder(where)
        limit = find_limit(where) or _choose_limit(where)
    return PieceCache(where, limit)


def open_default_cache() -> PieceCache | None:
    """Return the cache in the default folder. If the folder cannot be used, warn and return None."""
    where = find_cache_folder(None)
    try:
        return open_cache(where, None)
    except (OSError, TokenmillError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        warnings.warn(
            f"The cache folder {where} cannot be used ({reason}). Reading continues without a "
            "cache, but slowly. Choose a folder with `cache_dir`, or turn the cache off with "
            "`cache_bytes=0`.",
            stacklevel=2,
        )
        return None


def find_cache_folder(folder: str | os.PathLike[str] | None) -> Path:
    """Return the cache folder as a path. The default is `tokenmill` in the user's cache folder."""
    if folder is None:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "tokenmill"
    return Path(folder).expanduser()


def find_limit(folder: Path) -> int | None:
    """Return how many bytes the cache in a folder may take; None if there is no cache."""
    try:
        sets = (folder / _INDEX).stat().st_size // _SET_RECORDS
    except (FileNotFoundError, NotADirectoryError):
        return None
    return sets * SET_BYTES or None


def _choose_limit(folder: Path) -> int:
    """Return the limit of a new cache: at most half of the free space.

    The limit is a power of two, so that processes that start together choose the same limit.
    """
    limit = _LIMIT
    while limit > shutil.disk_usage(folder).free // 2:
        limit //= 2
    return limit


def read_keys(folder: Path) -> npt.NDArray[np.uint64]:
    """Return the first 8 bytes of the key of each whole piece in a cache, as sorted integers.

    Reads only the index, which is 1/2,000 of the cache. 8 bytes are enough to count pieces.
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
    """Stores pieces of at most `PIECE` bytes by key, in a folder of at most `limit` bytes.

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
        # If the limit is lower than before, cut off records before pieces. Then a process that
        # still reads a lost piece notices this in `is_held`.
        self._index = self._open(_INDEX, self._sets * _SET_RECORDS)
        # The size of the index records the limit. Bytes that were never written take no space.
        os.ftruncate(self._index, self._sets * _SET_RECORDS)
        self._pieces = self._open("pieces.bin", self._sets * WAYS * PIECE)
        self._claims = Claims(self.folder / "claims")
        self._is_full = False  # whether writing failed, most likely because the disk is full

    def __reduce__(self) -> tuple[Any, ...]:
        return PieceCache, (self.folder, self.limit)

    def __del__(self) -> None:
        for name in ("_pieces", "_index"):
            if hasattr(self, name):
                os.close(getattr(self, name))

    @property
    def capacity(self) -> int:
        """How many bytes of pieces fit in the cache."""
        return self._sets * WAYS * PIECE

    def get(self, key: bytes) -> bytes | None:
        """Return the bytes of a whole piece; None if the piece is missing or damaged."""
        for held, data in self._read_slots(key):
            if not held.is_part:
                self.touch(held)
                return data
        return None

    def has(self, key: bytes) -> bool:
        """Return whether a whole piece is in the cache. Does not check that it is undamaged."""
        return any(not held.is_part for held in self._find_slots(key))

    def covers(self, key: bytes, first: int, last: int) -> bool:
        """Return whether the bytes [first, last) of a piece are in the cache, damaged or not."""
        return any(held.first <= first and last <= held.last for held in self._find_slots(key))

    def hold(self, key: bytes) -> Held | None:
        """Return the cache slot of a piece, after checking its hash; None if missing or damaged.

        `read` can then read from the slot, which may hold only some bytes of the piece.
        """
        return next((held for held, _ in self._read_slots(key)), None)

    def copy(self, key: bytes, first: int, target: memoryview) -> bool:
        """Fill `target` with a piece's bytes from `first` on. False if they are not cached."""
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
        """Fill `targets[n]` with the bytes of `pieces.bin` from `places[n]` on; see `Held.start`.

        The bytes are right only if `is_held` returns True afterwards. `between` is called before
        each read.
        """
        handle, preadv = self._pieces, os.preadv
        for place, target in zip(places, targets, strict=True):
            if between is not None:
                between()
            preadv(handle, (target,), place)

    def is_held(self, held: Held) -> bool:
        """Return whether a slot still holds the bytes that `hold` checked.

        If so, everything that was read from the slot since then is right.
        """
        data = os.pread(self._index, _SIZE, held.slot * _SIZE)
        if data[:32] != held.seal[:32] or data[40:] != held.seal[32:]:
            return False
        if time.time_ns() - int.from_bytes(data[32:40], "little") > _TOUCH:
            self.touch(held)
        return True

    def put(self, key: bytes, data: bytes | memoryview) -> None:
        """Store a whole piece. If writing fails, for example on a full disk, only warn."""
        self.put_part(key, data, 0, len(data))

    def put_part(self, key: bytes, data: bytes | memoryview, first: int, size: int) -> None:
        """Store some bytes of a piece of `size` bytes. They start at byte `first` of the piece.

        If the cache has other bytes of the piece, and there is no gap between, both are joined.
        """
        assert first + len(data) <= size <= PIECE
        try:
            # Write the record first, so that no other process chooses the slot. Until the bytes are
            # written, their digest does not match.
            slot, first, data = self._choose_slot(key, data, first, size)
            _write(self._pieces, data, slot * PIECE + first)
        except OSError as error:
            self._warn(error)

    def _choose_slot(
        self, key: bytes, data: bytes | memoryview, first: int, size: int
    ) -> tuple[int, int, bytes | memoryview]:
        """Choose a cache slot for bytes of a piece, and write the slot's record to the index.

        Returns the slot's number, where the bytes to write start in the piece, and these bytes.
        They are `data`, joined with the bytes of the piece that the cache already has, unless there
        is a gap between the two.
        """
        number = self._find_set(key)
        deadline = time.monotonic() + _SET_PATIENCE
        while True:
            # If two processes choose the same slot, one piece is lost. That does no harm.
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
        """Return the cache slots that hold bytes of the piece with this key, damaged or not."""
        number = self._find_set(key)
        records = self._read_records(number)
        return [
            _parse_record(number * WAYS + way, records[_SIZE * way : _SIZE * (way + 1)])
            for way in _find_ways(records, key)
        ]

    def _read_slots(self, key: bytes) -> Iterator[tuple[Held, bytes]]:
        """Yield the slots that hold bytes of a piece, and these bytes. Damaged slots are skipped."""
        for held in self._find_slots(key):
            data = os.pread(self._pieces, max(0, held.last - held.first), held.start + held.first)
            if _digest(key, data, held.first, held.is_part) == held.seal[16:32]:
                yield held, data

    @contextmanager
    def claim(self, key: bytes) -> Iterator[bool]:
        """Claim a key in a `with` block. Yields False if another thread or process has it."""
        claims = self._claims
        if claims.process != os.getpid():  # a forked process would share its parent's claims
            claims = self._claims = Claims(self.folder / "claims")
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
        """Return the index records of set `number`, a group of `WAYS` slots."""
        data = os.pread(self._index, _SET_RECORDS, number * _SET_RECORDS)
        return data.ljust(_SET_RECORDS, b"\0")

    def touch(self, held: Held) -> None:
        """Record that a slot was used just now."""
        place = held.slot * _SIZE + 32
        try:
            _write(self._index, time.time_ns().to_bytes(8, "little"), place)
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._is_full:
            self._is_full = True
            warnings.warn(
                f"The cache in {self.folder} cannot be written to ({error.strerror}). Reading "
                "continues, but slowly. Free some space, or choose another `cache_dir`.",
                stacklevel=2,
            )


def make_piece_key(file: str, number: int) -> bytes:
    """Return the key of piece `number` of a file. `file` identifies the file and its version."""
    return xxhash.xxh3_128_digest(f"{file}\n{number}".encode("utf-8", "surrogatepass"))


class Held(NamedTuple):
    """A slot (room for one piece in the cache) that holds the bytes [first, last) of a piece."""

    slot: int
    first: int
    last: int
    is_part: bool
    seal: bytes  # the record, without the time of the last use

    @property
    def start(self) -> int:
        """The position of the slot in `pieces.bin`: byte n of the piece is n bytes after it."""
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
    """Return the indices of the records, of `_SIZE` bytes each, that begin with this key.

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
    """Join new bytes at `first` with stored bytes at `other`; returns the start and the bytes.

    If there is a gap between them, the stored bytes are dropped.

    >>> _join(2, b"cde", 0, b"abc"), _join(0, b"abc", 2, b"cde"), _join(0, b"a", 2, b"c")
    ((0, b'abcde'), (0, b'abcde'), (0, b'a'))
    """
    last, end = first + len(data), other + len(there)
    if end < first or last < other:
        return first, data
    before, after = there[: max(0, first - other)], there[max(0, last - other) :]
    return min(first, other), b"".join((before, data, after))


def _choose_set(number: int, sets: int) -> int:
    """Return the set (group of slots) for a piece; `number` is made from the piece's key.

    Uses jump consistent hashing (Lamping and Veach), so that most pieces stay in their set if the
    number of sets grows.
    """
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
