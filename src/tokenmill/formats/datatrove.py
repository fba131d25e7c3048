"""datatrove's tokenized files: `x.ds` (ids), `x.ds.index` (where documents end), `x.ds.metadata`.

The files of a folder are assigned to splits by their names (`val`), and ordered by name. The width of
an id comes from the metadata, or from the index and the size; if both are missing, the user gives it.
`x.ds.loss` is ignored.

A task without documents leaves an empty `00001_unshuffled.ds` with an empty index, even if the other
files are shuffled and named `00000_00000_doc_shuffled.ds`. Files without tokens and documents are left
out.

Checked at opening: every file's size against its index's last entry and the metadata's width and
count. Checked when a file's documents are first used: that the index is in order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError
from tokenmill.formats.folder import check_gaps, list_shards, sort_names, split_by_name
from tokenmill.formats.protocol import Asked, Contents, NotThisFormat
from tokenmill.formats.raw import make_shards
from tokenmill.formats.starts import FileDocuments, Starts
from tokenmill.storage.mapping import map_file
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError, check_size, open_foreign

NAME = "datatrove"
ENDING = ".ds"
WIDTHS: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
# A name in a stranger's file is not looked up: it might be a path, or lead to the network.
_TOKENIZERS = {"gpt2": "gpt2", "openai-community/gpt2": "gpt2"}
_LONGEST = 1 << 16  # bytes of metadata that are read
_UNSHUFFLED = re.compile(r"(.*?)([0-9]+)_unshuffled\.ds")

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class _Told:
    """What lies beside a file: its tokenizer, the width of an id, and the number of tokens."""

    tokenizer: str | None
    width: int | None
    tokens: int | None
    documents: int | None


def read(asked: Asked) -> Contents:
    """What one file or a folder of them holds."""
    if asked.is_folder:
        files, names = asked.files, list_shards(asked, ENDING)
        if not names:
            raise NotThisFormat("it has no .ds files")
    else:
        if asked.path.suffix != ENDING:
            raise NotThisFormat("its name does not end with .ds")
        names = [asked.path.name]
        files = _sizes(asked.path)
    splits = {"train": names}
    if asked.is_folder:
        splits = split_by_name(names)
        for some in splits.values():
            check_gaps(asked, sort_names([*some, *_stand_ins(some, files)]))
    told = {name: _look_beside(asked.folder, name, files) for name in names}
    splits = {
        split: [name for name in some if files[name] or told[name].documents]
        for split, some in splits.items()
    }
    splits = {split: some for split, some in splits.items() if some}
    if not splits:
        raise DatasetError(f"{asked.path} holds no tokens.")
    dtype = _choose_dtype(asked, told)
    shards = {
        split: make_shards(asked.folder, some, files, dtype) for split, some in splits.items()
    }
    documents = {
        split: FileDocuments(
            _Indexes(
                folder=asked.folder.absolute(),
                names=some,
                counts=[told[name].documents or 0 for name in some],
            ),
            shards[split].counts,
            split,
        )
        for split, some in splits.items()
        if all(told[name].documents is not None for name in some)
    }
    tokenizers = {one.tokenizer for one in told.values()}
    tokenizer = tokenizers.pop() if len(tokenizers) == 1 else None
    return Contents(splits=shards, documents=documents, tokenizer=_TOKENIZERS.get(tokenizer or ""))


def _stand_ins(names: list[str], files: Mapping[str, int]) -> list[str]:
    """The names that the files of tasks without documents would have had.

    >>> _stand_ins(["00000_00000_doc_shuffled.ds", "00001_unshuffled.ds"],
    ...            {"00000_00000_doc_shuffled.ds": 4, "00001_unshuffled.ds": 0})
    ['00001_00000_doc_shuffled.ds']
    """
    empty = [found for name in names if not files[name] and (found := _UNSHUFFLED.fullmatch(name))]
    stand_ins = set()
    for before, rank in (found.groups() for found in empty):
        for name in names:
            rest = name.removeprefix(before)
            if name.startswith(before) and rest[: len(rank)].isdigit():
                stand_ins.add(before + rank + rest[len(rank) :])
    return sorted(stand_ins.difference(names))


def _sizes(path: Path) -> Mapping[str, int]:
    beside = [path, *(path.with_name(path.name + end) for end in (".index", ".metadata"))]
    return {one.name: one.stat().st_size for one in beside if one.is_file()}


def _look_beside(folder: Path, name: str, files: Mapping[str, int]) -> _Told:
    told = _read_metadata(folder, name, files)
    index = f"{name}.index"
    if index not in files:
        return told
    size = files[index]
    if size % 8:
        what = f"has {size:,} bytes, and an index has 8 for each document"
        raise DamagedFileError(index, what, FOREIGN_CURE)
    tokens = 0
    if size:
        with open_foreign(folder, index) as file:
            file.seek(size - 8)
            tokens = int.from_bytes(file.read(8), "little")
    width = next((width for width in WIDTHS if tokens * width == files[name]), None)
    if width is None:
        raise DamagedFileError(
            name,
            f"has {files[name]:,} bytes, and its index says {tokens:,} tokens, of 2 or 4 bytes",
            FOREIGN_CURE,
        )
    for what, one, other in (("width", width, told.width), ("tokens", tokens, told.tokens)):
        if other not in (None, one) and files[name]:
            raise DamagedFileError(
                f"{name}.metadata",
                f"says {other:,} as the {what}, and {index} says {one:,}",
                FOREIGN_CURE,
            )
    return _Told(
        tokenizer=told.tokenizer,
        width=width if tokens else None,
        tokens=tokens,
        documents=size // 8,
    )


def _read_metadata(folder: Path, name: str, files: Mapping[str, int]) -> _Told:
    metadata = f"{name}.metadata"
    if metadata not in files:
        return _Told(tokenizer=None, width=None, tokens=None, documents=None)
    with open_foreign(folder, metadata) as file:
        lines = file.read(_LONGEST).decode(errors="replace").split("\n")
    tokenizer, _, width = lines[0].rpartition("|")
    tokens = lines[1] if len(lines) > 1 else ""
    try:
        told = _Told(
            tokenizer=tokenizer or None, width=int(width), tokens=_count(tokens), documents=None
        )
    except ValueError:
        told = None
    if told is None or told.width not in WIDTHS:
        raise DamagedFileError(
            metadata,
            f"does not begin with a tokenizer, a bar and 2 or 4 ({lines[0][:80]!r})",
            FOREIGN_CURE,
        )
    if told.tokens is not None and told.tokens * told.width != files[name]:
        raise DamagedFileError(
            name,
            f"has {files[name]:,} bytes, and its metadata says {told.tokens:,} tokens of "
            f"{told.width} bytes",
            FOREIGN_CURE,
        )
    return told


def _count(text: str) -> int | None:
    """A number of tokens; datatrove writes a negative one where it did not count."""
    number = int(text) if text.strip() else -1
    return number if number >= 0 else None


def _choose_dtype(asked: Asked, told: Mapping[str, _Told]) -> np.dtype[Any]:
    """The dtype of all ids."""
    widths = {one.width: name for name, one in told.items() if one.width is not None}
    if len(widths) > 1:
        names = " and ".join(f"{name} of {width} bytes" for width, name in widths.items())
        raise DatasetError(f"{asked.path} holds ids of several widths: {names}. Open them singly.")
    if not widths:
        if asked.dtype is None:
            raise NotThisFormat("no .ds.index or .ds.metadata says its dtype; give it as `dtype`")
        return asked.dtype
    width, name = widths.popitem()
    assert width is not None
    asked.agree(WIDTHS[width], name)
    return WIDTHS[width]


@dataclass(frozen=True, kw_only=True)
class _Indexes:
    folder: Path
    names: list[str]
    counts: list[int]

    def name(self, number: int) -> str:
        return f"{self.names[number]}.index"

    def read(self, number: int) -> Starts:
        name, count = self.name(number), self.counts[number]
        with open_foreign(self.folder, name) as file:
            check_size(file, name, 8 * count, foreign=True)
            ends = map_file(file, name, np.dtype("<i8"), count, 0)
        return Starts(count, _Ends(ends).look)


@dataclass(frozen=True)
class _Ends:
    ends: npt.NDArray[np.int64]

    def look(self, numbers: Integers) -> Integers:
        return np.where(numbers > 0, self.ends[np.maximum(numbers - 1, 0)], 0)
