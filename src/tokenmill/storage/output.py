"""Claim a folder for writing: one run at a time, and never a folder that holds other files.

empty or missing         a new run starts
one of the run's marks   an earlier run: resumed if its settings are the same, refused otherwise
anything else            refused
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import orjson

from tokenmill.errors import FolderError
from tokenmill.storage.files import (
    check_entries,
    is_temporary,
    make_folder,
    make_subfolder,
    remove_temporaries,
    sync_folder,
)
from tokenmill.storage.folder import Folder
from tokenmill.storage.lock import FileLock
from tokenmill.storage.names import WORK_NAME
from tokenmill.storage.reading import DamagedFileError, read_json

_MOST_BYTES = 1 << 20  # of saved settings, unless the settings of this run need more


class OutputFolder(Folder):
    """A folder that this process has locked, without half-written files.

    `marks` are file names that show that the folder belongs to a run of this kind. Files named in
    `ignored` may be in a folder without a mark. `lock` is the name of the lock file; by default the
    folder itself is locked. `argument` is the Python argument that chose the folder, for error
    messages.

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
    ) -> None:
        super().__init__(path)
        self.argument = argument
        self._refuse_if_foreign(marks, ignored)
        self._lock = FileLock(path / lock, is_folder=path / lock == path)
        self._take_lock()
        try:
            sync_folder(path)  # an earlier run may have been killed before it did this
            self.remove_temporaries()
            check_entries(path / WORK_NAME)  # its files are opened by name from now on
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, *, remove_lock: bool = False) -> None:
        """Release the lock. First removes half-written files of this run, if the disk allows it."""
        try:
            with suppress(OSError):
                self.remove_temporaries()
        finally:
            self._lock.release(remove=remove_lock)

    def remove_temporaries(self) -> None:
        """Remove half-written files of any process, here and one level below."""
        below = (path for path in self.path.iterdir() if path.is_dir() and not path.is_symlink())
        remove_temporaries(self.path, *below)

    def remember(self, name: str, settings: Mapping[str, Any]) -> None:
        """Record the settings of a run; refuse to resume one with other settings."""
        record = orjson.dumps(settings)
        if self.create(name, record):
            return
        try:
            before = read_json(self.path, name, dict[str, Any], max(_MOST_BYTES, 2 * len(record)))
        except DamagedFileError as error:
            raise FolderError(f"{self.path / name} {error.what}. Delete {self.path}.") from None
        if changes := describe_changes(before, orjson.loads(record)):
            raise FolderError(
                f"{self.path} holds an unfinished run with other settings: {'; '.join(changes)}. "
                f"Choose another `{self.argument}`, or delete that folder."
            )

    def _take_lock(self) -> None:
        while True:
            make_folder(self.path)
            sync_folder(self.path.parent)  # an earlier run may have been killed before it did this
            if self._lock.path != self.path:
                make_subfolder(self.path, self._lock.path.parent)
            with suppress(FileNotFoundError):  # a run that has just finished removed the folder
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
        names = sorted(os.listdir(self.path)) if self.path.exists() else []
        if any((self.path / mark).exists() for mark in marks):
            return
        foreign = [
            name
            for name in names
            if name not in ignored
            and not is_temporary(name)
            and not _is_empty_folder(self.path / name)
        ]
        if foreign:
            shown = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
            raise FolderError(
                f"{self.path} holds other files ({shown}). "
                f"Choose a new or empty folder for `{self.argument}`."
            )


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The settings that differ, in words.

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
    """Whether a folder holds nothing, or only half-written files of a killed process."""
    if not path.is_dir() or path.is_symlink():
        return False
    return all(is_temporary(name) for name in os.listdir(path))
