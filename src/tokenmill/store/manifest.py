"""`dataset_metadata.json`: what a dataset folder holds.

The manifest is written last, so a folder that has one is complete. Its content is not trusted,
because datasets come from strangers: numbers must be numbers, counts must add up, and neither a path
nor a link in place of the manifest may lead out of the folder. Its last entry is the xxh3-128
checksum of every byte before that entry, so a flipped bit in a count or a setting is refused like
one in a shard. Reading costs one pass over a small JSON file.

Version 2 keeps the table of sources in a separate file; version 1, which had it inline, is read but
no longer written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import orjson
import xxhash

from tokenmill.errors import DatasetError
from tokenmill.storage.base import Storage
from tokenmill.storage.names import MANIFEST_NAME, SOURCES_NAME
from tokenmill.storage.reading import read_inside
from tokenmill.store.shard_table import Shard, ShardTable
from tokenmill.store.source_table import UNITS, Source, SourceTable

FORMAT = "tokenmill"
VERSION = 2
VERSIONS = (1, 2)  # that can be read
DTYPES = ("uint16", "uint32")
SHARD_ENTRIES = {entry.name: int if entry.type == "int" else str for entry in fields(Shard)}
EOT_PLACES = ("after", "before", "none")
MOST_BYTES = 1 << 30  # of a manifest: some three million shards
MOST_TOKENS = 1 << 56  # of a split: byte positions then fit in 64 bits with room to add

# One record a document that starts in a shard. `first` counts tokens from the shard's start;
# `length` includes the end-of-text token and may reach into the next shards; `offset` is a byte
# offset in the (decompressed) source, or a row number where the source is a table.
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

    shards: Sequence[Shard] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shards", ShardTable.of(self.shards))

    @property
    def table(self) -> ShardTable:
        """The shards as columns."""
        assert isinstance(self.shards, ShardTable)
        return self.shards

    @property
    def tokens(self) -> int:
        return int(self.table.tokens.sum())

    @property
    def documents(self) -> int:
        return int(self.table.documents.sum())


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything that `dataset_metadata.json` says, checked."""

    dtype: str
    vocab_size: int
    tokenizer: str
    tokenizer_fingerprint: str
    eot: str
    eot_id: int | None
    splits: Mapping[str, Split]
    sources: Sequence[Source]
    settings: Mapping[str, Any] = field(default_factory=dict)
    ledger: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", SourceTable.of(self.sources))

    @property
    def source_table(self) -> SourceTable:
        """The sources, as a table."""
        assert isinstance(self.sources, SourceTable)
        return self.sources

    def to_json(self) -> bytes:
        """The manifest as it stands on disk: indented, with sorted splits and a final newline."""
        splits = {
            name: {
                "tokens": split.tokens,
                "documents": split.documents,
                "shards": [asdict(shard) for shard in split.shards],
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
                "bytes": self.source_table.bytes,
                "xxh3_128": self.source_table.xxh3_128,
            },
        }
        head = orjson.dumps(body, option=orjson.OPT_INDENT_2).removesuffix(b"\n}") + b",\n  "
        return head + _seal(head)

    def write(self, storage: Storage) -> None:
        """Write the table of sources, then the manifest, which completes the dataset."""
        storage.write(SOURCES_NAME, self.source_table.encode())
        storage.write(MANIFEST_NAME, self.to_json())

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Manifest:
        """Read and check the manifest of a dataset folder."""
        data = find_manifest(folder)
        if data is None:
            raise DatasetError(
                f"{folder} is not a finished dataset: it has no {MANIFEST_NAME}.\n"
                "If a run into it was interrupted, the same `tokenmill prepare` command resumes."
            )
        return cls.from_json(data, folder)

    @classmethod
    def from_json(cls, data: bytes, folder: str | os.PathLike[str] = "") -> Manifest:
        """Parse and check the bytes of the manifest of a folder.

        >>> Manifest.from_json(b'{"format": "other"}')
        Traceback (most recent call last):
        ...
        tokenmill.errors.DatasetError: dataset_metadata.json is not tokenmill's, or damaged: "format" is \
'other', not 'tokenmill'; if its files are ids and nothing else, open them with \
their `dtype` and `format='raw'`.
        """
        try:
            body = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            name = Path(folder) / MANIFEST_NAME
            raise DatasetError(f"{name} is damaged: it is not JSON ({error}).") from None
        return _Reader(Path(folder)).manifest(body, data)


def find_manifest(folder: str | os.PathLike[str]) -> bytes | None:
    """The bytes of the manifest in a folder; None if there is none.

    >>> find_manifest("/nowhere") is None
    True
    """
    try:
        (Path(folder) / MANIFEST_NAME).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        pass  # which opening it tells
    return read_inside(Path(folder), MANIFEST_NAME, MOST_BYTES)


def is_own(data: bytes) -> bool:
    """Whether a manifest is tokenmill's, or might be: the guides' metadata have the same name.

    >>> is_own(b'{"format": "tokenmill"}'), is_own(b'{"total_tokens": 5}'), is_own(b'{"form')
    (True, False, True)
    """
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        return True  # and damaged, which reading it tells
    return isinstance(body, dict) and body.get("format") == FORMAT


