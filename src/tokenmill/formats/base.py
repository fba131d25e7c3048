"""The base class of formats: a name, how to read a path and, optionally, how to write a dataset.

To add a format, write one module with a subclass of `Format` and add it to `FORMATS` in
`tokenmill.formats`. `read` decides from the path alone whether the format applies, and opens as few
files as it can: a header is best checked when its shard is first mapped (`FileShards.check`), and at
opening only for the first and the last shard. Sizes are known without opening files.

Files may come from strangers, so `read` refuses names that lead out of the folder, negative numbers
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
from stat import S_ISDIR, S_ISREG
from typing import Any, ClassVar

import numpy as np

from tokenmill.errors import DatasetError, UsageError
from tokenmill.formats.writing import FileJob, WriteRequest
from tokenmill.storage.reading import open_foreign
from tokenmill.store.documents import DocumentTable
from tokenmill.store.manifest import Manifest
from tokenmill.store.shards import Shards

DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
HEAD = 1024


class NotThisFormat(Exception):  # noqa: N818  (an answer, not an error)
    """The path is not in a format; the text gives the reason."""


@dataclass(frozen=True, kw_only=True)
class OpenRequest:
    """The path and options of `tokenmill.open`. `format` is set if the user named one.

    `chosen` are the files of the folder that the user named, in that order; None means all. Files
    that belong to them, such as `x.idx` to `x.bin`, are visible too.
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
        """The files in the folder in order of name, or the one file, with their sizes in bytes.

        Files in subfolders are not included: `replace(request, path=request.path / "train").files`.
        """
        return self._entries[0]

    @property
    def others(self) -> Mapping[str, str]:
        """Everything in the folder that is not a file, and what it is."""
        return self._entries[1]

    @cached_property
    def _entries(self) -> tuple[dict[str, int], dict[str, str]]:
        files: dict[str, int] = {}
        others: dict[str, str] = {}
        if not self.is_folder:
            return {self.path.name: self.path.stat().st_size}, others
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Sorting groups files in the order of their creation, and joining and splitting the names
            # places them next to each other in memory: for very many files, a third faster.
            names = sorted(filter(self._belongs, os.listdir(folder)))
            for name in "\0".join(names).split("\0") if names else []:
                try:
                    status = os.stat(name, dir_fd=folder)
                except FileNotFoundError:
                    others[name] = "is a broken link"
                except OSError as error:  # a cycle of links, or no permission
                    others[name] = f"cannot be read: {error.strerror}"
                else:
                    if S_ISREG(status.st_mode):
                        files[name] = status.st_size
                    else:
                        folders = S_ISDIR(status.st_mode)
                        others[name] = "is a folder" if folders else "is not a regular file"
        finally:
            os.close(folder)
        return files, others

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
        """The names of all files in one string: a fast search for an ending that no file has."""
        return "\0".join(self.files)

    @cached_property
    def listed(self) -> dict[str, list[str]]:
        """A cache of `shard_names.list_shards`: the shards by their ending."""
        return {}

    @property
    def folder(self) -> Path:
        """The folder, or the one that the file is in."""
        return self.path if self.is_folder else self.path.parent

    def read_head(self, name: str) -> bytes:
        """The first bytes of a file of the folder."""
        with open_foreign(self.folder, name) as file:
            return file.read(HEAD)

    def check_dtype(self, dtype: np.dtype[Any], name: str) -> None:
        """Refuse a `dtype` of the user that contradicts the file's."""
        if self.dtype not in (None, dtype, dtype.newbyteorder("=")):
            raise UsageError(f"the header of {name} says {dtype}, not {self.dtype}. Omit `dtype`.")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The ids of each split, and what the format says about them.

    Splits may have any names. `documents` has the tables of the splits that have one: as a rule
    `file_documents.FileDocuments`. What the files do not say stays None; `tokenmill.open` adds what the
    user passed. `eot` is the side of a document on which the end-of-text id is, or "none"; without a
    table, it decides where documents start. `tokenizer` is the name
    of the tokenizer that made the ids. `shard_of` is the prepared dataset that a single shard belongs
    to. A split may be empty here; `tokenmill.open` omits it.
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
    """A format of token files, by its name in `tokenmill.open` and `tokenmill.export`.

    A format that implements `plan` can be written; the attributes after `aliases` describe what it
    writes. `keeps_documents` says whether the files have a table of documents, and `keeps_empty`
    whether it can hold empty ones. Without a table, `eot` is the side of documents, "after" or
    "before", on which readers look for the end-of-text id. `names_tokenizer` says whether the files
    name the tokenizer.
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

        Raises NotThisFormat with the reason if the path is in another format, and DatasetError if it
        is certainly in this one but damaged.
        """

    @property
    def is_writable(self) -> bool:
        return type(self).plan is not Format.plan

    def plan(self, request: WriteRequest, /) -> Iterator[FileJob]:
        """The files to write, in order; a file by which `read` recognizes the format comes last.

        It is called again to resume and must give the same files, of which those that exist are
        skipped. `read_written` reads the result, and ids and documents are compared. Each file can be written on its own. Data that the format cannot hold is refused here if that
        can be known, otherwise when the file is written.
        """
        raise NotImplementedError(f"{self.name} cannot be written")

    def find_assumed_eot(self, _request: WriteRequest, /) -> int | None:
        """The end-of-text id that readers assume, whatever the tokens are."""
        return None

    def read_written(self, folder: Path, splits: list[str], /) -> Contents:
        """The contents of a folder that holds the planned files of these splits."""
        found = self._read_all(folder)
        if len(splits) == len(found.splits) == 1:  # file names do not identify a single split
            return _rename_split(found, *found.splits, *splits)
        return found

    def read_each(self, paths: Mapping[str, Path]) -> Contents:
        """The contents of paths that hold one split each, for `read_written`."""
        found = [
            _rename_split(self._read_all(path), "train", split) for split, path in paths.items()
        ]
        return replace(
            found[0],
            splits={split: one for part in found for split, one in part.splits.items()},
            documents={split: one for part in found for split, one in part.documents.items()},
        )

    def _read_all(self, path: Path) -> Contents:
        """The contents of a path, with nothing held out."""
        return self.read(OpenRequest(path=path, format=self.name, val_fraction=0))


