"""Batches for training; each can be computed from its step number alone.

Guarantees: row n of a run depends only on the data, the settings and n. A global batch is the next
`batch_size * world_size` rows, and each rank reads its share of it. The state of a run is the
number of rows consumed, so a run can resume with another batch size, number of ranks or prefetch.
Every row still comes once, in the same order. Reading any batch costs as much as reading the first.

Costs: the order of thousands of rows is computed at once. A batch is then one gather and one cast,
into memory that no earlier batch still uses. `benchmarks/load.py` compares the cost of a batch with
the cost of the cast alone.

From `Loader.__next__` to the copied bytes:

    load/loader.py       Loader         the cursor, the limit and the state
    load/batches.py      BatchReader    which rows to read at once, and their cast
    load/rows.py         RunRows        from row numbers to tokens
    order/rows.py        RowOrder       where row n starts
    store/tokens.py      Tokens         which shards hold the row
    store/gather.py      MappedRows     the copy

load/prefetch.py runs all of these ahead in a thread, except `Loader` itself and the cast.
load/ahead.py fetches the rows of later steps from slow storage.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, Unpack, cast, overload

from tokenmill.errors import UsageError
from tokenmill.load.ahead import RowsAhead, find_slow_order, start_ahead
from tokenmill.load.batches import Batch, BatchGroup, BatchReader, DocumentedBatch
from tokenmill.load.mixture import Mixture
from tokenmill.load.prefetch import Prefetch
from tokenmill.load.rows import RunRows
from tokenmill.load.settings import LoaderArguments, LoaderSettings
from tokenmill.load.state import MOST_ROWS, VERSION, check_state
from tokenmill.store.tokens import Tokens

if TYPE_CHECKING:  # plain `Loader` as a type needs the default of a TypeVar, new in Python 3.13
    from typing_extensions import TypeVar

    B = TypeVar("B", bound=Batch, default=Batch, covariant=True)
else:
    from typing import TypeVar

    B = TypeVar("B")


@dataclass(frozen=True, kw_only=True)
class SourceLedger:
    """How much of one source a run has consumed."""

    rows: int
    tokens: int
    epochs: float


class Loader(Generic[B]):
    """An iterator of batches, endless or up to a limit.

    A new `for` loop continues the run. Use a loader from one thread at a time.

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
        Rows per batch, on each rank.
    seq_len
        Tokens per row, in the inputs and in the targets.
    seed
        Seed of the order; 0 by default.
    order
        shuffled (the default: each row once per epoch), blocks (the same, for storage that reads
        neighbouring rows faster), sequential, or random (any start, with replacement).
    block_rows, group_blocks
        For the order `blocks`: how many neighbouring rows form a block, and how many blocks are
        shuffled together. By default, a block has about 2**19 tokens, and a group has 256 blocks.
    rank, world_size
        The rank of this process and the number of ranks; by default from torchrun, srun or mpirun.
    dtype
        Dtype of the batches; int64 by default.
    documents
        Whether batches have document numbers, positions and `cu_seqlens`; False by default.
    contiguous
        Whether inputs and targets are separate arrays; by default they are views of one array.
    limit_rows, limit_tokens, limit_epochs
        Where the run ends; give at most one of these. By default, the run is endless. Iterating
        again after the end starts over at row 0, with the same batches.
    drop_last
        Whether to omit an incomplete last step, in which some ranks may have no rows; False by
        default.
    in_memory
        Whether to copy all tokens into memory first; False by default.
    prefetch
        How many batches a thread reads ahead. None, the default, means a few megabytes of batches,
        and 0 means no thread.
    """

    @overload
    def __init__(
        self: Loader[DocumentedBatch],
        data: Tokens | Mixture,
        *,
        documents: Literal[True],
        **settings: Unpack[LoaderArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[Batch],
        data: Tokens | Mixture,
        *,
        documents: bool = ...,
        **settings: Unpack[LoaderArguments],
    ) -> None: ...

    def __init__(self, data: Tokens | Mixture, **settings: Any) -> None:
        self.settings = LoaderSettings(**settings)
        self.batch_size = self.settings.batch_size
        self.rank, self.world_size = self.settings.rank, self.settings.world_size
        rows = RunRows(data, self.settings, in_memory=self.settings.in_memory)
        if self.settings.documents:
            rows.check_documents()
        if (problem := find_slow_order(rows, self.settings)) is not None:
            warnings.warn(problem, stacklevel=2)
        self.limit = _find_limit(rows, self.settings)
        self.reader = BatchReader(rows=rows, settings=self.settings, limit=self.limit)
        self._row = 0
        self._at_end = False  # whether iterating has reached the limit
        self._groups: Iterator[BatchGroup] | None = None
        self._ahead: RowsAhead | None = None
        self._batches: Iterator[Batch] = iter(())
        self._buffers = self.reader.make_buffers()

    @property
    def rows(self) -> RunRows:
        """The rows of the run, by number."""
        return self.reader.rows

    @property
    def seq_len(self) -> int:
        """The number of input tokens per row."""
        return self.settings.seq_len

    @property
    def global_batch(self) -> int:
        """Rows per step, on all ranks together."""
        return self.settings.global_batch

    @property
    def row(self) -> int:
        """The cursor: how many rows the run has consumed, on all ranks together."""
        return self._row

    def __len__(self) -> int:
        """Return the number of batches from row 0 to the limit."""
        return self.count_steps(0)

    def count_steps(self, row: int) -> int:
        """Return the number of batches from a row to the limit."""
        if self.limit is None:
            raise TypeError(
                "a loader without a limit has no length; set `limit_rows` or `limit_epochs`"
            )
        left = max(0, self.limit - row)
        return (
            left // self.global_batch if self.settings.drop_last else -(-left // self.global_batch)
        )

    def __iter__(self) -> Self:
        if self._at_end:
            self._move(0)
        return self

    def __repr__(self) -> str:
        rows = f"{self.batch_size} x {self.seq_len} of {self.rows.data!r}"
        rank = f", rank {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        end = "" if self.limit is None else f" of {self.limit:,}"
        return f"<{type(self).__name__} {rows}{rank}, row {self._row:,}{end}>"

    def __next__(self) -> B:
        try:
            while (batch := next(self._batches, None)) is None:
                self._batches = self.reader.finish(self._read_group(), self._buffers)
        except BaseException as error:  # also Ctrl-C: `close` drops batches, which are read again
            self.close()
            self._at_end = isinstance(error, StopIteration)
            raise
        self._row = batch.end
        # Set it now: `islice(loader, len(loader))` does not ask for another batch.
        self._at_end = self.limit is not None and not self.count_steps(self._row)
        return cast(B, batch)

    def _read_group(self) -> BatchGroup:
        """Return the next batches, not yet cast.

        A thread reads them, because a disk may be slow. The caller casts them, so that they are in
        the cache of the caller's core.
        """
        if isinstance(self._groups, Prefetch) and not self._groups.is_of_this_process:
            self._groups = self._ahead = None
        if self._groups is None:
            count, prefetch = self.reader.read_size, self.settings.prefetch
            if prefetch is None:
                prefetch = self.reader.ahead_size
            if prefetch:
                count = max(1, min(count, prefetch // 2))
            if prefetch:
                self._ahead = start_ahead(self.rows, self.settings, self._row, self.limit)
            reach = None if self._ahead is None else self._ahead.reach
            is_slow = bool(self.rows.caches)
            jobs = self.reader.plan_reads(self._row, count=count, is_slow=is_slow, reach=reach)
            self._groups = (
                Prefetch(jobs, -(-prefetch // count), is_slow=is_slow)
                if prefetch
                else chain.from_iterable(jobs)
            )
        return next(self._groups)

    def batch_at(self, step: int) -> B:
        """Return this rank's batch of any step; step n starts at row `n * global_batch`."""
        return self.batch_from(operator.index(step) * self.global_batch)

    def batch_from(self, row: int) -> B:
        """Return this rank's batch of the step that starts at `row`."""
        end = MOST_ROWS if self.limit is None else self.limit
        if self.settings.drop_last:
            end = max(0, end - self.global_batch + 1)
        if not 0 <= row < end:
            possible = f"batches start at rows 0 to {end - 1:,}" if end else "the run has no batch"
            raise IndexError(f"no batch starts at row {row:,}: {possible}")
        return cast(B, next(self.reader.finish(self.reader.read_one(row))))

    def ledger(self) -> dict[str, SourceLedger]:
        """Return how much of each source the run has consumed so far, on all ranks together."""
        return make_ledger(self.rows, self._row)

    @property
    def shared_settings(self) -> dict[str, Any]:
        """The settings that must be equal on all ranks, and the identity of the data."""
        shared = {"batch_size": self.batch_size, "limit": self.limit}
        return {**shared, "drop_last": self.settings.drop_last, **self.rows.identity}

    def state_dict(self) -> dict[str, Any]:
        """Return the number of rows consumed, and the settings and data that define their order.

        Data is represented by its fingerprint, so the state is small. It can be stored as JSON.
        """
        return {"version": VERSION, "row": self._row, **self.rows.identity}

    def load_state_dict(
        self, state: Mapping[str, Any], *, force: bool | Collection[str] = False
    ) -> None:
        """Resume a run from its state.

        Batch size, ranks, prefetch and the weights of later rows may differ. A difference that
        would change a row before the state's row is an error. To resume anyway, name all
        differences, as in `force=["seed"]`, or pass `force=True`.
        """
        self.rows.learn_identity(state)
        cure = self.rows.find_growth_cure(state)
        self._move(check_state(state, self.state_dict(), force=force, cure=cure))

    def close(self) -> None:
        """Stop the threads that read ahead; the next batch starts new threads."""
        groups, self._groups, self._batches = self._groups, None, iter(())
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()
        if isinstance(groups, Prefetch):
            groups.close()

    def _move(self, row: int) -> None:
        self.close()
        self._row, self._at_end = row, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        fresh: dict[str, Any] = {
            "_groups": None,
            "_ahead": None,
            "_batches": iter(()),
            "_buffers": self.reader.make_buffers(),
        }
        return {**self.__dict__, **fresh}


def make_ledger(rows: RunRows, row: int) -> dict[str, SourceLedger]:
    """Return how much of each source the rows before `row` consume."""
    return {
        name: SourceLedger(rows=count, tokens=count * rows.seq_len, epochs=count / order.windows)
        for (name, count), order in zip(rows.counts(row).items(), rows.orders, strict=True)
    }


def _find_limit(rows: RunRows, settings: LoaderSettings) -> int | None:
    """Return the number of rows of a run, or None if it is endless."""
    if settings.limit_tokens is not None:
        return settings.limit_tokens // settings.seq_len
    if settings.limit_epochs is None:
        return settings.limit_rows
    if rows.mixture is not None:
        raise UsageError(
            "a mixture cannot be limited by epochs, because each source has its own; give "
            "`limit_rows` or `limit_tokens` instead."
        )
    return round(settings.limit_epochs * rows.orders[0].windows)
