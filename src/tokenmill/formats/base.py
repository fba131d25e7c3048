"""The base class of formats: a name, how to read a path and, optionally, how to write a dataset.

To add a format, write one module with a subclass of `Format` and add it to `FORMATS` in
`tokenmill.formats`. `read` decides from the path alone whether the format applies, and opens as few
files as possible. At opening, check only the headers of the first and the last shard. Check the
other headers when a shard is first mapped (`FileShards.check`). Sizes are known without opening
files.

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
    """The path is not in this format; the message gives the reason."""


@dataclass(frozen=True, kw_only=True)
class OpenRequest:
    """The path and options of `tokenmill.open`. `format` is set if the user named one.

    `chosen` lists the files that the user named in the folder, in the user's order; None means all
    files. Companion files, such as `x.idx` for `x.bin`, are visible too.
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
        """The other entries of the folder, each with a text such as "is a folder"."""
        return self._entries[1]

    @cached_property
    def _entries(self) -> tuple[dict[str, int], dict[str, str]]:
        files: dict[str, int] = {}
        others: dict[str, str] = {}
        if not self.is_folder:
            return {self.path.name: self.path.stat().st_size}, others
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Sorted names often follow the order of creation. Joining and splitting places the
            # names next to each other in memory. For very many files, this is a third faster.
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
        """All file names in one string, for a quick test whether any file has an ending."""
        return "\0".join(self.files)

    @cached_property
    def listed(self) -> dict[str, list[str]]:
        """A cache for `shard_names.list_shards`: maps an ending to the names of the shards."""
        return {}

    @property
    def folder(self) -> Path:
        """The folder itself, or the parent folder of the file."""
        return self.path if self.is_folder else self.path.parent

    def read_head(self, name: str) -> bytes:
        """The first bytes of a file of the folder."""
        with open_foreign(self.folder, name) as file:
            return file.read(HEAD)

    def check_dtype(self, dtype: np.dtype[Any], name: str) -> None:
        """Refuse a `dtype` given by the user if the file has another one."""
        if self.dtype not in (None, dtype, dtype.newbyteorder("=")):
            raise UsageError(f"the header of {name} says {dtype}, not {self.dtype}. Omit `dtype`.")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The ids of each split, and the facts that the files give about them.

    Splits may have any names. `documents` maps splits to their document tables, usually
    `file_documents.FileDocuments`; a split may have no table. Facts that the files do not give stay
    None; `tokenmill.open` adds the user's options. `eot` is the side of documents that has the
    end-of-text id, or "none". In a split without a table, `eot` decides where documents start.
    `tokenizer` is the name of the tokenizer that made the ids. If the path is one shard of a
    prepared dataset, `shard_of` is that dataset. A split may be empty here; `tokenmill.open` omits
    it.
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

    A format that implements `plan` can be written; the attributes after `aliases` describe the
    written files. `keeps_documents` says whether the files have a document table, and `keeps_empty`
    whether that table can hold empty documents. Without a table, `eot` is the side of documents,
    "after" or "before", on which readers look for the end-of-text id. `names_tokenizer` says
    whether the files name the tokenizer.
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
        it is certainly in this one but damaged.
        """

    @property
    def is_writable(self) -> bool:
        return type(self).plan is not Format.plan

    def plan(self, request: WriteRequest, /) -> Iterator[FileJob]:
        """The files to write, in order. A file by which `read` recognizes the format comes last.

        A resumed export calls `plan` again. It must return the same files, and existing files are
        skipped. Each file can be written on its own. Afterwards, `read_written` reads the files,
        and their ids and documents are compared with the source. If the format cannot hold the
        data, refuse it here if possible, otherwise when the file is written.
        """
        raise NotImplementedError(f"{self.name} cannot be written")

    def find_assumed_eot(self, _request: WriteRequest, /) -> int | None:
        """The end-of-text id that readers always assume."""
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
