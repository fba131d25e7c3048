"""Imported by every Python process of a recorded command: logs what makes files durable.

Each line of the file `RECORD_TO` is an event: its time, its kind, which file it is about, and more:

    sync    the checksum of the file's content on disk at that time; for a folder, nothing
    name    the path that a file or folder got, by a rename, a link or mkdir
    made    the path of a file that is written in its place
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

_fsync, _open, _mkdir = os.fsync, os.open, os.mkdir


def identify(status: os.stat_result) -> str:
    """A file, whatever its name."""
    return f"{status.st_dev}:{status.st_ino}"


def checksum(path: str | Path) -> str:
    """The checksum of a file's content, as another process would read it."""
    return hashlib.md5(Path(path).read_bytes()).hexdigest()


def _note(*event: Any) -> None:
    line = json.dumps([time.monotonic_ns(), *event]) + "\n"
    with Path(os.environ["RECORD_TO"]).open("ab", buffering=0) as log:
        log.write(line.encode())


def _sync(handle: int) -> None:
    _fsync(handle)
    status = os.fstat(handle)
    is_file = stat.S_ISREG(status.st_mode)
    # Reading through the name of the descriptor leaves the buffers of this process aside.
    _note("sync", identify(status), checksum(f"/proc/self/fd/{handle}") if is_file else "")


def _name_after(function: Any) -> Any:
    def call(*arguments: Any, **more: Any) -> None:
        function(*arguments, **more)
        path = os.path.abspath(arguments[0 if function is _mkdir else 1])  # noqa: PTH100
        _note("name", identify(os.lstat(path)), path)

    return call


def _open_entry(path: Any, flags: int, *more: Any, **options: Any) -> int:
    is_new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
    handle = _open(path, flags, *more, **options)
    if is_new:
        _note("made", identify(os.fstat(handle)), os.path.abspath(path))  # noqa: PTH100
    return handle


if "RECORD_TO" in os.environ:
    os.fsync = _sync
    os.replace, os.rename, os.link = map(_name_after, (os.replace, os.rename, os.link))
    os.mkdir, os.open = _name_after(_mkdir), _open_entry
