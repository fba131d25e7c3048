"""The shards in a folder: their order, their gaps, and which are for validation."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from tokenmill.errors import DatasetError
from tokenmill.store.formats.protocol import Asked

__all__ = ["are_numbered", "check_gaps", "list_shards", "split_by_name"]

_NUMBER = re.compile(r"(.*?)([0-9]+)(\.[^0-9]*)?")
_VALIDATION = re.compile(r"(?:^|[^a-z])val(?:id|idation)?(?:[^a-z]|$)", re.IGNORECASE)


def list_shards(files: Mapping[str, int], ending: str) -> list[str]:
    """The files with an ending, by name, where numbers count as numbers.

    >>> list_shards({"a_10.bin": 4, "a_9.bin": 4, "x.txt": 4}, ".bin")
    ['a_9.bin', 'a_10.bin']
    """
    names = sorted([name for name in files if name.endswith(ending) and name[0] != "."])
    # Names of equal length are in order already: a shorter look at many files.
    return names if len(set(map(len, names))) < 2 else sorted(names, key=_by_number)


def split_by_name(names: Sequence[str]) -> dict[str, list[str]]:
    """The shards for training, and those whose names say validation.

    >>> split_by_name(["web_train_1.bin", "web_val_0.bin", "interval_2.bin"])
    {'train': ['web_train_1.bin', 'interval_2.bin'], 'val': ['web_val_0.bin']}
    """
    val = [name for name in names if "val" in name.lower() and _VALIDATION.search(name)]
    held = set(val)
    train = [name for name in names if name not in held] if held else list(names)
    return {"train": train, "val": val}


def are_numbered(names: Sequence[str]) -> bool:
    """Whether names differ in a number alone.

    >>> are_numbered(["a_1.npy", "a_2.npy"]), are_numbered(["a_1.npy", "b_2.npy"])
    (True, False)
    """
    matches = [_NUMBER.fullmatch(name) for name in names]
    return None not in matches and len({(match[1], match[3]) for match in matches if match}) == 1


def check_gaps(asked: Asked, names: Sequence[str]) -> None:
    """Refuse a numbered sequence with a number missing, unless the user named the format.

    A shard that was not downloaded would otherwise change the data without a word.
    """
    if asked.format is not None or not names or _is_unbroken(names):
        return
    numbers: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    for name in names:
        if match := _NUMBER.fullmatch(name):
            numbers[match[1], match[3] or ""][int(match[2])] = len(match[2])
    for (before, after), found in numbers.items():
        if len(found) == max(found) - min(found) + 1:
            continue
        missing = next(number for number in range(min(found), max(found)) if number not in found)
        name = f"{before}{missing:0{found[min(found)]}}{after}"
        raise DatasetError(
            f"{name} is missing from {asked.path}: there are {len(found):,} such files, numbered "
            f"{min(found)} to {max(found)}. Fetch it; or, to go without, name the format "
            "(see docs/formats.md)."
        )


def _is_unbroken(names: Sequence[str]) -> bool:
    """Whether sorted names are surely one sequence: a quick look at very many."""
    first, last = _NUMBER.fullmatch(names[0]), _NUMBER.fullmatch(names[-1])
    if not first or not last or (first[1], first[3]) != (last[1], last[3]):
        return False
    # What is sorted between two names that begin alike begins like them, too.
    before, after = len(first[1]), len(names[0]) - len(first[3] or "")
    digits = "".join([name[before:after] for name in names])
    return (
        len(digits) == len(names) * len(first[2])
        and digits.isdecimal()
        and len(set(map(len, names))) == 1
        and int(last[2]) - int(first[2]) + 1 == len(names)
    )


def _by_number(name: str) -> tuple[str, int, str]:
    match = _NUMBER.fullmatch(name)
    return (match[1], int(match[2]), match[3] or "") if match else (name, 0, "")
