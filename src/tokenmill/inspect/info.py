"""Tell what is in a dataset, from its manifest alone: no shard is opened, whatever their number."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import tokenmill.store.dataset
from tokenmill.store.manifest import DOCUMENT_DTYPE, Source

__all__ = ["Dropped", "Info", "SetAside", "SplitInfo", "describe"]


@dataclass(frozen=True, kw_only=True)
class SplitInfo:
    """One split: `bytes` is what its tokens and document tables take on disk, without headers."""

    name: str
    tokens: int
    documents: int
    shards: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """Documents that were left out for one reason, with their bytes in the input."""

    reason: str
    documents: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class SetAside:
    """An input file that could not be used and was left out on request."""

    source: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Info:
    """What a dataset is and where it came from. Counts that its ledger does not give are None."""

    path: str
    tokenizer: str
    tokenizer_fingerprint: str
    vocab_size: int
    dtype: str
    eot: str
    eot_id: int | None
    tokens: int
    documents: int
    bytes: int
    splits: tuple[SplitInfo, ...]
    characters_per_token: float | None
    bytes_per_token: float | None
    documents_in: int | None
    bytes_in: int | None
    bytes_kept: int | None
    text_bytes: int | None
    repaired_documents: int | None
    duplicate_lines: int | None
    dropped: tuple[Dropped, ...]
    set_aside: tuple[SetAside, ...]
    settings: Mapping[str, Any]
    sources: tuple[Source, ...]


def describe(path: str | os.PathLike[str]) -> Info:
    """What is in the dataset at `path`.

    >>> describe("no/such/folder")
    Traceback (most recent call last):
    ...
    tokenmill.errors.DatasetError: no/such/folder does not exist. Make a dataset with: \
tokenmill prepare TEXTS --out no/such/folder
    """
    dataset = tokenmill.store.dataset.open(path)
    manifest, ledger = dataset.manifest, dataset.manifest.ledger
    itemsize = np.dtype(manifest.dtype).itemsize
    splits = tuple(
        SplitInfo(
            name=name,
            tokens=split.tokens,
            documents=split.documents,
            shards=len(split.shards),
            bytes=split.tokens * itemsize + split.documents * DOCUMENT_DTYPE.itemsize,
        )
        for name, split in manifest.splits.items()
    )
    tokens = sum(split.tokens for split in splits)
    text_bytes, characters = _number(ledger, "text_bytes"), _number(ledger, "characters")
    dropped, set_aside = ledger.get("dropped"), ledger.get("set_aside")
    return Info(
        path=str(path),
        tokenizer=manifest.tokenizer,
        tokenizer_fingerprint=manifest.tokenizer_fingerprint,
        vocab_size=manifest.vocab_size,
        dtype=manifest.dtype,
        eot=manifest.eot,
        eot_id=manifest.eot_id,
        tokens=tokens,
        documents=sum(split.documents for split in splits),
        bytes=sum(split.bytes for split in splits),
        splits=splits,
        characters_per_token=characters / tokens if characters is not None and tokens else None,
        bytes_per_token=text_bytes / tokens if text_bytes is not None and tokens else None,
        documents_in=_number(ledger, "documents_in"),
        bytes_in=_number(ledger, "bytes_in"),
        bytes_kept=_number(ledger, "bytes_kept"),
        text_bytes=text_bytes,
        repaired_documents=_number(ledger, "repaired_documents"),
        duplicate_lines=_number(ledger, "duplicate_lines"),
        dropped=tuple(
            Dropped(
                reason=reason,
                documents=_number(entry, "documents") or 0,
                bytes=_number(entry, "bytes") or 0,
            )
            for reason, entry in (dropped.items() if isinstance(dropped, dict) else ())
        ),
        set_aside=tuple(
            SetAside(source=str(entry.get("source")), reason=str(entry.get("reason")))
            for entry in (set_aside if isinstance(set_aside, list) else ())
            if isinstance(entry, dict)
        ),
        settings=manifest.settings,
        sources=manifest.sources,
    )


def _number(where: Any, key: str) -> int | None:
    # The ledger is for people; whether it is right is for `verify` to say, not a reason to fail.
    value = where.get(key) if isinstance(where, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
