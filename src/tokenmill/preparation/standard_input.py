"""Copy standard input to the work folder, because a pipe cannot be read twice.

Several workers read the input, some of it twice, and a killed run must find it again. So all of it is
copied first, durably, and takes its size on the disk until the dataset is finished. A complete copy
has a receipt with its checksum; a resumed run uses it and does not read standard input. An incomplete
copy is removed: the command has to be given all of the input again.

In datasets and messages, this source is called `-`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import msgspec
import orjson

from tokenmill.errors import InputError
from tokenmill.preparation.folder import PreparationFolder
from tokenmill.progress import Watcher
from tokenmill.sources.encodings import choose_encoding
from tokenmill.sources.files import STANDARD_INPUT, BadFileError, SourceFile
from tokenmill.sources.read import read_head
from tokenmill.storage.decoding import load_json
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.files import AtomicFile, hash_file, write_file
from tokenmill.storage.names import MANIFEST_NAME
from tokenmill.storage.object_path import ObjectPath
from tokenmill.storage.receipts import encode_receipt, read_receipt
from tokenmill.store.manifest import Manifest

_COPY, _RECEIPT = "stdin", "stdin.json"
_BLOCK = 1 << 20
_HEAD = 1 << 16
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
}


class _Receipt(msgspec.Struct, forbid_unknown_fields=True):
    size: int
    checksum: str


def is_standard_input(inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> bool:
    """Return whether standard input is among some inputs."""
    given = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
    return STANDARD_INPUT in given


def copy_standard_input(
    out: Path, work: Path | None, watcher: Watcher, *, restart: bool, encoding: str
) -> SourceFile:
    """Copy standard input to the work folder of a run; returns it as a source.

    If an earlier run made a complete copy, that copy is used. If the dataset is finished, nothing is
    copied: the result is only good for comparing it with the sources of the dataset.
    """
    if isinstance(work, ObjectPath):
        raise InputError(
            "Standard input is copied to a folder of this machine: use a local `work`."
        )
    with explain_disk_errors(), PreparationFolder(out, restart=restart, work=work) as folder:
        if (folder.path / MANIFEST_NAME).exists():
            sources = Manifest.read(folder.path).sources
            size = next((one.bytes for one in sources if one.path == STANDARD_INPUT), 0)
            folder.clean_up()
            return SourceFile(
                path=STANDARD_INPUT, kind="text", compression=None, size=size, modified=0
            )
        copy = folder.work / _COPY
        if _is_complete(copy, folder.work / _RECEIPT, watcher):
            watcher.note("Using the copy of standard input that an earlier run made.")
        else:
            (folder.work / _RECEIPT).unlink(missing_ok=True)
            _copy(_open_standard_input(), copy, folder.work / _RECEIPT, watcher)
        return _recognize(copy, encoding)


def _open_standard_input() -> BinaryIO:
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None or stream.closed or stream.isatty():
        raise InputError(
            "Standard input is not a pipe or a file, so there is nothing to read from it. Pipe text "
            "into the command, or name the files to read."
        )
    found: BinaryIO = stream
    return found


def _copy(stream: BinaryIO, copy: Path, receipt: Path, watcher: Watcher) -> None:
    watcher.begin("copying standard input", 0)
    with AtomicFile(copy) as file:
        while data := stream.read(_BLOCK):
            file.write(data)
            watcher.advance(len(data))
        checksum = file.finish()
    write_file(receipt, encode_receipt(_Receipt(size=file.size, checksum=checksum)))


def _is_complete(copy: Path, receipt: Path, watcher: Watcher) -> bool:
    known = read_receipt(receipt, _Receipt)
    if known is None or not copy.is_file() or copy.stat().st_size != known.size:
        return False
    watcher.begin("checking the copy of standard input", 0)
    with copy.open("rb") as file:
        return hash_file(file) == known.checksum


def _recognize(copy: Path, encoding: str) -> SourceFile:
    """Return how to read the copy, by its first bytes: JSON lines or text, compressed or not."""
    stat = copy.stat()
    with copy.open("rb") as file:
        magic = file.read(8)
    compression = next((name for mark, name in _MAGIC.items() if magic.startswith(mark)), None)
    source = SourceFile(
        path=STANDARD_INPUT,
        kind="text",
        compression=compression,
        size=stat.st_size,
        modified=stat.st_mtime_ns,
        copy=str(copy.absolute()),
    )
    try:
        head = read_head(source, _HEAD)
        if b"\0" in head and choose_encoding(head, encoding) is None:
            raise InputError(
                "Standard input is not text. Pipe text or JSON lines into the command."
            )
        head = read_head(source, _HEAD, encoding)
    except BadFileError:
        return source  # the run will report it
    return replace(source, kind="jsonl") if _is_json_lines(head) else source


def _is_json_lines(head: bytes) -> bool:
    """Return whether the first line that is not blank is a JSON object."""
    first, _, more = head.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")
    if not more and len(head) >= _HEAD:
        return first.startswith(b"{")  # a long line
    try:
        return isinstance(load_json(first), dict)
    except orjson.JSONDecodeError:
        return False
