"""The tokens and the document table of a split without some of its documents.

The documents to leave out are found once, by their keys, in one pass over the document tables. They
are kept in a file without a name: 32 bytes each. Everything else keeps its order. So the result has
the bytes that `prepare` writes if it leaves out the same documents.

Costs: 48 bytes to read per document, and decoding the text of the documents that are left out, whose
size is in the ledger. Memory holds a block of tokens and a block of records.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.convert.shard_writer import DocumentRecords, SplitTokens
from tokenmill.dataset.opening import Dataset
from tokenmill.errors import TokenizerError, UsageError
from tokenmill.formats.writing import BLOCK
from tokenmill.preparation.exclusion import Exclusions
from tokenmill.preparation.sift import EXCLUDED
from tokenmill.storage.files import create_unnamed
from tokenmill.storage.reading import DamagedFileError
from tokenmill.store.manifest import Manifest
from tokenmill.store.tokens import Tokens

_ENTRY = np.dtype(
    [
        ("start", "<i8"),  # of the document, in the source
        ("place", "<i8"),  # where it would start, if the documents before it are left out
        ("stop", "<i8"),  # its end in the source
        ("removed", "<i8"),  # the tokens of all entries so far, this one included
    ]
)


@dataclass
class LeftOut:
    """How many documents of a dataset are left out, and their sizes."""

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    characters: int = 0


@dataclass(frozen=True)
class Removed:
    """The documents of a split that are left out, in order."""

    entries: npt.NDArray[np.void]  # of _ENTRY

    @property
    def tokens(self) -> int:
        """The number of tokens that are left out."""
        return int(self.entries["removed"][-1]) if len(self.entries) else 0

    def find_source(self, token: int) -> int:
        """Return the position in the source of a token that stays."""
        before = int(self.entries["place"].searchsorted(token, "right"))
        return token + (int(self.entries["removed"][before - 1]) if before else 0)

    def mask(self, start: int, stop: int) -> npt.NDArray[np.bool_] | None:
        """Return which tokens [start, stop) of the source stay; None if all do."""
        first, last = (int(self.entries["start"].searchsorted(at)) for at in (start, stop))
        first -= bool(first) and int(self.entries["stop"][first - 1]) > start
        if first == last:
            return None
        some = self.entries[first:last]
        steps = np.zeros(stop - start + 1, np.int32)
        np.add.at(steps, np.maximum(some["start"] - start, 0), 1)
        np.add.at(steps, np.minimum(some["stop"], stop) - start, -1)
        stays: npt.NDArray[np.bool_] = np.cumsum(steps[:-1]) == 0
        return stays


@dataclass(frozen=True)
class TokensWithout:
    """The tokens of a split that stay."""

    source: Tokens
    removed: Removed

    @property
    def split(self) -> str:
        """The name of the split."""
        return self.source.split

    def __len__(self) -> int:
        return len(self.source) - self.removed.tokens

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the tokens [start, stop), counted without those that are left out."""
        parts = []
        while start < stop:
            at = self.removed.find_source(start)
            end = min(at + stop - start, len(self.source))
            ids = self.source.read(at, end)
            stays = self.removed.mask(at, end)
            parts.append(ids if stays is None else ids[stays])
            start += len(parts[-1])
        return np.concatenate(parts) if parts else np.empty(0, self.source.dtype)


@dataclass(frozen=True)
class RecordsWithout:
    """The records of the documents that stay. `source` reads those of all documents."""

    source: DocumentRecords
    removed: Removed

    def facts(self) -> dict[str, bool]:
        """Return no facts."""
        return {}

    def read(self, start: int, stop: int) -> Iterator[npt.NDArray[np.void]]:
        """Yield the records of the documents that start in [start, stop): see `DocumentRecords`."""
        entries = self.removed.entries
        first, last = self.removed.find_source(start), self.removed.find_source(stop - 1) + 1
        for table in self.source.read(first, last):
            places = table["first"].astype(np.int64) + first
            at = entries["start"].searchsorted(places)
            stays = np.ones(len(places), np.bool_)
            inside = at < len(entries)
            stays[inside] = entries["start"][at[inside]] != places[inside]
            table, places, at = table[stays], places[stays], at[stays]
            before = np.zeros(len(at), np.int64)
            before[at > 0] = entries["removed"][at[at > 0] - 1]
            table["first"] = places - before - start
            yield table


@dataclass(frozen=True, kw_only=True)
class WithoutListed:
    """The splits of a dataset without the documents of some lists.

    `report` has one JSON line for each document that is left out.
    """

    splits: dict[str, tuple[SplitTokens, DocumentRecords]]
    total: LeftOut
    documents: dict[str, int]  # that are left out of each split
    report: BinaryIO = field(repr=False)

    def change(self, manifest: Manifest, exclusions: Exclusions) -> tuple[dict[str, Any], ...]:
        """Return the settings and the ledger of the manifest, changed."""
        described = exclusions.describe()
        before = manifest.settings.get("exclude")
        if before is not None and before != described:
            described["earlier"] = before
        ledger = dict(manifest.ledger)
        size = self.total.text_bytes
        for name, amount in (
            ("documents_kept", self.total.documents),
            ("bytes_kept", size),
            ("text_bytes", size),
            ("characters", self.total.characters),
            ("tokens", self.total.tokens),
        ):
            ledger[name] = _number(ledger, name) - amount
        if min(ledger["bytes_kept"], ledger["text_bytes"], ledger["characters"]) < 0:
            raise DamagedFileError(
                "dataset_metadata.json", "has a ledger with less text than its documents have"
            )
        dropped = dict(ledger.get("dropped") or {})
        entry = dropped.get(EXCLUDED)
        dropped[EXCLUDED] = {
            "documents": _number(entry, "documents") + self.total.documents,
            "bytes": _number(entry, "bytes") + size,
        }
        ledger["dropped"] = dict(sorted(dropped.items()))
        return {**manifest.settings, "exclude": described}, ledger


