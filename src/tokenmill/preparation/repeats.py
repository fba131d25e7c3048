"""Find repeated keys (hashes) in a long list, exactly and in bounded memory.

The list holds one partition of the keys of all documents, or of all lines, in input order. The result
is a file with one byte per key: 1 if an equal key is earlier in the list. Keys that do not fit in
memory are first distributed to files by their leading bits, and each file is sorted separately.

Costs one sort of 64-bit numbers, about 10 million keys a second. If the keys do not fit in memory, it
also costs 24 bytes of disk per key.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tokenmill.preparation.key_files import REPEATED, Keys

_SORT_BYTES = 36  # memory that sorting takes for each key
_LEAST_KEYS = 1 << 16  # sorted at once, however small the memory
_TABLE = 1 << 18  # keys handled at once
_PAGES = 1 << 15  # marks to write before the pages of the memory map are released
_ENTRY = np.dtype([("key", "<u8", (2,)), ("place", "<u8")])


def keys_in_memory(memory: int) -> int:
    """Return how many keys can be sorted in this many bytes of memory."""
    return max(_LEAST_KEYS, memory // _SORT_BYTES)


def mark_repeats(tables: Iterable[Keys], total: int, marks: Path, spill: Path, limit: int) -> int:
    """Write to the file `marks` one byte per key: 1 if an equal key is earlier, else 0.

    `tables` have `total` keys together. Returns how many of them are repeats. At most `limit` keys
    are sorted at once. If there are more, all keys go to files in the folder `spill`. Files left
    there by an earlier run are removed.
    """
    clear_marks(marks, total)
    if total == 0:
        return 0
    if total <= limit:
        keys = np.empty((total, 2), np.uint64)
        filled = 0
        for table in tables:
            keys[filled : filled + len(table)] = table
            filled += len(table)
        return _mark(keys, None, marks)
    # Entries are larger than keys, and files differ in size, hence the factor 2.
    bits = min(8, int(np.ceil(np.log2(2 * total / limit))))
    spill.mkdir(exist_ok=True)
    for stale in spill.iterdir():
        stale.unlink()
    _distribute(tables, bits, spill)
    repeats = 0
    for file in sorted(spill.iterdir()):
        repeats += _mark_file(file, bits, limit, marks)
        file.unlink()
    return repeats


def clear_marks(marks: Path, total: int) -> None:
    """Make the file `marks`, with a 0 for each key."""
    with marks.open("wb") as empty:
        reserve(empty, total)


def reserve(file: BinaryIO, size: int) -> None:
    """Fill a new file with zeros that are allocated on the disk.

    If the file had holes, a full disk would kill the process at a write into its memory map.
    """
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
            return
        except OSError as error:  # not supported by every file system
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    for start in range(0, size, _TABLE):
        file.write(bytes(min(_TABLE, size - start)))


def _distribute(tables: Iterable[Keys], bits: int, spill: Path) -> None:
    """Write all keys, with their positions in the list, to files in the folder `spill`.

    The first `bits` bits of a key choose its file.
    """
    files = [(spill / f"{i:03}").open("wb") for i in range(1 << bits)]
    place = 0
    try:
        for keys in tables:
            bucket = (keys[:, 0] >> np.uint64(64 - bits)).astype(np.uint8)
            order = np.argsort(bucket, kind="stable")  # NumPy sorts bytes in linear time
            entries = np.empty(len(keys), _ENTRY)
            entries["key"] = keys[order]
            entries["place"] = order + place
            borders = np.searchsorted(bucket[order], np.arange((1 << bits) + 1))
            for i, file in enumerate(files):
                file.write(entries[borders[i] : borders[i + 1]].data)
            place += len(keys)
    finally:
        for file in files:
            file.close()


def _mark_file(path: Path, bits: int, limit: int, marks: Path) -> int:
    """Mark the repeats among the keys of one file of `_distribute`, and return their number.

    To mark a key is to write 1 to its position in the file `marks`. If there are more than `limit`
    keys, each of several rounds handles a share of them.
    """
    count = path.stat().st_size // _ENTRY.itemsize
    rounds = -(-count // limit)
    repeats = 0
    if rounds == 1:
        taken = np.fromfile(path, _ENTRY)
        return _mark(taken["key"], taken["place"], marks)
    for number in range(rounds):
        chosen: list[npt.NDArray[np.void]] = []
        with path.open("rb") as file:
            while data := file.read(_TABLE * _ENTRY.itemsize):
                entries = np.frombuffer(data, _ENTRY)
                share = (entries["key"][:, 0] << np.uint64(bits)) % np.uint64(rounds)
                entries = entries[share == number]
                # Mark the repeats among these entries now, in case one key is most of the file.
                again = _find(entries["key"])
                repeats += write_marks(entries["place"][again], marks)
                chosen.append(np.delete(entries, again))
        taken = np.concatenate(chosen)
        chosen.clear()
        repeats += _mark(taken["key"], taken["place"], marks)
    return repeats


def _mark(keys: Keys, places: Keys | None, marks: Path) -> int:
    """Write 1 to the file `marks` for each key that repeats an earlier one. Returns their number.

    `places` are the positions of the keys in the list, ascending. If None, `keys` is the whole
    list.
    """
    found = _find(keys)
    return write_marks(found if places is None else places[found], marks)


def _find(keys: Keys) -> npt.NDArray[np.int64]:
    """Return the places of keys that also occur earlier in the list.

    Sorts one number per key: its leading bits, followed by its place. So equal keys stay in order,
    and NumPy sorts plain numbers ten times as fast as `argsort` computes an order.
    """
    mask = np.uint64((1 << max(1, (len(keys) - 1).bit_length())) - 1)
    packed = keys[:, 0] & ~mask
    packed |= np.arange(len(keys), dtype=np.uint64)
    packed.sort()
    alike = np.empty(max(0, len(packed) - 1), np.bool_)
    for start in range(0, len(alike), _TABLE):
        window = packed[start : start + _TABLE + 1]
        alike[start : start + _TABLE] = (window[1:] ^ window[:-1]) <= mask
    packed &= mask
    order = packed.view(np.int64)
    pairs = np.flatnonzero(alike)
    del alike
    # Both halves of a key are fetched at once: most of the time is spent waiting for memory.
    wide = np.ascontiguousarray(keys).view("V16").ravel()
    equal = np.empty(len(pairs), np.bool_)
    for start in range(0, len(pairs), _TABLE):
        some = pairs[start : start + _TABLE]
        one, two = (wide[order[of]].view("<u8").reshape(-1, 2) for of in (some, some + 1))
        equal[start : start + _TABLE] = (one[:, 0] == two[:, 0]) & (one[:, 1] == two[:, 1])
    if equal.all():
        return order[pairs + 1]
    # Some keys share only their leading bits. Compare all keys of such groups.
    group = np.cumsum(np.diff(pairs, prepend=pairs[0]) != 1)
    is_unsure = np.zeros(group[-1] + 1, np.bool_)
    is_unsure[group[~equal]] = True
    unsure = is_unsure[group]
    suspects = np.unique(np.concatenate((order[pairs[unsure]], order[pairs[unsure] + 1])))
    high, low = keys[suspects, 0], keys[suspects, 1]
    ranked = np.lexsort((low, high))  # stable
    high, low = high[ranked], low[ranked]
    repeated = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    return np.concatenate((order[pairs[~unsure] + 1], suspects[ranked[1:][repeated]]))


def write_marks(places: npt.NDArray[Any], marks: Path, mark: int = REPEATED) -> int:
    """Write a mark to the file `marks` for each place, and return the number of places."""
    found = np.sort(places)
    for start in range(0, len(found), _PAGES):
        window = np.memmap(marks, np.uint8, "r+")
        window[found[start : start + _PAGES]] = mark
        del window
    return len(found)
