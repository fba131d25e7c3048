"""`dataset_metadata.json`, the manifest of a dataset folder.

The manifest is written last, so a folder that has one is complete. Its content is not trusted.
Reading checks the type of every entry, refuses unknown and repeated entries, checks that counts add
up, and refuses paths that lead out of the folder. The manifest itself must not be a link out of the
folder either. Its last entry is the xxh3-128 checksum of every byte before that entry, so a manifest
with a flipped bit is refused.

Reading costs one pass over a JSON file of some 310 bytes per shard, and takes two to three times the
size of that file in memory. A file over `MOST_BYTES` is not read. `settings` and `ledger` may hold
anything, so their values are counted before they are parsed: an empty list takes 3 bytes in a file
and 64 in memory. The input files are in a table of their own, which is read on demand.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import orjson

from tokenmill.errors import DatasetError, UsageError
from tokenmill.storage.interface import Storage
from tokenmill.storage.listing import find_sizes
from tokenmill.storage.names import MANIFEST_NAME, name_in_generation
from tokenmill.storage.object_path import as_path
from tokenmill.storage.reading import read_inside
from tokenmill.store.fields import KeptFields
from tokenmill.store.frames import Compression
from tokenmill.store.joined_sources import join_sources
from tokenmill.store.manifest_body import (
    COMPRESSED_VERSION,
    EXTENDED_VERSION,
    FORMAT,
    VERSION,
    SplitSize,
    decode_manifest,
    read_kind,
    seal,
)
from tokenmill.store.tables import ShardTable, SourceTable

MOST_BYTES = 128 << 20  # of a manifest
MOST_SHARDS = MOST_BYTES // 400  # an entry has some 310 bytes
_MOST_COMPRESSED = MOST_BYTES // 540  # an entry has some 440 bytes

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
    """The shards of one split, in order. `tokens` and `documents` are totals over all shards."""

    shards: ShardTable

    @property
    def tokens(self) -> int:
        return int(self.shards.tokens.sum())

    @property
    def documents(self) -> int:
        return int(self.shards.documents.sum())


@dataclass(frozen=True, kw_only=True)
class Generation:
    """An earlier state of a dataset that has grown. `splits` says how much of each split it has."""

    splits: Mapping[str, SplitSize]
    settings: Mapping[str, Any]
    ledger: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `dataset_metadata.json`, checked.

    `generations` are the earlier states of a dataset that has grown. Its `sources` then consist of
    one table for each generation. `ledger` adds up over all generations.
    """

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
    compression: Compression | None = None
    fields: KeptFields | None = None  # the fields that were kept beside the tokens
    generations: tuple[Generation, ...] = ()
    later: int = field(default=0, compare=False)  # how many generations `at` left out

    @property
    def newest(self) -> int:
        """The number of the newest generation of the dataset."""
        return self.generation + self.later

    @property
    def generation(self) -> int:
        """The number of the dataset's state: 1, and one more each time that the dataset grew."""
        return len(self.generations) + 1

    def list_files(self, name: str) -> list[str]:
        """Return the names that a list, such as `rejected.jsonl`, has in each generation."""
        return [name_in_generation(name, number + 1) for number in range(self.generation)]

    def at(self, generation: int) -> Manifest:
        """Return the manifest as it was before the dataset grew beyond `generation`."""
        if generation == self.generation:
            return self
        then = self.generations[generation - 1]
        return replace(
            self,
            splits={
                name: Split(shards=self.splits[name].shards.first(size.shards))
                for name, size in then.splits.items()
            },
            settings=then.settings,
            ledger=then.ledger,
            sources=join_sources(self.sources.parts[:generation]),
            generations=self.generations[: generation - 1],
            later=self.newest - generation,
        )

    @property
    def all_settings(self) -> list[Mapping[str, Any]]:
        """The settings of all generations, the newest last."""
        return [*(one.settings for one in self.generations), self.settings]

    def as_earlier(self) -> Generation:
        """Return this state of the dataset as an earlier generation, for a dataset that grows."""
        return Generation(
            splits={
                name: SplitSize(split.tokens, split.documents, len(split.shards))
                for name, split in self.splits.items()
            },
            settings=self.settings,
            ledger=self.ledger,
        )

    def to_json(self) -> bytes:
        """Return the bytes of the manifest's file: indented JSON, with a final newline."""
        splits = {
            name: {
                "tokens": split.tokens,
                "documents": split.documents,
                "shards": list(split.shards),
            }
            for name, split in self.splits.items()
        }
        is_plain = self.compression is None
        version = VERSION if is_plain else COMPRESSED_VERSION
        *earlier, own = map(_describe_sources, self.sources.parts)
        generations = [
            {
                "splits": dict(one.splits),
                "settings": dict(one.settings),
                "ledger": dict(one.ledger),
                "sources": sources,
            }
            for one, sources in zip(self.generations, earlier, strict=True)
        ]
        body = {
            "format": FORMAT,
            "version": EXTENDED_VERSION if generations or self.fields is not None else version,
            "dtype": self.dtype,
            "vocab_size": self.vocab_size,
            "tokenizer": {"name": self.tokenizer, "fingerprint": self.tokenizer_fingerprint},
            "eot": {"place": self.eot, "id": self.eot_id},
            **({} if is_plain else {"compression": self.compression}),
            "splits": splits,
            **({} if self.fields is None else {"fields": self.fields}),
            "settings": dict(self.settings),
            "ledger": dict(self.ledger),
            "sources": own,
            **({"generations": generations} if generations else {}),
        }
        encoded = orjson.dumps(body, msgspec.to_builtins, option=orjson.OPT_INDENT_2)
        head = encoded.removesuffix(b"\n}") + b",\n  "
        return head + seal(head)

    def find_incomplete(self, folder: Path) -> str | None:
        """Return the first file of a shard, or of kept fields, that is missing or has the wrong size; None if there is none.

        Opens no file.
        """
        width = np.dtype(self.dtype).itemsize
        for file in self.fields.files.values() if self.fields else ():
            if list(find_sizes(folder, [file.path])) != [file.bytes]:
                return file.path
        for split in self.splits.values():
            expected = split.shards.measure_files(width).tolist()
            found = find_sizes(folder, split.shards.path)
            for path, size, actual in zip(split.shards.path, expected, found, strict=True):
                if actual != size:
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
        self.from_json(data, os.sep)  # never write a manifest that cannot be read
        added = self.sources.parts[-1]  # the tables of earlier generations are there already
        storage.write(added.path, added.encode())
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
        """Parse and check a manifest. `folder` is where it was found.

        >>> Manifest.from_json(b'{"format": "other"}')
        Traceback (most recent call last):
        ...
        tokenmill.storage.reading.DamagedFileError: dataset_metadata.json is not a tokenmill manifest, or \
is damaged: "format" is 'other', not 'tokenmill'. If the files beside it contain only ids, open them with \
their `dtype` and `format='raw'`.
        """
        name = str(as_path(folder) / MANIFEST_NAME)
        body, (*before, own) = decode_manifest(data, name)
        earlier = body.generations or []
        sources = [*(one.sources for one in earlier), body.sources]
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
            sources=join_sources(
                [
                    SourceTable(
                        one.count,
                        one.bytes,
                        one.xxh3_128,
                        one.path,
                        as_path(folder).absolute(),
                    )
                    for one in sources
                ]
            ),
            settings=own.settings,
            ledger=own.ledger,
            compression=body.compression,
            fields=body.fields,
            generations=tuple(
                Generation(splits=one.splits, settings=opened.settings, ledger=opened.ledger)
                for one, opened in zip(earlier, before, strict=True)
            ),
        )


