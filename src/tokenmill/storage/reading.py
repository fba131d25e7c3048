"""Open and map single files of tokens or documents, with suspicion.

A file that is missing, of another size than it must have, or no regular file is refused by name,
with the cure. Inside a dataset's folder no link is followed out of it. Mapping reads nothing.

Before Python 3.13, each map keeps one of the files that the process may have open; and the system
has a limit of its own. `Maps` are therefore counted together, whatever the number of datasets: at
most `OPEN_FILES` stay, and the first mapped goes first. A file in steady use is thus mapped anew
once in `OPEN_FILES` misses, at some 30 µs, and in return a hit is the look into a dict. No lock is
held: threads may share them, and a fork is safe.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError

__all__ = [
    "CURE",
    "FOREIGN_CURE",
    "OPEN_FILES",
    "DamagedFileError",
    "Maps",
    "check_size",
    "find_cure",
    "map_file",
    "open_foreign",
    "open_inside",
    "read_ahead",
    "read_inside",
]

CURE = (
    "Copy the file again from its source, or run the same tokenmill prepare command with --restart."
)
FOREIGN_CURE = "Copy or download the file again from its source."
_MORE_FILES = (
    "Nothing is wrong with the file: let the process open more, such as with ulimit -n 65536."
)
_PERMISSION = "Let this user read it: chmod a+r on the file, and a+x on the folders it is in."
_SYSTEM_CURES = {
    errno.EMFILE: _MORE_FILES,
    errno.ENFILE: _MORE_FILES,
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
}


# From Python 3.13 on, a map need not keep its file open; on Windows, from 3.15 on.
_CAN_CLOSE = sys.version_info >= ((3, 15) if sys.platform == "win32" else (3, 13))
_CLOSES = {"trackfd": False} if _CAN_CLOSE else {}


def _find_open_files() -> int:
    """How many files may stay mapped: half of what the process may open, if that is not many."""
    if _CLOSES:
        return 16384
    try:
        import resource
    except ImportError:  # Windows
        return 256
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 16384 if soft == resource.RLIM_INFINITY else min(max(soft // 2, 16), 16384)


OPEN_FILES = _find_open_files()
_AHEAD = 1 << 21  # bytes that the system is asked to read at once

Mapped = TypeVar("Mapped")


class Maps(dict[int, Mapped]):
    """What `make` makes of each number, kept while it is among the last `OPEN_FILES` made by all.

    >>> maps = Maps(lambda number: [number])
    >>> maps[7], maps[7] is maps[7]
    ([7], True)
    """

    def __init__(self, make: Callable[[int], Mapped]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> Mapped:
        # Kept before it is counted: at any time, all that is kept is counted.
        made = self[number] = self._make(number)
        _made.append((weakref.ref(self), number))
        while len(_made) > OPEN_FILES:
            try:
                owner, oldest = _made.popleft()
            except IndexError:  # another thread was faster
                break
            if (maps := owner()) is not None:
                maps.pop(oldest, None)
        return made


# A deque's ends are safe to use from several threads.
_made: deque[tuple[weakref.ref[Maps[Any]], int]] = deque()


class DamagedFileError(DatasetError):
    """A DatasetError about one file that keeps its parts: the file, what it is or has, the cure."""

    def __init__(self, file: str, what: str, cure: str = CURE) -> None:
        super().__init__(file, what, cure)
        self.file, self.what, self.cure = file, what, cure

    def __str__(self) -> str:
        return f"{self.file} {self.what}. {self.cure}"


def find_cure(error: BaseException, cure: str) -> str:
    """What to do about an error of the system; `cure` if the file is at fault.

    >>> find_cure(PermissionError(errno.EACCES, "Permission denied"), FOREIGN_CURE)
    'Let this user read it: chmod a+r on the file, and a+x on the folders it is in.'
    """
    return _SYSTEM_CURES.get(getattr(error, "errno", None) or 0, cure)


def open_inside(folder: Path, path: str) -> BinaryIO:
    """Open a file of a dataset to read; links that lead out of the folder are not followed.

    >>> open_inside(Path("/nowhere"), "train/shard_00000.bin")
    Traceback (most recent call last):
    ...
    tokenmill.storage.reading.DamagedFileError: train/shard_00000.bin is missing from /nowhere. Copy the \
