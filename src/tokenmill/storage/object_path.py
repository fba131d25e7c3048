"""Paths of objects: `ObjectPath` is a `Path` whose files are in an object store.

Code that reads a dataset uses a few methods of `Path`, and the functions of this package. Both work
with an `ObjectPath`, so other packages need not know whether files are local. Every method that
asks about an object sends a request. Methods of `Path` that `ObjectPath` does not override look for
a local file of that name, and fail.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import stat
from collections.abc import Generator, Sequence
from functools import cached_property
from pathlib import Path, PosixPath
from typing import Any, BinaryIO

import xxhash

from tokenmill.storage.addresses import WEB, Address, is_address, parse_address
from tokenmill.storage.interface import Entry
from tokenmill.storage.names import MANIFEST_NAME
from tokenmill.storage.object_file import ObjectFile
from tokenmill.storage.object_store import ObjectStorage


def as_path(path: str | os.PathLike[str]) -> Path:
    """Return an `ObjectPath` for an address of an object store, and a `Path` for a local path.

    >>> as_path("data/corpus"), str(as_path("s3://bucket/corpus") / "train")
    (PosixPath('data/corpus'), 's3://bucket/corpus/train')
    """
    if isinstance(path, Path) and not (type(path) is PosixPath and is_address(path)):
        return path
    return as_object(path) if is_address(path) else Path(path)


def as_object(address: str | os.PathLike[str]) -> ObjectPath:
    """Return the `ObjectPath` of an address. Secrets in the address are removed."""
    return ObjectPath(str(parse_address(address)))


def find_objects(
    pattern: str | os.PathLike[str],
) -> list[tuple[str, os.stat_result]] | None:
    """Return the sorted addresses of all objects that match a glob, each with its `stat`.

    Returns None if `pattern` is not a glob, or if an object or a folder has exactly that name.
    """
    address = parse_address(pattern)
    if not glob.has_magic(address.key) or as_path(str(address)).exists():
        return None
    parts = address.key.split("/")
    first = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    folder = Address(address.scheme, address.place, "/".join(parts[:first]))
    return [
        (f"{folder}/{entry.name}", describe_entry(entry))
        for entry in ObjectStorage(folder).list()
        if _matches(entry.name.split("/"), parts[first:])
    ]


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return whether the parts of a name match the parts of a glob.

    >>> _matches(["a", "b", "1.txt"], ["**", "*.txt"]), _matches(["a", "1.txt"], ["*.txt"])
    (True, False)
    """
    if not patterns:
        return not names
    if patterns[0] == "**":
        return any(_matches(names[skip:], patterns[1:]) for skip in range(len(names) + 1))
    return (
        bool(names)
        and fnmatch.fnmatchcase(names[0], patterns[0])
        and _matches(names[1:], patterns[1:])
    )


def describe_entry(entry: Entry) -> os.stat_result:
    """Return the `stat` of an object. Its modification time is a hash of the version."""
    # Azure puts quotes around the version of a single object, but not around versions in lists.
    changed = xxhash.xxh3_64_intdigest(entry.version.strip('"').encode()) >> 1
    facts = (stat.S_IFREG | 0o644, 0, 0, 1, 0, 0, entry.size, 0, 0, 0)
    return os.stat_result(facts, {"st_mtime_ns": changed})


