"""OLMo's and dolma's `x.npy`: ids without a header, and `x.csv.gz` beside, a line a document.

They are not NumPy files, despite their names. They do not store the dtype; the user gives it. A
line begins with the document's first token and the one after its last; the rest is left alone.

Checked at opening: that sizes are whole numbers of ids. Checked when a file's documents are first
looked at, for which its lines are read once: that they follow each other and cover the file. Their
starts are then in memory, 8 bytes a document, for `KEPT` files at a time.
"""

from __future__ import annotations

import gzip
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenmill.formats import npy
from tokenmill.formats.folder import check_gaps, list_shards, split_by_name
from tokenmill.formats.protocol import Asked, Contents, NotThisFormat
from tokenmill.formats.raw import choose_check, make_shards
from tokenmill.formats.starts import FileDocuments, Starts
from tokenmill.storage.reading import DamagedFileError, open_foreign

NAME = "olmo"
KEPT = 16
_LONGEST = 1 << 16  # bytes of a line
_CURE = (
    "Copy or download both files again from where they came; or open the ids alone, without "
    "their documents, as the format raw."
)


def read(asked: Asked) -> Contents:
    """What one file or a folder of them holds."""
    if asked.is_folder:
        files, names = asked.files, list_shards(asked, ".npy")
    else:
        names = [asked.path.name] if asked.path.suffix == ".npy" else []
        files = {name: asked.path.stat().st_size for name in names}
    if not names:
        raise NotThisFormat("it is neither an .npy file nor a folder of them")
    if asked.read_head(names[0]).startswith(npy.MAGIC):
        raise NotThisFormat(f"{names[0]} is a NumPy file, with a header")
    for name in names:
        if not (asked.folder / _table_name(name)).is_file():
            raise NotThisFormat(f"{name} has no {_table_name(name)} beside it")
    if asked.dtype is None:
        raise NotThisFormat("nothing in it says its dtype; give it: `dtype='uint32'` or another")
    splits = {"train": names}
    if asked.is_folder:
        splits = {split: some for split, some in split_by_name(names).items() if some}
        for some in splits.values():
            check_gaps(asked, some)
    folder = asked.folder.absolute()
    shards = {
        split: make_shards(folder, some, files, asked.dtype, choose_check(asked))
        for split, some in splits.items()
    }
    documents = {
        split: FileDocuments(
            _Indexes(folder=folder, names=some, tokens=shards[split].counts.tolist()),
            shards[split].counts,
            split,
            KEPT,
        )
        for split, some in splits.items()
    }
    return Contents(splits=shards, documents=documents)


@dataclass(frozen=True, kw_only=True)
class _Indexes:
    folder: Path
    names: list[str]
    tokens: list[int]

    @cached_property
    def counts(self) -> list[int]:
        """For which every file's lines are read."""
        return [self.read(number).count for number in range(len(self.names))]

    def name(self, number: int) -> str:
        return _table_name(self.names[number])

    def read(self, number: int) -> Starts:
        borders = _read_borders(self.folder, self.name(number), self.tokens[number])
        return Starts(len(borders) - 1, borders.__getitem__)


def _read_borders(folder: Path, name: str, tokens: int) -> npt.NDArray[np.int64]:
    """Where each document begins, and where the last ends."""
    borders = array("q", [0])
    for number, line in enumerate(_lines(folder, name)):
        start, _, rest = line.partition(b",")
        end = rest.partition(b",")[0].strip()
        if not (start.isdigit() and end.isdigit() and len(start) < 19 and len(end) < 19):
            raise DamagedFileError(
                name, f"has no numbers at the start of line {number + 1:,} ({line[:80]!r})", _CURE
            )
        # With at least one token each, no file can claim more documents than it has tokens.
        if int(start) != borders[-1] or not int(start) < int(end) <= tokens:
            raise DamagedFileError(
                name,
                f"has a document from token {int(start):,} to {int(end):,} in line {number + 1:,}, "
                f"and it should begin at {borders[-1]:,} and end within the {tokens:,} there are",
                _CURE,
            )
        borders.append(int(end))
    if borders[-1] != tokens:
        what = f"ends its documents at token {borders[-1]:,} of {tokens:,}"
        raise DamagedFileError(name, what, _CURE)
    return np.frombuffer(borders, np.int64)


def _lines(folder: Path, name: str) -> Iterator[bytes]:
    with open_foreign(folder, name) as raw, gzip.GzipFile(fileobj=raw) as file:
        try:
            while line := file.readline(_LONGEST):
                if len(line) == _LONGEST:
                    raise DamagedFileError(name, f"has a line of over {_LONGEST:,} bytes", _CURE)
                yield line
        except (OSError, EOFError, zlib.error) as error:
            raise DamagedFileError(name, f"cannot be decompressed: {error}", _CURE) from error


def _table_name(name: str) -> str:
    return name.removesuffix(".npy") + ".csv.gz"