def _describe_sources(table: SourceTable) -> dict[str, Any]:
    return {
        "path": table.path,
        "count": len(table),
        "bytes": table.bytes,
        "xxh3_128": table.xxh3_128,
    }


def check_shard_count(
    tokens: Iterable[int],
    tokens_per_shard: int,
    compression: Compression | None = None,
    before: int = 0,
) -> None:
    """Raise UsageError if there would be more shards than a manifest can list.

    `before` is the number of shards that the dataset has already.

    >>> check_shard_count([10**9, 5], tokens_per_shard=1000)
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: `tokens_per_shard` is 1,000, which makes 1,000,001 shards; at most \
335,544 are possible. Use a larger `tokens_per_shard`.
    """
    count = before + sum(-(-some // tokens_per_shard) for some in tokens)
    most = MOST_SHARDS if compression is None else _MOST_COMPRESSED
    if count > most:
        raise UsageError(
            f"`tokens_per_shard` is {tokens_per_shard:,}, which makes {count:,} shards; at most "
            f"{most:,} are possible. Use a larger `tokens_per_shard`."
        )


def find_manifest(folder: str | os.PathLike[str]) -> bytes | None:
    """Read the manifest in a folder; None if there is none.

    >>> find_manifest("/nowhere") is None
    True
    """
    try:
        (as_path(folder) / MANIFEST_NAME).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        pass  # `read_inside` raises an error that names the file
    return read_inside(as_path(folder), MANIFEST_NAME, MOST_BYTES)


def is_own(data: bytes) -> bool:
    """Return whether a `dataset_metadata.json` is tokenmill's manifest, or perhaps a damaged one.

    The file may also be from another program: common guides write other metadata under this name.

    >>> is_own(b'{"format": "tokenmill"}'), is_own(b'{"total_tokens": 5}'), is_own(b'{"form')
    (True, False, True)
    """
    try:
        return bool(read_kind(data).format == FORMAT)
    except msgspec.ValidationError:
        return False  # JSON, but not an object
    except (ValueError, RecursionError):
        return True  # damaged: reading it as a manifest raises the error
