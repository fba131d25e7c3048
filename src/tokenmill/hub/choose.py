"""Which files of a repository are meant: by place, kind, shard number, split and count.

Of a repository or folder one kind of file is taken, the first of these that it holds: a prepared
dataset, token files, Parquet, JSON lines, plain text. Cards and settings are therefore left where
they are, unless they are named. What was asked for and is not there is an error that tells what is.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tokenmill.errors import InputError, UsageError
from tokenmill.hub.listing import HubFile
from tokenmill.storage.names import MANIFEST_NAME

_TOKENS = (".bin", ".npy", ".ds")
_BESIDE = (".idx", ".index", ".metadata", ".csv.gz")  # what tells about a token file, by its name
_INDEX_NAME = "index.json"  # what tells about all of its folder
_COMPRESSIONS = ("", ".gz", ".zst", ".bz2", ".xz")
_LINES = tuple(kind + packed for kind in (".jsonl", ".ndjson", ".json") for packed in _COMPRESSIONS)
_PLAIN = tuple(kind + packed for kind in (".txt", ".text") for packed in _COMPRESSIONS)
_KINDS: dict[str, list[tuple[str, ...]]] = {
    "tokens": [_TOKENS],
    "text": [(".parquet",), _LINES, _PLAIN],
}
_NO_TEXT = ("dataset_infos.json", "dataset_dict.json", "state.json", "config.json")
_SPLITS = {"val": "val|valid|validation", "validation": "val|valid|validation"}
_GAP_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Files to fetch. `kind` is "prepared", "tokens" or "text"."""

    files: tuple[HubFile, ...]
    kind: str

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def parse_shards(text: str | int | Iterable[int]) -> frozenset[int]:
    """Shard numbers as people write them.

    >>> sorted(parse_shards("1-3,7")), sorted(parse_shards([4, 5]))
    ([1, 2, 3, 7], [4, 5])
    """
    if not isinstance(text, str):
        return frozenset([text] if isinstance(text, int) else text)
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last - first >= 1_000_000:
            raise UsageError(f"`shards` is {text!r}; write numbers such as 1-3 or 1,4,7-9.")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def shard_number(path: str) -> int | None:
    """The number of a token file, which is the last one in its name.

    >>> shard_number("edu_fineweb_train_000012.bin"), shard_number("train.bin")
    (12, None)
    """
    name = path.rpartition("/")[2]
    found = re.findall("[0-9]+", name.rpartition(".")[0]) if name.endswith(_TOKENS) else []
    return int(found[-1]) if found else None


def choose(
    files: Sequence[HubFile],
    where: str,
    *,
    path: str = "",
    shards: Collection[int] | None = None,
    split: str | None = None,
    max_files: int | None = None,
) -> Choice:
    """The files that were asked for, in the order of their names, numbers counting as numbers.

    `where` names the repository in errors; `path` is a file, a folder or a glob in it.
    """
    if max_files is not None and max_files < 1:
        raise UsageError(f"`max_files` is {max_files}; it must be at least 1.")
    found, kind = _of_one_kind(_below(files, path, where), path, where)
    if shards is not None:
        found = _with_numbers(found, shards, where)
    if split is not None:
        found = _in_split(found, split, where)
    found = sorted(found, key=lambda file: _by_number(file.path))
    if max_files is not None and kind == "prepared":
        raise UsageError(
            f"{where} is a prepared dataset, which can only be downloaded whole. Omit `max_files`."
        )
    found = found[:max_files]
    if kind == "tokens":
        found += _find_beside(files, found)
    return Choice(files=tuple(found), kind=kind)


def _below(files: Sequence[HubFile], path: str, where: str) -> list[HubFile]:
    found = [
        file for file in files if not path or file.path == path or file.path.startswith(f"{path}/")
    ] or [file for file in files if fnmatch.fnmatchcase(file.path, path)]
    if not found:
        shown = sorted({file.path.partition("/")[0] for file in files if file.path[0] != "."})
        there = ", ".join(shown[:8]) + (", …" if len(shown) > 8 else "") or "nothing"
        raise InputError(f"There is no {path!r} in {where}. It holds: {there}.")
    return found


def _of_one_kind(files: list[HubFile], path: str, where: str) -> tuple[list[HubFile], str]:
    visible = [file for file in files if not any(part[0] == "." for part in file.path.split("/"))]
    if (f"{path}/{MANIFEST_NAME}" if path else MANIFEST_NAME) in {file.path for file in visible}:
        return visible, "prepared"
    for kind, groups in _KINDS.items():
        for endings in groups:
            found = [
                file
                for file in visible
                if file.path.endswith(endings)
                and (file.path.rpartition("/")[2] not in _NO_TEXT or file.path == path)
            ]
            if found:
                return found, kind
    raise InputError(
        f"{where} holds neither tokens (.bin, .npy) nor text (.parquet, .jsonl, .txt) that can be "
        f"read, but {len(files):,} other files, such as {files[0].path}. For many datasets the hub "
        "keeps a copy in Parquet: write @refs/convert/parquet behind the name."
    )


def _find_beside(files: Sequence[HubFile], chosen: Sequence[HubFile]) -> list[HubFile]:
    """The files without which some token files of other makes cannot be read."""
    paths = {file.path for file in chosen}
    stems = paths | {path.rpartition(".")[0] for path in paths}
    indices = {"".join(path.rpartition("/")[:2]) + _INDEX_NAME for path in paths}
    return [
        file
        for file in files
        if file.path in indices
        or any(
            file.path.endswith(ending) and file.path.removesuffix(ending) in stems
            for ending in _BESIDE
        )
    ]


def _with_numbers(files: list[HubFile], shards: Collection[int], where: str) -> list[HubFile]:
    there = {number for file in files if (number := shard_number(file.path)) is not None}
    if not there:
        raise UsageError(
            f"{where} has no numbered token files, so `shards` does not apply. Choose with "
            "`max_files` or `split`, or add the name of a file after that of the repository."
        )
    if not shards:
        raise UsageError("`shards` is empty. Write numbers such as 1-3.")
    missing = sorted(set(shards) - there)
    if missing:
        told = ", ".join(map(str, missing[:_GAP_SHOWN])) + (
            ", …" if len(missing) > _GAP_SHOWN else ""
        )
        raise InputError(
            f"{where} has no shard {told}. It has {len(there):,}, numbered {min(there)} to "
            f"{max(there)}."
        )
    return [file for file in files if shard_number(file.path) in shards]


def _in_split(files: list[HubFile], split: str, where: str) -> list[HubFile]:
    words = _SPLITS.get(split, re.escape(split))
    pattern = re.compile(rf"(?:^|[^a-z])(?:{words})(?:[^a-z]|$)", re.IGNORECASE)
    found = [file for file in files if pattern.search(file.path)]
    if not found:
        raise InputError(
            f"No file of {where} has the split {split!r} in its name. Its files are such as "
            f"{files[0].path}; omit `split` to take them all."
        )
    return found


def _by_number(path: str) -> list[tuple[int, str]]:
    # Digits and what is between them alternate, so that like is compared with like.
    parts = re.split("([0-9]+)", path)
    return [(int(part), part) if part.isdigit() else (-1, part) for part in parts]
