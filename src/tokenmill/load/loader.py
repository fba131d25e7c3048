"""Batches for training, each of them a function of its step.

Guarantees: row n of a run follows from the data, the settings and n alone. A global batch is the
next `batch_size * world_size` rows; each rank takes its share of it. The whole state of a run is
the number of rows that it has consumed, so a run goes on with another batch size, number of ranks
or prefetch, and every row comes once, in the one order. Any batch costs what the first one costs.

Costs: the order of thousands of rows is computed at once; then a batch is one gather,
cast on the way, into memory that no earlier batch still uses, made ahead by a thread. `benchmarks/load.py` compares
that with the cast alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError
from tokenmill.load.buffers import Buffers
from tokenmill.load.mixture import Mixture
from tokenmill.load.prefetch import Prefetch
from tokenmill.load.ranks import find_rank
from tokenmill.load.rows import Places, Rows
from tokenmill.load.state import check_state
from tokenmill.order.documents import DocumentBatch, locate_documents
from tokenmill.order.rows import Kind
from tokenmill.store.tokens import Tokens, cast

__all__ = ["Batch", "BatchMaker", "Loader", "SourceLedger"]

VERSION = 1
_AHEAD = 16_384  # rows whose order is computed at once
_GROUP = 1 << 19  # bytes of rows that the thread hands over at once
_BUFFERS = 8  # finished batches whose memory is taken again


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows: `targets` are the tokens that follow `inputs`, both (rows, seq_len).

    `row` is the number of the first one. Inputs and targets are views of `tokens`,
    (rows, seq_len + 1), unless the loader was asked for contiguous ones; `documents` is there if it
    was asked for them.
    """

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    row: int
    tokens: npt.NDArray[Any] | None = None
    documents: DocumentBatch | None = None


RawBatch = tuple[npt.NDArray[Any], int, DocumentBatch | None]  # rows in their own dtype, the first


@dataclass(frozen=True, kw_only=True)
class SourceLedger:
    """What a run has consumed of one source."""

    rows: int
    tokens: int
    epochs: float


