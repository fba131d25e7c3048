"""Find the shards in a folder. Their names give the order and the splits, and show gaps."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import DatasetError
from tokenmill.formats.base import OpenRequest
from tokenmill.storage.names import NUMBERS, by_numbers
from tokenmill.storage.reading import DamagedFileError

_OF = re.compile("[0-9]+[-_]of[-_]([0-9]+)", re.IGNORECASE)
_WORD = r"(?ai)(?:^|[^a-z])(?:{})(?:[^a-z]|$)"
_TRAINING = re.compile(_WORD.format("train(?:ing)?"))
_VALIDATION = re.compile(_WORD.format("val(?:id|idation)?|eval(?:uation)?"))
_TEST = re.compile(_WORD.format("test(?:ing)?"))
_MASK = bytes.maketrans(b"123456789", b"0" * 9)  # turns every digit into 0


def list_shards(request: OpenRequest, ending: str) -> list[str]:
    """Return the names of all files with this ending.

    Names are sorted, with numbers compared as numbers. Files that the user named keep their order.

    A broken link or a folder with this ending may be in place of a shard. Such an entry raises an
    error if a file has the same ending, or the same name with another ending. Otherwise the entry
    is skipped.

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("a_10.bin", "a_9.bin", "x.txt"):
    ...     (folder / name).touch()
    >>> list_shards(OpenRequest(path=folder), ".bin")
    ['a_9.bin', 'a_10.bin']
    """
    if ending in request.listed:
        return list(request.listed[ending])
    if not request.is_folder:
        return [name for name in request.files if name.endswith(ending)]
    names = []
    if ending in request.joined_names:
        names = [name for name in request.files if name.endswith(ending) and name[0] != "."]
    for name, what in request.others.items():
        if not name.endswith(ending) or name[0] == ".":
            continue
        if names or f"\0{name.removesuffix(ending)}." in f"\0{request.joined_names}":
            raise DamagedFileError(
                name,
                f"in {request.path} {what}",
                "Replace it with a file, or move it out of the folder.",
            )
    if request.chosen is None:
        names = sort_names(names)
    else:  # named files with the ending or, if there are none, files that belong to named ones
        beside = (os.path.splitext(name)[0] + ending for name in request.chosen)
        chosen = [name for name in request.chosen if name.endswith(ending)]
        names = chosen or [name for name in beside if name in request.files]
    request.listed[ending] = names
    return list(names)


def sort_names(names: list[str]) -> list[str]:
    """Sort names, comparing numbers as numbers.

    >>> sort_names(["a_10.bin", "a_9.bin"])
    ['a_9.bin', 'a_10.bin']
    """
    # Fast path: if all names have digits at the same places, plain sorting is correct.
    names = sorted(names)
    return names if _are_alike(names) else sorted(names, key=by_numbers)


def split_shards(request: OpenRequest, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the shards of each split, by name; raise an error if a numbered shard is missing."""
    if not request.is_folder:
        return {"train": list(names)}
    splits = {split: some for split, some in split_by_name(names).items() if some}
    for some in splits.values():
        check_gaps(request, some)
    return splits


