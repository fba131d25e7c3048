"""Claim a folder for writing: one run at a time, and never a folder that holds other files.

What the folder contains decides what happens:

nothing, or the folder is missing   a new run starts
a file that marks an earlier run    that run is resumed if its settings are the same, else refused
anything else                       the folder is refused
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import orjson
import xxhash

from tokenmill.errors import FolderError, UsageError
from tokenmill.storage.decoding import load_json
from tokenmill.storage.files import (
    check_entries,
    is_temporary,
    make_folder,
    make_subfolder,
    remove_temporaries,
    sync_folder,
)
from tokenmill.storage.folder import storage_for
from tokenmill.storage.interface import Entry, Storage
from tokenmill.storage.listing import list_names
from tokenmill.storage.lock import FileLock
from tokenmill.storage.names import WORK_NAME
from tokenmill.storage.object_path import ObjectPath, as_path
from tokenmill.storage.reading import DamagedFileError, read_json

_MOST_BYTES = 1 << 20  # of saved settings, unless the settings of this run need more


class OutputFolder(Storage):
    """An output folder that this process has locked. Half-written files of earlier runs are removed.

    A folder in an object store has no lock and needs none: only one run can create the record of
    the settings, and runs with the same settings write the same bytes. `work` is the local folder
    for the unfinished work of such a run; if it is given, the lock file is in it.

    `marks` are file names that show that the folder belongs to a run of this kind. A folder with
    none of them must be empty, except for files named in `ignored`. `lock` is the name of the lock
    file; by default the folder itself is locked. `argument` is the Python argument that chose the
    folder, for error messages.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "out"
    >>> with OutputFolder(place, marks={"record.json"}) as folder:
    ...     folder.remember("record.json", {"to": "npy"})
    >>> with OutputFolder(place, marks={"record.json"}) as folder:
    ...     folder.remember("record.json", {"to": "mds"})
    Traceback (most recent call last):
    ...
    tokenmill.errors.FolderError: ... holds an unfinished run with other settings: to was 'npy', \
