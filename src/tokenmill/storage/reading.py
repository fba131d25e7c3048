"""Open untrusted files.

For a file that is missing, has the wrong size or is not a regular file, the error names the file and
says what to do. Links that lead out of a dataset's folder are not followed.
"""

from __future__ import annotations

import difflib
import errno
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from tokenmill.errors import DatasetError
from tokenmill.storage.decoding import decode
from tokenmill.storage.object_file import ObjectFile
from tokenmill.storage.object_path import ObjectPath
from tokenmill.storage.object_store import read_files_together
from tokenmill.wording import one_line

CURE = (
    "Copy the file again from its source, or run the same tokenmill prepare command with --restart."
)
FOREIGN_CURE = "Copy or download the file again from its source."
_MORE_FILES = "The file is fine: let the process open more files, for example with ulimit -n 65536."
_PERMISSION = "Let this user read it: chmod a+r on the file, and a+x on the folders it is in."
_SYSTEM_CURES = {
    errno.EMFILE: _MORE_FILES,
    errno.ENFILE: _MORE_FILES,
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.ESTALE: "Open the data again, or run the same command again.",
}

T = TypeVar("T")


class DamagedFileError(DatasetError):
    """A DatasetError about one file. Its parts are the file, the fault and the cure."""

    def __init__(self, file: str, what: str, cure: str = CURE) -> None:
        super().__init__(file, what, cure)
        self.file, self.what, self.cure = file, what, cure

    def __str__(self) -> str:
        return f"{one_line(f'{self.file} {self.what}')}. {self.cure}"


def find_cure(error: BaseException, cure: str) -> str:
    """Return the cure for a system error. If the file itself is at fault, return `cure`.

    >>> find_cure(PermissionError(errno.EACCES, "Permission denied"), FOREIGN_CURE)
    'Let this user read it: chmod a+r on the file, and a+x on the folders it is in.'
    """
    return _SYSTEM_CURES.get(getattr(error, "errno", None) or 0, cure)


def open_inside(folder: Path, path: str) -> BinaryIO:
    """Open a file of a dataset for reading. A link that leads out of the folder is refused.

    >>> open_inside(Path("/nowhere"), "train/shard_00000.bin")
    Traceback (most recent call last):
    ...
    tokenmill.storage.reading.DamagedFileError: train/shard_00000.bin is missing from /nowhere. Copy the \
file again from its source, or run the same tokenmill prepare command with --restart.
    """
    try:
        root = folder.resolve()
        target = (root / path).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise cannot_read(path, folder, error, CURE) from error
    if not target.is_relative_to(root):
        raise DamagedFileError(
            path,
            f"is a link that leads out of {folder}, to {str(target)!r}",
            "Such links are not followed: replace the link with the file.",
        )
    return _open(target, folder, path, CURE)


def open_foreign(folder: Path, path: str) -> BinaryIO:
    """Open a file that tokenmill did not write. Follows links, because download caches use them.

    >>> open_foreign(Path("/nowhere"), "train.bin")
    Traceback (most recent call last):
    ...
    tokenmill.storage.reading.DamagedFileError: train.bin is missing from /nowhere. Copy or download the \
file again from its source.
    """
    return _open(folder / path, folder, path, FOREIGN_CURE)


def _open(target: Path, folder: Path, path: str, cure: str) -> BinaryIO:
    try:
        if isinstance(target, ObjectPath):
            return cast("BinaryIO", target.open("rb"))
        # A pipe or a device would block, or never end.
        if not stat.S_ISREG(target.stat().st_mode):
            raise DamagedFileError(path, f"in {folder} is not a regular file", cure)
        return target.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise DamagedFileError(path, f"is missing from {folder}", cure) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise cannot_read(path, folder, error, cure) from error


def read_inside(folder: Path, path: str, most: int) -> bytes:
    """Read a small file of a dataset. Refuses a file of more than `most` bytes."""
    with open_inside(folder, path) as file:
        return _read_all(file, folder, path, most, CURE)


