"""The interface to stored files: five operations, implemented for a folder on disk.

`Storage` is the interface; `Folder` implements it for a folder on disk. An object store can implement
the same operations.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tokenmill.storage.files import (
    create_file,
    is_temporary,
    make_subfolder,
    open_entry,
    sync_folder,
    temporary_path,
    write_file,
)


class Entry(NamedTuple):
    """A file in a storage: its name relative to the storage, with slashes, and its size."""

    name: str
    size: int


class Storage(ABC):
    """Files by name. A file appears whole or not at all, and stays after a crash."""

    @abstractmethod
    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """The bytes of a file from `start` on, at most `length`. FileNotFoundError if missing."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[Entry]:
        """The files whose names begin with `prefix`, sorted by name."""

    @abstractmethod
    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a whole file, or replace it."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Write a whole file unless one of that name exists; returns whether it was written."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file. A missing one is not an error."""


class Folder(Storage):
    """Files below a folder. Missing folders are created when a file is written; links are refused.

    >>> import tempfile
    >>> folder = Folder(tempfile.mkdtemp())
    >>> folder.write("a/b.json", b"{}"), folder.create("a/b.json", b"other")
    (None, False)
    >>> folder.read("a/b.json"), list(folder.list())
    (b'{}', [Entry(name='a/b.json', size=2)])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """The bytes of a file from `start` on, at most `length`."""
        with os.fdopen(open_entry(self.path / name, os.O_RDONLY), "rb") as file:
            file.seek(start)
            return file.read(-1 if length is None else length)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """The files whose names begin with `prefix`, sorted by name; unfinished ones are skipped."""
        parent = self.path / prefix.rpartition("/")[0]
        for path in sorted(parent.rglob("*")):
            name = path.relative_to(self.path).as_posix()
            if name.startswith(prefix) and not is_temporary(name) and path.is_file():
                yield Entry(name, path.stat().st_size)

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a whole file, or replace it."""
        path = self.path / name
        make_subfolder(self.path, path.parent)
        write_file(path, data)

    def create(self, name: str, data: bytes) -> bool:
        """Write a whole file unless one of that name exists; returns whether it was written."""
        path = self.path / name
        make_subfolder(self.path, path.parent)
        temporary = temporary_path(path)
        try:
            with create_file(temporary) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                path.hardlink_to(temporary)  # unlike a rename, refuses an existing name
                sync_folder(path.parent)
                return True
            return False
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Remove a file. A missing one is not an error."""
        (self.path / name).unlink(missing_ok=True)
