"""Estimate the results, time and disk space of a run from a sample of its input. Writes nothing.

Sampling: files of the same kind, compression, extension and size class form a stratum. Each stratum
is estimated separately, so that a few large books do not stand for a thousand small scripts. Places
to read are spread evenly over the bytes of a stratum. The next place is always in the stratum with
the largest size / (places + 1)². Sampling ends after `_SECONDS` if each stratum has two places by
then, and after `_MOST_SECONDS` in any case. A separate check, with its own time limit, reads the head
of each file to find files that a run would refuse.

A file of text or JSON lines counts as one document, plus an estimate of its further documents. For
a Parquet or Arrow file, the row count in its metadata is the number of documents.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from tokenmill.preparation.part import PartTask
from tokenmill.preparation.plan import Part, Plan, SourceRange
from tokenmill.preparation.preview import Preview
from tokenmill.preparation.texts import clean_chunk
from tokenmill.sources.files import BadFileError, SourceFile
from tokenmill.sources.find import PassedOver
from tokenmill.sources.recognize import find_fault
from tokenmill.sources.records import Chunk
from tokenmill.sources.tables import measure_unit_texts
from tokenmill.store.frames import Packer, choose_compression

_HEAD_SECONDS = 4.0  # to read the heads of files
_MAIN_PROCESS = 150 << 20  # bytes of memory
_SECONDS, _MOST_SECONDS = 4.0, 15.0
_NEAR_DOCUMENT = 21 * 18 + 16  # bytes of band hashes, besides the shingles of about all its text
_LEAST_PLACES = 2  # per stratum
_TEXT = 256 << 10  # bytes of text to tokenize at one place
_COMPRESSED = 1 << 20  # bytes to read of a compressed file
_DECOMPRESSED = 16 << 20  # bytes of text; if a compressed file expands to so much, stop earlier
_AHEAD = 32 << 10  # bytes by which a decompressor's input is ahead of its output, on average


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The expected results, disk space, memory and duration of a run."""

    files: int
    passed_over: tuple[PassedOver, ...]
    parts: int
    bytes: int
    tokens: int
    documents: int
    disk: int  # bytes of the finished dataset
    disk_while_working: int  # bytes of temporary files, until the run has finished
    memory: int
    seconds: float
    workers: int
    sampled: int  # bytes of text
    checked: int  # files whose first bytes were read
    faults: tuple[str, ...]  # files that cannot be read or used, and why
    preview: Preview | None  # what filters would drop of the sample; None if there are none


def estimate(plan: Plan) -> Estimate:
    """Estimate the run of a plan from a sample of its input."""
    parts, size = plan.parts, plan.size
    sample = _take_sample(plan)
    faults, checked = _find_faults(plan)
    passes = 2 if plan.settings.dedup == "lines" else 1
    share = _find_share(plan)
    tokens, documents = round(share * sample.tokens), round(share * sample.documents)
    plain = tokens * np.dtype(plan.dtype).itemsize + 48 * documents
    packed = None if sample.packed is None else round(share * sample.packed)
    stored = plain if packed is None else packed + 48 * documents
    return Estimate(
        files=len(plan.sources),
        passed_over=plan.passed_over,
        parts=len(parts),
        bytes=size,
        tokens=tokens,
        documents=documents,
        disk=stored,
        disk_while_working=plain
        + 44 * documents
        + (size // 2 if passes == 2 else 0)
        + (_NEAR_DOCUMENT * documents + size if plan.settings.dedup == "near" else 0),
        memory=plan.memory + _MAIN_PROCESS,
        seconds=passes * sample.seconds / min(plan.workers, max(1, len(parts))),
        workers=plan.workers,
        sampled=sample.sampled,
        checked=checked,
        faults=tuple(f"{path}: {why}" for path, why in {**faults, **sample.faults}.items()),
        preview=sample.preview,
    )


def _find_share(plan: Plan) -> float:
    """Return the share of the text that is in the sample that the settings ask for."""
    if plan.rates is None or not plan.size:
        return 1.0
    sizes = (source.size for source in plan.sources)
    return sum(rate * size for rate, size in zip(plan.rates, sizes, strict=True)) / plan.size


def _find_faults(plan: Plan) -> tuple[dict[str, str], int]:
    """Check files for at most `_HEAD_SECONDS`, and return those that a run would refuse.

    Returns a dict from the path of such a file to the reason, and the number of files checked.
    """
    sources, started = plan.sources, time.perf_counter()
    faults, checked = {}, 0
    # Every 97th file first, so that the checked files are from everywhere if time runs out.
    for number in chain.from_iterable(range(first, len(sources), 97) for first in range(97)):
        settings = plan.settings
        if fault := find_fault(
            sources[number], settings.text_field, plan.hold_limit, settings.encoding
        ):
            faults[number] = fault
        checked += 1
        if time.perf_counter() - started > _HEAD_SECONDS:
            break
    return {sources[number].path: faults[number] for number in sorted(faults)}, checked


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """Estimated totals for the whole input, and the size of the sample."""

    tokens: int
    documents: int
    packed: int | None  # bytes of the compressed tokens, if they are to be compressed
    seconds: float  # for one worker
    sampled: int  # bytes of text in the sample
    faults: dict[str, str]
    preview: Preview | None


@dataclass(frozen=True, kw_only=True)
class _Item:
    """A file, or a row group or batch of one. The amount of text is assumed proportional to `size`."""

    source: int
    size: int
    group: int = 0
    rows: int = 0


@dataclass
class _Measured:
    size: float
    tokens: float
    documents: float  # not counting the first document of each file
    packed: float
    seconds: float


@dataclass
class _Stratum:
    items: list[_Item] = field(default_factory=list)
    ends: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    measured: list[_Measured] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)
    draws: int = 0
    complete: bool = False

    @property
    def size(self) -> int:
        return int(self.ends[-1])

    def draw(self) -> tuple[int, int] | None:
        """Choose the next place: the index of an item, and an offset in that item.

        Returns None if that place was read before.
        """
        place = int(_halton(self.draws) * self.size)
        self.draws += 1
        index = int(np.searchsorted(self.ends, place, side="right"))
        start = int(self.ends[index - 1]) if index else 0
        key = index, (place - start) // _TEXT
        if key in self.seen:
            # After many draws in vain, few places are left, and finding them would take too long.
            self.complete = self.draws > 4 * len(self.seen) + 4
            return None
        self.seen.add(key)
        return index, place - start

    def rate(self, what: str) -> float:
        """Return `what` (a field of `_Measured`) per byte: the mean over all sampled places.

        No weights are needed, because larger files have more places.
        """
        return float(np.mean([getattr(one, what) / one.size for one in self.measured]))


