"""The base class of formats: a name, how to read a path and, optionally, how to write a dataset.

To add a format, write one module with a subclass of `Format` and add it to `FORMATS` in
`tokenmill.formats`. Its `read` decides whether the data at a path is in the format. `read` should
open as few files as possible: check only the headers of the first and the last shard.
`FileShards.check` checks the remaining headers, each when its shard is first mapped. Sizes are
known without opening files.

Files may be untrusted, so `read` refuses names that lead out of the folder, negative numbers
and sizes that do not match; `indexed_folder.Entry` checks the values of a JSON file.
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

DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
HEAD = 1024


class NotThisFormat(Exception):  # noqa: N818  (an answer, not an error)
    """The path is not in this format; the message gives the reason."""


@dataclass(frozen=True, kw_only=True)
class OpenRequest:
    """The path and options of `tokenmill.open`. `format` is set if the user named one.

    `chosen` lists the files that the user named in the folder, in the user's order; None means all
    files. If there are chosen files, `files` has only the chosen files and their companions:
    `x.idx` is a companion of `x.bin`.
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
        """The folder's files sorted by name, or the single file, with sizes in bytes.

        Subfolders are not included: use `replace(request, path=request.path / "train").files`.
        """
        return self._entries[0]

    @property
    def others(self) -> Mapping[str, str]:
        """The entries of the folder that are not files, each with a text such as "is a folder"."""
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
        """All file names in one string, to find out quickly that no file has a certain ending."""
        return "\0".join(self.files)

    @cached_property
    def listed(self) -> dict[str, list[str]]:
        """A cache for `shard_names.list_shards`: maps an ending to the names of the shards."""
        return {}

    @property
    def folder(self) -> Path:
        """The path itself if it is a folder, otherwise the folder that holds the file."""
        return self.path if self.is_folder else self.path.parent

    def read_head(self, name: str) -> bytes:
        """The first `HEAD` bytes of a file in the folder."""
        with open_foreign(self.folder, name) as file:
            return file.read(HEAD)

    def check_dtype(self, dtype: np.dtype[Any], name: str) -> None:
        """Refuse a `dtype` given by the user if the file has another one."""
        if self.dtype not in (None, dtype, dtype.newbyteorder("=")):
            raise UsageError(f"the header of {name} says {dtype}, not {self.dtype}. Omit `dtype`.")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The ids of each split, and what the files say about the ids.

    Facts that the files do not give stay None; `tokenmill.open` adds the user's options.

    Parameters
    ----------
    splits
        Maps the name of a split to its shards. Any name is allowed. `tokenmill.open` omits empty
        splits.
    documents
        The document table of each split that has one, usually a `file_documents.FileDocuments`.
    eot
        Where the end-of-text id is: "after" each document, "before" each document, or "none". In a
        split without a document table, this decides where documents start.
    tokenizer
        The name of the tokenizer that made the ids.
    manifest
        The manifest of a prepared dataset.
    shard_of
        The folder of the prepared dataset, if the path is one of its shards.
    """

    splits: Mapping[str, Shards]
    documents: Mapping[str, DocumentTable] = field(default_factory=dict)
    eot_id: int | None = None
    eot: str = "after"
    vocab_size: int | None = None
    tokenizer: str | None = None
    manifest: Manifest | None = None
    shard_of: Path | None = None


class Format(ABC):
    """A format of token files; `tokenmill.open` and `tokenmill.export` know it by its `name`.

    A format that implements `plan` can be written. These attributes describe the written files:

        keeps_documents   whether the files have a document table
        keeps_empty       whether that table can hold empty documents
        eot               where readers look for the end-of-text id if there is no table: "after" or
                          "before" each document
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
        """The contents of a file or folder.

        Raises NotThisFormat with the reason if the path is in another format, and DatasetError if
        the path is certainly in this format but damaged.
        """

    @property
    def is_writable(self) -> bool:
        return type(self).plan is not Format.plan

    def plan(self, request: WriteRequest, /) -> Iterator[FileJob]:
        """The files to write, in order. A file by which `read` recognizes the format comes last.

        A resumed export calls `plan` again, which must return the same files. Files that exist are
        skipped, so it must be possible to write each file on its own. Afterwards, `read_written`
        reads the files, and their ids and documents are compared with the source. If the format
        cannot hold the data, raise an error here if possible, otherwise when the file is written.
        """
        raise NotImplementedError(f"{self.name} cannot be written")

    def find_assumed_eot(self, _request: WriteRequest, /) -> int | None:
        """The end-of-text id that readers assume by default; None if they assume none."""
        return None

    def read_written(self, folder: Path, splits: list[str], /) -> Contents:
        """Read a folder after the planned files of these splits were written to it."""
        found = self._read_all(folder)
        if len(splits) == len(found.splits) == 1:  # a single split may be read under another name
            return _rename_split(found, *found.splits, *splits)
        return found

    def read_each(self, paths: Mapping[str, Path]) -> Contents:
        """Read one split from each path and combine the contents; `read_written` can use this."""
        found = [
            _rename_split(self._read_all(path), "train", split) for split, path in paths.items()
        ]
        return replace(
            found[0],
            splits={split: one for part in found for split, one in part.splits.items()},
            documents={split: one for part in found for split, one in part.documents.items()},
        )

    def _read_all(self, path: Path) -> Contents:
        """The contents of a path, without holding out validation data."""
        return self.read(OpenRequest(path=path, format=self.name, val_fraction=0))


def _rename_split(contents: Contents, before: str, after: str) -> Contents:
    tables = contents.documents
    return replace(
        contents,
        splits={after: contents.splits[before]},
        documents={after: tables[before]} if before in tables else {},
    )


def check_same_dtype(path: Path, splits: Mapping[str, Shards]) -> None:
    """Refuse splits whose ids have different dtypes."""
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
    with suppress(Exception):  # NumPy parses text as Python code, which can raise anything
        dtype: np.dtype[Any] = np.dtype(name)
        if name is not None and dtype.name in DTYPES:
            return dtype
    raise UsageError(f"`dtype` is {repr(name)[:80]}; it must be one of {', '.join(DTYPES)}.")


def fix_byte_order(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of ids in a file: big-endian if `dtype` says so, otherwise little-endian.

    The byte order of this machine does not matter.

    >>> fix_byte_order(np.dtype("=u2")).str, fix_byte_order(np.dtype(">u2")).str
    ('<u2', '>u2')
    """
    return dtype if dtype.byteorder == ">" else dtype.newbyteorder("<")
