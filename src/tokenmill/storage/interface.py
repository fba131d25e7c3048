"""`Storage`, the interface to stored files.

`folder.Folder` implements it for a folder on disk, and `object_store.ObjectStorage` for buckets and web
servers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Entry(NamedTuple):
    """A file in a storage: its name relative to the storage, with slashes, and its size.

    `version` changes if the file does; it is empty if the storage does not know it.
    """

    name: str
    size: int
    version: str = ""


class Storage(ABC):
    """Stores files under names. A file appears whole or not at all, and survives a crash."""

    @abstractmethod
    def find(self, name: str) -> Entry:
        """The size and version of a file. Raises FileNotFoundError if missing."""

    @abstractmethod
    def read_ranges(
        self, name: str, ranges: Sequence[tuple[int, int]], version: str = ""
    ) -> Sequence[bytes]:
        """The bytes of ranges [start, stop) of a file, which must be inside it.

        With a `version`, an error is raised if the file has another one.
        """

    @abstractmethod
    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """At most `length` bytes of a file from `start` on. Raises FileNotFoundError if missing."""

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