def _rename_split(contents: Contents, before: str, after: str) -> Contents:
    tables = contents.documents
    return replace(
        contents,
        splits={after: contents.splits[before]},
        documents={after: tables[before]} if before in tables else {},
    )


def check_same_dtype(path: Path, splits: Mapping[str, Shards]) -> None:
    """Refuse splits whose ids are stored differently."""
    dtypes = {shards.dtype for shards in splits.values()}
    if len(dtypes) > 1:
        names = " and ".join(sorted(dtype.name for dtype in dtypes))
        raise DatasetError(
            f"the splits of {path} have different dtypes: {names}. Open one of them."
        )


def parse_dtype(name: Any) -> np.dtype[Any]:
    """An integer dtype by name; without a byte order it is little-endian.

    >>> parse_dtype("uint16"), parse_dtype(np.int32), parse_dtype(">u2")
    (dtype('uint16'), dtype('int32'), dtype('>u2'))
    """
    with suppress(Exception):  # NumPy parses text as Python code, which can raise anything
        dtype: np.dtype[Any] = np.dtype(name)
        if name is not None and dtype.name in DTYPES:
            return dtype
    raise UsageError(f"`dtype` is {repr(name)[:80]}; it must be one of {', '.join(DTYPES)}.")


def fix_byte_order(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of ids in a file: little-endian on any machine, unless it is big-endian.

    >>> fix_byte_order(np.dtype("=u2")).str, fix_byte_order(np.dtype(">u2")).str
    ('<u2', '>u2')
    """
    return dtype if dtype.byteorder == ">" else dtype.newbyteorder("<")
