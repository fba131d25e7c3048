"""A part as a worker meets it: what to read, and its documents in batches of a good size.

Many small files make one batch, because every step of the work has a price for each batch and
does not care how many documents are in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from tokenmill.errors import TooLongError
from tokenmill.preparation.plan import Piece
from tokenmill.preparation.settings import Settings
from tokenmill.sources.memory import needed_budget
from tokenmill.sources.read import BadFileError, is_utf8, local_path, read_piece
from tokenmill.sources.recognize import SourceFile
from tokenmill.sources.records import MOST_RECORDS, Chunk, Cutter, Places

_SMALL = 256 << 10  # a chunk below that is put together with its neighbours
_ENOUGH = 1 << 20  # until they are that large


@dataclass(frozen=True, kw_only=True)
class Job:
    """One part and all that is needed to grind it, wherever that happens."""

    name: str
    pieces: tuple[Piece, ...]
    sources: dict[int, SourceFile]
    settings: Settings
    step: int
    dtype: str
    folder: Path
    cuttable: bool
    most: int  # how many bytes of a document may be held at once
    workers: int
    window: int  # how many bytes the window of a zstd stream may take
    repeated_lines: tuple[Path, int, int] | None = None  # file of marks, and the part's range
    aside: tuple[tuple[int, str], ...] = ()  # sources that other parts found to be bad, and why

    @property
    def border_cutter(self) -> Cutter | None:
        if not self.cuttable:
            return None
        return Cutter(short_line=self.settings.min_line if self.settings.dedup == "lines" else 0)

    def read(self, piece: Piece) -> Iterator[Chunk]:
        """The documents of one of the pieces."""
        source = self.sources[piece.source]
        if source.fault:
            raise BadFileError(source.path, source.fault)
        _refuse_changed(source)
        chunks = read_piece(
            source,
            piece.start,
            piece.end,
            self.step,
            separator=self.settings.separator,
            text_field=self.settings.text_field,
            cutter=Cutter(anywhere=True),
            border_cutter=self.border_cutter,
            most=self.most,
            window=self.window,
        )
        try:
            yield from chunks
        except TooLongError as error:
            raise too_large(source.path, error, self) from None
        _refuse_changed(source)


class TooLargeError(BadFileError):
    """A document that cannot be cut and does not fit into memory. It is never skipped."""

    def __reduce__(self) -> tuple[type[TooLargeError], tuple[str, str]]:
        return TooLargeError, (self.source, self.reason)


def too_large(path: str, error: TooLongError, job: Job) -> TooLargeError:
    """Adds how much memory to give."""
    need = -(-needed_budget(error.size) * job.workers // 10**8) * 10**8
    workers = "1 worker" if job.workers == 1 else f"{job.workers} workers"
    return TooLargeError(
        path,
        f"{error}; {workers} would need {need / 1e9:.1f} GB to hold that. Give `memory={need}` or "
        "more, or use fewer `workers`",
    )


def _refuse_changed(source: SourceFile) -> None:
    """A file that changes while it is read would give half of this and half of that."""
    try:
        stat = os.stat(local_path(source.path))  # noqa: PTH116  a Path takes ten times as long
    except OSError:
        return  # reading says more about that
    if (stat.st_size, stat.st_mtime_ns) != (source.size, source.modified):
        raise BadFileError(source.path, "the file changed since the run began")


@dataclass(slots=True)
class Batch:
    """A chunk, or several small ones put together."""

    chunk: Chunk
    number: int  # of the source; of the first one, where there are several
    source: SourceFile
    sources: Places  # the number of each document's source
    lines_before: int  # in the piece


class PartReader:
    """Reads the documents of a part. `lines` has the line ends of each piece that was read.

    If a file fails before any of its documents was returned, it is added to `aside`, and reading
    continues with the next file. If it fails later, BadFileError is raised: the part must be read
    again without it.
    """

    def __init__(self, job: Job, aside: dict[int, BadFileError]) -> None:
        self._job = job
        self._aside = aside
        self._small: list[tuple[int, Chunk]] = []
        self._held = self._records = 0  # bytes and documents in them
        self.lines: list[int] = []

    def __iter__(self) -> Iterator[Batch]:
        for piece in self._job.pieces:
            if piece.source in self._aside:
                continue
            before, handed_out = len(self._small), False
            self.lines.append(0)
            try:
                for chunk in self._job.read(piece):
                    if len(self._job.pieces) > 1 and _is_small(chunk):
                        self._small.append((piece.source, chunk))
                        self._held += sum(map(len, chunk.texts))
                        self.lines[-1] += chunk.lines
                        self._records += len(chunk.offsets)
                        if self._held >= _ENOUGH or self._records >= MOST_RECORDS:
                            handed_out = True
                            yield self._together()
                        continue
                    handed_out = True
                    if self._small:
                        yield self._together()
                    yield self._alone(piece.source, chunk, self.lines[-1])
                    self.lines[-1] += chunk.lines
            except BadFileError as error:
                # If its lines were scanned, a file must be read, or the marks would apply to other lines.
                is_needed = isinstance(error, TooLargeError) or self._job.repeated_lines is not None
                if handed_out or is_needed:
                    raise
                self._aside[piece.source] = error
                self.lines.pop()
                del self._small[before:]
                self._held = sum(len(text) for _, chunk in self._small for text in chunk.texts)
                self._records = sum(len(chunk.offsets) for _, chunk in self._small)
        if self._small:
            yield self._together()

    def _alone(self, number: int, chunk: Chunk, lines_before: int) -> Batch:
        sources = np.full(len(chunk.offsets), number, np.int64)
        return Batch(chunk, number, self._job.sources[number], sources, lines_before)

    def _together(self) -> Batch:
        """The small chunks held so far, as one batch."""
        numbers = [number for number, _ in self._small]
        chunks = [chunk for _, chunk in self._small]
        self._small, self._held, self._records = [], 0, 0
        whole = Chunk(
            list(chain.from_iterable(chunk.texts for chunk in chunks)),
            list(chain.from_iterable(chunk.offsets for chunk in chunks)),
        )
        whole.read = sum(chunk.read for chunk in chunks)
        sources = np.repeat(np.array(numbers, np.int64), [len(chunk.offsets) for chunk in chunks])
        return Batch(whole, numbers[0], self._job.sources[numbers[0]], sources, 0)


def _is_small(chunk: Chunk) -> bool:
    """Whether a chunk can go together with others: nothing in it concerns one file alone."""
    return (
        sum(map(len, chunk.texts)) < _SMALL
        and not (chunk.continues or chunk.goes_on or chunk.rejections)
        and all(text.isascii() or is_utf8(text) for text in chunk.texts)
    )
