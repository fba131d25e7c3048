"""Lists of documents to leave out: JSON lines, one document per line, named by its key.

    {"key":"9cee5a63ad0d1ec0b0cd4e4e05e6bc2f","source":"a.jsonl","offset":4711,"because":"spam"}

A key is the 128-bit hash of a document's cleaned text, in 32 hexadecimal digits. Only `key` is
required, so any program can write a list. The other entries are for people: they say where the
document is and why it is listed.

The list of a dataset is beside its folder: `data/corpus.exclude.jsonl` is the list of `data/corpus`.
So it is none of the dataset's files, and stays if the dataset is made again.

A list may be untrusted and large. Lines are read in blocks and checked. The keys are sorted in
bounded memory (see `sorted_keys.py`): 100 million keys take two or three minutes, and 3.2 GB of
temporary files. Two lists with the same keys are equal, in any order and with any reasons: `Exclusions.checksum`
depends on the keys alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from tokenmill.errors import UsageError
from tokenmill.hub.paths import is_hub_path
from tokenmill.preparation.key_files import Keys
from tokenmill.preparation.sorted_keys import SortedKeys
from tokenmill.storage.names import EXCLUDE_ENDING
from tokenmill.storage.object_path import ObjectPath, as_path
from tokenmill.storage.reading import DamagedFileError, open_foreign

_LONGEST_LINE = 1 << 20  # bytes, at least
_BLOCK = 4 << 20  # bytes that are read at once
_CURE = 'Correct or delete that line. A line is JSON with a key: {"key": "32 hexadecimal digits"}.'
_DIGITS = re.compile("[0-9a-fA-F]{32}")

# Paths of lists; None: the dataset's own list; False: no list.
Exclude = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Literal[False] | None


class Exclusion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a list: the key of a document, where the document is, and why it is listed."""

    key: Annotated[str, msgspec.Meta(min_length=32, max_length=32)]
    split: str | None = None
    document: int | None = None  # its number in the split
    source: str | None = None
    offset: int | None = None  # in the source: a byte offset, or a row number
    beginning: str | None = None  # of the document's text
    because: str | None = None  # the reason that the user gave


class _Key(msgspec.Struct):
    key: Annotated[str, msgspec.Meta(min_length=32, max_length=32)]


_KEY, _EXCLUSION = msgspec.json.Decoder(_Key), msgspec.json.Decoder(Exclusion)


@dataclass(frozen=True, kw_only=True)
class Exclusions:
    """The keys of some lists, and where the lists are."""

    keys: SortedKeys
    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.keys)

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about the lists: the number and the checksum of the keys."""
        return {"keys": len(self), "xxh3_128": self.keys.checksum}


def find_list(data: str | os.PathLike[str]) -> Path:
    """Return the path of a dataset's list, which is beside the dataset's folder.

    >>> find_list("data/corpus/"), str(find_list("s3://bucket/corpus"))
    (PosixPath('data/corpus.exclude.jsonl'), 's3://bucket/corpus.exclude.jsonl')
    """
    if is_hub_path(data):
        raise UsageError(
            f"{os.fspath(data)} is on the Hugging Face Hub, so no list can be beside it. Name a file for "
            "the list: `out=FILE`."
        )
    path = as_path(data).expanduser()
    if isinstance(path, ObjectPath):
        if not path.address.key:  # a whole bucket has nothing beside it
            return path / EXCLUDE_ENDING.removeprefix(".")
    elif path.name in ("", ".."):
        path = path.resolve()
    return path.with_name(f"{path.name}{EXCLUDE_ENDING}")


def choose_lists(exclude: Exclude, data: str | os.PathLike[str]) -> list[Path]:
    """Return the lists for a dataset: those given, and the dataset's own if there is one.

    None means its own list only. False, or an empty sequence, means no list at all.
    """
    if isinstance(exclude, (str, os.PathLike)):
        exclude = [exclude]
    if exclude is not None and not exclude:
        return []
    given = [as_path(path) for path in exclude or ()]
    if is_hub_path(data):
        return given
    own = find_list(data)
    return given if own in given or not _is_there(own) else [*given, own]


def _is_there(path: Path) -> bool:
    """Return whether a list exists. A web server is not asked: it may answer anything."""
    if isinstance(path, ObjectPath) and not path.is_listable:
        return False
    try:
        return is_list(path)
    except OSError:  # the name is too long, or the folder may not be read
        return False


def is_list(path: Path) -> bool:
    """Return whether a list exists. Raises UsageError for a folder, a pipe or a device.

    >>> import tempfile
    >>> is_list(Path(tempfile.mkdtemp()) / "list.jsonl")
    False
    """
    if path.is_file():
        return True
    if not isinstance(path, ObjectPath) and path.exists():
        kind = "a folder" if path.is_dir() else "not a regular file"
        raise UsageError(
            f"The list {path} is {kind}. Move it away, or name another file for the list."
        )
    return False


def read_exclusions(*paths: str | os.PathLike[str]) -> Exclusions:
    """Read the keys of some lists. Costs about 1 to 2 s per million keys.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "list.jsonl"
    >>> _ = path.write_text('{"key": "000000000000000a000000000000000b"}')
    >>> read_exclusions(path).keys.keys.tolist()
    [[10, 11]]
    """
    keys = SortedKeys.of(table for path in paths for table in _read_keys(as_path(path)))
    return Exclusions(keys=keys, paths=tuple(map(str, paths)))


def read_list(path: Path) -> Iterator[Exclusion]:
    """Yield the entries of a list in order. A missing list has no entries."""
    return (parse_entry(key, line) for key, line in read_lines(path))


def read_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the key in each line of a list, in lower case, and the line with a line end."""
    lines_before = 0
    for block in _read_blocks(path):
        for number, line in _split(block, lines_before):
            yield _parse_key(path, number, line), line + b"\n"
        lines_before += block.count(b"\n")


