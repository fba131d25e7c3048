"""The shards in a folder: their order, their gaps, and which are for validation."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import DatasetError
from tokenmill.formats.protocol import Asked
from tokenmill.storage.reading import DamagedFileError

_NUMBERS = re.compile("([0-9]+)")
_OF = re.compile("[0-9]+[-_]of[-_]([0-9]+)", re.IGNORECASE)
_WORD = r"(?i)(?:^|[^a-z])(?:{})(?:[^a-z]|$)"
_TRAINING = re.compile(_WORD.format("train(?:ing)?"))
_VALIDATION = re.compile(_WORD.format("val(?:id|idation)?|eval(?:uation)?"))
_TEST = re.compile(_WORD.format("test(?:ing)?"))
_MASK = bytes.maketrans(b"123456789", b"0" * 9)


def list_shards(asked: Asked, ending: str) -> list[str]:
    """The files of the folder with an ending, by name, where all numbers count as numbers.

    Something with the ending that is not a file, such as a broken link, is refused if there are files
    with the same ending, or with the same name apart from the ending: leaving it out would change the
    data. Otherwise it is unrelated and is passed over.

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("a_10.bin", "a_9.bin", "x.txt"):
    ...     (folder / name).touch()
    >>> list_shards(Asked(path=folder), ".bin")
    ['a_9.bin', 'a_10.bin']
    """
    if ending in asked.listed:
        return list(asked.listed[ending])
    names = []
    if ending in asked.names:
        names = [name for name in asked.files if name.endswith(ending) and name[0] != "."]
    for name, what in asked.others.items():
        if not name.endswith(ending) or name[0] == ".":
            continue
        if names or f"\0{name.removesuffix(ending)}." in f"\0{asked.names}":
            raise DamagedFileError(
                name,
                f"in {asked.path} {what}",
                "Put the file itself in its place, or move it out of the folder.",
            )
    if asked.chosen is None:
        names = sort_names(names)
    else:  # in the user's order: files with the ending, or else files that belong to the others
        beside = (os.path.splitext(name)[0] + ending for name in asked.chosen)
        chosen = [name for name in asked.chosen if name.endswith(ending)]
        names = chosen or [name for name in beside if name in asked.files]
    asked.listed[ending] = names
    return list(names)


def sort_names(names: list[str]) -> list[str]:
    """Names in order, where all numbers count as numbers.

    >>> sort_names(["a_10.bin", "a_9.bin"])
    ['a_9.bin', 'a_10.bin']
    """
    # If sorted names have their digits at the same places, they are in order: a fast path.
    names = sorted(names)
    return names if _are_alike(names) else sorted(names, key=_by_numbers)


def split_by_name(names: Sequence[str]) -> dict[str, list[str]]:
    """The shards for training, and those whose names say validation or, without any word of
    training, test.

    >>> split_by_name(["web_train_1.bin", "web_val_0.bin", "interval_2.bin", "test.bin"])
    {'train': ['web_train_1.bin', 'interval_2.bin'], 'val': ['web_val_0.bin'], 'test': ['test.bin']}
    """
    splits: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    together = "\0".join(names).lower()
    if "val" not in together and "test" not in together:  # a quick look at very many
        return {**splits, "train": list(names)}
    for name in names:
        splits[_find_split(name)].append(name)
    if splits["test"] == list(names):  # it is what they are called
        return {**splits, "train": list(names), "test": []}
    return splits


def _find_split(name: str) -> str:
    if _VALIDATION.search(name):
        return "val"
    return "test" if _TEST.search(name) and not _TRAINING.search(name) else "train"


def are_numbered(names: Sequence[str]) -> bool:
    """Whether names differ in numbers alone.

    >>> are_numbered(["a_1.npy", "a_2.npy"]), are_numbered(["a_1.npy", "b_2.npy"])
    (True, False)
    """
    return _are_alike(names) or len({_NUMBERS.sub("0", name) for name in names}) == 1


def check_gaps(asked: Asked, names: Sequence[str]) -> None:
    """Refuse sorted, numbered names with a gap, unless the user named the files or the format.

    Otherwise a shard that was not downloaded would silently change the data. The number that counts
    is the one before an `-of-`, which must run up to the one after it; without an `-of-`, it is the
    last number that is not the same in all names.
    """
    if asked.format is not None or asked.chosen or not names or _is_unbroken(names):
        return
    for before, after, found in _sequences(names):
        low, high = min(found), max(found)
        width = len(found[low])
        told = f"there are {len(found):,} such files, numbered {low} to {high}"
        if of := _OF.match(found[low] + after):
            whole = int(of[1])
            told = f"of {whole:,} such files, {len(found):,} are there"
            low = 1 if whole in found and 0 not in found else 0
            if high >= low + whole:
                raise DatasetError(
                    f"{before}{found[high]}{after} in {asked.path} is beyond the {whole:,} files "
                    "that its name promises. Remove the files that do not belong there."
                )
            high = low + whole - 1
        if len(found) < high - low + 1:
            missing = next(number for number in range(low, high + 1) if number not in found)
            raise DatasetError(
                f"{before}{missing:0{width}}{after} is missing from {asked.path}: {told}. Fetch "
                "it; or, to go without, name the format (see docs/formats.md)."
            )


def _sequences(names: Sequence[str]) -> Iterator[tuple[str, str, dict[int, str]]]:
    """Names that differ in one number: what is before and after it, and the number as written."""
    alike: dict[str, list[list[str]]] = defaultdict(list)
    for name in names:
        alike[_NUMBERS.sub("0", name)].append(_NUMBERS.split(name))
    for some in alike.values():
        numbers = range(1, len(some[0]), 2)
        first = some[0]
        counting = [place for place in numbers if _OF.match("".join(first[place : place + 3]))] or [
            place for place in numbers if len({parts[place] for parts in some}) > 1
        ]
        if not counting:
            continue
        place = counting[-1]
        found: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
        for parts in some:
            around = "".join(parts[:place]), "".join(parts[place + 1 :])
            found[around][int(parts[place])] = parts[place]
        for (before, after), sequence in found.items():
            yield before, after, sequence


def _is_unbroken(names: Sequence[str]) -> bool:
    """Whether sorted names are surely one sequence: a quick look at very many."""
    lined_up = _line_up(names)
    if lined_up is None:
        return False
    first, last = _NUMBERS.split(names[0]), _NUMBERS.split(names[-1])
    differ = [place for place in range(1, len(first), 2) if first[place] != last[place]]
    if len(differ) != 1 or _OF.search(names[0]):
        return False
    place = differ[0]
    # What is sorted between two names that begin alike begins like them, too.
    after = len(_encode(first[: place + 1]))
    count = int(last[place]) - int(first[place]) + 1
    return count == len(names) and bool((lined_up[:, after:] == lined_up[0, after:]).all())


def _are_alike(names: Sequence[str]) -> bool:
    return not names or _line_up(names) is not None


def _line_up(names: Sequence[str]) -> NDArray[np.uint8] | None:
    """The bytes of names, a row each, where they differ in digits alone, at the same places.

    All at once, which for very many is ten times as fast as one by one.
    """
    first, together = (_encode(some, end="\0") for some in (names[:1], names))
    if together.translate(_MASK) != first.translate(_MASK) * len(names):
        return None
    return np.frombuffer(together, np.uint8).reshape(len(names), len(first))


def _encode(parts: Sequence[str], *, end: str = "") -> bytes:
    return (end.join(parts) + end).encode("utf-8", "surrogateescape")


def _by_numbers(name: str) -> tuple[list[str | int], str]:
    parts = _NUMBERS.split(name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], name
