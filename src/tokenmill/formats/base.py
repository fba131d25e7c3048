"""The base class of formats: a name, how to read a path and, optionally, how to write a dataset.

To add a format, write one module with a subclass of `Format`, and add an instance to `FORMATS` in
`tokenmill.formats`. The method `read` decides whether the data at a path is in the format. It
should open as few files as possible, and check only the headers of the first and the last shard. To
check the others later, pass a `check` to `FileShards`, which calls it whenever it opens a shard.

Files may be untrusted. So `read` must refuse names that lead out of the folder, negative numbers
and sizes that do not match. `indexed_folder.Entry` does this for the values of a JSON file.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tokenmill.errors import DatasetError, UsageError
from tokenmill.formats.writing import FileJob, WriteRequest
from tokenmill.storage.listing import scan_folder
from tokenmill.storage.reading import open_foreign
from tokenmill.store.documents import DocumentTable
from tokenmill.store.manifest import Manifest
from tokenmill.store.shards import Shards
from tokenmill.store.tokens import Earlier

DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
HEAD = 1024


class NotThisFormat(Exception):  # noqa: N818  (an answer, not an error)
    """The path is not in this format; the message gives the reason."""


@dataclass(frozen=True, kw_only=True)
class OpenRequest:
    """The path and the options passed to `tokenmill.open`. An option that was not passed is None.

    If the user named single files, `path` is their folder and `chosen` lists them in the user's
    order. `files` then has only these files, `meta.json`, and files that belong to the chosen ones,
    as `x.idx` belongs to `x.bin`.
    """

    path: Path
    chosen: tuple[str, ...] | None = None
    dtype: np.dtype[Any] | None = None
    format: str | None = None
    val_fraction: float | None = None
    eot_id: int | None = None
    vocab_size: int | None = None
    column: str | None = None

    @cached_property
    def is_folder(self) -> bool:
        return self.path.is_dir()

    @property
    def files(self) -> Mapping[str, int]:
        """Maps the name of each file in the folder, or of the single file, to its size in bytes.

        For files in a subfolder, use `replace(request, path=request.path / "train").files`.
        """
        return self._entries[0]

    @property
    def others(self) -> Mapping[str, str]:
        """Maps the name of each entry that is not a file to the reason, such as "is a folder"."""
        return self._entries[1]

    @cached_property
    def _entries(self) -> tuple[dict[str, int], dict[str, str]]:
        if not self.is_folder:
            return {self.path.name: self.path.stat().st_size}, {}
        return scan_folder(self.path, self._belongs)

    @cached_property
    def _stems(self) -> frozenset[str]:
        return frozenset(os.path.splitext(name)[0] for name in self.chosen or ())

    @cached_property
    def _expected(self) -> frozenset[str]:
        return frozenset((*(self.chosen or ()), "meta.json"))

    def _belongs(self, name: str) -> bool:
        if self.chosen is None or name in self._expected:
            return True
        dots = (place for place, letter in enumerate(name) if letter == ".")
        return any(name[:place] in self._stems for place in dots)

    @cached_property
    def joined_names(self) -> str:
        """All file names in one string, to check quickly that no file has a certain ending."""
        return "\0".join(self.files)

    @cached_property
    def listed(self) -> dict[str, list[str]]:
        """The cache of `shard_names.list_shards`: maps an ending to the names of the shards."""
        return {}

    @property
    def folder(self) -> Path:
        """The path itself if it is a folder, otherwise the folder that holds the file."""
        return self.path if self.is_folder else self.path.parent

    def read_head(self, name: str) -> bytes:
        """Read the first `HEAD` bytes of a file in the folder."""
        with open_foreign(self.folder, name) as file:
            return file.read(HEAD)

    def check_dtype(self, dtype: np.dtype[Any], name: str) -> None:
        """Raise an error if the user passed another `dtype` than the file has."""
        if self.dtype not in (None, dtype, dtype.newbyteorder("=")):
            raise UsageError(f"`dtype` is {self.dtype}, but {name} has {dtype}. Omit `dtype`.")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The ids of each split, and what the files say about the ids.

    A fact that the files do not give is None. `tokenmill.open` fills it in from the user's options.

    Parameters
    ----------
    splits
        Maps the name of a split to its shards. Any name is allowed. `tokenmill.open` omits empty
        splits.
    documents
        The document table of each split that has one, usually a `file_documents.FileDocuments`.
    eot
        Where the end-of-text id is: "after" each document, "before" each document, or "none". If a
        split has no document table, its documents are found by this id.
    tokenizer
        The name of the tokenizer that made the ids.
    manifest
        The manifest of a prepared dataset.
    earlier
        What identifies the tokens of each split in the earlier generations of a dataset that has
        grown.
    shard_of
        If the path is a shard of a prepared dataset: the folder of that dataset.
    """

    splits: Mapping[str, Shards]
    documents: Mapping[str, DocumentTable] = field(default_factory=dict)
    eot_id: int | None = None
    eot: str = "after"
    vocab_size: int | None = None
    tokenizer: str | None = None
    manifest: Manifest | None = None
    earlier: Mapping[str, tuple[Earlier, ...]] = field(default_factory=dict)
    shard_of: Path | None = None