is 'mds'. Choose another `out`, or delete that folder.
    """

    def __init__(
        self,
        path: Path,
        *,
        marks: Collection[str],
        ignored: Collection[str] = (),
        lock: str = ".",
        argument: str = "out",
        work: Path | None = None,
    ) -> None:
        self.path = path
        self.argument = argument
        self._files = storage_for(path)
        if isinstance(path, ObjectPath) and not path.is_listable:
            raise UsageError(
                f"{path} is on a web server, which cannot be written to. Use a bucket or a local folder."
            )
        self._refuse_if_foreign(marks, ignored)
        locked = path / lock if work is None else work / Path(lock).name
        is_remote = isinstance(locked, ObjectPath)
        self._lock = None if is_remote else FileLock(locked, is_folder=locked == path)
        self._take_lock()
        try:
            sync_folder(path)  # an earlier run may have been killed before it did this
            self.remove_temporaries()
            check_entries(
                work or path / WORK_NAME
            )  # refuse links now: files in this folder are opened by name later
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def find(self, name: str) -> Entry:
        return self._files.find(name)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return self._files.read(name, start, length)

    def read_ranges(
        self, name: str, ranges: Sequence[tuple[int, int]], version: str = ""
    ) -> Sequence[bytes]:
        return self._files.read_ranges(name, ranges, version)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return self._files.list(prefix)

    def write(self, name: str, data: bytes | memoryview) -> None:
        self._files.write(name, data)

    def create(self, name: str, data: bytes) -> bool:
        return self._files.create(name, data)

    def delete(self, name: str) -> None:
        self._files.delete(name)

    def close(self, *, remove_lock: bool = False) -> None:
        """Remove half-written files, if the disk allows it, and release the lock."""
        try:
            with suppress(OSError):
                self.remove_temporaries()
        finally:
            if self._lock is not None:
                self._lock.release(remove=remove_lock)

    def remove_temporaries(self) -> None:
        """Remove half-written files of any process from this folder and its direct subfolders."""
        if isinstance(self.path, ObjectPath):
            return
        below = (path for path in self.path.iterdir() if path.is_dir() and not path.is_symlink())
        remove_temporaries(self.path, *below)

    def write_first(self, name: str, data: bytes) -> bool:
        """Write a file unless it exists; returns whether it was written.

        No other process can write a local file after the check, because the folder is locked.
        """
        if isinstance(self.path, ObjectPath):
            return self.create(name, data)
        if (self.path / name).exists():
            return False
        self.write(name, data)
        return True

    def remember(self, name: str, settings: Mapping[str, Any]) -> None:
        """Record the settings of a run. Refuses to resume a run that had other settings."""
        record = orjson.dumps(settings)
        if self.create(name, record):
            return
        try:
            before = read_json(self.path, name, dict[str, Any], max(_MOST_BYTES, 2 * len(record)))
        except DamagedFileError as error:
            raise FolderError(f"{self.path / name} {error.what}. Delete {self.path}.") from None
        if changes := describe_changes(before, load_json(record)):
            raise FolderError(
                f"{self.path} holds an unfinished run with other settings: {'; '.join(changes)}. "
                f"Choose another `{self.argument}`, or delete that folder."
            )

    def _take_lock(self) -> None:
        while self._lock is not None:
            make_folder(self.path)
            sync_folder(self.path.parent)  # an earlier run may have been killed before it did this
            with suppress(FileNotFoundError):  # a run that has just finished removed the folder
                if self._lock.path != self.path:
                    parent = self._lock.path.parent
                    is_below = parent.is_relative_to(self.path)
                    make_subfolder(self.path if is_below else parent, parent)
                self._lock.acquire_or_refuse(
                    f"Another run is working in {self.path}",
                    f"Wait for it, or choose another `{self.argument}`.",
                )
                return

    def _refuse_if_foreign(self, marks: Collection[str], ignored: Collection[str]) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise FolderError(
                f"{self.path} is a file; `{self.argument}` must name a folder to write to."
            )
        foreign = [
            name
            for name in list_names(self.path)
            if name not in ignored
            and not is_temporary(name)
            and not _is_empty_folder(self.path / name)
        ]
        # Look for each mark twice, because another run may just be replacing one mark by another.
        is_marked = any((self.path / mark).exists() for mark in (*marks, *marks))
        if foreign and not is_marked:
            shown = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
            raise FolderError(
                f"{self.path} holds other files ({shown}). "
                f"Choose a new or empty folder for `{self.argument}`."
            )


def choose_work_folder(
    out: Path, work: str | os.PathLike[str] | None, *, is_shared: bool = False
) -> Path | None:
    """Return the folder for unfinished work; None if it is `.work` in the output folder.

    If `out` is in an object store, the work is in a folder of this machine. The folder is named
    after the address, so that the same command finds it again. But if all nodes of a cluster need
    the work (`is_shared`), or the object store has unfinished work, the work is in the object store.
    """
    if not isinstance(out, ObjectPath):
        if work is not None:
            raise UsageError(
                f"`work` is for an `out` in an object store. Omit it: the unfinished work of {out} "
                f"is in {out / WORK_NAME}."
            )
        return None
    if work is None:
        _, folders = out.joinpath(WORK_NAME).storage.list_folder()
        if is_shared or folders:
            return None
        work = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "tokenmill", "work")
    name = f"{out.name}-{xxhash.xxh3_64_hexdigest(str(out).encode())}"
    return as_path(work).expanduser().absolute() / name


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the settings that differ, in words.

    >>> describe_changes({"a": 1, "b": 2}, {"a": 1, "b": 3})
    ['b was 2, is 3']
    """
    return [
        f"{_brief(name)} was {_brief(repr(before.get(name)))}, is {_brief(repr(now.get(name)))}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def _brief(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"


def _is_empty_folder(path: Path) -> bool:
    """Return whether a folder holds nothing, or only half-written files of a killed process."""
    if not path.is_dir() or path.is_symlink():
        return False
    return all(is_temporary(name) for name in list_names(path))
