"""The folder that a conversion writes into: whose it is, and that only one works in it.

    empty or missing       a new conversion begins
    with our record        the same command resumes; another is refused
    anything else          somebody's: refused

Files appear in it whole or not at all, so that what is there need not be made again. The record
tells what the conversion is about; it is the first thing written.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from tokenmill.errors import FolderError
from tokenmill.store.manifest import write_atomically

__all__ = ["OutputFolder", "Progress", "tell_nobody"]

Progress = Callable[[int, int], None]  # told of tokens done and of all


class OutputFolder:
    """An output folder, locked while it is in use.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "out"
    >>> with OutputFolder(place, {"to": "npy"}, record=".export.json") as folder:
    ...     folder.path == place
    True
    >>> OutputFolder(place, {"to": "mds"}, record=".export.json").__enter__()
    Traceback (most recent call last):
    ...
    tokenmill.errors.FolderError: ... holds an unfinished run with other settings: to was 'npy', \
is 'mds'. Choose another `out`, or delete that folder.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], *, record: str) -> None:
        self.path = path
        self._about = dict(about)
        self._record = path / record
        self._lock = -1

    def __enter__(self) -> OutputFolder:
        if self.path.is_file():
            raise FolderError(f"{self.path} is a file; `out` must be a folder.")
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            self._claim()
            for stale in [*self.path.glob("*.tmp"), *self.path.glob("*/*.tmp")]:
                stale.unlink(missing_ok=True)
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def _claim(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderError(
                f"Another run is working in {self.path}. Wait for it, or choose another `out`."
            ) from None
        if not self._record.exists():
            if others := sorted(_list_strangers(self.path, self._record.parent)):
                shown = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
                raise FolderError(
                    f"{self.path} holds other things ({shown}). "
                    "Choose a new or empty folder for `out`."
                )
            self._record.parent.mkdir(exist_ok=True)
            write_atomically(self._record, orjson.dumps(self._about))
            return
        try:
            before = orjson.loads(self._record.read_bytes())
        except (OSError, orjson.JSONDecodeError) as error:
            raise FolderError(
                f"{self._record} cannot be read ({error}). Delete {self.path}."
            ) from None
        now = orjson.loads(orjson.dumps(self._about))
        if before != now:
            told = "; ".join(
                f"{name} was {before.get(name)!r}, is {now.get(name)!r}"
                for name in sorted({*before, *now})
                if before.get(name) != now.get(name)
            )
            raise FolderError(
                f"{self.path} holds an unfinished run with other settings: {told}. "
                "Choose another `out`, or delete that folder."
            )


def _list_strangers(folder: Path, room: Path) -> Iterator[str]:
    """What is in a folder that holds no record; an empty room for one is no stranger."""
    for path in folder.iterdir():
        if path == room:
            yield from (f"{room.name}/{name}" for name in os.listdir(room) if name[-4:] != ".tmp")
        elif path.suffix != ".tmp":
            yield path.name


def tell_nobody(done: int, whole: int) -> None:
    """A `Progress` without a reader."""
