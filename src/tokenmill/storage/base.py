"""Where files live: the few operations that everything durable is built on.

`Folder` is the implementation for a folder on disk. An object store is the same five operations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple


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
