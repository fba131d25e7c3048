"""Find the files and folders for a path, a glob or a list of these, and read their contents.

Files in several folders are opened together only if they have the same format, dtype, tokenizer,
vocabulary size and end-of-text id. Otherwise, an error names the difference.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

from tokenmill.errors import DatasetError, UsageError
from tokenmill.formats import recognize
from tokenmill.formats.base import Contents, OpenRequest
from tokenmill.formats.shard_names import sort_names
from tokenmill.hub.paths import is_hub_path
from tokenmill.storage.addresses import is_address
from tokenmill.storage.object_path import as_path, find_objects
from tokenmill.storage.reading import find_cure, find_near
from tokenmill.store.documents import JoinedDocuments
from tokenmill.store.shards import JoinedShards

AnyPath: TypeAlias = str | os.PathLike[str]
AnyPaths: TypeAlias = AnyPath | Sequence[AnyPath]

_SHARDS = (".bin", ".npy", ".ds", ".mds", ".array_record", ".arrayrecord")


def find_all(paths: AnyPaths) -> list[Path]:
    """Return the files and folders for a path, a glob or a list of these.

    Matches of a glob are sorted by name, with numbers compared as numbers. Lists keep their order.

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
    if is_address(paths):
        path = as_path(paths)
        found = find_objects(path)
        return [find(path)] if found is None else _check_matches(path, [name for name, _ in found])
    text = os.path.expanduser(os.fspath(paths))  # noqa: PTH111  (the text may not be a path)
    if not glob.has_magic(text) or _exists(text):
        return [find(text)]
    return _check_matches(text, glob.glob(text, recursive=True))


def _check_matches(pattern: AnyPath, found: list[str]) -> list[Path]:
    """Return the paths that a glob matches, in order; raise an error if there are none."""
    matches = sort_names(found)
    if not matches:
        raise DatasetError(f"{pattern} matches no file or folder. Check the pattern.")
    return [as_path(match) for match in matches] if len(matches) > 1 else [find(matches[0])]


def group_by_folder(paths: Sequence[Path]) -> Iterator[tuple[Path, tuple[str, ...] | None]]:
    """Group consecutive files of the same folder; yield each folder with the names of its files.

    For a path that is itself a folder, yield the folder with None.

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
    """Return the file or folder for a path; raise an error if there is none.

    For a path on the Hub, fetch the files first, and return where they are on disk.
    """
    if is_hub_path(path):
        from tokenmill.hub.cache import find_cached_dataset

        path = find_cached_dataset(path)
    found = as_path(path)
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
                raise DatasetError(
                    f"{found} is neither a file nor a folder. Pass the path of a file or folder."
                )
            if not found.stat().st_size:
                raise DatasetError(f"{found} is empty. Copy or download it again.")
    except (
        OSError,
        ValueError,
    ) as error:  # no permission, or a name that is too long or contains a NUL
        reason = getattr(error, "strerror", None) or error
        raise DatasetError(
            f"{str(path)!r} cannot be read: {reason}. {find_cure(error, '')}".rstrip()
        ) from error
    return found


def read_paths(request: OpenRequest, paths: list[Path]) -> tuple[str, Contents, Path]:
    """Read files and folders; return their format, their contents and their common folder.

    If there is only one path, return that path instead of the folder.
    """
    if len(paths) == 1:
        return *recognize(request), paths[0]
    common = _find_common([path.absolute() for path in paths])
    parts = {}
    for folder, names in group_by_folder(paths):
        label = os.path.relpath(folder.absolute(), common)
        while label in parts:  # the list names this folder twice, with another folder in between
            label = f"{label}/."
        parts[label] = recognize(replace(request, path=folder, chosen=names))
        _check_all_used(folder, names or (), *parts[label])
    if len(parts) == 1:
        return *next(iter(parts.values())), folder
    return *_join(parts), common


def _find_common(paths: Sequence[Path]) -> Path:
    """Return the innermost folder that contains all paths."""
    try:
        return as_path(os.path.commonpath(paths))
    except ValueError:
        raise UsageError(
            "Local files and objects in an object store cannot be opened together. Open them "
            "separately."
        ) from None


def _check_all_used(folder: Path, chosen: tuple[str, ...], format: str, contents: Contents) -> None:
    """Raise an error if a file that the user named is not used in `contents`.

    Such a file is not in the format of the other files. Empty files, and files that belong to a
    used file, such as its index, are allowed.
    """
    used = {
        shards.name(number)
        for shards in contents.splits.values()
        for number in range(len(shards.counts))
    }
    stems = {os.path.splitext(name)[0] for name in used}
    for name in chosen:
        parts = {name[:place] for place, letter in enumerate(name) if letter == "."}
        is_beside = not name.endswith(_SHARDS) and not stems.isdisjoint(parts)
        if name not in used and not is_beside and (folder / name).stat().st_size:
            raise DatasetError(
                f"{folder / name} is not in the format {format} of the other files. Open it "
                "separately, or omit it from the list or pattern."
            )


def _join(parts: Mapping[str, tuple[str, Contents]]) -> tuple[str, Contents]:
    """Join the shards and documents of several folders end to end, split by split.

    `parts` maps the name of each folder to its format and contents. Raise an error if the folders
    differ in one of the facts of `_list_facts`.
    """
    names = list(parts)
    facts = [_list_facts(*parts[name]) for name in names]
    for name, other in zip(names, facts, strict=True):
        for what, value in other.items():
            if value != facts[0][what]:
                raise DatasetError(
                    f"{names[0]} and {name} cannot be opened together: the {what} is "
                    f"{facts[0][what]} in one and {value} in the other. Open them separately."
                )
        if parts[name][1].manifest is not None:
            raise DatasetError(
                f"{name} is a prepared dataset, which cannot be joined with other data. Open it "
                "separately. To train on several datasets, use tokenmill.Mixture."
            )
    format, first = parts[names[0]]
    splits, documents = {}, {}
    for split in dict.fromkeys(split for name in names for split in parts[name][1].splits):
        having = [name for name in names if split in parts[name][1].splits]
        contents = [parts[name][1] for name in having]
        shards = JoinedShards(tuple(one.splits[split] for one in contents), tuple(having))
        splits[split] = shards
        tables = [one.documents[split] for one in contents if split in one.documents]
        if len(tables) == len(having):
            counts = [int(part.counts.sum()) for part in shards.parts]
            documents[split] = JoinedDocuments(tables, counts, split)
    return format, replace(first, splits=splits, documents=documents)


def _list_facts(format: str, contents: Contents) -> dict[str, Any]:
    """Return the properties that folders must share to be joined."""
    return {
        "format": format,
        "dtype": ", ".join(sorted({shards.dtype.name for shards in contents.splits.values()})),
        "end-of-text id": contents.eot_id,
        "side of the end-of-text id": contents.eot,
        "vocabulary size": contents.vocab_size,
        "tokenizer": contents.tokenizer,
    }


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False
