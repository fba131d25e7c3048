"""`dataset_metadata.json`: what a dataset folder holds.

The manifest is written last, so a folder that has one is complete. Its content is not trusted, because
datasets may be untrusted: every entry has its type, no entry is unknown or given twice, counts add
up, and neither a path nor a link in place of the manifest leads out of the folder. Its last entry is
the xxh3-128 checksum of every byte before that entry, so a flipped bit in a count or a setting is
refused like one in a shard.

Reading costs one pass over a JSON file of some 310 bytes per shard, and two to three times its size in memory.
A file over `MOST_BYTES` is not read, and entries that may hold anything are counted before they are
parsed, since an empty list takes 3 bytes in a file and 64 in memory. The input files are in a table of
their own, which is read on demand.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import orjson
import xxhash

from tokenmill.errors import DatasetError, UsageError
from tokenmill.storage.decoding import check_values, decode
from tokenmill.storage.folder import Storage
from tokenmill.storage.names import MANIFEST_NAME, SOURCES_NAME
from tokenmill.storage.reading import DamagedFileError, read_inside
from tokenmill.store.tables import Count, Name, Shard, ShardTable, SourceTable
from tokenmill.wording import brief, harmless

FORMAT = "tokenmill"
VERSION = 3
MOST_BYTES = 128 << 20  # of a manifest
MOST_SHARDS = MOST_BYTES // 400  # an entry has some 310 bytes
MOST_SPLITS = 1_000

# One record per document that starts in a shard. `first` counts tokens from the shard's start;
# `length` includes the end-of-text token and may reach into the next shards; `offset` is a byte
# offset in the (decompressed) source, or a row number if the source is a table.
DOCUMENT_DTYPE = np.dtype(
    [
        ("key", "<u8", (2,)),
        ("first", "<u8"),
        ("length", "<u8"),
        ("source", "<u8"),
        ("offset", "<u8"),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Split:
    """The shards of one split, in order; the totals are sums over them."""

    shards: ShardTable

    @property
    def tokens(self) -> int:
        return int(self.shards.tokens.sum())

    @property
    def documents(self) -> int:
        return int(self.shards.documents.sum())


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `dataset_metadata.json`, checked."""

    dtype: str
    vocab_size: int
    tokenizer: str
    tokenizer_fingerprint: str
    eot: str
    eot_id: int | None
    splits: Mapping[str, Split]
    sources: SourceTable
    settings: Mapping[str, Any] = field(default_factory=dict)
    ledger: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The manifest as it is on disk: indented, with a final newline."""
        splits = {
            name: {
                "tokens": split.tokens,
                "documents": split.documents,
                "shards": list(split.shards),
            }
            for name, split in self.splits.items()
        }
        body = {
            "format": FORMAT,
            "version": VERSION,
            "dtype": self.dtype,
            "vocab_size": self.vocab_size,
            "tokenizer": {"name": self.tokenizer, "fingerprint": self.tokenizer_fingerprint},
            "eot": {"place": self.eot, "id": self.eot_id},
            "splits": splits,
            "settings": dict(self.settings),
            "ledger": dict(self.ledger),
            "sources": {
                "path": SOURCES_NAME,
                "count": len(self.sources),
                "bytes": self.sources.bytes,
                "xxh3_128": self.sources.xxh3_128,
            },
        }
        encoded = orjson.dumps(body, msgspec.structs.asdict, option=orjson.OPT_INDENT_2)
        head = encoded.removesuffix(b"\n}") + b",\n  "
        return head + _seal(head)

    def find_incomplete(self, folder: Path) -> str | None:
        """The first shard whose file is missing or has another size, if any. Opens no file."""
        width = np.dtype(self.dtype).itemsize
        for split in self.splits.values():
            for path, tokens in zip(split.shards.path, split.shards.tokens.tolist(), strict=True):
                try:
                    is_whole = (folder / path).stat().st_size == tokens * width
                except OSError:
                    is_whole = False
                if not is_whole:
                    return path
        return None

    def write(self, storage: Storage) -> None:
        """Write the table of sources, then the manifest, which completes the dataset."""
        data = self.to_json()
        if len(data) > MOST_BYTES:
            raise DatasetError(
                f"{MANIFEST_NAME} would have {len(data):,} bytes, but at most {MOST_BYTES:,} can be "
                "read. Use a larger `tokens_per_shard`."
            )
        self.from_json(data, os.sep)  # one that cannot be read is not written
        storage.write(SOURCES_NAME, self.sources.encode())
        storage.write(MANIFEST_NAME, data)

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Manifest:
        """Read and check the manifest of a dataset folder."""
        data = find_manifest(folder)
        if data is None:
            raise DatasetError(
                f"{folder} is not a finished dataset: it has no {MANIFEST_NAME}.\n"
                "If a run was interrupted, the same `tokenmill prepare` command resumes it."
            )
        return cls.from_json(data, folder)

    @classmethod
    def from_json(cls, data: bytes, folder: str | os.PathLike[str] = "") -> Manifest:
        """Parse and check the bytes of the manifest of a folder.

        >>> Manifest.from_json(b'{"format": "other"}')
        Traceback (most recent call last):
        ...
        tokenmill.storage.reading.DamagedFileError: dataset_metadata.json is not a tokenmill manifest, or \
