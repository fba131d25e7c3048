"""List the files of a folder, and their sizes, without opening them.

A folder in an object store is listed with few requests.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tokenmill.storage.object_path import ObjectPath


def list_names(folder: Path) -> list[str]:
    """Return the sorted names of all entries of a folder; an empty list if the folder is missing."""
    if isinstance(folder, ObjectPath):
        files, folders = folder.storage.list_folder()
        return sorted({*(entry.name for entry in files), *folders})
    return sorted(os.listdir(folder)) if folder.exists() else []


def find_sizes(folder: Path, names: Iterable[str]) -> Iterator[int | None]:
    """Yield the size of each named file in a folder, or None if the file is missing."""
    if isinstance(folder, ObjectPath) and folder.is_listable:
        sizes = {entry.name: entry.size for entry in folder.storage.list()}
        yield from map(sizes.get, names)
        return
    for name in names:
        try:
            yield (folder / name).stat().st_size
        except OSError:
            yield None


def scan_folder(
    folder: Path, belongs: Callable[[str], bool]
) -> tuple[dict[str, int], dict[str, str]]:
    """Return two dicts by name: the sizes of a folder's files, and what its other entries are.

    The second dict has texts such as "is a folder". Names for which `belongs` returns False are
    ignored.
    """
    files: dict[str, int] = {}
    others: dict[str, str] = {}
    if isinstance(folder, ObjectPath):
        found, folders = folder.storage.list_folder()
        files = {entry.name: entry.size for entry in found if belongs(entry.name)}
        others = {name: "is a folder" for name in folders if belongs(name)}
        return files, others
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # For very many files, sorting, joining and splitting the names makes this loop a third
        # faster: sorted names often follow the order of creation, and joining and splitting
        # places them next to each other in memory.
        names = sorted(filter(belongs, os.listdir(handle)))
        for name in "\0".join(names).split("\0") if names else []:
            try:
                status = os.stat(name, dir_fd=handle)
            except FileNotFoundError:
                others[name] = "is a broken link"
            except OSError as error:  # a cycle of links, or no permission
                others[name] = f"cannot be read: {error.strerror}"
            else:
                if stat.S_ISREG(status.st_mode):
                    files[name] = status.st_size
                else:
                    is_folder = stat.S_ISDIR(status.st_mode)
                    others[name] = "is a folder" if is_folder else "is not a regular file"
    finally:
        os.close(handle)
    return files, others


def walk_files(folder: Path, skipped: str) -> Iterator[Path]:
    """Yield all files and links below a folder. Links are not followed.

    For the subfolder `skipped`, yields the path of the folder instead of its files.
    """
    if isinstance(folder, ObjectPath):
        names = [entry.name for entry in folder.storage.list()] if folder.is_listable else []
        found = (skipped if name.startswith(f"{skipped}/") else name for name in names)
        yield from (folder / name for name in dict.fromkeys(found))
        return
    for place, folders, files in os.walk(folder):
        if Path(place) == folder and skipped in folders:
            folders.remove(skipped)
            yield folder / skipped
        links = (name for name in folders if (Path(place) / name).is_symlink())
        yield from (Path(place) / name for name in (*files, *links))
