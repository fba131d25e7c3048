"""What a format is to `tokenmill.open`.

A format is a module with a `NAME` and a function `read`, which looks at what was asked for and
either says what is in it or raises `NotThisFormat` with the reason. It raises DatasetError where
the format is certain and the file is damaged. It opens as few files as it can: a header is best
checked when its shard is first mapped (`FileShards.check`), and at once for the first and the last.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, Protocol

import numpy as np

from tokenmill.errors import UsageError
from tokenmill.storage.reading import open_foreign
from tokenmill.store.documents import DocumentTable
from tokenmill.store.manifest import Manifest
from tokenmill.store.shards import Shards

DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
HEAD = 1024


class NotThisFormat(Exception):  # noqa: N818  (an answer, not an error)
    """What was asked for is not of a format; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `tokenmill.open` was called with. `format` is set if the user named one.

    `chosen` are the files of the folder that the user named, in that order; None for all. Files that
    belong to them, such as `x.idx` to `x.bin`, are visible too.
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
        """The files in the folder, in the order of their names, with their sizes in bytes."""
        return self._entries[0]

    @property
    def others(self) -> Mapping[str, str]:
        """What else is in the folder, and what each is."""
        return self._entries[1]

    @cached_property
    def _entries(self) -> tuple[dict[str, int], dict[str, str]]:
        files, others = {}, {}
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # By name they mostly lie as they were made, in the system's memory and, once joined
            # and cut again, in this one's: of very many a third faster than as the folder has them.
            names = sorted(filter(self._belongs, os.listdir(folder)))
            for name in "\0".join(names).split("\0") if names else []:
                try:
                    status = os.stat(name, dir_fd=folder)
                except FileNotFoundError:
                    others[name] = "is a link to nothing"
                except OSError as error:  # links in a circle, or to where this user may not look
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
    def names(self) -> str:
        """The names of all files together, to see at once what none of very many has."""
        return "\0".join(self.files)

    @cached_property
    def listed(self) -> dict[str, list[str]]:
        """The shards in the folder by their ending, as far as they have been looked for."""
        return {}

    @property
    def folder(self) -> Path:
        """The folder, or the one that the file is in."""
        return self.path if self.is_folder else self.path.parent

    def read_head(self, name: str) -> bytes:
        """The first bytes of a file of the folder."""
        with open_foreign(self.folder, name) as file:
            return file.read(HEAD)

    def agree(self, dtype: np.dtype[Any], name: str) -> None:
        """Refuse a dtype that the user gave and the file contradicts."""
        if self.dtype not in (None, dtype, dtype.newbyteorder("=")):
            raise UsageError(f"the header of {name} says {dtype}, not {self.dtype}. Omit `dtype`.")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The ids of each split, and what the format says about them.

    `eot` is the side of a document on which the end-of-text id is, or "none". `tokenizer` is the name
    of the tokenizer that made the ids. `shard_of` is the prepared dataset that a single shard belongs
    to. A split may be empty here; `tokenmill.open` leaves it out.
    """

    splits: Mapping[str, Shards]
    documents: Mapping[str, DocumentTable] = field(default_factory=dict)
    eot_id: int | None = None
    eot: str = "after"
    vocab_size: int | None = None
    tokenizer: str | None = None
    manifest: Manifest | None = None
    shard_of: Path | None = None


class Format(Protocol):
    """A module of `tokenmill.formats`."""

    NAME: str

    def read(self, asked: Asked) -> Contents:
        """What is in the file or folder; NotThisFormat if it is something else."""


def parse_dtype(name: Any) -> np.dtype[Any]:
    """An integer dtype by name; one that names no order of bytes is little-endian, as files are.

    >>> parse_dtype("uint16"), parse_dtype(np.int32), parse_dtype(">u2")
    (dtype('uint16'), dtype('int32'), dtype('>u2'))
    """
    try:
        dtype: np.dtype[Any] = np.dtype(name)
        if name is not None and dtype.name in DTYPES:
            return dtype
    except (TypeError, ValueError):
        pass
    raise UsageError(f"`dtype` is {name!r}; it must be one of {', '.join(DTYPES)}.")
