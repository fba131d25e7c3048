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
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.convert.shard_writer import DocumentRecords, SplitData, SplitTokens
from tokenmill.dataset.opening import Dataset
from tokenmill.errors import TokenizerError, UsageError
from tokenmill.formats.writing import BLOCK
from tokenmill.preparation.exclusion import Exclusions, read_exclusions
from tokenmill.preparation.sift import EXCLUDED
from tokenmill.progress import Watcher
from tokenmill.storage.files import create_unnamed
from tokenmill.storage.names import MANIFEST_NAME
from tokenmill.storage.reading import DamagedFileError
from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest
from tokenmill.wording import counted

_ENTRY = np.dtype(
    [
        ("start", "<i8"),  # of the document, in the source
        ("place", "<i8"),  # where it would start, if the documents before it are left out
        ("stop", "<i8"),  # its end in the source
        ("removed", "<i8"),  # the tokens of all entries so far, this one included
    ]
)


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

    source: SplitTokens
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
        return np.concatenate(parts) if parts else self.source.read(0, 0)


@dataclass(frozen=True)
class RecordsWithout:
    """The records of the documents that stay. `source` reads those of all documents."""

    source: DocumentRecords
    removed: Removed

    def facts(self) -> dict[str, bool]:
        """Return no facts."""
        return {}

    def find_kept(self, stop: int) -> Iterator[bool]:
        """Yield, for each document of the source before a token, whether it stays."""
        starts = self.removed.entries["start"]
        for table in self.source.read(0, stop):
            yield from (~np.isin(table["first"].astype(np.int64), starts)).tolist()

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