class Loader:
    """Batches of rows, without end or up to a limit; an iterator that goes on where it is.

    >>> loader = Loader(Tokens.of(range(1_000)), batch_size=2, seq_len=4, seed=1)
    >>> batch = next(loader)
    >>> batch.inputs.tolist()
    [[440, 441, 442, 443], [524, 525, 526, 527]]
    >>> batch.targets.tolist()
    [[441, 442, 443, 444], [525, 526, 527, 528]]
    >>> loader.state_dict()["row"]
    2

    Parameters
    ----------
    data
        The tokens of a split, such as `tokenmill.open(path)["train"]`, or a Mixture.
    batch_size
        The rows of a batch, on each rank.
    seq_len
        The tokens of a row's inputs, and of its targets.
    seed
        Another seed, another order.
    order
        shuffled (each window once an epoch), sequential, or random (any start, with replacement).
    shuffle_block
        Shuffle blocks of so many neighbouring windows, for disks that read neighbours faster.
    rank, world_size
        Which of how many processes this is; by default as torchrun, srun or mpirun say.
    dtype
        Of the batches.
    documents
        Whether batches carry document numbers, positions and `cu_seqlens`.
    contiguous
        Whether inputs and targets are arrays of their own rather than views of one.
    limit_rows, limit_tokens, limit_epochs
        Where the run ends: at most one of them. The last batch may be smaller, unless `drop_last`.
        An iteration that is begun at the end begins again at row 0.
    in_memory
        Whether to copy all tokens into memory first.
    prefetch
        The batches that a thread makes ahead; 0 does without a thread.
    """

    def __init__(
        self,
        data: Tokens | Mixture,
        *,
        batch_size: int,
        seq_len: int,
        seed: int = 0,
        order: Kind = "shuffled",
        shuffle_block: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        dtype: npt.DTypeLike = np.int64,
        documents: bool = False,
        contiguous: bool = False,
        limit_rows: int | None = None,
        limit_tokens: int | None = None,
        limit_epochs: float | None = None,
        drop_last: bool = False,
        in_memory: bool = False,
        prefetch: int = 16,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size is {batch_size}; it must be at least 1.")
        if prefetch < 0:
            raise UsageError(f"prefetch is {prefetch}; it must be 0 or more.")
        if in_memory:
            data = data.in_memory()
        self.rank, self.world_size = find_rank(rank, world_size)
        self.batch_size = batch_size
        rows = Rows(data, seq_len=seq_len, seed=seed, order=order, shuffle_block=shuffle_block)
        self.limit = _limit(rows, limit_rows, limit_tokens, limit_epochs)
        if drop_last and self.limit is not None:
            self.limit -= self.limit % self.global_batch
        self.prefetch = prefetch
        self.maker = BatchMaker(
            rows=rows,
            dtype=np.dtype(dtype),
            batch_size=batch_size,
            rank=self.rank,
            world_size=self.world_size,
            limit=self.limit,
            documents=documents,
            contiguous=contiguous,
        )
        self._row = 0
        self._ahead: Iterator[RawBatch] | None = None
        self._buffers = self.maker.buffers()

    @property
    def rows(self) -> Rows:
        """The rows of the run, by their numbers."""
        return self.maker.rows

    @property
    def seq_len(self) -> int:
        """The tokens of a row's inputs."""
        return self.maker.rows.seq_len

    @property
    def global_batch(self) -> int:
        """The rows of a step, on all ranks together."""
        return self.batch_size * self.world_size

    @property
    def row(self) -> int:
        """The cursor: how many rows the run has consumed, on all ranks together."""
        return self._row

    def __len__(self) -> int:
        """The batches from row 0 to the limit."""
        if self.limit is None:
            raise TypeError("a loader without a limit has no length; see limit_epochs")
        return -(-self.limit // self.global_batch)

    def __iter__(self) -> Self:
        if self.limit is not None and self._row >= self.limit:
            self._move(0)
        return self

    def __next__(self) -> Batch:
        if isinstance(self._ahead, Prefetch) and not self._ahead.is_alive:
            self._ahead = None  # this process was forked, and the thread was not
        if self._ahead is None:
            self._ahead = self._start()
        try:
            raw = next(self._ahead)
            batch = self.maker.finish(raw, self._buffers)
        except BaseException:
            self.close()
            raise
        self._row = self.maker.step_end(self._row)
        return batch

    def _start(self) -> Iterator[RawBatch]:
        """The batches from the cursor on. Reading is for the thread, which may have to wait for a
        disk; the cast is for the caller, in whose cache the batch then is."""
        if not self.prefetch:
            return chain.from_iterable(self.maker.groups(self._row))
        size = self.batch_size * (self.seq_len + 1) * self.rows.dtype.itemsize
        count = max(1, min(self.prefetch // 2, _GROUP // size))
        return Prefetch(self.maker.groups(self._row, count=count), -(-self.prefetch // count))

    def batch_at(self, step: int) -> Batch:
        """The batch of any step, if all steps from row 0 on have this loader's global batch."""
        return self.batch_from(step * self.global_batch)

    def batch_from(self, row: int) -> Batch:
        """This rank's batch of the step that begins with a row."""
        if row < 0 or (self.limit is not None and row >= self.limit):
            there = "from 0 on" if self.limit is None else f"from 0 to {self.limit - 1:,}"
            raise IndexError(f"row {row:,} is not one of the run, whose rows go {there}")
        raw = next(self.maker.groups(row, steps=1))[0]
        return self.maker.finish(raw, self._buffers)

    def ledger(self) -> dict[str, SourceLedger]:
        """What the run has consumed so far of each source, on all ranks together."""
        rows = self.rows
        return {
            name: SourceLedger(
                rows=count, tokens=count * rows.seq_len, epochs=count / order.windows
            )
            for (name, count), order in zip(
                rows.counts(self._row).items(), rows.orders, strict=True
            )
        }

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, and which run it is: small, and fit for JSON."""
        return {"version": VERSION, "row": self._row, **self.rows.identity}

    def load_state_dict(self, state: Mapping[str, Any], *, force: bool = False) -> None:
        """Go on where a run was. A state of other data, or of another order, is refused unless
        forced; batch size, ranks and prefetch may be others."""
        self._move(check_state(state, self.state_dict(), force=force))

    def close(self) -> None:
        """End the thread; the next batch starts another."""
        ahead, self._ahead = self._ahead, None
        if isinstance(ahead, Prefetch):
            ahead.close()

    def _move(self, row: int) -> None:
        self.close()
        self._row = row

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ahead": None, "_buffers": self.maker.buffers()}


@dataclass(frozen=True, kw_only=True)
class BatchMaker:
    """Makes batches; the thread works with this, and not with the loader.

    Of the steps from a row on, it makes every `stride`-th: processes that share a rank's work take
    turns.
    """

    rows: Rows
    dtype: np.dtype[Any]
    batch_size: int
    rank: int
    world_size: int
    limit: int | None
    documents: bool
    contiguous: bool

    def step_end(self, row: int) -> int:
        """The first row behind the step that begins with a row."""
        end = row + self.batch_size * self.world_size
        return end if self.limit is None else min(end, self.limit)

    def share(self, row: int) -> tuple[int, int]:
        """The rows, from and to, that are this rank's of the step that begins with a row."""
        count = self.step_end(row) - row
        return (
            row + count * self.rank // self.world_size,
            row + count * (self.rank + 1) // self.world_size,
        )

    def groups(
        self, row: int, *, count: int = 1, stride: int = 1, steps: int | None = None
    ) -> Iterator[list[RawBatch]]:
        """The batches from a row on, `count` at a time."""
        steps = steps or max(count, _AHEAD // self.batch_size // count * count)
        while self.limit is None or row < self.limit:
            shares: list[tuple[int, int]] = []
            while len(shares) < steps and (self.limit is None or row < self.limit):
                shares.append(self.share(row))
                row += self.batch_size * self.world_size * stride
            places = self.rows.locate(np.concatenate([np.arange(a, b) for a, b in shares]))
            done = 0
            for first in range(0, len(shares), count):
                group = shares[first : first + count]
                size = sum(end - begin for begin, end in group)
                yield self._read(places[done : done + size], group)
                done += size

    def _read(self, places: Places, shares: list[tuple[int, int]]) -> list[RawBatch]:
        rows = self.rows.read(places)
        batches = []
        done = 0
        for first, end in shares:
            some = slice(done, done + end - first)
            done = some.stop
            documents = None
            if self.documents:
                edges = self.rows.find_edges(places[some])
                documents = locate_documents(*edges, end - first, self.rows.seq_len)
            batches.append((rows[some], first, documents))
        return batches

    def finish(self, raw: RawBatch, buffers: Buffers) -> Batch:
        """A batch of the dtype that was asked for."""
        rows, first, documents = raw
        count, length = len(rows), self.rows.seq_len
        if not self.contiguous:
            tokens = buffers.take()[:count]
            cast(rows, tokens)
            return Batch(tokens[:, :-1], tokens[:, 1:], first, tokens, documents)
        inputs, targets = buffers.take()[: 2 * count].reshape(2, count, length)
        cast(rows[:, :-1], inputs)
        cast(rows[:, 1:], targets)
        return Batch(inputs, targets, first, None, documents)

    def buffers(self) -> Buffers:
        """Memory for finished batches."""
        length = self.rows.seq_len
        shape = (2 * self.batch_size, length) if self.contiguous else (self.batch_size, length + 1)
        return Buffers(shape, self.dtype, _BUFFERS)


def _limit(
    rows: Rows, limit_rows: int | None, limit_tokens: int | None, limit_epochs: float | None
) -> int | None:
    """Where a run ends, in rows."""
    given = [limit for limit in (limit_rows, limit_tokens, limit_epochs) if limit is not None]
    if len(given) > 1:
        raise UsageError("give one of limit_rows, limit_tokens and limit_epochs.")
    if any(limit < 0 for limit in given):
        raise UsageError(f"a limit of {given[0]} cannot be: it must be 0 or more.")
    if limit_tokens is not None:
        return limit_tokens // rows.seq_len
    if limit_epochs is None:
        return limit_rows
    if rows.mixture is not None:
        raise UsageError(
            "the sources of a mixture have epochs of their own; use limit_rows or limit_tokens."
        )
    return round(limit_epochs * rows.orders[0].windows)
