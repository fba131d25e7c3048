"""Find out why a record of an input file is not in a prepared dataset.

The record is read, cleaned and hashed with the dataset's own settings. The reasons are those of the
ledger (the manifest's count of dropped documents, by reason), and they are checked in the order in
which `prepare` decides. If the file is missing, the dataset's lists of rejected and of excluded
records are searched instead. If nothing explains the absence, the answer says so: the file may have
changed since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from io import BufferedReader
from typing import Any, BinaryIO, cast

import numpy as np
import orjson

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.inspect.where.keys import find_key
from tokenmill.inspect.where.source_record import SourceRecord
from tokenmill.preparation.decontaminate import REASON as CONTAMINATED
from tokenmill.preparation.judges import open_panel
from tokenmill.preparation.plan_judges import describe_judges, plan_judges
from tokenmill.preparation.sampling import NOT_SAMPLED, find_rate, is_sampled
from tokenmill.preparation.settings import PrepareSettings
from tokenmill.preparation.sift import EXCLUDED, NEAR_DUPLICATE
from tokenmill.progress import Watcher
from tokenmill.storage.decoding import parse_json
from tokenmill.storage.names import (
    CONTAMINATED_NAME,
    DROPPED_NAME,
    EXCLUDED_NAME,
    REJECTED_NAME,
    REMOVED_NAME,
)
from tokenmill.storage.reading import DamagedFileError, open_inside
from tokenmill.store.documents import Document
from tokenmill.wording import count

_TWINS = 20  # documents with the same text to return, at most
_LONGEST_LINE = 1 << 20  # bytes of a line of a list that are read at once

UNKNOWN = "unknown"
NO_RECORD = "no record"
SET_ASIDE = "skipped file"
LISTED = "it is in a list of documents to exclude"


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a record is absent: a reason and its detail. `twins` are documents with the same text."""

    reason: str
    detail: str
    twins: tuple[Document, ...] = ()


def read_settings(dataset: Dataset) -> PrepareSettings | None:
    """Return the settings that a dataset was prepared with; None if it was not made by `prepare`."""
    return None if dataset.manifest is None else _parse_settings(dataset.manifest.settings)


def _parse_settings(settings: Mapping[str, Any]) -> PrepareSettings | None:
    known = {field.name for field in fields(PrepareSettings)}
    if not {"documents", "text_field", "dedup"} <= settings.keys():
        return None
    try:
        return PrepareSettings(**{name: settings[name] for name in known & settings.keys()})
    except (UsageError, TypeError):
        return None


def find_set_aside(dataset: Dataset, source: str) -> str | None:
    """Return why a whole file was skipped when the dataset was made; None if it was not skipped."""
    ledger: Mapping[str, Any] = {} if dataset.manifest is None else dataset.manifest.ledger
    entries = ledger.get("set_aside")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("source") == source:
            return str(entry.get("reason"))
    return None


def explain(
    dataset: Dataset,
    settings: PrepareSettings,
    source: str,
    record: SourceRecord,
    watcher: Watcher,
    *,
    is_source: bool = True,
) -> Reason:
    """Return why a record of a file is not a document of the dataset.

    `is_source` says whether the dataset was made from this file.
    """
    if record.fault is not None or record.key is None:
        return Reason(reason=record.fault or UNKNOWN, detail=record.detail)
    if is_source and not _is_in_sample(dataset, source, record.key):
        return Reason(reason=NOT_SAMPLED, detail="the settings ask for a sample of the documents")
    if is_source and (found := _find_contaminated(dataset, settings, source, record.start)):
        return found
    if found := _judge(dataset, settings, record):
        return found
    if find_excluded(dataset, record.key) or _is_listed(dataset, source, record.start):
        return Reason(reason=EXCLUDED, detail=LISTED)
    if is_source and settings.dedup == "lines":
        detail = "all its lines that are long enough are earlier in the input"
        return Reason(reason="only repeated lines", detail=detail)
    twins = tuple(find_key(dataset, record.key, most=_TWINS, watcher=watcher))
    if twins and settings.removes_repeats:
        return Reason(reason="duplicate", detail="its text is in the dataset already", twins=twins)
    if is_source and settings.dedup == "near":
        for entry in _read_report(dataset, REMOVED_NAME, record.key.encode()):
            if entry.get("key") == record.key:
                return _resembles(dataset, entry, watcher)
    if settings.eot == "none" and _has_no_tokens(dataset, record):
        return Reason(reason="no tokens", detail="the tokenizer removes all of its text")
    if not is_source:
        detail = "no document of the dataset has its text"
        if settings.dedup == "lines":
            detail += "; but documents are stored there without their repeated lines"
        return Reason(reason=UNKNOWN, detail=detail, twins=twins)
    detail = (
        "nothing explains why it is absent: perhaps the file changed after the dataset was made, or "
        "the dataset was changed"
    )
    return Reason(reason=UNKNOWN, detail=detail, twins=twins)


def _resembles(dataset: Dataset, entry: dict[str, Any], watcher: Watcher | None) -> Reason:
    """Return the reason for a near duplicate, from its entry in the list of removed documents."""
    other, alike = entry.get("resembles"), entry.get("similarity")
    key = other.get("key") if isinstance(other, dict) else None
    if not isinstance(key, str) or not isinstance(alike, float | int):
        return Reason(reason=NEAR_DUPLICATE, detail="it resembles a document of the dataset")
    twins = () if watcher is None else tuple(find_key(dataset, key, most=1, watcher=watcher))
    detail = f"it resembles the document with the key {key}; their similarity is {alike:.3f}"
    return Reason(reason=NEAR_DUPLICATE, detail=detail, twins=twins)