is damaged: "format" is 'other', not 'tokenmill'. If the files beside it contain only ids, open them with \
their `dtype` and `format='raw'`.
        """
        name = str(Path(folder) / MANIFEST_NAME)
        try:
            body = _DECODER.decode(data)
            settings, ledger = (
                _read_open(body.settings, "settings"),
                _read_open(body.ledger, "ledger"),
            )
            _check_body(body, data, settings, ledger)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise _explain(name, data, error) from None
        return cls(
            dtype=body.dtype,
            vocab_size=body.vocab_size,
            tokenizer=body.tokenizer.name,
            tokenizer_fingerprint=body.tokenizer.fingerprint,
            eot=body.eot.place,
            eot_id=body.eot.id,
            splits={
                split: Split(shards=ShardTable.of(part.shards))
                for split, part in body.splits.items()
            },
            sources=SourceTable(
                body.sources.count,
                body.sources.bytes,
                body.sources.xxh3_128,
                body.sources.path,
                Path(folder).absolute(),
            ),
            settings=settings,
            ledger=ledger,
        )


def check_shard_count(tokens: Iterable[int], tokens_per_shard: int) -> None:
    """Refuse, before any work, to write more shards than a manifest can list.

    >>> check_shard_count([10**9, 5], tokens_per_shard=1000)
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: `tokens_per_shard` is 1,000, which makes 1,000,001 shards; at most \
335,544 are possible. Use a larger number.
    """
    count = sum(-(-some // tokens_per_shard) for some in tokens)
    if count > MOST_SHARDS:
        raise UsageError(
            f"`tokens_per_shard` is {tokens_per_shard:,}, which makes {count:,} shards; at most "
            f"{MOST_SHARDS:,} are possible. Use a larger number."
        )


def find_manifest(folder: str | os.PathLike[str]) -> bytes | None:
    """Read the manifest in a folder; None if there is none.

    >>> find_manifest("/nowhere") is None
    True
    """
    try:
        (Path(folder) / MANIFEST_NAME).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        pass  # reading it raises the error that names the file
    return read_inside(Path(folder), MANIFEST_NAME, MOST_BYTES)


def is_own(data: bytes) -> bool:
    """Whether a manifest is tokenmill's, or may be: the guides' metadata has the same file name.

    >>> is_own(b'{"format": "tokenmill"}'), is_own(b'{"total_tokens": 5}'), is_own(b'{"form')
    (True, False, True)
    """
    try:
        return bool(_read_kind(data).format == FORMAT)
    except msgspec.ValidationError:
        return False  # JSON, but not an object
    except (ValueError, RecursionError):
        return True  # damaged: reading it as a manifest raises the error


# The entries of the file. `_count_strings` relies on every entry being required.


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """An object in the manifest; unknown entries are refused."""


class _Tokenizer(_Entry):
    name: Name
    fingerprint: Name


class _EndOfText(_Entry):
    place: Literal["after", "before", "none"]
    id: Count | None


class _Split(_Entry):
    tokens: Count
    documents: Count
    shards: list[Shard]


class _Sources(_Entry):
    path: Name
    count: Count
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    xxh3_128: Name


class _Body(_Entry):
    format: Literal["tokenmill"]
    version: Literal[3]
    dtype: Literal["uint16", "uint32"]
    vocab_size: Count
    tokenizer: _Tokenizer
    eot: _EndOfText
    splits: Annotated[dict[Name, _Split], msgspec.Meta(max_length=MOST_SPLITS)]
    settings: msgspec.Raw
    ledger: msgspec.Raw
    sources: _Sources
    xxh3_128: Name


class _Kind(msgspec.Struct):
    """The entries that say how to read the others."""

    format: Any = None
    version: Any = None


_DECODER = msgspec.json.Decoder(_Body)
_NAMES = {
    name
    for kind in (_Body, _Tokenizer, _EndOfText, _Split, _Sources, Shard)
    for name in kind.__struct_fields__
}


def _read_kind(data: bytes) -> _Kind:
    return msgspec.json.decode(data, type=_Kind)


def _explain(name: str, data: bytes, error: Exception) -> DamagedFileError:
    """The error for a manifest that cannot be used: the most basic fault that it has."""
    try:
        kind = _read_kind(data)
    except msgspec.ValidationError:
        return DamagedFileError(name, "is damaged: it is not a JSON object")
    except (ValueError, RecursionError) as broken:
        return DamagedFileError(name, f"is damaged: it is not JSON ({broken})")
    if kind.format != FORMAT:
        return DamagedFileError(
            name,
            f'is not a tokenmill manifest, or is damaged: "format" is {_name(kind.format)}, '
            f"not {FORMAT!r}",
            "If the files beside it contain only ids, open them with their `dtype` and "
            "`format='raw'`.",
        )
    if type(kind.version) is not int or kind.version != VERSION:
        is_older = kind.version in (1, 2)
        return DamagedFileError(
            name,
            f"has version {_name(kind.version)}, but this tokenmill reads only version {VERSION}",
            "Prepare the dataset again: run the same tokenmill prepare command with --restart."
            if is_older
            else "Use the tokenmill that wrote it, or a newer one.",
        )
    if not _has_seal(data):
        return DamagedFileError(name, "is damaged: it does not match its own checksum")
    # The names are untrusted: show them without escape sequences, and shortened.
    text = harmless(str(error)[:300]).replace("`", "'")
    text = text[:1].lower() + text[1:]
    if unknown := re.search("unknown field '(.*?)'", text):
        near = difflib.get_close_matches(unknown[1], _NAMES, 1)
        text += f" (did you mean {near[0]!r}?)" if near else ""
    return DamagedFileError(name, f"is damaged: {text}")


def _name(value: Any) -> str:
    return "missing" if value is None else brief(value)


def _read_open(raw: msgspec.Raw, name: str) -> dict[str, Any]:
    """Parse an entry that may hold anything, if it is not too large; raises a ValueError."""
    data = bytes(raw)
    try:
        check_values(data)
        value = decode(data, dict[str, Any])
        orjson.dumps(value)  # it may be written again
    except ValueError as error:
        raise ValueError(f"{error} in {name!r}") from None
    except orjson.JSONEncodeError:
        raise ValueError(f"{name!r} is nested too deeply, or has a number beyond 64 bits") from None
    return value


def _check_body(body: _Body, data: bytes, settings: dict[str, Any], ledger: dict[str, Any]) -> None:
    """Check what the types cannot express; raises a ValueError."""
    if not _has_seal(data):
        raise ValueError
    if _count_quotes(data) != 2 * sum(map(_count_strings, (body, settings, ledger))):
        raise ValueError(f"it has the entry {_find_repeated_key(data)!r} twice")
    if body.vocab_size > int(np.iinfo(body.dtype).max) + 1:
        raise ValueError(f"a vocabulary of {body.vocab_size} does not fit in {body.dtype}")
    eot = body.eot
    if (eot.id is None and eot.place != "none") or (eot.id or 0) >= max(body.vocab_size, 1):
        raise ValueError(
            f"the end-of-text id is {_name(eot.id)}, with a vocabulary of {body.vocab_size}"
        )
    _check_path(body.sources.path)
    for name, split in body.splits.items():
        _check_printable(name, "split name")
        for what in ("tokens", "documents"):
            said: int = getattr(split, what)
            if said != (found := sum(getattr(shard, what) for shard in split.shards)):
                raise ValueError(f"split {name!r} says {said} {what}, but its shards have {found}")
        _check_paths([shard.path for shard in split.shards])
        _check_paths([shard.documents_path for shard in split.shards])


def _check_paths(paths: list[str]) -> None:
    # Many at once first: one by one, 300,000 paths take half a second.
    for first in range(0, len(paths), 10_000):
        some = paths[first : first + 10_000]
        lines = "\n" + "\n".join(some)
        is_plain = "" not in some and " ".join(some).isprintable()
        if not is_plain or any(sign in lines for sign in ("..", "\\", "\n/")):
            for path in some:
                _check_path(path)


def _check_path(path: str) -> None:
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\\" in path:
        raise ValueError(f"the path {path!r} leads out of the folder")
    _check_printable(path, "path")


def _check_printable(value: str, what: str) -> None:
    # Names are printed on terminals, so they must not contain escape sequences.
    if not value or not value.isprintable():
        raise ValueError(f"the {what} {brief(value)} is empty or has control characters")


def _count_quotes(data: bytes) -> int:
    """How many quotes of a JSON text begin or end a string."""
    if b"\\" in data:
        data = re.sub(rb"\\.", b"", data, flags=re.DOTALL)
    return data.count(b'"')


def _count_strings(value: Any) -> int:
    """How many strings JSON needs for a value, keys included.

    If an entry is repeated, decoding silently keeps the last one; the text then has more strings than
    the value. Counting them costs a hundredth of decoding.
    """
    if isinstance(value, str):
        return 1
    if isinstance(value, msgspec.Struct):
        return _count_strings(msgspec.structs.asdict(value))
    if isinstance(value, dict):
        return len(value) + sum(map(_count_strings, value.values()))
    if isinstance(value, list):
        if value and isinstance(value[0], Shard):  # all shards have the same entries
            return len(value) * _count_strings(value[0])
        return sum(map(_count_strings, value))
    return 0


def _find_repeated_key(data: bytes) -> str:
    repeated: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        counts = Counter(name for name, _ in pairs)
        repeated.extend(name for name, count in counts.items() if count > 1)

    json.loads(data, object_pairs_hook=look)
    return repeated[0]


def _seal(head: bytes | memoryview) -> bytes:
    """The end of a manifest: its checksum over everything before, and the closing brace."""
    return f'"xxh3_128": "{xxhash.xxh3_128(head).hexdigest()}"\n}}\n'.encode()


def _has_seal(data: bytes) -> bool:
    end = max(len(data) - len(_seal(b"")), 0)
    return data[end:] == _seal(memoryview(data)[:end])