def parse_entry(key: str, line: bytes) -> Exclusion:
    """Parse one line of a list. `key` is the line's key, which `read_lines` has already read."""
    with suppress(ValueError, RecursionError):
        return msgspec.structs.replace(_EXCLUSION.decode(line), key=key)
    return Exclusion(key=key)  # another program may have written other entries


def is_key(text: str) -> bool:
    """Return whether a text is a key: 32 hexadecimal digits.

    >>> is_key("9cee5a63ad0d1ec0b0cd4e4e05e6bc2f"), is_key("a.txt")
    (True, False)
    """
    return _DIGITS.fullmatch(text) is not None


def _parse_key(path: Path, number: int, line: bytes) -> str:
    """Return the key in one line of a list. Errors name the file and the line."""
    try:
        key = _KEY.decode(line).key
        if not is_key(key):
            raise ValueError("the key is not 32 hexadecimal digits")
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:300]
        raise DamagedFileError(
            str(path), f"names no document in line {number:,}: {why}", _CURE
        ) from None
    return key.lower()


def _read_keys(path: Path) -> Iterator[Keys]:
    """Yield the keys of a list, some at a time."""
    if not is_list(path):
        raise UsageError(
            f"There is no list {path}. Make one with: tokenmill exclude DATA KEY --out {path}"
        )
    lines_before = 0
    for block in _read_blocks(path):
        yield _parse_keys(path, block, lines_before)
        lines_before += block.count(b"\n")


def _parse_keys(path: Path, block: bytes, lines_before: int) -> Keys:
    """Return the keys in some lines of a list. Errors name the file and the line."""
    lines = sum(1 for line in block.split(b"\n") if line.strip())
    try:
        # This also accepts several objects in a line, and `fromhex` white space in a key.
        found = bytes.fromhex("".join([entry.key for entry in _KEY.decode_lines(block)]))
    except (ValueError, RecursionError):
        found = b""
    if len(found) != 16 * lines:
        pairs = _split(block, lines_before)
        found = bytes.fromhex("".join(_parse_key(path, number, line) for number, line in pairs))
    return np.frombuffer(found, ">u8").reshape(-1, 2).astype(np.uint64)


def _split(block: bytes, lines_before: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers."""
    for number, line in enumerate(block.split(b"\n"), lines_before + 1):
        if line.strip():
            yield number, line


def _read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a list in blocks of whole lines."""
    if not is_list(path):
        return
    with open_foreign(path.parent, path.name) as file:
        rest = b""
        while data := file.read(_BLOCK):
            end = data.rfind(b"\n") + 1
            if len(rest) + (end or len(data)) > _BLOCK + _LONGEST_LINE:
                raise DamagedFileError(str(path), "has a line that is too long", _CURE)
            if end:
                yield rest + data[:end]
                rest = data[end:]
            else:
                rest += data
        if rest:
            yield rest