def _take_sample(plan: Plan) -> _Sample:
    """Read a sample of the input, and extrapolate its totals to the whole input."""
    sources = plan.sources
    strata = _divide(sources, plan.settings.text_field, plan.hold_limit)
    faults: dict[str, str] = {}
    read = 0
    preview = Preview(plan.judges) if plan.judges else None
    plan.tokenizer.encode_terminated([b"x"])  # loads the tokenizer before timing starts
    started = time.perf_counter()
    while (spent := time.perf_counter() - started) < _MOST_SECONDS:
        least = _LEAST_PLACES if spent >= _SECONDS else None
        choice = [
            stratum
            for stratum in strata.values()
            if not stratum.complete and (least is None or stratum.draws < least)
        ]
        if not choice:
            break
        stratum = max(choice, key=lambda one: one.size / (one.draws + 1) ** 2)
        if (place := stratum.draw()) is None:
            continue
        item = stratum.items[place[0]]
        try:
            measured, size = _measure(plan, item, place[1], preview)
        except BadFileError as error:
            faults.setdefault(error.source, error.reason)
            continue
        read += size
        if measured.size > 0:
            stratum.measured.append(measured)
    whats = ("tokens", "documents", "packed", "seconds")
    totals = {what: _total(strata, what) for what in whats}
    first = sum(
        1
        for source in sources
        if source.size and source.kind in ("text", "jsonl") and source.path not in faults
    )
    rows = sum(item.rows for stratum in strata.values() for item in stratum.items)
    return _Sample(
        tokens=round(totals["tokens"]),
        documents=round(totals["documents"]) + first + rows,
        packed=None if plan.settings.compress == "none" else round(totals["packed"]),
        seconds=totals["seconds"],
        sampled=read,
        faults=faults,
        preview=preview,
    )


def _divide(
    sources: Sequence[SourceFile], text_field: str, hold_limit: int
) -> dict[tuple[object, ...], _Stratum]:
    strata: dict[tuple[object, ...], _Stratum] = {}
    for number, source in enumerate(sources):
        extension = source.path[source.path.rfind(".", source.path.rfind("/")) :]
        kind = source.kind, source.compression, extension
        if source.unit == "row":
            units = measure_unit_texts(source, text_field, hold_limit)
            for group, (size, rows) in enumerate(units):
                item = _Item(source=number, size=size, group=group, rows=rows)
                strata.setdefault(kind, _Stratum()).items.append(item)
        else:
            key = *kind, source.size.bit_length() // 2
            item = _Item(source=number, size=source.size)
            strata.setdefault(key, _Stratum()).items.append(item)
    for stratum in strata.values():
        stratum.ends = np.cumsum([item.size for item in stratum.items], dtype=np.int64)
    return {key: stratum for key, stratum in strata.items() if stratum.size}


