"""Add documents to a list of documents to leave out, and remove them from it.

A change appears whole or not at all: the new list is written beside the old one and takes its name.
Two processes that change a list at the same time wait for each other; in an object store, the second
one repeats its change. So no entry is lost.

A change copies the list once, at the speed of the disk. Memory holds the entries of one change.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from tokenmill.errors import FolderError, UsageError
from tokenmill.preparation.exclusion import Exclusion, is_list, parse_entry, read_lines
from tokenmill.storage.disk import disk_error
from tokenmill.storage.files import AtomicFile, is_temporary, make_folder, refuse_link, remove
from tokenmill.storage.lock import FileLock
from tokenmill.storage.object_errors import ObjectChangedError
from tokenmill.storage.object_path import ObjectPath

_PATIENCE = 60.0  # seconds to wait for another process that changes the list
_PAUSE = 0.02
_MOST_OBJECT = 256 << 20  # bytes of a list in an object store, which is changed in memory
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)

# Takes the lines of a list, each with its key; returns the lines of the new list.
_Change = Callable[[Iterator[tuple[str, bytes]]], Iterator[bytes]]


def add_exclusions(path: Path, entries: Iterable[Exclusion]) -> list[Exclusion]:
    """Append entries to a list, and make the list if it is missing. Keys in the list are skipped.

    Returns the entries that were added.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "list.jsonl"
    >>> entries = [Exclusion(key="0" * 32, because="spam")]
    >>> len(add_exclusions(path, entries)), len(add_exclusions(path, entries))
    (1, 0)
    >>> path.read_text()
    '{"key":"00000000000000000000000000000000","because":"spam"}\\n'
    """
    wanted: dict[str, Exclusion] = {}
    for entry in entries:
        wanted.setdefault(entry.key, entry)
    added: list[Exclusion] = []

    def change(listed: Iterator[tuple[str, bytes]]) -> Iterator[bytes]:
        left = dict(wanted)
        for key, line in listed:
            left.pop(key, None)
            yield line
        added[:] = left.values()
        for entry in added:
            yield msgspec.json.encode(entry) + b"\n"

    if wanted:
        _rewrite(path, change, lambda: bool(added))
    return added


def remove_exclusions(path: Path, keys: Collection[str]) -> list[Exclusion]:
    """Remove all entries with these keys from a list. Returns the removed entries."""
    removed: list[Exclusion] = []

    def change(listed: Iterator[tuple[str, bytes]]) -> Iterator[bytes]:
        removed.clear()
        for key, line in listed:
            if key in keys:
                removed.append(parse_entry(key, line))
            else:
                yield line

    if keys:
        _rewrite(path, change, lambda: bool(removed))
    return removed


def _rewrite(path: Path, change: _Change, is_changed: Callable[[], bool]) -> None:
    """Replace a list by a changed copy. Without a change, leave it as it is."""
    if isinstance(path, ObjectPath):
        _rewrite_object(path, change, is_changed)
        return
    refuse_link(path)
    is_list(path)  # refuses what is not a file
    try:
        with _locked(path), AtomicFile(path) as file:
            for line in change(read_lines(path)):
                file.write(line)
            if is_changed():
                file.finish()
    except OSError as error:
        if error.errno in _READ_ONLY:
            raise FolderError(
                f"{path} cannot be written: {os.strerror(error.errno)}. Name another file for the "
                "list: `out=FILE`."
            ) from error
        raise disk_error(error) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a list. Removes what a killed process left behind."""
    make_folder(path.parent)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    until = time.monotonic() + _PATIENCE
    while not lock.acquire():
        if time.monotonic() > until:
            lock.acquire_or_refuse(
                f"Another process is changing {path}", "Run the same command again later."
            )
            break
        time.sleep(_PAUSE)
    try:
        for name in os.listdir(path.parent):
            if name.startswith(f"{path.name}.") and is_temporary(name):
                remove(path.parent / name)
        yield
    finally:
        lock.release(remove=True)


def _rewrite_object(path: ObjectPath, change: _Change, is_changed: Callable[[], bool]) -> None:
    if not path.is_listable:
        raise UsageError(
            f"{path} is on a web server, which cannot be written to. Name another file for the list: "
            "`out=FILE`."
        )
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            before = path.find()
        except FileNotFoundError:
            before = None
        if before is not None and before.size > _MOST_OBJECT:
            raise UsageError(
                f"{path} has {before.size:,} bytes; a list in an object store may have at most "
                f"{_MOST_OBJECT:,}. Name a local file for further entries: `out=FILE`."
            )
        with suppress(ObjectChangedError):
            data = b"".join(change(read_lines(path)))
            if not is_changed() or path.replace_version(data, before):
                return
        if time.monotonic() > until:
            raise FolderError(f"Other processes keep changing {path}. Run the same command again.")
        time.sleep(_PAUSE)