class _Reader:
    """Takes a parsed manifest apart; every surprise is a DatasetError that names its place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.name = str(folder / MANIFEST_NAME)

    def fail(self, what: str) -> DatasetError:
        return DatasetError(f"{self.name} is damaged: {what}.")

    def get(self, where: Any, key: str, kind: type | tuple[type, ...]) -> Any:
        value = where.get(key) if isinstance(where, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.fail(f'"{key}" is {_brief(value)}')
        if isinstance(value, int) and value < 0:
            raise self.fail(f'"{key}" is negative ({value})')
        return value

    def one_of(self, where: Any, key: str, allowed: tuple[str, ...]) -> str:
        value = self.get(where, key, str)
        if value not in allowed:
            raise self.fail(f'"{key}" is {value!r}, not one of {", ".join(allowed)}')
        return str(value)

    def path(self, where: Any, key: str) -> str:
        value = self.get(where, key, str)
        pure = PurePosixPath(value)
        if not value or pure.is_absolute() or ".." in pure.parts or "\\" in value:
            raise self.fail(f"the path {value!r} leads out of the folder")
        return self.printable(value, "the path")

    def printable(self, value: str, what: str) -> str:
        # Names are shown in messages and on terminals; an escape sequence has no place in one.
        if not value or not value.isprintable():
            raise self.fail(f"{what} {_brief(value)} is empty or has control characters")
        return value

    def manifest(self, body: Any, data: bytes) -> Manifest:
        if not isinstance(body, dict):
            raise self.fail("it is not a JSON object")
        if body.get("format") != FORMAT:
            raise DatasetError(
                f'{self.name} is not tokenmill\'s, or damaged: "format" is '
                f"{_brief(body.get('format'))}, not {FORMAT!r}; if its files are ids and nothing "
                "else, open them with their `dtype` and `format='raw'`."
            )
        if body.get("version") not in VERSIONS:
            raise DatasetError(
                f"{self.name} has version {_brief(body.get('version'))}; this tokenmill reads "
                f"versions up to {VERSION}. Use the tokenmill that wrote it, or a newer one."
            )
        said = self.get(body, "xxh3_128", str)
        end = len(data) - len(_seal(b""))
        if data[max(end, 0) :] != _seal(data[: max(end, 0)]):
            raise self.fail(
                f"it does not match its own checksum ({_brief(said)}); "
                "copy it again from its source, or run the same tokenmill prepare command with --restart"
            )
        tokenizer = self.get(body, "tokenizer", dict)
        eot = self.get(body, "eot", dict)
        vocab_size = self.get(body, "vocab_size", int)
        dtype = self.one_of(body, "dtype", DTYPES)
        if vocab_size > int(np.iinfo(dtype).max) + 1:
            raise self.fail(f"a vocabulary of {vocab_size} does not fit in {dtype}")
        eot_place = self.one_of(eot, "place", EOT_PLACES)
        eot_id = self.get(eot, "id", (int, type(None)))
        if (eot_id is None and eot_place != "none") or (eot_id or 0) >= max(vocab_size, 1):
            raise self.fail(
                f"the end-of-text id is {_brief(eot_id)}, with a vocabulary of {vocab_size}"
            )
        splits = {
            self.printable(name, "the split name"): self.split(name, split)
            for name, split in self.get(body, "splits", dict).items()
        }
        return Manifest(
            dtype=dtype,
            vocab_size=vocab_size,
            tokenizer=self.get(tokenizer, "name", str),
            tokenizer_fingerprint=self.get(tokenizer, "fingerprint", str),
            eot=eot_place,
            eot_id=eot_id,
            splits=splits,
            sources=self.sources(body),
            settings=self.get(body, "settings", dict),
            ledger=self.get(body, "ledger", dict),
        )

    def sources(self, body: Any) -> Sequence[Source]:
        if body["version"] == 1:
            return [
                Source(
                    path=self.get(source, "path", str),
                    bytes=self.get(source, "bytes", int),
                    unit=self.one_of(source, "unit", UNITS),
                )
                for source in self.get(body, "sources", list)
            ]
        facts = self.get(body, "sources", dict)
        return SourceTable(
            self.get(facts, "count", int),
            self.get(facts, "bytes", int),
            self.get(facts, "xxh3_128", str),
            path=self.path(facts, "path"),
            where=self.folder,
        )

    def split(self, name: str, body: Any) -> Split:
        shards = self.get(body, "shards", list)
        columns = self.columns(shards)
        for what in ("tokens", "documents"):
            said, counted = self.get(body, what, int), sum(columns[what])
            if said != counted:
                raise self.fail(
                    f"split {name!r} says {said} {what}, its shards add up to {counted}"
                )
            if counted > MOST_TOKENS:
                raise self.fail(f"split {name!r} says {said} {what}, more than any disk holds")
            columns[what] = np.array(columns[what], np.int64)
        return Split(shards=ShardTable(**columns))

    def columns(self, shards: list[Any]) -> dict[str, Any]:
        """The entries of all shards, checked column by column; one by one to name what is wrong."""
        columns: dict[str, list[Any]] = {}
        for key, kind in SHARD_ENTRIES.items():
            try:
                columns[key] = [shard[key] for shard in shards]
            except (TypeError, KeyError, IndexError):
                columns[key] = [None]
            if set(map(type, columns[key])) - {kind} or (
                kind is int and min(columns[key], default=0) < 0
            ):
                columns[key] = [self.get(shard, key, kind) for shard in shards]
        for key in ("path", "documents_path"):
            plain = "" not in columns[key] and " ".join(columns[key]).isprintable()
            lines = "\n" + "\n".join(columns[key])
            if not plain or any(sign in lines for sign in ("..", "\\", "\n/")):
                columns[key] = [self.path(shard, key) for shard in shards]
        return columns


def _seal(head: bytes) -> bytes:
    """The end of a manifest: its checksum over everything before, and the closing brace."""
    return f'"xxh3_128": "{xxhash.xxh3_128(head).hexdigest()}"\n}}\n'.encode()


def _brief(value: Any) -> str:
    if value is None:
        return "missing"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
