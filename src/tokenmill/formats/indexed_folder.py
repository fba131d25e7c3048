"""Folders whose `index.json` lists their files, as in LitData and MosaicML Streaming.

The index may be untrusted: every entry is checked, and no file name in the index may lead out of
the folder. Instead of one index, a folder may have the subfolders `train`, `val` (or `validation`)
and `test`, each with an index.

In both formats, a file starts with 32-bit numbers: how many documents it has, the byte where each
document starts, and the byte where the last one ends. So a file must be shorter than 4 GiB. No
document crosses files. An export makes the index from the files that it has written.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np

from tokenmill.errors import DatasetError
from tokenmill.formats.base import Contents, Format, NotThisFormat, OpenRequest
from tokenmill.formats.writing import Advance, FileJob, TokenRange, WriteRequest
from tokenmill.storage.decoding import parse_json
from tokenmill.storage.files import write_file
from tokenmill.storage.reading import read_foreign
from tokenmill.store.tokens import Tokens

INDEX = "index.json"
_LONGEST = 1 << 26  # bytes of an index that are read
_FOLDERS = {"train": "train", "val": "val", "validation": "val", "test": "test"}


@dataclass(frozen=True)
class Entry:
    """A JSON object in an index. Its methods check a value before they return it."""

    where: str
    value: Any

    def get(self, key: str, kind: type) -> Any:
        """Return the value of a key; raise an error if it is negative or not of type `kind`."""
        value = self.value.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.damaged(f"{key!r} has the wrong type: {str(value)[:40]!r}")
        if isinstance(value, int) and not 0 <= value < 1 << 56:
            raise self.damaged(f"{key!r} is out of range: {str(value)[:40]}")
        return value

    def name(self, key: str) -> str:
        """Return the value of a key; raise an error if it does not name a file in the folder."""
        value = str(self.get(key, str))
        pure = PurePosixPath(value)
        if not value.isprintable() or not pure.name or pure.is_absolute() or "\\" in value:
            raise self.damaged(f"the name {value[:80]!r} is not a file in the folder")
        if ".." in pure.parts:
            raise self.damaged(f"the name {value[:80]!r} leads out of the folder")
        return value

    def entries(self, key: str) -> list[Entry]:
        """Return the value of a key; raise an error if it is not a list of JSON objects."""
        found = self.get(key, list)
        if not all(isinstance(one, dict) for one in found):
            raise self.damaged(f"{key!r} is not a list of objects")
        return [Entry(self.where, one) for one in found]

    def entry(self, key: str) -> Entry:
        """Return the value of a key; raise an error if it is not a JSON object."""
        return Entry(self.where, self.get(key, dict))

    def damaged(self, what: str) -> DatasetError:
        return DatasetError(f"{self.where} is damaged: {what}. Copy or download it again.")


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """The facts about a written file that `make_index` needs."""

    name: str
    documents: int
    size: int


class IndexedFolder(Format):
    """A format with one folder per split.

    Each file holds whole documents. All files but the last have at least `tokens_per_shard` tokens.
    `file_name` is the pattern of file names, with {} for the number of the file. `wide_dtype` is
    the dtype for ids that need 4 bytes.
    """

    keeps_documents = True
    file_name: ClassVar[str]
    wide_dtype: ClassVar[str]

    @abstractmethod
    def write_shard(self, part: TokenRange, path: Path, advance: Advance) -> None:
        """Write the file of one shard."""

    @abstractmethod
    def make_index(
        self, files: list[WrittenFile], dtype: np.dtype[Any], tokens_per_shard: int
    ) -> bytes:
        """Return the content of the `index.json` that lists all files of a split."""

    def plan(self, request: WriteRequest) -> Iterator[FileJob]:
        dtype = request.choose_dtype(wide=self.wide_dtype)
        for split in request.splits:
            names = []
            for number, part in enumerate(request.cut_between_documents(split, dtype)):
                names.append(self.file_name.format(number))
                write = partial(self.write_shard, part)
                yield FileJob(name=f"{split}/{names[-1]}", tokens=len(part), write=write)
            write = partial(self._write_index, names, dtype, request.tokens_per_shard)
            yield FileJob(name=f"{split}/{INDEX}", tokens=0, write=write)

    def read_written(self, folder: Path, splits: list[str]) -> Contents:
        return self.read_each({split: folder / split for split in splits})

    def _write_index(
        self, names: list[str], dtype: np.dtype[Any], tokens_per_shard: int, path: Path, _: Advance
    ) -> None:
        files = []
        for name in names:
            with (path.parent / name).open("rb") as file:
                documents = int.from_bytes(file.read(4), "little")
                files.append(WrittenFile(name=name, documents=documents, size=file.seek(0, 2)))
        write_file(path, self.make_index(files, dtype, tokens_per_shard))


def read_indexes(request: OpenRequest, key: str) -> dict[str, tuple[OpenRequest, Entry]]:
    """Return, for each split, the request to open its folder, and the content of its `index.json`.

    Raise NotThisFormat if there is no index, or an index has no `key`.
    """
    if not request.is_folder:
        raise NotThisFormat(f"it is a file, not a folder with {INDEX}")
    if (request.path / INDEX).is_file():
        return {"train": (request, _read_index(request, key))}
    found = {}
    for folder, split in _FOLDERS.items():
        inner = replace(request, path=request.path / folder)
        if split not in found and (inner.path / INDEX).is_file():
            found[split] = (inner, _read_index(inner, key))
    if not found:
        raise NotThisFormat(f"neither it nor its subfolder train has {INDEX}")
    return found


def _read_index(request: OpenRequest, key: str) -> Entry:
    data = read_foreign(request.path, INDEX, _LONGEST)
    try:
        index = parse_json(data)
    except ValueError as error:
        raise NotThisFormat(f"{INDEX} is not valid JSON ({error})") from None
    if not isinstance(index, dict) or key not in index:
        raise NotThisFormat(f"{INDEX} has no {key!r}")
    return Entry(str(request.path / INDEX), index)


def check_offsets(tokens: Tokens, size: int) -> None:
    """Raise an error if a file would be too long for 32-bit offsets."""
    if size >= 1 << 32:
        raise DatasetError(
            f"a file of split {tokens.split!r} would have {size:,} bytes, but the format's offsets "
            "must be below 2**32. Use a smaller `tokens_per_shard`. A single document of this size "
            "cannot be written."
        )