def split_by_name(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the names that belong to each split.

    A name with a word for validation goes to `val`. A name with a word for testing goes to `test`,
    unless it also has a word for training. All other names go to `train`. If all names would go to
    `test`, they go to `train`.

    >>> split_by_name(["web_train_1.bin", "web_val_0.bin", "interval_2.bin", "test.bin"])
    {'train': ['web_train_1.bin', 'interval_2.bin'], 'val': ['web_val_0.bin'], 'test': ['test.bin']}
    """
    splits: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    together = "\0".join(names).lower()
    if "val" not in together and "test" not in together:  # fast path for very many names
        return {**splits, "train": list(names)}
    for name in names:
        splits[_find_split(name)].append(name)
    if splits["test"] == list(names):  # every name contains "test", so it does not mark a split
        return {**splits, "train": list(names), "test": []}
    return splits


def _find_split(name: str) -> str:
    if _VALIDATION.search(name):
        return "val"
    return "test" if _TEST.search(name) and not _TRAINING.search(name) else "train"


def are_numbered(names: Sequence[str]) -> bool:
    """Return whether names differ only in numbers.

    >>> are_numbered(["a_1.npy", "a_2.npy"]), are_numbered(["a_1.npy", "b_2.npy"])
    (True, False)
    """
    return _are_alike(names) or len({NUMBERS.sub("0", name) for name in names}) == 1


def check_gaps(request: OpenRequest, names: Sequence[str]) -> None:
    """Raise an error if a numbered shard is missing, as after an incomplete download.

    Without this check, the missing shard would silently change the data. `x-00001-of-00008.bin`
    says that there must be 8 shards. In other names, the last number that varies is the number of
    the shard: with `x_1.bin` and `x_3.bin`, `x_2.bin` is missing. If the user names the files or
    the format, nothing is checked. The names must be sorted.
    """
    if request.format is not None or request.chosen or not names or _is_unbroken(names):
        return
    for before, after, found in _find_sequences(names):
        low, high = min(found), max(found)
        width = len(found[low])
        there = f"there are {len(found):,} such files, numbered {low} to {high}"
        if of := _OF.match(found[low] + after):
            whole = int(of[1])
            there = f"found {len(found):,} of {whole:,} such files"
            low = 1 if whole in found and 0 not in found else 0
            if high >= low + whole:
                raise DatasetError(
                    f"{before}{found[high]}{after} in {request.path} has a number that is too large: "
                    f"there should be {whole:,} such files, numbered {low} to {low + whole - 1}. Remove the files "
                    "that do not belong there."
                )
            high = low + whole - 1
        if len(found) < high - low + 1:
            missing = next(number for number in range(low, high + 1) if number not in found)
            raise DatasetError(
                f"{before}{missing:0{width}}{after} is missing from {request.path}: {there}. "
                "Download it. To open the other files without it, pass `format=NAME`; docs/formats.md "
                "lists the names."
            )


def _find_sequences(names: Sequence[str]) -> Iterator[tuple[str, str, dict[int, str]]]:
    """Group names that differ only in the number of the shard.

    For each group, yield the text before the number, the text after it, and the numbers with their
    digits: `x_07.bin` and `x_08.bin` give ("x_", ".bin", {7: "07", 8: "08"}).
    """
    alike: dict[str, list[list[str]]] = defaultdict(list)
    for name in names:
        alike[NUMBERS.sub("0", name)].append(NUMBERS.split(name))
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
    """Return whether sorted names are one sequence without a gap; False if this is unclear.

    This is a fast path for very many names.
    """
    lined_up = _line_up(names)
    if lined_up is None:
        return False
    first, last = NUMBERS.split(names[0]), NUMBERS.split(names[-1])
    differ = [place for place in range(1, len(first), 2) if first[place] != last[place]]
    if len(differ) != 1 or _OF.search(names[0]):
        return False
    place = differ[0]
    # The names are sorted, so a prefix that the first and the last name share is in all names. Only
    # the rest of the names has to be compared.
    after = len(_encode(first[: place + 1]))
    count = int(last[place]) - int(first[place]) + 1
    return count == len(names) and bool((lined_up[:, after:] == lined_up[0, after:]).all())


def _are_alike(names: Sequence[str]) -> bool:
    return not names or _line_up(names) is not None


def _line_up(names: Sequence[str]) -> NDArray[np.uint8] | None:
    """Return the bytes of names as an array with one row per name.

    Return None if names differ in more than their digits, or have digits at different places. There
    is no loop over names: for very many names, this is ten times as fast.
    """
    first, together = (_encode(some, end="\0") for some in (names[:1], names))
    if together.translate(_MASK) != first.translate(_MASK) * len(names):
        return None
    return np.frombuffer(together, np.uint8).reshape(len(names), len(first))


def _encode(parts: Sequence[str], *, end: str = "") -> bytes:
    return (end.join(parts) + end).encode("utf-8", "surrogateescape")
