"""Choose which files of a repository to fetch: by path, kind, shard number, split and count.

From a repository or folder, only one kind of file is fetched: a prepared dataset if there is one,
else token files, else Parquet, else JSON lines, else plain text, else CSV. So dataset cards and configuration
files are not fetched unless you name them. If no file matches the request, an error lists what
exists.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tokenmill.errors import InputError, UsageError
from tokenmill.hub.repository import HubFile
from tokenmill.storage.names import MANIFEST_NAME, by_numbers

_TOKENS = (".bin", ".npy", ".ds")
_INDEX_ENDINGS = (".idx", ".index", ".metadata", ".csv.gz")  # of files that belong to a token file
_INDEX_NAME = "index.json"  # this file belongs to all token files of its folder
_COMPRESSIONS = ("", ".gz", ".zst", ".bz2", ".xz")
_LINES = tuple(kind + packed for kind in (".jsonl", ".ndjson", ".json") for packed in _COMPRESSIONS)
_PLAIN = tuple(kind + packed for kind in (".txt", ".text") for packed in _COMPRESSIONS)
_CSV = tuple(kind + packed for kind in (".csv", ".tsv") for packed in _COMPRESSIONS)
_KINDS = [
    ("tokens", _TOKENS),
    *(("text", endings) for endings in ((".parquet",), _LINES, _PLAIN, _CSV)),
]
_NOT_TEXT = ("dataset_infos.json", "dataset_dict.json", "state.json", "config.json")
_DIGITS = 18  # most digits of a shard number; Python refuses to convert very long numbers
_SPLITS = {"val": "val|valid|validation", "validation": "val|valid|validation"}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The files to fetch. `kind` is "prepared", "tokens" or "text"."""

    files: tuple[HubFile, ...]
    kind: str


def parse_shards(text: str | int | Iterable[int]) -> frozenset[int]:
    """Return the shard numbers in a text such as "1-3,7"; integers are also accepted.

    >>> sorted(parse_shards("1-3,7")), sorted(parse_shards([4, 5]))
    ([1, 2, 3, 7], [4, 5])
    """
    if not isinstance(text, str):
        return frozenset([text] if isinstance(text, int) else text)
    numbers: set[int] = set()
    for item in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", item)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last - first >= 1_000_000:
            raise UsageError(f"`shards` is {text!r}; write numbers such as 1-3 or 1,4,7-9.")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def shard_number(path: str) -> int | None:
    """Return the shard number of a token file: the last number in its name, or None.

    >>> shard_number("edu_fineweb_train_000012.bin"), shard_number("train.bin")
    (12, None)
    """
    name = path.rpartition("/")[2]
    found = re.findall("[0-9]+", name.rpartition(".")[0]) if name.endswith(_TOKENS) else []
    return int(found[-1]) if found and len(found[-1]) <= _DIGITS else None


def choose(
    files: Sequence[HubFile],
    repository: str,
    *,
    path: str = "",
    shards: Collection[int] | None = None,
    split: str | None = None,
    max_files: int | None = None,
) -> Choice:
    """Return the requested files, sorted by name, with numbers compared as numbers.

    `path` is a file, a folder or a glob in the repository. `repository` is only for error messages.
    After token files come the index files that belong to them. `max_files` does not count these.
    """
    if max_files is not None and max_files < 1:
        raise UsageError(f"`max_files` is {max_files}; it must be at least 1.")
    found, kind = _of_one_kind(_below(files, path, repository), path, repository)
    if shards is not None:
        found = _with_numbers(found, shards, repository)
    if split is not None:
        found = _in_split(found, split, repository)
    if max_files is not None and kind == "prepared":
        raise UsageError(
            f"{repository} is a prepared dataset, which can only be downloaded whole. Omit "
            "`max_files`."
        )
    found = sorted(found, key=lambda file: by_numbers(file.path))[:max_files]
    if kind == "tokens":
        found += _find_indexes(files, found)
    return Choice(files=tuple(found), kind=kind)


def _below(files: Sequence[HubFile], path: str, repository: str) -> list[HubFile]:
    found = [
        file for file in files if not path or file.path == path or file.path.startswith(f"{path}/")
    ] or [file for file in files if fnmatch.fnmatchcase(file.path, path)]
    if not found:
        names = sorted({file.path.partition("/")[0] for file in files if file.path[0] != "."})
        there = ", ".join(names[:8]) + (", …" if len(names) > 8 else "") or "nothing"
        raise InputError(f"{repository} has no {path!r}. It has: {there}.")
    return found


def _of_one_kind(files: list[HubFile], path: str, repository: str) -> tuple[list[HubFile], str]:
    visible = [file for file in files if not any(part[0] == "." for part in file.path.split("/"))]
    if (f"{path}/{MANIFEST_NAME}" if path else MANIFEST_NAME) in {file.path for file in visible}:
        return visible, "prepared"
    for kind, endings in _KINDS:
        found = [
            file
            for file in visible
            if file.path.endswith(endings)
            and (file.path.rpartition("/")[2] not in _NOT_TEXT or file.path == path)
        ]
        if found:
            return found, kind
    raise InputError(
        f"{repository} has neither tokens (.bin, .npy) nor text (.parquet, .jsonl, .txt, .csv), only "
        f"{len(files):,} other files, such as {files[0].path}. The Hub keeps a Parquet copy of many "
        "datasets: append "
        "@refs/convert/parquet to the repository's name."
    )


def _find_indexes(files: Sequence[HubFile], chosen: Sequence[HubFile]) -> list[HubFile]:
    """Return the index files that are needed to read the chosen token files."""
    paths = {file.path for file in chosen}
    stems = paths | {path.rpartition(".")[0] for path in paths}
    indexes = {"".join(path.rpartition("/")[:2]) + _INDEX_NAME for path in paths}
    return [
        file
        for file in files
        if file.path in indexes
        or any(
            file.path.endswith(ending) and file.path.removesuffix(ending) in stems
            for ending in _INDEX_ENDINGS
        )
    ]


def _with_numbers(files: list[HubFile], shards: Collection[int], repository: str) -> list[HubFile]:
    there = {number for file in files if (number := shard_number(file.path)) is not None}
    if not there:
        raise UsageError(
            f"{repository} has no numbered token files, so `shards` does not apply. Use `max_files` "
            f"or `split`, or name one file: {repository}/FILE."
        )
    if not shards:
        raise UsageError("`shards` is empty. Write numbers such as 1-3.")
    if missing := sorted(set(shards) - there):
        shown = ", ".join(map(str, missing[:3])) + (", …" if len(missing) > 3 else "")
        raise InputError(
            f"{repository} has no shard {shown}. It has {len(there):,} shards, numbered "
            f"{min(there)} to {max(there)}."
        )
    return [file for file in files if shard_number(file.path) in shards]


def _in_split(files: list[HubFile], split: str, repository: str) -> list[HubFile]:
    words = _SPLITS.get(split, re.escape(split))
    pattern = re.compile(rf"(?:^|[^a-z])(?:{words})(?:[^a-z]|$)", re.IGNORECASE)
    found = [file for file in files if pattern.search(file.path)]
    if not found:
        raise InputError(
            f"No file of {repository} has the split {split!r} in its name. A typical name is "
            f"{files[0].path}; omit `split` to take all files."
        )
    return found