class ObjectPath(PosixPath):
    """The path of an object or of a folder. A folder is all objects whose paths begin with its path."""

    def __str__(self) -> str:
        scheme, *rest = self.parts or ("",)
        if not scheme.endswith(":"):  # a relative path
            return "/".join(self.parts) or "."
        return f"{scheme}//{'/'.join(rest)}"

    def __fspath__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectPath, tuple(self.parts)

    _was_folder = False  # whether objects were found below this path

    @cached_property
    def address(self) -> Address:
        return parse_address(str(self))

    @cached_property
    def storage(self) -> ObjectStorage:
        """The objects below this path, as a `Storage`."""
        return ObjectStorage(self.address)

    @property
    def is_listable(self) -> bool:
        """Whether the store can list its objects; web servers cannot."""
        return self.address.scheme not in WEB

    @cached_property
    def _bucket(self) -> ObjectStorage:
        return ObjectStorage(Address(self.address.scheme, self.address.place, ""))

    def find(self) -> Entry:
        """Return the size and version of the object. Raises FileNotFoundError if it is missing."""
        if not self.address.key:
            raise FileNotFoundError(2, "No such object", str(self))
        return self._bucket.find(self.address.key)

    @property
    def parent(self) -> ObjectPath:
        return super().parent if self.address.key else self

    @property
    def parents(self) -> Sequence[ObjectPath]:
        found = [self.parent] if self.address.key else []
        while found and found[-1].address.key:
            found.append(found[-1].parent)
        return found

    # Methods of Path that ask about files.

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002
        """Return the size, and a hash of the version as the modification time."""
        try:
            entry = self.find()
        except FileNotFoundError:
            if not self.is_dir():
                raise
            return os.stat_result((stat.S_IFDIR | 0o755, 0, 0, 1, 0, 0, 0, 0, 0, 0))
        return describe_entry(entry)

    def lstat(self) -> os.stat_result:
        return self.stat()

    def exists(self, **_: bool) -> bool:
        # A name without a suffix is most often a folder: trying that first saves a request.
        if not self.suffix and self.is_listable:
            return self.is_dir() or self.is_file()
        return self.is_file() or self.is_dir()

    def is_file(self, **_: bool) -> bool:
        try:
            self.find()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self, **_: bool) -> bool:
        if self.address.scheme in WEB:  # only datasets are folders there, found by their manifest
            return self.name != MANIFEST_NAME and (self / MANIFEST_NAME).is_file()
        if not self._was_folder:  # opening a dataset asks several times
            self._was_folder = self.storage.has_objects()
        return self._was_folder

    def is_symlink(self) -> bool:
        return False

    def is_absolute(self) -> bool:
        return True

    def absolute(self) -> ObjectPath:
        return self

    def resolve(self, strict: bool = False) -> ObjectPath:  # noqa: ARG002
        return self

    def expanduser(self) -> ObjectPath:
        return self

    def samefile(self, other: str | os.PathLike[str]) -> bool:
        return self == as_path(other)

    def iterdir(self) -> Generator[ObjectPath, None, None]:
        """Return the objects and folders directly below this path, each once."""
        files, folders = self.storage.list_folder()
        names = sorted({*(entry.name for entry in files), *folders})
        return (self / name for name in names)

    def glob(self, pattern: str) -> Generator[ObjectPath, None, None]:
        """Return the objects and folders directly below this path whose names match a pattern."""
        return (path for path in self.iterdir() if fnmatch.fnmatchcase(path.name, pattern))

    def rglob(self, pattern: str) -> Generator[ObjectPath, None, None]:
        """Return the objects at any depth below this path whose names match a pattern."""
        paths = (self / entry.name for entry in self.storage.list())
        return (path for path in paths if fnmatch.fnmatchcase(path.name, pattern))

    # Methods of Path that read and write.

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
        """Open the object for reading. `mode` must be "rb"."""
        if mode != "rb":
            raise ValueError(f"an object can be opened only with the mode 'rb', not {mode!r}")
        return ObjectFile(self, self._bucket, self._bucket.find_known(self.address.key))

    def find_all(self) -> None:
        """Look up all objects below this path with few requests: see `ObjectStorage.find_all`."""
        self._bucket.find_all(f"{self.address.key}/" if self.address.key else "")

    def read_bytes(self) -> bytes:
        return self._bucket.read(self.address.key)

    def write_bytes(self, data: Any) -> int:
        self._bucket.write(self.address.key, data)
        return len(data)

    def replace_version(self, data: bytes, before: Entry | None) -> bool:
        """Write the object if it has not changed since it was found, or was missing (None).

        Returns whether it was written.
        """
        if before is None:
            return self._bucket.create(self.address.key, data)
        return self._bucket.replace(self.address.key, data, before.version)

    def upload(self, file: BinaryIO) -> None:
        """Write the content of a local file to the object."""
        self._bucket.upload(self.address.key, file)

    def unlink(self, missing_ok: bool = False) -> None:  # noqa: ARG002
        self._bucket.delete(self.address.key)

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Do nothing: a folder exists as long as it has objects."""

    def rmdir(self) -> None:
        """Do nothing: a folder exists as long as it has objects."""
