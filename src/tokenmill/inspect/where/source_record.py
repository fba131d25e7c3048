"""Read one record of an input file, as `prepare` read it, to find out what became of it.

The record is cleaned and hashed by the functions that `prepare` uses, so its key is the one that the
document has in the dataset, if it is there. Memory holds one block, or one record that cannot be
divided.

Costs: in a plain file, reading begins at the record. A compressed file is read from its beginning up
to the record. Of a Parquet file, one row group is read. If blank lines separate the documents, reading
begins at the last document of the dataset that starts before the place.
"""

from __future__ import annotations

import stat
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import xxhash

from tokenmill.errors import InputError, TooLongError, UsageError
from tokenmill.preparation.judges import JUDGED
from tokenmill.preparation.memory import DEFAULT_SHARE, holdable_bytes, machine_memory
from tokenmill.preparation.settings import PrepareSettings
from tokenmill.preparation.texts import clean_chunk
from tokenmill.progress import Watcher
from tokenmill.sources.compression import LARGEST_WINDOW
from tokenmill.sources.files import SourceFile, open_source, stat_source
from tokenmill.sources.find import find_files
from tokenmill.sources.parquet import measure_text
from tokenmill.sources.read import Reading, read_blocks, read_range
from tokenmill.sources.records import Chunk, Cutter, Rejection, overlaps_itself
from tokenmill.wording import count, counted

SHOWN = 1 << 16  # bytes of a text to keep
_BACK = 1 << 20  # bytes to search at once for the start of a record
_NEWLINE = 10


@dataclass(frozen=True, kw_only=True)
class SourceRecord:
    """A record of an input file.

    `start` is its offset. If the record cannot become a document, `fault` is the reason that the
    ledger counts it under, and `detail` explains it to the user. Otherwise, `key` is the key of its
    text after cleaning. `text` is the beginning of the text, and `size` the number of its bytes.
    `judged` is as much of the text as filters judge, if the settings have filters.
    """

    start: int
    key: str | None = None
    size: int = 0
    text: bytes = b""
    judged: bytes = b""
    fault: str | None = None
    detail: str = ""


def find_input(path: str) -> SourceFile | None:
    """Return how to read an input file; None if there is no file of that name."""
    try:
        if not stat.S_ISREG(stat_source(path).st_mode):  # a pipe or a device may never end
            return None
    except (OSError, ValueError, InputError):
        return None
    sources, _ = find_files([path])
    return sources[0]


def find_line(source: SourceFile, line: int, watcher: Watcher) -> int:
    """Return the offset at which a line of a text file starts. Lines count from 1."""
    if line < 1:
        raise UsageError(f"line {line} does not exist: lines are counted from 1.")
    watcher.begin("counting lines", source.size if not source.compression else 0)
    missing, place = line - 1, 0  # line ends still to skip, and bytes already read
    last = b"\n"
    for block in read_blocks(source):
        if not missing:
            return place
        ends = np.frombuffer(block, np.uint8) == _NEWLINE
        there = int(np.count_nonzero(ends))
        if there >= missing:
            found = place + int(np.flatnonzero(ends)[missing - 1]) + 1
            if found < place + len(block):
                return found
        missing -= min(there, missing)
        last, place = block[-1:], place + len(block)
        watcher.advance(len(block))
    lines = line - 1 - missing + (last != b"\n")
    raise UsageError(f"{source.path} has no line {count(line)}: it has {counted(lines, 'line')}.")


def find_start(source: SourceFile, settings: PrepareSettings, place: int) -> int | None:
    """Return where the record with the byte `place` starts, by searching backwards for a separator.

    Returns None if only reading from the beginning of the file can tell.
    """
    separator = b"\n" if source.kind == "jsonl" else settings.separator
    if separator is None:
        return 0
    if source.compression or not separator or overlaps_itself(separator):
        return None
    with open_source(source.path) as file:
        end = place
        while end > 0:
            begin = max(0, end - _BACK)
            file.seek(begin)
            found = file.read(end - begin).rfind(separator)
            if found >= 0:
                return begin + found + len(separator)
            end = begin + len(separator) - 1 if begin else 0
    return 0


