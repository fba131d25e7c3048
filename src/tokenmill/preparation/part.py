"""Read the documents of a part in chunks of a few MB. A part is the input of one task.

Many small files are read into one chunk, because each chunk costs time, however few documents it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from tokenmill.errors import TooLongError
from tokenmill.preparation.judges import JudgeRecipe
from tokenmill.preparation.key_files import KeyLayout, PartMarks
from tokenmill.preparation.memory import share_to_hold
from tokenmill.preparation.plan import Limits, Part, Plan, SourceRange
from tokenmill.preparation.settings import PrepareSettings
from tokenmill.sources.compression import USUAL_WINDOW
from tokenmill.sources.files import BadFileError, SourceFile, stat_source
from tokenmill.sources.kept_fields import parse_kept_fields
from tokenmill.sources.read import LEAST_MEMORY, Reading, read_range
from tokenmill.sources.records import MOST_RECORDS, Chunk, Cutter, Places, is_utf8
from tokenmill.wording import counted

Skipped = dict[int, str]  # the fault of each bad file, by the number of its source
T = TypeVar("T")

_SMALL = 256 << 10  # bytes; smaller chunks are joined with the next ones
_ENOUGH = 1 << 20  # bytes; a joined chunk of this size is complete


@dataclass(frozen=True, kw_only=True)
class PartTask:
    """One part, and everything that a worker needs to read it."""

    name: str  # of the bundle (set of files) to make
    ranges: tuple[SourceRange, ...]
    sources: dict[int, SourceFile]
    settings: PrepareSettings
    dtype: str
    folder: Path
    reading: Reading
    workers: int
    keys: KeyLayout  # of the bundle's key file
    judges: tuple[JudgeRecipe, ...] = ()
    rates: dict[int, float] | None = None  # of the sources' documents in the sample; None: all 1
    repeated_lines: PartMarks | None = None
    skipped: tuple[tuple[int, str], ...] = ()  # sources that other parts found to be bad, and why

    @classmethod
    def of(cls, plan: Plan, part: Part, folder: Path, **more: Any) -> Self:
        """Make the task for a part of a plan."""
        return cls(
            **{"name": part.name, **more},
            ranges=part.ranges,
            sources={one.source: plan.sources[one.source] for one in part.ranges},
            settings=plan.settings,
            dtype=plan.dtype,
            folder=folder,
            reading=_how_to_read(plan, plan.limits),
            keys=plan.keys,
            rates=None
            if plan.rates is None
            else {one.source: plan.rates[one.source] for one in part.ranges},
            workers=plan.workers,
            judges=plan.judges,
        )

    def read(self, which: SourceRange) -> Iterator[Chunk]:
        """Yield the documents of one of the part's ranges, in chunks."""
        source = self.sources[which.source]
        if source.fault:
            raise BadFileError(source.path, source.fault)
        _refuse_changed(source)
        try:
            yield from read_range(source, which.start, which.end, self.reading)
        except TooLongError as error:
            raise self.too_large(source.path, error) from None
        _refuse_changed(source)

    def too_large(self, path: str, error: TooLongError) -> TooLargeError:
        """Return the error for a document too large to hold, with the `memory` that it needs."""
        need = -(-share_to_hold(error.size) * self.workers // 10**8) * 10**8
        return TooLargeError(
            path,
            f"{error}; {counted(self.workers, 'worker')} would need {need / 1e9:.1f} GB to hold "
            f"that. Pass `memory={need}` or more"
            + (", or use fewer `workers`" if self.workers > 1 else ""),
        )


def _how_to_read(plan: Plan, limits: Limits) -> Reading:
    settings = plan.settings
    short_line = settings.min_line if settings.dedup == "lines" else 0
    return Reading(
        separator=settings.separator,
        text_field=settings.text_field,
        keep=parse_kept_fields(settings.keep_fields),
        encoding=settings.encoding,
        step=plan.step,
        cutter=Cutter(anywhere=True),
        border_cutter=Cutter(short_line=short_line) if plan.tokenizer.cuttable else None,
        hold_limit=plan.hold_limit,
        window=max(USUAL_WINDOW, plan.share - LEAST_MEMORY),
        block=limits.block_bytes,
        rows=limits.rows,
    )


class TooLargeError(BadFileError):
    """A document that cannot be cut and does not fit into memory.

    Such a document is never skipped, because the dataset must not depend on `memory`.
    """


def _refuse_changed(source: SourceFile) -> None:
    """Raise `BadFileError` if a file changed since the plan was made."""
    try:
        stat = stat_source(source.place)
    except OSError:
        return  # opening the file raises a better error
    if (stat.st_size, stat.st_mtime_ns) != (source.size, source.modified):
        reason = "the file changed since the run began; restore it, or restart the run"
        raise BadFileError(source.path, reason)


@dataclass(slots=True)
class PartChunk:
    """A chunk of one source, or small chunks of several sources joined into one."""

    chunk: Chunk
    number: int  # of the source, or of the first of several sources
    source: SourceFile
    sources: Places  # the number of each document's source
    lines_before: int  # how many lines of the source's range are in earlier chunks
    # The kept fields of documents, by the number of the source and the offset.
    fields: dict[tuple[int, int], bytes]


class PartReader:
    """Reads the documents of a part. `lines` counts the line ends of each range that was read.

    If a file turns out to be bad before any of its documents was returned, it is added to `skipped`,
    and reading continues with the next file. Otherwise `BadFileError` is raised, and the caller must
    read the part again without that file.
    """

    def __init__(self, task: PartTask, skipped: dict[int, str]) -> None:
        self._task = task
        self._skipped = skipped
        self._small: list[tuple[int, Chunk]] = []
        self._held = self._records = 0  # bytes and documents in `_small`
        self.lines: list[int] = []

    def __iter__(self) -> Iterator[PartChunk]:
        for which in self._task.ranges:
            if which.source in self._skipped:
                continue
            before, returned = len(self._small), False
            self.lines.append(0)
            try:
                for chunk in self._task.read(which):
                    if len(self._task.ranges) > 1 and _is_small(chunk):
                        self._small.append((which.source, chunk))
                        self._held += sum(map(len, chunk.texts))
                        self.lines[-1] += chunk.lines
                        self._records += len(chunk.offsets)
                        if self._held >= _ENOUGH or self._records >= MOST_RECORDS:
                            returned = True
                            yield self._join_small()
                        continue
                    returned = True
                    if self._small:
                        yield self._join_small()
                    yield self._one(which.source, chunk, self.lines[-1])
                    self.lines[-1] += chunk.lines
            except BadFileError as error:
                if returned or not may_skip(self._task, error):
                    raise
                self._skipped[which.source] = error.reason
                self.lines.pop()
                del self._small[before:]
                self._held = sum(len(text) for _, chunk in self._small for text in chunk.texts)
                self._records = sum(len(chunk.offsets) for _, chunk in self._small)
        if self._small:
            yield self._join_small()

    def _one(self, number: int, chunk: Chunk, lines_before: int) -> PartChunk:
        sources = np.full(len(chunk.offsets), number, np.int64)
        fields = {(number, offset): one for offset, one in chunk.fields.items()}
        return PartChunk(chunk, number, self._task.sources[number], sources, lines_before, fields)

    def _join_small(self) -> PartChunk:
        """Join the small chunks held so far into one chunk. Returns it and forgets them."""
        numbers = [number for number, _ in self._small]
        chunks = [chunk for _, chunk in self._small]
        self._small, self._held, self._records = [], 0, 0
        whole = Chunk(
            list(chain.from_iterable(chunk.texts for chunk in chunks)),
            list(chain.from_iterable(chunk.offsets for chunk in chunks)),
        )
        whole.read = sum(chunk.read for chunk in chunks)
        sources = np.repeat(np.array(numbers, np.int64), [len(chunk.offsets) for chunk in chunks])
        fields = {
            (number, offset): one
            for number, chunk in zip(numbers, chunks, strict=True)
            for offset, one in chunk.fields.items()
        }
        return PartChunk(whole, numbers[0], self._task.sources[numbers[0]], sources, 0, fields)


def may_skip(task: PartTask, error: BadFileError) -> bool:
    """Return whether the task may continue without a bad file.

    A task that removes repeated lines may not. It has a list that says, for each line of the part
    in order, whether to remove it. Without the file, the list would not match the lines.
    """
    return task.repeated_lines is None and not isinstance(error, TooLargeError)


def without_bad_files(task: PartTask, make: Callable[[Skipped], T]) -> T | BadFileError:
    """Call `make`, such as to write a bundle. If a file is bad, call it again without the file.

    Returns what `make` returns, such as a receipt, which lists the bad files; the caller decides
    whether the run may continue without them. Returns an error if a bad file cannot be skipped.
    """
    skipped = dict(task.skipped)
    while True:
        try:
            return make(skipped)
        except BadFileError as error:
            number = next(n for n in task.sources if task.sources[n].path == error.source)
            if number in skipped or not may_skip(task, error):
                return error
            skipped[number] = error.reason


def _is_small(chunk: Chunk) -> bool:
    """Return whether a chunk is small and can be joined with chunks of other files."""
    return (
        sum(map(len, chunk.texts)) < _SMALL
        and not (chunk.continues or chunk.unfinished or chunk.rejections)
        and all(text.isascii() or is_utf8(text) for text in chunk.texts)
    )
