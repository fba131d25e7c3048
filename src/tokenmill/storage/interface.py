"""`Storage`, the interface to stored files.

`folder.Folder` implements `Storage` for a folder on disk, and `object_store.ObjectStorage` for
buckets and web servers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Entry(NamedTuple):
    """A stored file: its name, which is relative to the storage and has slashes, and its size.

    `version` changes whenever the file changes. It is empty for files on disk.
    """

    name: str
    size: int
    version: str = ""


class Storage(ABC):
    """Stores files under names. A file appears whole or not at all, and survives a crash."""

    @abstractmethod
    def find(self, name: str) -> Entry:
        """Return the size and version of a file. Raises FileNotFoundError if missing."""

    @abstractmethod
    def read_ranges(
        self, name: str, ranges: Sequence[tuple[int, int]], version: str = ""
    ) -> Sequence[bytes]:
        """Return the bytes of each range [start, stop) of a file. Ranges must be inside the file.

        With `version`, an object store raises an error if the object has another version.
        """

    @abstractmethod
    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return at most `length` bytes of a file, from `start` on.

        Raises FileNotFoundError if the file is missing.
        """

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Return the files whose names begin with `prefix`, sorted by name."""

    @abstractmethod
    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a whole file, or replace it."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Write a whole file unless one of that name exists; returns whether it was written."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file. A missing one is not an error."""
