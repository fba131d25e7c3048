"""A folder on disk as a `Storage`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tokenmill.storage.files import (
    create_file,
    is_temporary,
    make_subfolder,
    open_entry,
    sync_folder,
    temporary_path,
    write_file,
)
from tokenmill.storage.interface import Entry as Entry
from tokenmill.storage.interface import Storage as Storage
from tokenmill.storage.object_path import ObjectPath


class Folder(Storage):
    """Files below a folder. Missing folders are created when a file is written; links are refused.

    >>> import tempfile
    >>> folder = Folder(tempfile.mkdtemp())
    >>> folder.write("a/b.json", b"{}"), folder.create("a/b.json", b"other")
    (None, False)
    >>> folder.read("a/b.json"), list(folder.list())
    (b'{}', [Entry(name='a/b.json', size=2, version='')])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"<Folder {self.path}>"

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return at most `length` bytes of a file from `start` on."""
        with os.fdopen(open_entry(self.path / name, os.O_RDONLY), "rb") as file:
            file.seek(start)
            return file.read(-1 if length is None else length)

    def find(self, name: str) -> Entry:
        """Return the name and the size of a file."""
        return Entry(name, (self.path / name).stat().st_size)

    def read_ranges(
        self,
        name: str,
        ranges: Sequence[tuple[int, int]],
        version: str = "",  # noqa: ARG002
    ) -> Sequence[bytes]:
        """Return the bytes of ranges [start, stop) of a file."""
        return [self.read(name, start, stop - start) for start, stop in ranges]

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Yield the finished files whose names begin with `prefix`, sorted by name."""
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


def storage_for(path: Path) -> Storage:
    """Return the storage for a path: a folder on disk, or an object store.

    >>> storage_for(Path("data")), storage_for(ObjectPath("s3://bucket/data"))
    (<Folder data>, <ObjectStorage s3://bucket/data>)
    """
    return path.storage if isinstance(path, ObjectPath) else Folder(path)