def read_foreign(folder: Path, path: str, most: int) -> bytes:
    """Read a small file that tokenmill did not write. Refuses a file of more than `most` bytes."""
    with open_foreign(folder, path) as file:
        return _read_all(file, folder, path, most, FOREIGN_CURE)


def _read_all(file: BinaryIO, folder: Path, path: str, most: int, cure: str) -> bytes:
    size = measure_file(file)
    if size > most:
        raise DamagedFileError(
            path, f"in {folder} has {size:,} bytes, but at most {most:,} are allowed", cure
        )
    try:
        return file.read(size)
    except OSError as error:
        raise cannot_read(path, folder, error, cure) from error


def read_json(folder: Path, path: str, kind: type[T], most: int) -> T:
    """Read a JSON file of a dataset, of at most `most` bytes, and decode it as the type `kind`."""
    data = read_inside(folder, path, most)
    try:
        return decode(data, kind)
    except ValueError as error:
        raise DamagedFileError(path, f"is damaged ({error})") from error


def cannot_read(path: str, folder: Path, error: Exception, cure: str) -> DamagedFileError:
    """Return the error for a file that cannot be read.

    It ends with `cure`, unless `find_cure` knows a better one for `error`.
    """
    reason = getattr(error, "strerror", None) or error
    return DamagedFileError(path, f"in {folder} cannot be read: {reason}", find_cure(error, cure))


def measure_file(file: BinaryIO) -> int:
    """Return the size of an open file in bytes."""
    return file.size if isinstance(file, ObjectFile) else os.fstat(file.fileno()).st_size


def read_pieces(
    file: BinaryIO,
    places: Sequence[int],
    pieces: Sequence[memoryview],
    between: Callable[[], None] | None = None,
) -> bool:
    """Fill `pieces[n]` with the bytes of a file from position `places[n]` on.

    Returns False if the file is too short. `between` is called before each read of a local file.
    """
    if isinstance(file, ObjectFile):
        ranges = [(at, at + len(one)) for at, one in zip(places, pieces, strict=True)]
        for piece, data in zip(pieces, file.read_ranges(ranges), strict=True):
            piece[:] = data
        return True
    descriptor = file.fileno()
    for place, piece in zip(places, pieces, strict=True):
        if between is not None:
            between()
        while (count := os.preadv(descriptor, [piece], place)) < len(piece):
            if not count:
                return False
            piece, place = piece[count:], place + count
    return True


def is_mappable(folder: Path) -> bool:
    """Return whether files of a folder can be mapped into memory; objects cannot."""
    return not isinstance(folder, ObjectPath)


def for_each_file(
    folder: Path,
    call: Callable[[Any], object],
    items: Sequence[Any],
    between: Callable[[], None] | None = None,
) -> None:
    """Run `call(item)` for all items. Each call reads a file of the folder.

    In an object store, calls run in parallel, and `between` is called before waiting for each.
    """
    if isinstance(folder, ObjectPath):
        read_files_together(call, items, between)
    else:
        for item in items:
            call(item)


def find_all_files(folder: Path) -> None:
    """Look up all objects below a folder with few requests, so that opening them needs none.

    Does nothing for a local folder.
    """
    if isinstance(folder, ObjectPath):
        folder.find_all()


def check_size(file: BinaryIO, path: str, expected: int, *, foreign: bool = False) -> None:
    """Raise DamagedFileError if a file does not have the expected size."""
    size = measure_file(file)
    if size != expected:
        kind = "short" if size < expected else "long"
        source = "it had when it was opened" if foreign else "the manifest says"
        raise DamagedFileError(
            path,
            f"is {abs(size - expected):,} bytes too {kind}: expected {expected:,} ({source}), "
            f"found {size:,}",
            FOREIGN_CURE if foreign else CURE,
        )


def find_near(path: Path) -> Path | None:
    """Return the path with the most similar name in a missing path's folder, or None.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "corpus").mkdir()
    >>> find_near(folder / "corpu").name, find_near(folder / "web")
    ('corpus', None)
    """
    try:
        names = os.listdir(path.parent)
    except OSError:
        return None
    near = difflib.get_close_matches(path.name, names, 1)
    return path.parent / near[0] if near else None