def _total(strata: dict[tuple[object, ...], _Stratum], what: str) -> float:
    """Return the estimated total of `what` (a field of `_Measured`) over all strata.

    A stratum without a sample gets the mean rate of the strata that are most similar to it.
    """
    rates = {key: one.rate(what) for key, one in strata.items() if one.measured}
    total = 0.0
    for key, stratum in strata.items():
        for width in range(len(key), -1, -1):
            alike = [rate for other, rate in rates.items() if other[:width] == key[:width]]
            if alike:
                total += stratum.size * float(np.mean(alike))
                break
    return total


def _measure(plan: Plan, item: _Item, place: int, preview: Preview | None) -> tuple[_Measured, int]:
    """Read a sample at one place of a file.

    Returns the measurements of the sample, and how many bytes of text it has.
    """
    started = time.perf_counter()
    source = plan.sources[item.source]
    is_stream = source.is_stream or (plan.settings.converts and source.unit == "byte")
    if source.unit == "row":
        which = SourceRange(item.source, item.group, item.group + 1)
    elif is_stream or item.size <= 2 * _TEXT:
        which = SourceRange(item.source, 0, item.size)
    else:
        start = min(place // _TEXT * _TEXT, item.size - _TEXT)
        which = SourceRange(item.source, start, start + _TEXT)
    task = PartTask.of(plan, Part(name="", ranges=(which,), size=0), Path())
    is_head = source.is_stream and not source.compression
    size, found = 0.0, _Found(preview)
    for chunk in task.read(which):
        found.add(chunk, plan, source)
        size += len(chunk.offsets) + len(chunk.rejections) if item.rows else chunk.read
        if found.text >= _DECOMPRESSED or (is_stream and size >= _COMPRESSED):
            size -= min(_AHEAD, size / 2)
            break
        if found.text >= _TEXT and (item.rows or is_head):
            break
    else:
        if is_stream:
            size = item.size
    if item.rows:
        size *= item.size / item.rows
    # Text that was read but not tokenized counts at the same rate as the rest.
    share = found.text / found.tokenized if found.tokenized else 0.0
    spent = time.perf_counter() - started
    seconds = spent * share if found.tokenized else spent
    documents = 0 if item.rows else found.documents
    measured = _Measured(size, found.tokens * share, documents, found.packed * share, seconds)
    return measured, found.text


@dataclass
class _Found:
    preview: Preview | None
    text: int = 0
    tokenized: int = 0
    tokens: int = 0
    documents: int = 0
    packed: int = 0

    def add(self, chunk: Chunk, plan: Plan, source: SourceFile) -> None:
        """Count the documents of a chunk, and tokenize some of them."""
        self.text += sum(map(len, chunk.texts))
        begins = bool(chunk.offsets) and chunk.offsets[0] == 0 and not chunk.continues
        empty = sum(not text.strip() for text in chunk.texts)
        self.documents += len(chunk.texts) - chunk.continues - begins - empty
        some = _some_of(chunk)
        if not some.texts:
            return
        self.tokenized += sum(map(len, some.texts))
        cleaned = clean_chunk(some, plan.settings, source)
        if self.preview is not None and len(cleaned.sizes):
            cleaned = self.preview.add(cleaned, some)
        texts = [text for text in cleaned.texts if text]
        if texts:
            ids, _ = plan.tokenizer.encode_terminated(texts)
            ended = len(texts) if plan.settings.eot == "none" else some.unfinished
            self.tokens += len(ids) - ended
            if (compression := choose_compression(plan.settings.compress)) is not None:
                frame_bytes = compression.tokens_per_frame * np.dtype(plan.dtype).itemsize
                packer = Packer(level=compression.level, frame_bytes=frame_bytes)
                self.packed += len(packer.pack(ids.astype(plan.dtype))) + len(packer.finish())


def _some_of(chunk: Chunk) -> Chunk:
    """Return the first documents of a chunk, up to about `_TEXT` bytes."""
    held, count = 0, 0
    for text in chunk.texts:
        held, count = held + len(text), count + 1
        if held >= _TEXT:
            break
    if count == len(chunk.texts):
        return chunk
    some = Chunk(chunk.texts[:count], chunk.offsets[:count], bad_bytes=chunk.bad_bytes)
    some.continues = chunk.continues
    return some


def _halton(number: int) -> float:
    """Return element `number` of the Halton sequence with base 2.

    For any n, the first n elements are spread evenly over [0, 1).

    >>> [_halton(n) for n in range(4)]
    [0.5, 0.25, 0.75, 0.125]
    """
    number, result, digit = number + 1, 0.0, 0.5
    while number:
        result += digit * (number & 1)
        number, digit = number >> 1, digit / 2
    return result
