"""Find the files and folders for a path, a glob or a list of them."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

from tokenmill.errors import DatasetError, UsageError
from tokenmill.formats.folder import sort_names
from tokenmill.hub.paths import is_hub_path
from tokenmill.storage.reading import find_cure, find_near

AnyPath: TypeAlias = str | os.PathLike[str]
AnyPaths: TypeAlias = AnyPath | Sequence[AnyPath]


def find_all(paths: AnyPaths) -> list[Path]:
    """Find the files and folders for a path, a glob or a list of these.

    Matches of a glob are in the order of their names, where numbers count as numbers; lists keep
    their order. `~` is the home folder.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("a_10.bin", "a_9.bin", "x.txt"):
    ...     _ = (folder / name).write_bytes(b"12")
    >>> [path.name for path in find_all(f"{folder}/*.bin")]
    ['a_9.bin', 'a_10.bin']
    """
    if not isinstance(paths, (str, os.PathLike)):
        if not paths:
            raise UsageError("`path` is an empty list. Give at least one file or folder.")
        return [found for path in paths for found in find_all(path)]
    if is_hub_path(paths):
        return [find(paths)]
    text = os.path.expanduser(os.fspath(paths))  # noqa: PTH111  (of a name that may be no path)
    if not glob.has_magic(text) or _exists(text):
        return [find(text)]
    matches = sort_names(glob.glob(text, recursive=True))
    if not matches:
        raise DatasetError(f"{text} matches no file or folder.")
    return [Path(match) for match in matches] if len(matches) > 1 else [find(matches[0])]


def group_by_folder(paths: Sequence[Path]) -> Iterator[tuple[Path, tuple[str, ...] | None]]:
    """Group consecutive files in one folder: yields each folder and the names of the files.

    >>> list(group_by_folder([Path("a/1.bin"), Path("a/2.bin"), Path("b/1.bin")]))
    [(PosixPath('a'), ('1.bin', '2.bin')), (PosixPath('b'), ('1.bin',))]
    """
    for (folder, is_folder), group in groupby(
        paths, key=lambda path: (path, True) if path.is_dir() else (path.parent, False)
    ):
        if is_folder:
            yield from ((folder, None) for _ in group)
        else:
            yield folder, tuple(path.name for path in group)


def find(path: AnyPath) -> Path:
    """The file or folder at a path, or an error that says what is there instead."""
    if is_hub_path(path):
        from tokenmill.hub.cache import find_cached_dataset

        path = find_cached_dataset(path)
    found = Path(path)
    try:
        if not found.exists():
            index = found.with_name(found.name + ".idx")  # Megatron files are named by their prefix
            if index.is_file():
                return index
            near = find_near(found)
            hint = f"Did you mean {near}? " if near is not None else ""
            raise DatasetError(
                f"{found} does not exist. {hint}Make a dataset with: "
                f"tokenmill prepare TEXTS --out {found}"
            )
        if not found.is_dir():
            if not found.is_file():
                raise DatasetError(f"{found} is neither a file nor a folder.")
            if not found.stat().st_size:
                raise DatasetError(f"{found} is empty. Copy or download it again.")
    except (OSError, ValueError) as error:  # no permission, a name too long or with a NUL in it
        reason = getattr(error, "strerror", None) or error
        raise DatasetError(
            f"{str(path)!r} cannot be read: {reason}. {find_cure(error, '')}".rstrip()
        ) from error
    return found


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False
