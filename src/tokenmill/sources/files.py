"""One input file: its name, how to read it, and the error if it cannot be read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from errno import EMFILE, ENFILE
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import unquote_to_bytes

from tokenmill.errors import InputError, lacks_memory
from tokenmill.storage.addresses import is_address
from tokenmill.storage.object_path import as_path

STANDARD_INPUT = "-"
_URI = "file:///"


class BadFileError(InputError):
    """An input file cannot be read, or cannot be used. Other input files are not affected."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: {reason}")
        self.source = source
        self.reason = reason

    def __reduce__(self) -> tuple[type[BadFileError], tuple[str, str]]:
        return type(self), (self.source, self.reason)


class CutShortError(BadFileError):
    """An input file ends too early. This may be because only its beginning was read."""


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One input file. Its size and modification time show whether it has changed.

    `path` is always valid UTF-8 without a newline. Any other name is stored as a `file:` URI, which
    `local_path` turns back into the name. `fault` says why the file cannot be read, if that is known
    before reading it. `copy` is the file to read instead, if `path` cannot be opened: standard input is
    copied to a file first.
    """

    path: str
    kind: str  # "text", "jsonl", "json" (one array), "csv", "parquet", "arrow", "tar" or "warc"
    compression: str | None
    size: int
    modified: int
    fault: str | None = None
    copy: str | None = None

    @property
    def place(self) -> str:
        """The name of the file to open."""
        return self.copy or self.path

    def describe(self) -> dict[str, Any]:
        """Return what decides how the file is read, as values for JSON."""
        return {name: value for name, value in vars(self).items() if name != "copy"}

    @property
    def unit(self) -> str:
        """What a position in this file counts: rows or bytes."""
        return "row" if self.kind in ("parquet", "arrow") else "byte"

    @property
    def is_stream(self) -> bool:
        """Whether the file has to be read from its beginning, so that one worker reads all of it."""
        return self.compression is not None or self.kind in ("json", "csv", "tar", "warc")


def is_about_process(error: BaseException) -> bool:
    """Return whether an error is about this process (such as no memory) and not about a file."""
    return lacks_memory(error) or (isinstance(error, OSError) and error.errno in (EMFILE, ENFILE))


def name_source(path: str) -> str:
    r"""Return the name of a path in manifests and messages.

    A path that is not UTF-8 or has a newline becomes a URI. A newline could forge a line of output.

    >>> name_source("texts/café.txt"), name_source("/texts/caf\udce9.txt")
    ('texts/café.txt', 'file:///texts/caf%E9.txt')
    >>> name_source("/texts/a.txt\n0 problems")
    'file:///texts/a.txt%0A0%20problems'
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        return Path(local_path(path)).absolute().as_uri()
    return Path(path).absolute().as_uri() if "\n" in path else path


def local_path(name: str) -> str:
    """Return the local path of a source, the reverse of `name_source`.

    >>> local_path("a.txt"), os.fsencode(local_path("file:///texts/caf%E9.txt"))
    ('a.txt', b'/texts/caf\\xe9.txt')
    """
    if name.startswith(_URI):
        return os.fsdecode(unquote_to_bytes(name[len(_URI) - 1 :]))
    return name


def open_source(name: str) -> BinaryIO:
    """Open an input file by its name. A Path would take twice as long for small files."""
    if is_address(name):
        return cast("BinaryIO", as_path(name).open("rb"))
    return open(local_path(name), "rb")  # noqa: PTH123


def stat_source(name: str) -> os.stat_result:
    """Return the `stat` of an input file by its name. A Path would take ten times as long."""
    return as_path(name).stat() if is_address(name) else os.stat(local_path(name))  # noqa: PTH116
