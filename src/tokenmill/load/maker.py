"""From the number of a row to finished batches, a group of batches at a time.

Rows are read in the dtype of the files, which may mean waiting for a disk, and can be done by a
thread; then they are finished: cast to the dtype that was asked for. What is read at once is so much
that threads seldom have to wake each other, and what is finished at once so little that its memory
stays in the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TokenmillError
from tokenmill.load.buffers import Buffers, keep_freed_memory
from tokenmill.load.rows import FoundRows, Rows
from tokenmill.order.documents import DocumentBatch
from tokenmill.store.tokens import cast

Integers = npt.NDArray[np.int64]

_AHEAD = 65_536  # rows whose order is computed at once
_GROUP = 1 << 20  # bytes of the finished rows of a group
_READ = 4 << 20  # bytes of the rows that are read at once, as they are in the files
_JOBS = 5  # of so much that are begun ahead
_BUFFERS = 8  # groups whose memory is taken again


@dataclass(slots=True, eq=False)  # not frozen: that would take longer than all the rest of it
class Batch:
    """Some rows: `targets` are the tokens that follow `inputs`, both (rows, seq_len).

    `row` is the number of the first one, and `end` that of the first one behind the step, on all
    ranks. Inputs and targets are views of `tokens`, (rows, seq_len + 1), unless the loader was asked
    for contiguous ones; `documents` is there if it was asked for them.
    """

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    row: int
    end: int
    tokens: npt.NDArray[Any] | None = None
    documents: DocumentBatch | None = None


class DocumentedBatch(Batch):
    """A batch of a loader with `documents=True`."""

    __slots__ = ()
    if TYPE_CHECKING:
        documents: DocumentBatch


class Group(NamedTuple):
    """The rows of some batches, in the dtype of the files."""

    rows: npt.NDArray[Any]
    firsts: Sequence[int]  # the number of each batch's first row
    ends: Sequence[int]  # the first row behind each batch's step
    documents: list[DocumentBatch] | None


@dataclass(frozen=True, kw_only=True)
class BatchMaker:
    """Makes a rank's batches of a run from any row on."""

    rows: Rows
    dtype: np.dtype[Any]
    batch_size: int
    rank: int
    world_size: int
    limit: int | None
    drop_last: bool
    documents: bool
    contiguous: bool

    @cached_property
    def group_size(self) -> int:
        """The batches of a group: one, where an id may turn out too large for its dtype, so that
        the batches before it are not lost with it."""
        if not np.can_cast(self.rows.dtype, self.dtype):
            return 1
        size = self.batch_size * self.rows.seq_len * self.dtype.itemsize
        return max(1, _GROUP // (size << self.contiguous))

    @property
    def read_size(self) -> int:
        """The batches that are best read at once."""
        return max(1, _READ // (self.batch_size * self.rows.seq_len * self.rows.dtype.itemsize))

    @property
    def ahead_size(self) -> int:
        """The batches that are best read ahead by a thread."""
        return _JOBS * self.read_size

    @property
    def global_batch(self) -> int:
        """The rows of a step, on all ranks together."""
        return self.batch_size * self.world_size

    def read(self, row: int, *, count: int = 1, stride: int = 1) -> Iterator[Group]:
        """The batches from a row on, in groups; see `jobs`."""
        return chain.from_iterable(self.jobs(row, count=count, stride=stride))

    def jobs(self, row: int, *, count: int = 1, stride: int = 1) -> Iterator[Iterator[Group]]:
        """The reading of the batches from a row on: of one, because somebody waits, and then of ever
        more at a time, up to `count`. Several threads may do jobs at once.

        With a stride, only every so many steps: processes that share a rank's work take turns.
        """
        keep_freed_memory()
        step = self.global_batch * stride
        whole = self._whole_steps(row, step)
        sections = self._cut(range(row, row + whole * step, step), count)
        section, size = next(sections, None), 1
        while section:
            following, first = next(sections, None), 0
            while first < section.steps:
                last = min(first + size, section.steps)
                yield self._read_or_part(section, first, last)
                if first == 0 and following:
                    yield following.find()
                first, size = last, min(2 * size, count)
            section = following
        row += whole * step
        if self.limit is not None and row < self.limit and not self.drop_last:
            yield map(self.read_one, [row])

    def _cut(self, begins: range, count: int) -> Iterator[_Section]:
        """The steps that begin at these rows, in sections: one, and then ever more, because shards
        that were never open may have to be found first."""
        most = max(1, _AHEAD // self.batch_size // count) * count
        done = 0
        while done < len(begins):
            some = begins[done : done + min(most, 4 * done or 1)]
            yield _Section(self, some)
            done += len(some)

    def _read_or_part(self, section: _Section, first: int, last: int) -> Iterator[Group]:
        """The batches of some steps of a section; where they cannot all be read, those before the
        bad one come first, and then its exception."""
        some, documents = (first * self.batch_size, last * self.batch_size), None
        try:
            found = section.found
            rows = found.read(*some)
            if self.documents:
                documents = found.find_documents(*some, rows).split(last - first)
        except (TokenmillError, OSError):
            if last - first == 1:
                raise
            for number in range(first, last):
                yield from self._read_or_part(section, number, number + 1)
        else:
            begins = section.begins[first:last]
            firsts = _move(begins, self.rank * self.batch_size)
            yield Group(rows, firsts, _move(begins, self.global_batch), documents)

    def _whole_steps(self, row: int, step: int) -> int:
        """How many steps, beginning `step` rows apart, no limit cuts short."""
        if self.limit is None:
            return 1 << 40
        room = self.limit - row - self.global_batch
        return room // step + 1 if room >= 0 else 0

    def read_one(self, row: int) -> Group:
        """The batch of the step that begins with a row, which may be cut short by the limit."""
        end = row + self.global_batch
        if self.limit is not None:
            end = min(end, self.limit)
        first, stop = (
            row + (end - row) * rank // self.world_size for rank in (self.rank, self.rank + 1)
        )
        starts = self.rows.locate(np.arange(first, stop))
        rows = self.rows.read(starts)
        documents = [self.rows.find_documents(starts, rows)] if self.documents else None
        return Group(rows, [first], [end], documents)

    def finish(self, group: Group, buffers: Buffers | None = None) -> Iterator[Batch]:
        """The batches of a group, of the dtype that was asked for."""
        rows, firsts, ends, documents = group
        length, size = len(rows) // len(firsts), self.group_size
        none: Any = repeat(None)
        for first in range(0, len(firsts), size):
            some = slice(first, first + size)
            part, numbers = rows[first * length : some.stop * length], firsts[some]
            memory = (
                np.empty(self._shape(len(part)), self.dtype) if buffers is None else buffers.take()
            )
            if self.contiguous:
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
            # NumPy takes an array apart faster than slices do.
            parts = inputs, targets, numbers, ends[some], tokens
            kind = DocumentedBatch if documents else Batch
            yield from map(kind, *parts, documents[some] if documents else none)
            del memory, tokens, inputs, targets, parts  # which nobody but the caller shall hold

    def buffers(self) -> Buffers:
        """Memory for finished groups."""
        return Buffers(self._shape(self.group_size * self.batch_size), self.dtype, _BUFFERS)

    def _shape(self, rows: int) -> tuple[int, ...]:
        """That of the memory of some finished rows."""
        length = self.rows.seq_len
        return (2, rows, length) if self.contiguous else (rows, length + 1)


class _Section:
    """Steps whose rows are found at once, by the first thread that needs them."""

    def __init__(self, maker: BatchMaker, begins: range) -> None:
        self.maker, self.begins, self.steps = maker, begins, len(begins)
        self._finding = threading.Lock()
        self._found: FoundRows | None = None

    @property
    def found(self) -> FoundRows:
        """The rows of a rank's batches of these steps, one after another."""
        with self._finding:
            if self._found is None:
                maker = self.maker
                own = np.arange(maker.batch_size) + maker.rank * maker.batch_size
                starts = maker.rows.locate(np.add.outer(np.array(self.begins), own).ravel())
                self._found = maker.rows.find(starts, documents=maker.documents)
            return self._found

    def find(self) -> Iterator[Group]:
        """A job without groups: to find the rows before they are needed."""
        _ = self.found
        yield from ()


def _move(numbers: range, by: int) -> range:
    return range(numbers.start + by, numbers.stop + by, numbers.step)