class Format(ABC):
    """A format of token files; `tokenmill.open` and `tokenmill.export` know it by its `name`.

    A format that implements `plan` can be written. These attributes describe the written files:

        keeps_documents   whether the files have a document table
        keeps_empty       whether that table can hold empty documents
        eot               where the end-of-text id is if there is no table: "after" or "before"
                          each document
        names_tokenizer   whether the files name the tokenizer
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    keeps_documents: ClassVar[bool] = False
    keeps_empty: ClassVar[bool] = False
    eot: ClassVar[str] = "after"
    names_tokenizer: ClassVar[bool] = False

    @abstractmethod
    def read(self, request: OpenRequest, /) -> Contents:
        """Return the contents of a file or folder.

        Raise NotThisFormat with the reason if the data is in another format. Raise DatasetError if
        the data is certainly in this format but damaged.
        """

    @property
    def is_writable(self) -> bool:
        return type(self).plan is not Format.plan

    def plan(self, request: WriteRequest, /) -> Iterator[FileJob]:
        """Yield a job for each file to write, in the order of writing.

        A resumed export calls `plan` again, and `plan` must yield the same files. Jobs for existing
        files of ids are then skipped; indexes and metadata are written again. So a job may read
        earlier files from disk, but must not rely on earlier jobs having run. Afterwards,
        `read_written` reads the files, and their ids and documents are compared with the source. If
        the format cannot hold the data, raise an error here if possible, otherwise when the file is
        written.
        """
        raise NotImplementedError(f"{self.name} cannot be written")

    def find_assumed_eot(self, _request: WriteRequest, /) -> int | None:
        """Return the end-of-text id that programs assume for this format; None if they assume none.

        If the dataset has another id, the notes of the export say so.
        """
        return None

    def read_written(self, folder: Path, splits: list[str], /) -> Contents:
        """Return the contents of an export's folder; `splits` names the splits to expect there."""
        found = self._read_all(folder)
        if len(splits) == len(found.splits) == 1:  # `read` may call the only split "train"
            return _rename_split(found, *found.splits, *splits)
        return found

    def read_each(self, paths: Mapping[str, Path]) -> Contents:
        """Return the combined contents of several paths, one split each. Helps `read_written`."""
        found = [
            _rename_split(self._read_all(path), "train", split) for split, path in paths.items()
        ]
        return replace(
            found[0],
            splits={split: one for part in found for split, one in part.splits.items()},
            documents={split: one for part in found for split, one in part.documents.items()},
        )

    def _read_all(self, path: Path) -> Contents:
        """Return the contents of a path, without holding out validation data."""
        return self.read(OpenRequest(path=path, format=self.name, val_fraction=0))


def _rename_split(contents: Contents, before: str, after: str) -> Contents:
    tables = contents.documents
    return replace(
        contents,
        splits={after: contents.splits[before]},
        documents={after: tables[before]} if before in tables else {},
    )


def check_same_dtype(path: Path, splits: Mapping[str, Shards]) -> None:
    """Raise an error if the ids of the splits have different dtypes."""
    dtypes = {shards.dtype for shards in splits.values()}
    if len(dtypes) > 1:
        names = " and ".join(sorted(dtype.name for dtype in dtypes))
        raise DatasetError(
            f"the splits of {path} have different dtypes: {names}. Open each split separately."
        )


def parse_dtype(name: Any) -> np.dtype[Any]:
    """Return the integer dtype with this name; refuse any other name.

    >>> parse_dtype("uint16"), parse_dtype(np.int32), parse_dtype(">u2")
    (dtype('uint16'), dtype('int32'), dtype('>u2'))
    """
    with suppress(Exception):  # NumPy parses text as Python code, which can raise any error
        dtype: np.dtype[Any] = np.dtype(name)
        if name is not None and dtype.name in DTYPES:
            return dtype
    raise UsageError(f"`dtype` is {repr(name)[:80]}; it must be one of {', '.join(DTYPES)}.")


def fix_byte_order(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of ids in a file: little-endian unless `dtype` is explicitly big-endian.

    The result does not depend on the byte order of this machine.

    >>> fix_byte_order(np.dtype("=u2")).str, fix_byte_order(np.dtype(">u2")).str
    ('<u2', '>u2')
    """
    return dtype if dtype.byteorder == ">" else dtype.newbyteorder("<")
