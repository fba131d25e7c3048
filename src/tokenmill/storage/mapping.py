"""Map files of tokens and documents into memory. Mapping a local file reads nothing.

An object in an object store cannot be mapped, so it is copied into memory. All `Maps` together keep
at most `MOST_COPIED` bytes of copies, or one copy that is larger.

Before Python 3.13, each map keeps its file open, and the number of open files is limited. So all
`Maps` of a process together keep at most `OPEN_FILES` maps. The map that was made first is dropped
first, even if it is used often. The next use maps its file again, which takes about 30 µs. Finding a
map that is still kept takes one dict lookup. Threads may share maps. There is no lock, so a fork is
safe.
"""

from __future__ import annotations

import mmap
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from tokenmill.storage.object_file import ObjectFile
from tokenmill.storage.reading import CURE, DamagedFileError, find_cure

# From Python 3.13 on, a map need not keep its file open; on Windows, from 3.15 on.
_CAN_CLOSE = sys.version_info >= ((3, 15) if sys.platform == "win32" else (3, 13))
_CLOSES = {"trackfd": False} if _CAN_CLOSE else {}


def _find_open_files() -> int:
    """Return how many files may stay mapped: half of those that may be open, at most 16,384.

    Copying rows needs further maps, and the program itself also opens files. So if the process may
    open fewer than 64 files, only a quarter of that number may stay mapped. If maps do not keep
    their files open, returns 16,384.
    """
    if _CLOSES:
        return 16384
    try:
        import resource
    except ImportError:  # Windows
        return 256
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 16384
    return min(max(soft // 2 if soft >= 64 else soft // 4, 1), 16384)


OPEN_FILES = _find_open_files()
MOST_COPIED = 256 << 20  # bytes of objects; the newest copy may be larger
_AHEAD = 1 << 21  # bytes that the system reads ahead in one request

Mapped = TypeVar("Mapped")


class Maps(dict[int, Mapped]):
    """A cache: `maps[number]` calls `make(number)` on first use.

    All caches of a process together keep the last `OPEN_FILES` results.

    >>> maps = Maps(lambda number: [number])
    >>> maps[7], maps[7] is maps[7]
    ([7], True)
    """

    def __init__(self, make: Callable[[int], Mapped]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> Mapped:
        # A result is counted only once it is stored, so a failed `make` is not counted.
        made = self[number] = self._make(number)
        _made.append((weakref.ref(self), number))
        while len(_made) > OPEN_FILES or (len(_made) > 1 and sum(_copied.values()) > MOST_COPIED):
            try:
                owner, oldest = _made.popleft()
            except IndexError:  # another thread was faster
                break
            if (maps := owner()) is not None:
                maps.pop(oldest, None)
        return made


# What was made, oldest first. Several threads may append to a deque and pop from it.
_made: deque[tuple[weakref.ref[Maps[Any]], int]] = deque()
_copied: dict[int, int] = {}  # the bytes of each copy of an object that is in use


def drop_maps() -> None:
    """Forget all maps of this process. Those in use stay until their last use.

    Pages of mapped files count as memory of the process. The next use of a file maps it again.
    """
    while _made:
        try:
            owner, number = _made.popleft()
        except IndexError:  # another thread was faster
            return
        if (maps := owner()) is not None:
            maps.pop(number, None)


def _count_copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    _copied[id(array)] = array.nbytes
    weakref.finalize(array, _copied.pop, id(array), None)
    return array


def map_file(
    file: BinaryIO, path: str, dtype: np.dtype[Any], count: int, offset: int
) -> npt.NDArray[Any]:
    """Map `count` numbers or records of a file from byte `offset` on, as an array.

    Tells the system that reads will be scattered. Otherwise the system would read several MB around
    each row of a few kB. Before reading in order, call `read_ahead`.
    """
    if not count:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    try:
        if isinstance(file, ObjectFile):
            return _count_copy(file.read_array(dtype, count, offset))
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, **_CLOSES)
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(mapped, dtype, count, offset)
    except (OSError, ValueError) as error:  # ValueError: truncated since its size was checked
        what = f"cannot be mapped into memory: {error}"
        raise DamagedFileError(path, what, find_cure(error, CURE)) from error


def read_ahead(ids: npt.NDArray[Any], first: int, stop: int) -> None:
    """Ask the system to read elements [first, stop) of a mapped file soon, in large requests."""
    if (found := _find_range(ids, first, stop)) is not None:
        mapped, start, end = found
        # In several requests, because Linux reads only the beginning of a long one.
        for place in range(start, end, _AHEAD):
            mapped.madvise(mmap.MADV_WILLNEED, place, min(_AHEAD, end - place))


def _find_range(ids: npt.NDArray[Any], first: int, stop: int) -> tuple[Any, int, int] | None:
    """Return the map behind ids[first:stop], and the range of its bytes; None if there is no map."""
    whole = ids
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    mapped: Any = whole.base
    if isinstance(mapped, memoryview):
        mapped = mapped.obj
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_WILLNEED"):
        return None
    before = ids.__array_interface__["data"][0] - np.frombuffer(mapped, np.uint8, 1).ctypes.data
    start, end = before + first * ids.itemsize, before + stop * ids.itemsize
    return mapped, start - start % mmap.PAGESIZE, end