file again from its source, or run the same tokenmill prepare command with --restart.
    """
    try:
        root = folder.resolve()
        target = (root / path).resolve()
        if not target.is_relative_to(root):
            raise DamagedFileError(
                path,
                f"leads out of {folder}, to {str(target)!r}, by a link",
                "Such links are not followed: put the file itself in its place.",
            )
        # A pipe or a device would block, or never end.
        if not stat.S_ISREG(target.stat().st_mode):
            raise DamagedFileError(path, f"in {folder} is not a regular file")
        return target.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise DamagedFileError(path, f"is missing from {folder}") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise _refuse(path, folder, error, CURE) from error


def read_inside(folder: Path, path: str, most: int) -> bytes:
    """All bytes of a small file of a dataset; one of over `most` bytes is not read."""
    with open_inside(folder, path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise DamagedFileError(
                path, f"in {folder} has {size:,} bytes, and it may have {most:,} at most"
            )
        try:
            return file.read(size)
        except OSError as error:
            raise _refuse(path, folder, error, CURE) from error


def open_foreign(folder: Path, path: str) -> BinaryIO:
    """Open a file that tokenmill did not make; links are followed, as download caches need it.

    >>> open_foreign(Path("/nowhere"), "train.bin")
    Traceback (most recent call last):
    ...
    tokenmill.storage.reading.DamagedFileError: train.bin is missing from /nowhere. Copy or download the \
file again from its source.
    """
    try:
        target = folder / path
        if not stat.S_ISREG(target.stat().st_mode):
            raise DamagedFileError(path, f"in {folder} is not a regular file", FOREIGN_CURE)
        return target.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise DamagedFileError(path, f"is missing from {folder}", FOREIGN_CURE) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _refuse(path, folder, error, FOREIGN_CURE) from error


def _refuse(path: str, folder: Path, error: Exception, cure: str) -> DamagedFileError:
    reason = getattr(error, "strerror", None) or error
    return DamagedFileError(path, f"in {folder} cannot be read: {reason}", find_cure(error, cure))


def check_size(file: BinaryIO, path: str, expected: int, *, foreign: bool = False) -> None:
    """Refuse a file that is not exactly as long as it must be."""
    size = os.fstat(file.fileno()).st_size
    if size != expected:
        kind = "short" if size < expected else "long"
        must = "when it was opened it had" if foreign else "by the manifest it should have"
        raise DamagedFileError(
            path,
            f"is {abs(size - expected):,} bytes too {kind}: it has {size:,}, and {must} "
            f"{expected:,}",
            FOREIGN_CURE if foreign else CURE,
        )


def map_file(
    file: BinaryIO, path: str, dtype: np.dtype[Any], count: int, offset: int
) -> npt.NDArray[Any]:
    """`count` numbers or records of a file from byte `offset` on, as an array that reads it.

    The system is told that reads are scattered: otherwise it would read some MB around each row of
    a few KB. Who is about to read in order says so with `read_ahead`.
    """
    if not count:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    try:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, **_CLOSES)
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(mapped, dtype, count, offset)
    except (OSError, ValueError) as error:  # ValueError: cut short since its size was checked
        what = f"cannot be mapped into memory: {error}"
        raise DamagedFileError(path, what, find_cure(error, CURE)) from error


def read_ahead(ids: npt.NDArray[Any], first: int, stop: int) -> None:
    """Let the system read some elements of a mapped file soon, and all at once."""
    whole = ids
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    mapped: Any = whole.base
    if isinstance(mapped, memoryview):
        mapped = mapped.obj
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_WILLNEED"):
        return
    before = ids.__array_interface__["data"][0] - np.frombuffer(mapped, np.uint8, 1).ctypes.data
    start, end = before + first * ids.itemsize, before + stop * ids.itemsize
    # Linux reads only the beginning of what it is asked for at once, if that is long.
    for place in range(start - start % mmap.PAGESIZE, end, _AHEAD):
        mapped.madvise(mmap.MADV_WILLNEED, place, min(_AHEAD, end - place))