def _find_contaminated(
    dataset: Dataset, settings: PrepareSettings, source: str, place: int
) -> Reason | None:
    """Return which evaluation text a document was dropped for, or None."""
    if settings.decontaminate_action == "report":
        return None
    for entry in _read_report(dataset, CONTAMINATED_NAME, orjson.dumps(source)):
        if entry.get("source") == source and entry.get("row", entry.get("offset")) == place:
            text = f"{entry.get('evaluation')}, {entry.get('unit')} {entry.get('record')}"
            return Reason(reason=CONTAMINATED, detail=f"it has words of the text in {text}")
    return None


def _judge(dataset: Dataset, settings: PrepareSettings, record: SourceRecord) -> Reason | None:
    """Return why the filters of the dataset drop a record; None if they keep it.

    Functions of a user are not called, because the manifest, which names them, may be from a stranger.
    The examples of dropped documents may have the record.
    """
    for entry in _read_report(dataset, DROPPED_NAME, str(record.key).encode()):
        if entry.get("key") == record.key:
            return _describe_verdict(str(entry.get("reason")), entry.get("value"))
    try:
        recipes = plan_judges(settings, functions=False)
    except UsageError:  # the library that detects languages is missing
        return None
    known = {} if dataset.manifest is None else dataset.manifest.settings
    if any(known.get(name) != value for name, value in describe_judges(recipes).items()):
        return None
    panel = open_panel(recipes)
    if not panel:
        return None
    hearing = panel.begin()
    hearing.add(record.judged)
    verdict = hearing.finish()
    if not verdict.number:
        return None
    return _describe_verdict(panel.reasons[verdict.number - 1], verdict.value)


def _describe_verdict(reason: str, value: Any) -> Reason:
    shown = f"{value:.4g}" if isinstance(value, float) else value
    return Reason(reason=reason, detail=f"this rule drops it: its measure is {shown}")


def _is_in_sample(dataset: Dataset, source: str, key: str) -> bool:
    """Return whether a text of a source is in the sample of a generation that has the source."""
    manifest = dataset.manifest
    assert manifest is not None
    states = [_parse_settings(settings) for settings in manifest.all_settings]
    if not any(settings is not None and settings.takes_sample for settings in states):
        return True
    rates = [
        1.0 if settings is None else find_rate(settings, source)
        for settings, part in zip(states, manifest.sources.parts, strict=True)
        if any(part[number].path == source for number in part.find(source))
    ]
    number = int(key, 16)
    keys = np.array([[number >> 64, number & (2**64 - 1)]], np.uint64)
    return bool(is_sampled(keys, np.array([max(rates, default=1.0)]))[0])


def _is_listed(dataset: Dataset, source: str, place: int) -> bool:
    found = find_report(dataset, source, place=place)
    return found is not None and found[1].reason == EXCLUDED


def _has_no_tokens(dataset: Dataset, record: SourceRecord) -> bool:
    if record.size > len(record.text):
        return False
    try:
        ids, _ = dataset.tokenizer.encode_batch([record.text])
    except TokenmillError:
        return False
    return not len(ids)


def find_report(
    dataset: Dataset, source: str, *, line: int | None = None, place: int | None = None
) -> tuple[int | None, Reason] | None:
    """Return the offset of a record and why it is absent, from the lists in the dataset.

    The lists have the rejected and the excluded records, and the near duplicates. The record is the one in line `line` of the
    source, or the one at `place`: its offset in bytes or its row.
    """
    for name in (REJECTED_NAME, EXCLUDED_NAME, REMOVED_NAME):
        for entry in _read_report(dataset, name, orjson.dumps(source)):
            offset = entry.get("row", entry.get("offset"))
            if (
                entry.get("source") == source
                and (line is None or entry.get("line") == line)
                and (place is None or offset == place)
            ):
                reason = Reason(reason="rejected", detail=str(entry.get("reason")))
                if name == EXCLUDED_NAME:
                    reason = Reason(reason=EXCLUDED, detail=LISTED)
                elif name == REMOVED_NAME:
                    reason = _resembles(dataset, entry, None)
                return (offset if isinstance(offset, int) else None), reason
    return None


def find_excluded(dataset: Dataset, key: str) -> dict[str, Any] | None:
    """Return the entry of the first excluded document whose key begins with `key`, or None.

    The entry has the source of the document, its `offset` or `row`, and its key.
    """
    for entry in _read_report(dataset, EXCLUDED_NAME, key.lower().encode()):
        if str(entry.get("key")).startswith(key.lower()):
            return entry
    return None


def _read_report(dataset: Dataset, name: str, needle: bytes) -> Iterator[dict[str, Any]]:
    """Yield the entries of a list, of all generations, whose lines contain the bytes `needle`."""
    for one in [name] if dataset.manifest is None else dataset.manifest.list_files(name):
        with (
            suppress(DamagedFileError),  # if there is one
            open_inside(dataset.path, one) as packed,
            _decompressed(packed, name) as file,
        ):
            while data := file.readline(_LONGEST_LINE):
                if needle in data:
                    try:
                        entry = parse_json(data)
                    except ValueError:  # damaged
                        continue
                    if isinstance(entry, dict):
                        yield entry


def _decompressed(file: BinaryIO, name: str) -> BinaryIO:
    """Return a file to read lines from, which is decompressed if its name ends in `.zst`."""
    if not name.endswith(".zst"):
        return file
    import zstandard

    reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    return cast("BinaryIO", BufferedReader(reader))


def describe_change(expected: int, found: int, path: str) -> str:
    """Return a note that the size of a source file has changed since the dataset was made."""
    return (
        f"{path} has changed since the dataset was made: it had {count(expected)} bytes and has "
        f"{count(found)} now. Places in it may have moved."
    )
