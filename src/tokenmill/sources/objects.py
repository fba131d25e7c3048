"""Find the input objects below an address, in the order in which a folder is walked.

Listing a bucket gives the sizes and versions of all objects, so no request per object is needed. A
web server cannot list its files, so the user must name each file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tokenmill.errors import InputError
from tokenmill.storage.interface import Entry
from tokenmill.storage.names import MANIFEST_NAME
from tokenmill.storage.object_path import ObjectPath, describe_entry, find_objects


@dataclass(frozen=True, kw_only=True)
class FoundObjects:
    """Input objects with their sizes and versions, and datasets that were found beside them.

    `named` means that the user named a single object, not a folder or a glob.
    """

    files: list[tuple[str, os.stat_result]]
    datasets: list[str]
    named: bool = False


def find_input_objects(path: ObjectPath, leave_out: Path | None) -> FoundObjects:
    """Find the objects at or below an address, or those that a glob matches.

    Below an address, hidden objects, finished datasets and the folder `leave_out` are left out.
    """
    matches = find_objects(path)
    if matches is not None:
        if not matches:
            raise InputError(f"Nothing matches '{path}'.")
        return FoundObjects(files=matches, datasets=[])
    if path.is_file():
        return FoundObjects(files=[(str(path), path.stat())], datasets=[], named=True)
    if not path.is_listable:
        raise InputError(
            f"There is no file {path}. A web server has no folders: name each file by its address."
        )
    entries = {entry.name: entry for entry in path.storage.list()}
    if MANIFEST_NAME in entries:
        raise InputError(
            f"{path} is a finished dataset, not text. To inspect it, run tokenmill info; to prepare "
            "again, name the text that it was made from."
        )
    if not entries:
        raise InputError(f"There is no object {path}, and none below it.")
    datasets = {name.rpartition("/")[0] for name in entries if name.endswith(f"/{MANIFEST_NAME}")}
    left_out = set(datasets)
    if isinstance(leave_out, ObjectPath) and leave_out.is_relative_to(path):
        left_out.add(leave_out.relative_to(path).as_posix())
    chosen = [entry for entry in entries.values() if not _is_left_out(entry, left_out)]
    chosen.sort(key=lambda entry: _walk_order(entry.name))
    return FoundObjects(
        files=[(f"{path}/{entry.name}", describe_entry(entry)) for entry in chosen],
        datasets=[f"{path}/{name}" for name in sorted(datasets)],
    )


def _is_left_out(entry: Entry, folders: set[str]) -> bool:
    parts = entry.name.split("/")
    if any(part.startswith(".") for part in parts):
        return True
    return any("/".join(parts[:depth]) in folders for depth in range(1, len(parts)))


def _walk_order(name: str) -> list[tuple[bool, str]]:
    """Return a key that sorts names as a folder is walked: its files first, then its folders.

    >>> sorted(["b/x", "a/y", "c", "a/b/z", "a.txt"], key=_walk_order)
    ['a.txt', 'c', 'a/y', 'a/b/z', 'b/x']
    """
    *folders, file = name.split("/")
    return [*((True, folder) for folder in folders), (False, file)]
