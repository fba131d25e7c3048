"""An exclusive lock on a file or a folder.

The system releases the lock when the process that holds it ends for any reason. So a crash leaves no
lock behind.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from tokenmill.errors import FolderError
from tokenmill.storage.files import open_entry


class FileLock:
    """A lock that at most one process holds.

    A lock file contains the number of the process that holds the lock. With `is_folder`, the path
    is a folder, and the folder itself is locked.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "lock"
    >>> lock = FileLock(path)
    >>> lock.acquire(), FileLock(path).acquire()
    (True, False)
    >>> lock.release(), FileLock(path).acquire()
    (None, True)
    """

    def __init__(self, path: Path, *, is_folder: bool = False) -> None:
        self.path = path
        self._is_folder = is_folder
        self.owner: int | None = None  # the process that holds it, if `acquire` failed
        self._handle = -1

    def acquire(self) -> bool:
        """Take the lock if it is free; returns whether this process holds it now."""
        while True:
            if self._is_folder:
                handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            else:
                handle = open_entry(self.path)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.owner = None if self._is_folder else _read_owner(handle)
                os.close(handle)
                return False
            except BaseException:
                os.close(handle)
                raise
            if self._is_current(handle):
                break
            os.close(handle)  # a run that has just finished removed the file: try again
        if not self._is_folder:
            with suppress(OSError):  # the number is only for messages, and the disk may be full
                os.ftruncate(handle, 0)
                os.pwrite(handle, str(os.getpid()).encode(), 0)
        self._handle = handle
        return True

    def acquire_or_refuse(self, what: str, cure: str) -> None:
        """Take the lock, or raise a FolderError that names the process that holds it.

        The text of the error begins with `what` and ends with `cure`.
        """
        if not self.acquire():
            owner = "" if self.owner is None else f" (process {self.owner})"
            raise FolderError(f"{what}{owner}. {cure}")

    def release(self, *, remove: bool = False) -> None:
        """Release the lock, if this process holds it. `remove` also deletes the lock file."""
        if self._handle < 0:
            return
        if remove:
            self.path.unlink(missing_ok=True)
        os.close(self._handle)
        self._handle = -1

    def _is_current(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self.path.stat())
        except FileNotFoundError:
            return False


def _read_owner(handle: int) -> int | None:
    text = os.read(handle, 32).strip()  # bytes, whose isdigit is true for ASCII digits only
    return int(text) if text.isdigit() else None