@dataclass(kw_only=True)
class LeftOut:
    """The documents of a dataset that are left out: how many of each split, and their sizes.

    `report` has one JSON line for each of them.
    """

    exclusions: Exclusions
    report: BinaryIO = field(repr=False)
    documents: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    text_bytes: int = 0
    characters: int = 0

    @property
    def total(self) -> int:
        """The number of documents that are left out."""
        return sum(self.documents.values())

    def change(self, manifest: Manifest) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the settings and the ledger of the manifest, changed."""
        described = self.exclusions.describe()
        before = manifest.settings.get("exclude")
        if before is not None and before != described:
            described["earlier"] = before
        ledger = dict(manifest.ledger)
        if not self.total:
            return {**manifest.settings, "exclude": described}, ledger
        for name, amount in (
            ("documents_kept", self.total),
            ("bytes_kept", self.text_bytes),
            ("text_bytes", self.text_bytes),
            ("characters", self.characters),
            ("tokens", self.tokens),
        ):
            ledger[name] = _number(ledger, name) - amount
            if ledger[name] < 0:
                raise DamagedFileError(
                    MANIFEST_NAME, f"says less {name!r} in its ledger than its documents have"
                )
        given = ledger.get("dropped")
        dropped = dict(given) if isinstance(given, Mapping) else {}
        entry = dropped.get(EXCLUDED)
        dropped[EXCLUDED] = {
            "documents": _number(entry, "documents") + self.total,
            "bytes": _number(entry, "bytes") + self.text_bytes,
        }
        ledger["dropped"] = dict(sorted(dropped.items()))
        return {**manifest.settings, "exclude": described}, ledger

    def announce(self, watcher: Watcher) -> None:
        """Say how many documents are left out, and why."""
        if self.total:
            watcher.note(
                f"Leaving out {counted(self.total, 'document')} listed in "
                f"{', '.join(self.exclusions.paths)}; `exclude=False` keeps them."
            )


@contextmanager
def leaving_out(
    dataset: Dataset, splits: Mapping[str, SplitData], lists: Sequence[Path], watcher: Watcher
) -> Iterator[tuple[Mapping[str, SplitData], LeftOut | None]]:
    """Yield the splits of a prepared dataset without the documents in some lists.

    Also yields what is left out; None if there are no lists, or if they are empty.
    """
    exclusions = read_exclusions(*lists) if lists else None
    if not exclusions:
        yield splits, None
        return
    with create_unnamed(Path(tempfile.gettempdir())) as report:
        left_out = LeftOut(exclusions=exclusions, report=report)
        made = _leave_out(dataset, splits, left_out, watcher)
        if left_out.total and not sum(len(tokens) for tokens, _ in made.values()):
            raise UsageError(
                f"All documents of {dataset.path} are listed in {', '.join(exclusions.paths)}, so "
                "nothing would be left. Use `exclude=False` to keep them."
            )
        report.seek(0)
        yield made, left_out


def _leave_out(
    dataset: Dataset, splits: Mapping[str, SplitData], left_out: LeftOut, watcher: Watcher
) -> dict[str, SplitData]:
    manifest = dataset.manifest
    assert manifest is not None
    documents = sum(split.documents for split in manifest.splits.values())
    watcher.begin("finding excluded documents", documents * DOCUMENT_DTYPE.itemsize)
    # The text of imported tokens is unknown; its size in the ledger is then 0.
    measure = _Measure(dataset) if _number(manifest.ledger, "text_bytes") else None
    made: dict[str, SplitData] = {}
    for name, (tokens, records) in splits.items():
        removed = _find(tokens, records, manifest, left_out, watcher)
        if measure is not None:
            for entry in removed.entries:
                measure.add(tokens, int(entry["start"]), int(entry["stop"]), left_out)
        left_out.documents[name] = len(removed.entries)
        left_out.tokens += removed.tokens
        made[name] = TokensWithout(tokens, removed), RecordsWithout(records, removed)
    return made


def _find(
    tokens: SplitTokens,
    records: DocumentRecords,
    manifest: Manifest,
    left_out: LeftOut,
    watcher: Watcher,
) -> Removed:
    """Find the documents of a split that are listed, and add them to the report."""
    end = removed = 0
    with create_unnamed(Path(tempfile.gettempdir())) as file:
        for table in records.read(0, len(tokens)):
            watcher.advance(table.nbytes)
            some = table[left_out.exclusions.keys.find(np.ascontiguousarray(table["key"]))]
            if not len(some):
                continue
            entries = np.empty(len(some), _ENTRY)
            entries["start"] = some["first"]
            entries["stop"] = entries["start"] + some["length"].astype(np.int64)
            lengths = entries["stop"] - entries["start"]
            ends = np.concatenate(([end], entries["stop"][:-1]))
            is_wrong = (lengths < 0) | (entries["start"] < ends) | (entries["stop"] > len(tokens))
            if is_wrong.any():
                what = "has documents that overlap, or end outside of the split, in its tables"
                raise DamagedFileError(f"split {tokens.split!r}", what)
            entries["removed"] = removed + np.cumsum(lengths)
            entries["place"] = entries["start"] - (entries["removed"] - lengths)
            end, removed = int(entries["stop"][-1]), int(entries["removed"][-1])
            file.write(entries.data)
            _report(manifest, left_out.report, some)
        file.flush()
        if not file.tell():
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

    def add(self, tokens: SplitTokens, start: int, stop: int, left_out: LeftOut) -> None:
        """Add the size of the text of the document with the tokens [start, stop) to `left_out`."""
        start, stop = start + (self._eot == "before"), stop - (self._eot == "after")
        for low in range(start, stop, BLOCK):
            text = self._decode(tokens.read(low, min(low + BLOCK, stop)))
            left_out.text_bytes += len(text.encode("utf-8", "replace"))
            left_out.characters += len(text)


def _number(where: Any, name: str) -> int:
    value = where.get(name) if isinstance(where, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def check_change(lists: Sequence[Path], left_out: LeftOut | None) -> None:
    """Raise `UsageError` if a copy without the listed documents would be the same as its source."""
    if left_out is None or not left_out.total:
        named = f"; no document of {', '.join(map(str, lists))} is in it" if lists else ""
        raise UsageError(
            f"nothing would change{named}. Pass `tokens_per_shard`, `compress`, or both."
        )