def read_record(
    source: SourceFile,
    settings: PrepareSettings,
    place: int,
    *,
    start: int = 0,
    watcher: Watcher,
) -> SourceRecord | None:
    """Return the record that contains a byte, or the record in a row; None if there is none.

    Reading begins at `start`, where a record must start.
    """
    found = _Candidate(source, settings, place)
    try:
        for chunk in _read(source, settings, place, start, watcher):
            watcher.advance(chunk.read)
            if found.add(chunk):
                break
    except TooLongError as error:
        raise InputError(
            f"{source.path}: {error}, too many for the memory of this machine. Its documents cannot "
            "be compared with those of the dataset here."
        ) from None
    return found.finish()


def _read(
    source: SourceFile, settings: PrepareSettings, place: int, start: int, watcher: Watcher
) -> Iterator[Chunk]:
    how = Reading(
        separator=settings.separator,
        text_field=settings.text_field,
        cutter=Cutter(anywhere=True),
        hold_limit=holdable_bytes(max(DEFAULT_SHARE, machine_memory() // 2)),
        window=LARGEST_WINDOW,
    )
    end = source.size
    if source.kind == "parquet":
        groups = measure_text(source.path, settings.text_field)
        ends = list(accumulate(rows for _, rows in groups))
        start = bisect_right(ends, place)
        end = start + 1 if groups else source.size
    watcher.begin("reading the source", source.size - start if source.kind != "parquet" else 0)
    yield from read_range(source, start, end, how)


class _Candidate:
    """The last record read so far that starts at the place or before it."""

    def __init__(self, source: SourceFile, settings: PrepareSettings, place: int) -> None:
        self._source, self._settings, self._place = source, settings, place
        self._start = -1
        self._rejection: Rejection | None = None
        self._hash = xxhash.xxh3_128()
        self._size = 0
        self._text = bytearray()
        self._judged = bytearray()
        self._most_judged = JUDGED if settings.filter or settings.language else 0
        self._is_open = False  # whether the next chunk continues it

    def add(self, chunk: Chunk) -> bool:
        """Look at the records of a chunk. Return whether one of them starts after the place."""
        continues = int(chunk.continues)
        if continues and self._is_open:
            self._take(chunk, 0)
        # A rejection may arrive before texts that precede it in the file. So only a text after the
        # place shows that every record up to the place was read.
        for rejection in chunk.rejections:
            if self._start < rejection.offset <= self._place:
                self._begin(rejection.offset)
                self._rejection = rejection
        chosen = bisect_right(chunk.offsets, self._place, lo=min(continues, len(chunk.offsets))) - 1
        if chosen >= continues and chunk.offsets[chosen] > self._start:
            self._begin(chunk.offsets[chosen])
            self._take(chunk, chosen)
        return chosen + 1 < len(chunk.offsets) and not self._is_open

    def _begin(self, start: int) -> None:
        self._start, self._rejection = start, None
        self._hash.reset()
        self._size, self._is_open = 0, False
        self._text.clear()
        self._judged.clear()

    def _take(self, chunk: Chunk, number: int) -> None:
        """Clean a text of a chunk, and add it to the hash."""
        is_last = number == len(chunk.texts) - 1
        one = Chunk([chunk.texts[number]], [chunk.offsets[number]], bad_bytes=chunk.bad_bytes)
        one.continues = chunk.continues and number == 0
        one.unfinished = self._is_open = chunk.unfinished and is_last
        one.mid_line = chunk.mid_line and is_last
        for text in clean_chunk(one, self._settings, self._source).views:
            self._hash.update(text)
            self._size += len(text)
            self._text += text[: max(0, SHOWN - len(self._text))]
            self._judged += text[: max(0, self._most_judged - len(self._judged))]
        if one.rejections and self._rejection is None:
            self._rejection = one.rejections[0]

    def finish(self) -> SourceRecord | None:
        """Return the record, after the last chunk."""
        if self._start < 0:
            return None
        if self._source.unit == "row" and self._start != self._place:
            return None
        text = bytes(self._text)
        if self._rejection is not None:
            kind, detail = self._rejection.kind, self._rejection.reason
            return SourceRecord(start=self._start, fault=kind, detail=detail, text=text)
        if not self._size:
            return SourceRecord(start=self._start, fault="empty", detail="it has no text")
        return SourceRecord(
            start=self._start,
            key=self._hash.hexdigest(),
            size=self._size,
            text=text,
            judged=bytes(self._judged),
        )
