"""Read a rank's batches in groups, starting at any row.

A batch is made in two steps. The first is to read rows, in the dtype of the files. Reading may wait
for a disk, so a thread can do it. The second is to finish the rows: to cast them to the dtype of
the batches, and to return one batch at a time. Each read is large, so that threads seldom wake each
other. Each finished group is small, so that it stays in the processor's cache.

The memory of a batch is reused once nothing refers to that memory. Allocating a new array of half a
megabyte takes several times as long as filling it, because the system supplies its pages one by
one. Views, tensors and aliases of an array all hold a reference to the array, so the reference
count of an array says whether it is free.
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TokenmillError
from tokenmill.html import render
from tokenmill.load.rows import ResolvedRows, RunRows
from tokenmill.load.settings import LoaderSettings
from tokenmill.order.documents import DocumentBatch
from tokenmill.store.casting import cast

_SECTION_ROWS = 65_536  # rows whose order is computed at once
_GROUP_BYTES = 1 << 20  # of rows that are finished at once
_READ_BYTES = 4 << 20  # of rows that are read at once, in the dtype of the files
_READS_AHEAD = 5  # how many such reads a thread may be ahead
_BUFFERS = 8  # groups whose memory is reused
_ROWS_SHOWN, _IDS_SHOWN = 3, 12  # of a batch in a notebook
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


@dataclass(slots=True, eq=False, repr=False)  # not frozen: that would more than double its cost
class Batch:
    """Some rows of a run. `targets` are the tokens that follow `inputs`; both are (rows, seq_len).

    `row` is the number of the batch's first row. `end` is the number of the first row after the
    step; a step includes the rows of all ranks. Inputs and targets are views of `tokens`, (rows,
    seq_len + 1), unless the loader has `contiguous=True`. `documents` is set if the loader has
    `documents=True`.
    """

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    row: int
    end: int
    tokens: npt.NDArray[Any] | None = None
    documents: DocumentBatch | None = None

    def __repr__(self) -> str:
        kind = "DocumentedBatch" if self.documents is not None else "Batch"
        return f"<{kind} of {_describe_rows(self)}>"

    def _repr_html_(self) -> str:
        facts = [("rows", _describe_rows(self)), ("rows in the step", f"up to {self.end:,}")]
        rows = [
            (f"{self.row + number:,}", " ".join(map(str, ids[:_IDS_SHOWN])) + " …")
            for number, ids in enumerate(self.inputs[:_ROWS_SHOWN])
        ]
        return render(type(self).__name__, facts, ("Inputs", ("row", "ids"), rows))


class DocumentedBatch(Batch):
    """A batch of a loader with `documents=True`."""

    __slots__ = ()
    if TYPE_CHECKING:
        documents: DocumentBatch


def _describe_rows(batch: Batch) -> str:
    rows, length = batch.inputs.shape
    return f"{rows:,} x {length:,} {batch.inputs.dtype.name}, from row {batch.row:,}"


class BatchGroup(NamedTuple):
    """The rows of some batches, in the dtype of the files."""

    rows: npt.NDArray[Any]
    firsts: Sequence[int]  # the number of each batch's first row
    ends: Sequence[int]  # the first row after each batch's step
    documents: list[DocumentBatch] | None


@dataclass(frozen=True, kw_only=True)
class BatchReader:
    """Reads a rank's batches of a run, from any row up to the limit."""

    rows: RunRows
    settings: LoaderSettings
    limit: int | None  # in rows

    @cached_property
    def group_size(self) -> int:
        """How many batches to cast at once, from the dtype of the files to that of the settings.

        This is 1 if an id may be too large for the dtype of the settings. Then an error in one
        batch does not lose the batches before it.
        """
        settings = self.settings
        if not np.can_cast(self.rows.dtype, settings.dtype):
            return 1
        size = settings.batch_size * settings.seq_len * settings.dtype.itemsize
        return max(1, _GROUP_BYTES // (size << settings.contiguous))

    @property
    def read_size(self) -> int:
        """The best number of batches to read at once."""
        settings = self.settings
        size = settings.batch_size * settings.seq_len * self.rows.dtype.itemsize
        return max(1, _READ_BYTES // size)

    @property
    def ahead_size(self) -> int:
        """The best number of batches for a thread to read ahead."""
        return _READS_AHEAD * self.read_size

    def iterate(self, row: int, *, stride: int = 1) -> Iterator[Batch]:
        """Yield the batches of every `stride`-th step from a row on. Reads one batch at a time."""
        buffers = self.make_buffers()
        for group in chain.from_iterable(self.plan_reads(row, stride=stride)):
            yield from self.finish(group, buffers)

    def plan_reads(
        self,
        row: int,
        *,
        count: int = 1,
        stride: int = 1,
        is_slow: bool = False,
        reach: Callable[[int], None] | None = None,
    ) -> Iterator[Iterator[BatchGroup]]:
        """Yield jobs that read the batches from a row on. Threads may run several jobs at once.

        The first job reads one batch, because the caller waits for it. Each later job reads up to
        twice as many batches as the job before it, but at most `count`. With `is_slow`, for storage
        that is hardly faster than the caller, jobs grow so slowly that each is done in time. A stride
        of n reads every n-th step, for processes that take turns. `reach` is called with the first
        row of each job.
        """
        keep_freed_memory()
        step = self.settings.global_batch * stride
        whole = self._count_whole_steps(row, step)
        sections = self._cut_sections(range(row, row + whole * step, step), count)
        section, size, done = next(sections, None), 1, 0
        while section:
            following, first = next(sections, None), 0
            while first < section.steps:
                last = min(first + size, section.steps)
                if reach is not None:
                    reach(section.step_rows[first])
                yield self._read_steps(section, first, last)
                if first == 0 and following:
                    yield following.resolve_early()
                done += last - first
                first, size = (
                    last,
                    min(min(done, max(2, done // 8)) if is_slow else 2 * size, count),
                )
            section = following
        row += whole * step
        if self.limit is not None and row < self.limit and not self.settings.drop_last:
            yield map(self.read_one, [row])

    def _cut_sections(self, step_rows: range, count: int) -> Iterator[_Section]:
        """Divide the steps that start at these rows into sections, to look up rows together.

        Looking up a section may open many shards, so the first section has a single step, to be
        ready soon. Later ones grow. The largest have a multiple of `count` steps.
        """
        most = max(1, _SECTION_ROWS // self.settings.batch_size // count) * count
        done = 0
        while done < len(step_rows):
            some = step_rows[done : done + min(most, 4 * done or 1)]
            yield _Section(self, some)
            done += len(some)

    def _read_steps(self, section: _Section, first: int, last: int) -> Iterator[BatchGroup]:
        """Yield the batches of the steps [first, last) of a section; its steps count from 0.

        If a batch cannot be read, yields the batches before it, then raises the exception.
        """
        batch_size, documents = self.settings.batch_size, None
        some = first * batch_size, last * batch_size
        try:
            resolved = section.resolved
            rows = resolved.read(*some)
            if self.settings.documents:
                documents = resolved.find_documents(*some, rows).split(last - first)
        except (TokenmillError, OSError):
            if last - first == 1:
                raise
            for number in range(first, last):
                yield from self._read_steps(section, number, number + 1)
        else:
            steps = section.step_rows[first:last]
            firsts = _shift(steps, self.settings.rank * batch_size)
            yield BatchGroup(rows, firsts, _shift(steps, self.settings.global_batch), documents)

    def _count_whole_steps(self, row: int, step: int) -> int:
        """Return how many training steps, at `row`, `row + step` and so on, end before the limit.

        The limit is the number of rows in the run.
        """
        if self.limit is None:
            return 1 << 40
        room = self.limit - row - self.settings.global_batch
        return room // step + 1 if room >= 0 else 0

    def read_one(self, row: int) -> BatchGroup:
        """Read the batch of the step that starts at a row. The limit may cut this batch short."""
        rank, world_size = self.settings.rank, self.settings.world_size
        end = row + self.settings.global_batch
        if self.limit is not None:
            end = min(end, self.limit)
        first, stop = (row + (end - row) * each // world_size for each in (rank, rank + 1))
        starts = self.rows.locate(np.arange(first, stop))
        rows = self.rows.read(starts)
        documents = None
        if self.settings.documents:
            documents = [self.rows.find_documents(starts, rows)]
        return BatchGroup(rows, [first], [end], documents)

    def finish(self, group: BatchGroup, buffers: BufferPool | None = None) -> Iterator[Batch]:
        """Yield the batches of a group, cast to the dtype of the settings."""
        rows, firsts, ends, documents = group
        dtype, contiguous = self.settings.dtype, self.settings.contiguous
        length, size = len(rows) // len(firsts), self.group_size
        none: Any = repeat(None)
        for first in range(0, len(firsts), size):
            some = slice(first, first + size)
            part, numbers = rows[first * length : some.stop * length], firsts[some]
            memory = np.empty(self._shape(len(part)), dtype) if buffers is None else buffers.take()
            if contiguous:
                memory = memory[:, : len(part)]
                cast(part[:, :-1], memory[0])
                cast(part[:, 1:], memory[1])
                tokens = none
                inputs, targets = memory.reshape(2, len(numbers), length, self.rows.seq_len)
            else:
                memory = memory[: len(part)]
                cast(part, memory)
                tokens = memory.reshape(len(numbers), length, part.shape[1])
                inputs, targets = tokens[..., :-1], tokens[..., 1:]
            # Iterating over an array is faster than taking slices of it.
            columns = inputs, targets, numbers, ends[some], tokens
            kind = DocumentedBatch if documents else Batch
            yield from map(kind, *columns, documents[some] if documents else none)
            del memory, tokens, inputs, targets, columns  # only the caller may hold references

    def make_buffers(self) -> BufferPool:
        """Allocate the buffers that groups of batches are copied into."""
        shape = self._shape(self.group_size * self.settings.batch_size)
        return BufferPool(shape, self.settings.dtype, _BUFFERS)

    def _shape(self, rows: int) -> tuple[int, ...]:
        length = self.rows.seq_len
        return (2, rows, length) if self.settings.contiguous else (rows, length + 1)


class _Section:
    """Steps whose rows are looked up together, by the first thread that needs them.

    See `RunRows.resolve`.
    """

    def __init__(self, reader: BatchReader, step_rows: range) -> None:
        self.reader, self.step_rows, self.steps = reader, step_rows, len(step_rows)
        self._resolving = threading.Lock()
        self._resolved: ResolvedRows | None = None

    @property
    def resolved(self) -> ResolvedRows:
        """The rows that this rank reads in the steps of the section; looked up on first use."""
        with self._resolving:
            if self._resolved is None:
                rows, settings = self.reader.rows, self.reader.settings
                own = np.arange(settings.batch_size) + settings.rank * settings.batch_size
                starts = rows.locate(np.add.outer(np.array(self.step_rows), own).ravel())
                self._resolved = rows.resolve(starts, documents=settings.documents)
            return self._resolved

    def resolve_early(self) -> Iterator[BatchGroup]:
        """Look up the rows of the section before they are needed.

        This is an iterator, like the jobs of `plan_reads`, but yields nothing.
        """
        _ = self.resolved
        yield from ()


def _shift(numbers: range, by: int) -> range:
    return range(numbers.start + by, numbers.stop + by, numbers.step)


class BufferPool:
    """Arrays of one shape and dtype that are reused once nothing else refers to them."""

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike, most: int) -> None:
        self._shape, self._dtype, self._most = shape, np.dtype(dtype), most
        self._arrays: deque[npt.NDArray[Any]] = deque()

    def take(self) -> npt.NDArray[Any]:
        """Return an array that nothing else refers to; its content is arbitrary."""
        # An array leaves the queue while its references are counted, so two threads never get the
        # same array. A lock would do the same, but a fork may inherit a locked lock. Free arrays go
        # to the front: using fewer arrays keeps more of them in the cache.
        for _ in range(len(self._arrays)):
            try:
                array = self._arrays.popleft()
            except IndexError:  # another thread has it
                break
            if sys.getrefcount(array) == _FREE:
                self._arrays.appendleft(array)
                return array
            self._arrays.append(array)
            del array
        array = self._make()
        if len(self._arrays) < self._most:
            self._arrays.append(array)
        return array

    def _make(self) -> npt.NDArray[Any]:
        """Make a page-aligned array, which JAX can use on the CPU without a copy.

        A fork gets its own copy of the array.
        """
        size = int(np.prod(self._shape)) * self._dtype.itemsize
        # This must not be a view of another array, because views of it would then refer to the other
        # array, and the reference count would miss them.
        return np.ndarray(self._shape, self._dtype, mmap.mmap(-1, max(size, 1), _PRIVATE))


@cache
def keep_freed_memory() -> None:
    """Let glibc keep arrays of a few megabytes when they are freed.

    By default, glibc returns them to the system. The next arrays then need new pages, which the
    system supplies one by one. But after a larger block is freed, glibc keeps up to twice that
    block's size. So this function allocates and frees a block of almost 32 MB. Freeing a larger
    block would have no effect. Other C libraries are not affected.
    """
    np.empty((32 << 20) - 2 * mmap.PAGESIZE, np.uint8)


def _count_free() -> int:
    """Return the reference count that Python reports for an array that nothing else refers to.

    Python versions differ in this number.
    """
    array = np.empty(1)
    return sys.getrefcount(array)


_FREE = _count_free()