def leave_out(
    dataset: Dataset,
    splits: Mapping[str, tuple[Tokens, DocumentRecords]],
    exclusions: Exclusions,
) -> WithoutListed:
    """Find the documents of a prepared dataset that are listed, and leave them out."""
    manifest = dataset.manifest
    assert manifest is not None
    total, documents = LeftOut(), {}
    report = create_unnamed(Path(tempfile.gettempdir()))
    # The text of imported tokens may be unknown; its size in the ledger is then 0.
    measure = _Measure(dataset) if _number(manifest.ledger, "text_bytes") else None
    made: dict[str, tuple[SplitTokens, DocumentRecords]] = {}
    for name, (tokens, records) in splits.items():
        before = total.documents
        removed = _find(tokens, records, exclusions, total, partial(_report, manifest, report))
        if measure is not None:
            for entry in removed.entries:
                measure.add(tokens, int(entry["start"]), int(entry["stop"]), total)
        documents[name] = total.documents - before
        made[name] = TokensWithout(tokens, removed), RecordsWithout(records, removed)
    if total.documents and not sum(len(tokens) for tokens, _ in made.values()):
        raise UsageError(
            f"All documents of {dataset.path} are listed in {', '.join(exclusions.paths)}, so nothing "
            "would be left. Use `exclude=False` to keep them."
        )
    report.seek(0)
    return WithoutListed(splits=made, total=total, documents=documents, report=report)


def _find(
    tokens: Tokens,
    records: DocumentRecords,
    exclusions: Exclusions,
    total: LeftOut,
    report: Any,
) -> Removed:
    """Find the documents of a split that are listed. Counts them in `total`."""
    end = removed = 0
    with create_unnamed(Path(tempfile.gettempdir())) as file:
        for table in records.read(0, len(tokens)):
            some = table[exclusions.keys.find(np.ascontiguousarray(table["key"]))]
            if not len(some):
                continue
            entries = np.empty(len(some), _ENTRY)
            entries["start"] = some["first"]
            entries["stop"] = entries["start"] + some["length"].astype(np.int64)
            lengths = entries["stop"] - entries["start"]
            ends = np.concatenate(([end], entries["stop"][:-1]))
            if (
                (lengths < 0).any()
                or (entries["start"] < ends).any()
                or entries["stop"][-1] > len(tokens)
            ):
                raise DamagedFileError(
                    f"{tokens.split}/", "has documents that overlap in its tables"
                )
            entries["removed"] = removed + np.cumsum(lengths)
            entries["place"] = entries["start"] - (entries["removed"] - lengths)
            end, removed = int(entries["stop"][-1]), int(entries["removed"][-1])
            file.write(entries.data)
            report(some)
            total.documents += len(some)
        total.tokens += removed
        file.flush()
        if not removed and not file.tell():
            return Removed(np.empty(0, _ENTRY))
        return Removed(np.memmap(file, _ENTRY, "r"))


def _report(manifest: Manifest, file: BinaryIO, records: npt.NDArray[np.void]) -> None:
    """Write one JSON line for each document that is left out, as `prepare` does."""
    for record in records:
        source = manifest.sources[int(record["source"])]
        high, low = record["key"].tolist()
        place = {source.unit if source.unit == "row" else "offset": int(record["offset"])}
        entry = {"source": source.path} | place | {"key": f"{high:016x}{low:016x}"}
        file.write(orjson.dumps(entry) + b"\n")


class _Measure:
    """Adds up the size of the text of documents, by decoding their tokens."""

    def __init__(self, dataset: Dataset) -> None:
        try:
            self._decode = dataset.tokenizer.decode
        except TokenizerError as error:
            raise TokenizerError(
                f"{error}\nThe tokenizer is needed to find the size of the text that is left out."
            ) from error
        assert dataset.manifest is not None
        self._eot = dataset.manifest.eot

    def add(self, tokens: Tokens, start: int, stop: int, total: LeftOut) -> None:
        """Add the size of the text of the document with the tokens [start, stop)."""
        start, stop = start + (self._eot == "before"), stop - (self._eot == "after")
        for low in range(start, stop, BLOCK):
            text = self._decode(tokens.read(low, min(low + BLOCK, stop)))
            total.text_bytes += len(text.encode("utf-8", "replace"))
            total.characters += len(text)


def _number(where: Any, name: str) -> int:
    value = where.get(name) if isinstance(where, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def check_change(lists: Sequence[Path], without: WithoutListed | None) -> None:
    """Raise `UsageError` if a copy without the listed documents would be the same as its source."""
    if without is None or not without.total.documents:
        named = f"; no document of {', '.join(map(str, lists))} is in it" if lists else ""
        raise UsageError(
            f"nothing would change{named}. Pass `tokens_per_shard`, `compress`, or both."
        )
