"""Describe a dataset without reading its tokens.

The facts about a prepared dataset come from its manifest, so the cost does not grow with the number
of shards. The facts about tokens in another format come from `tokenmill.open`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt

import tokenmill.dataset.opening
from tokenmill.dataset.caching import CacheReport, find_cached
from tokenmill.dataset.opening import Dataset
from tokenmill.dataset.paths import AnyPaths
from tokenmill.storage.object_path import as_path
from tokenmill.storage.reading import is_mappable
from tokenmill.store.frames import Compression
from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest
from tokenmill.store.tables import SourceTable
from tokenmill.tokenizers.minimal import UNKNOWN


@dataclass(frozen=True, kw_only=True)
class SplitInfo:
    """Facts about a split. `bytes` is the size of its tokens and document tables on disk."""

    name: str
    tokens: int
    documents: int | None
    shards: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """The number of documents dropped for one reason, and their size in the input in bytes."""

    reason: str
    documents: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class SetAside:
    """An input file that could not be used, and was skipped because the user asked for that."""

    source: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class GenerationInfo:
    """How much a dataset had in one of its generations.

    `sources` is the number of input files that this generation added.
    """

    number: int
    tokens: int
    documents: int
    shards: int
    sources: int


@dataclass(frozen=True, kw_only=True)
class Info:
    """Facts about a dataset and its origin. Unknown facts are None.

    `documents` counts only documents in document tables. It is None if a split has no table, even
    if an end-of-text id separates its documents.
    """

    path: str
    format: str
    tokenizer: str | None
    tokenizer_fingerprint: str | None
    vocab_size: int | None
    dtype: str
    eot: str
    eot_id: int | None
    tokens: int
    documents: int | None
    bytes: int
    splits: tuple[SplitInfo, ...]
    characters_per_token: float | None = None
    bytes_per_token: float | None = None
    documents_in: int | None = None
    bytes_in: int | None = None
    bytes_kept: int | None = None
    text_bytes: int | None = None
    repaired_documents: int | None = None
    duplicate_lines: int | None = None
    dropped: tuple[Dropped, ...] = ()
    set_aside: tuple[SetAside, ...] = ()
    compression: Compression | None = None
    cache: CacheReport | None = None
    generations: tuple[GenerationInfo, ...] = ()  # of a dataset that has grown
    settings: Mapping[str, Any] = field(default_factory=dict)
    sources: SourceTable = field(default_factory=lambda: SourceTable.of(()))


def describe(
    path: AnyPaths,
    *,
    dtype: npt.DTypeLike | None = None,
    format: str | None = None,
    column: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Info:
    """Return facts about the tokens at `path`; the options are the same as for `tokenmill.open`.

    If the data is remote or `cache_dir` is given, `Info.cache` says how much of the data is in the
    disk cache.

    >>> describe("no/such/folder")
    Traceback (most recent call last):
    ...
    tokenmill.errors.DatasetError: no/such/folder does not exist. Make a dataset with: \
tokenmill prepare TEXTS --out no/such/folder
    """
    dataset = tokenmill.dataset.opening.open(
        path, dtype=dtype, format=format, column=column, cache_bytes=0
    )
    shown = str(as_path(path)) if isinstance(path, (str, os.PathLike)) else None
    found = describe_dataset(dataset, shown)
    if cache_dir is not None or not is_mappable(dataset.path):
        found = replace(found, cache=find_cached(dataset, cache_dir))
    return found


def describe_dataset(dataset: Dataset, path: str | None = None) -> Info:
    """Return facts about an opened dataset. `path` is the path to show."""
    splits = tuple(_describe_split(dataset, name) for name in dataset.splits)
    tables = [split.documents for split in splits if split.documents is not None]
    found = Info(
        path=str(dataset.path) if path is None else path,
        format=dataset.format,
        tokenizer=dataset.contents.tokenizer,
        tokenizer_fingerprint=None,
        vocab_size=dataset.vocab_size,
        dtype=dataset.dtype.name,
        eot=dataset.contents.eot,
        eot_id=dataset.eot_id,
        tokens=sum(split.tokens for split in splits),
        documents=sum(tables) if len(tables) == len(splits) else None,
        bytes=sum(split.bytes for split in splits),
        splits=splits,
    )
    return found if dataset.manifest is None else _add_origin(found, dataset.manifest)


def _describe_split(dataset: Dataset, name: str) -> SplitInfo:
    tokens = dataset[name]
    documents = None if tokens.documents is None else len(tokens.documents)
    stored = len(tokens) * tokens.dtype.itemsize
    if dataset.manifest is not None and name in dataset.manifest.splits:
        shards = dataset.manifest.splits[name].shards
        stored = int(shards.measure_files(tokens.dtype.itemsize).sum())
    return SplitInfo(
        name=name,
        tokens=len(tokens),
        documents=documents,
        shards=tokens.shard_count,
        bytes=stored + (documents or 0) * DOCUMENT_DTYPE.itemsize,
    )


def _add_origin(found: Info, manifest: Manifest) -> Info:
    """Add the facts that only the manifest of a prepared dataset has."""
    ledger, tokens = manifest.ledger, found.tokens
    # The text of imported tokens is unknown, so its size in the ledger is 0.
    text_bytes = _number(ledger, "text_bytes") or None
    characters = None if text_bytes is None else _number(ledger, "characters")
    dropped, set_aside = ledger.get("dropped"), ledger.get("set_aside")
    return replace(
        found,
        tokenizer=None if manifest.tokenizer == UNKNOWN else manifest.tokenizer,
        tokenizer_fingerprint=manifest.tokenizer_fingerprint,
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
        compression=manifest.compression,
        generations=_list_generations(manifest),
        settings=manifest.settings,
        sources=manifest.sources,
    )


def _list_generations(manifest: Manifest) -> tuple[GenerationInfo, ...]:
    """Return all generations of a dataset that has grown, the newest last."""
    if not manifest.generations:
        return ()
    states = (*manifest.generations, manifest.as_earlier())
    return tuple(
        GenerationInfo(
            number=number,
            tokens=sum(size.tokens for size in state.splits.values()),
            documents=sum(size.documents for size in state.splits.values()),
            shards=sum(size.shards for size in state.splits.values()),
            sources=len(sources),
        )
        for number, (state, sources) in enumerate(
            zip(states, manifest.sources.parts, strict=True), 1
        )
    )


def _number(where: Any, key: str) -> int | None:
    # `verify` reports wrong values in the ledger; here they are ignored.
    value = where.get(key) if isinstance(where, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
