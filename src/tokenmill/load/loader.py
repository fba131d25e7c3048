"""Batches for training, each a function of its step.

Guarantees: row n of a run depends only on the data, the settings and n. A global batch is the next
`batch_size * world_size` rows; each rank takes its share of it. The whole state of a run is the
number of rows consumed, so a run resumes with another batch size, number of ranks or prefetch, and
every row comes once, in the same order. Any batch costs as much as the first one.

Costs: the order of thousands of rows is computed at once. A batch is then one gather with a cast,
into memory that no earlier batch still uses, done ahead by a thread. `benchmarks/load.py` compares
that with the cast alone.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypedDict, Unpack, cast, overload

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError
from tokenmill.load.maker import Batch, BatchMaker, DocumentedBatch, Group
from tokenmill.load.mixture import Mixture
from tokenmill.load.prefetch import Prefetch
from tokenmill.load.ranks import find_rank
from tokenmill.load.rows import Rows, check_whole
from tokenmill.load.state import MOST_ROWS, check_state
from tokenmill.order.rows import Kind
from tokenmill.store.tokens import Tokens

VERSION = 1

if TYPE_CHECKING:  # a TypeVar default, so that plain `Loader` is a type, needs Python 3.13
    from typing_extensions import TypeVar

    B = TypeVar("B", bound=Batch, default=Batch, covariant=True)
else:
    from typing import TypeVar

    B = TypeVar("B")


class LoaderSettings(TypedDict, total=False):
    """The arguments of `Loader` that all loaders share."""

    seed: int
    order: Kind
    shuffle_block: int | None
    rank: int | None
    world_size: int | None
    limit_rows: int | None
    limit_tokens: int | None
    limit_epochs: float | None
    drop_last: bool
    in_memory: bool
    prefetch: int | None


@dataclass(frozen=True, kw_only=True)
class SourceLedger:
    """What a run has consumed of one source."""

    rows: int
    tokens: int
    epochs: float


class Loader(Generic[B]):
    """Batches of rows, endless or up to a limit. An iterator: a new `for` continues where it is.

    Use it from one thread at a time.

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
        Seed of the order.
    order
        shuffled (each window once per epoch), sequential, or random (any start, with replacement).
    shuffle_block
        Shuffle blocks of this many neighbouring windows, for disks that read neighbours faster.
    rank, world_size
        The rank of this process and the number of ranks; by default from torchrun, srun or mpirun.
    dtype
        Dtype of the batches.
    documents
        Whether batches have document numbers, positions and `cu_seqlens`.
    contiguous
        Whether inputs and targets are separate arrays instead of views of one.
    limit_rows, limit_tokens, limit_epochs
        Where the run ends; give at most one. Iterating again after the end starts over at row 0,
        with the same batches.
    drop_last
        Whether to leave out an incomplete last step, in which a rank's share may even be empty.
    in_memory
        Whether to copy all tokens into memory first.
    prefetch
        How many batches a thread reads ahead; None: some MB of them; 0: no thread.
    """

    @overload
    def __init__(
        self: Loader[DocumentedBatch],
        data: Tokens | Mixture,
        *,
        batch_size: int,
        seq_len: int,
        documents: Literal[True],
        dtype: npt.DTypeLike = ...,
        contiguous: bool = ...,
        **settings: Unpack[LoaderSettings],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[Batch],
        data: Tokens | Mixture,
        *,
        batch_size: int,
        seq_len: int,
        documents: bool = ...,
        dtype: npt.DTypeLike = ...,
        contiguous: bool = ...,
        **settings: Unpack[LoaderSettings],
    ) -> None: ...

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
        prefetch: int | None = None,
    ) -> None:
        batch_size = check_whole("batch_size", batch_size, 1)
        if prefetch is not None:
            prefetch = check_whole("prefetch", prefetch, 0)
        if np.dtype(dtype).kind not in "iu":
            raise UsageError(
                f"`dtype` is {np.dtype(dtype)}; ids are integers, such as int64 or int32."
            )
        self.rank, self.world_size = find_rank(rank, world_size)
        self.batch_size = batch_size
        rows = Rows(
            data,
            seq_len=seq_len,
            seed=seed,
            order=order,
            shuffle_block=shuffle_block,
            in_memory=in_memory,
        )
        if documents:
            rows.check_documents()
        self.limit = _limit(rows, limit_rows, limit_tokens, limit_epochs)
        self.prefetch = prefetch
        self.maker = BatchMaker(
            rows=rows,
            dtype=np.dtype(dtype),
            batch_size=batch_size,
            rank=self.rank,
            world_size=self.world_size,
            limit=self.limit,
            drop_last=drop_last,
            documents=documents,
            contiguous=contiguous,
        )
        self._row = 0
        self._at_end = False  # whether the run has come to its limit here
        self._ahead: Iterator[Group] | None = None
        self._made: Iterator[Batch] = iter(())
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
        return self.maker.global_batch

    @property
    def row(self) -> int:
        """The cursor: how many rows the run has consumed, on all ranks together."""
        return self._row

    def __len__(self) -> int:
        """The batches from row 0 to the limit."""
        return self.count_steps(0)

    def count_steps(self, row: int) -> int:
        """The batches from a row to the limit."""
        if self.limit is None:
            raise TypeError("a loader without a limit has no length; see `limit_epochs`")
        left = max(0, self.limit - row)
        return left // self.global_batch if self.maker.drop_last else -(-left // self.global_batch)

    def __iter__(self) -> Self:
        if self._at_end:
            self._move(0)
        return self

    def __repr__(self) -> str:
        rows = f"{self.batch_size} x {self.seq_len}"
        ranks = f", rank {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        end = "" if self.limit is None else f" of {self.limit:,}"
        return (
            f"<{type(self).__name__} {rows} of {self.rows.data!r}{ranks}, row {self._row:,}{end}>"
        )

    def __next__(self) -> B:
        try:
            while (batch := next(self._made, None)) is None:
                self._made = self.maker.finish(self._next_group(), self._buffers)
        except BaseException as error:  # Ctrl-C too: what was made and not given is made again
            self.close()
            self._at_end = isinstance(error, StopIteration)
            raise
        self._row = batch.end
        # Also if nobody asks for more, as `islice(loader, len(loader))`.
        self._at_end = self.limit is not None and not self.count_steps(self._row)
        return cast(B, batch)

    def _next_group(self) -> Group:
        """Some batches from the cursor on. Reading is for the thread, which may have to wait for a
        disk; the cast is for the caller, in whose cache the batch then is."""
        if isinstance(self._ahead, Prefetch) and not self._ahead.is_of_this_process:
            self._ahead = None
        if self._ahead is None:
            count = self.maker.read_size
            prefetch = self.maker.ahead_size if self.prefetch is None else self.prefetch
            if prefetch:
                count = max(1, min(count, prefetch // 2))
            jobs = self.maker.jobs(self._row, count=count)
            self._ahead = (
                Prefetch(jobs, -(-prefetch // count)) if prefetch else chain.from_iterable(jobs)
            )
        return next(self._ahead)

    def batch_at(self, step: int) -> B:
        """The batch of any step, if all steps from row 0 on have this loader's global batch."""
        return self.batch_from(operator.index(step) * self.global_batch)

    def batch_from(self, row: int) -> B:
        """This rank's batch of the step that begins with a row."""
        end = MOST_ROWS if self.limit is None else self.limit
        if self.maker.drop_last:
            end = max(0, end - self.global_batch + 1)
        if not 0 <= row < end:
            there = f"they begin with rows from 0 to {end - 1:,}" if end else "it has none"
            raise IndexError(f"no batch of the run begins with row {row:,}: {there}")
        return cast(B, next(self.maker.finish(self.maker.read_one(row))))

    def ledger(self) -> dict[str, SourceLedger]:
        """What the run has consumed so far of each source, on all ranks together."""
        return make_ledger(self.rows, self._row)

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, and which run it is: small, and fit for JSON."""
        return {"version": VERSION, "row": self._row, **self.rows.identity}

    def load_state_dict(
        self, state: Mapping[str, Any], *, force: bool | Collection[str] = False
    ) -> None:
        """Resume a run. Batch size, ranks, prefetch and the weights of later rows may differ. If the
        rows so far would differ, the state is refused, unless `force` names everything that differs,
        as in `force=["seed"]`, or is True."""
        self._move(check_state(state, self.state_dict(), force=force))

    def close(self) -> None:
        """End the thread; the next batch starts another."""
        ahead, self._ahead, self._made = self._ahead, None, iter(())
        if isinstance(ahead, Prefetch):
            ahead.close()

    def _move(self, row: int) -> None:
        self.close()
        self._row, self._at_end = row, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        fresh: dict[str, Any] = {
            "_ahead": None,
            "_made": iter(()),
            "_buffers": self.maker.buffers(),
        }
        return {**self.__dict__, **fresh}


def make_ledger(rows: Rows, row: int) -> dict[str, SourceLedger]:
    """What the rows before a row are of each source."""
    return {
        name: SourceLedger(rows=count, tokens=count * rows.seq_len, epochs=count / order.windows)
        for (name, count), order in zip(rows.counts(row).items(), rows.orders, strict=True)
    }


def _limit(
    rows: Rows, limit_rows: int | None, limit_tokens: int | None, limit_epochs: float | None
) -> int | None:
    """Where a run ends, in rows."""
    given = [limit for limit in (limit_rows, limit_tokens, limit_epochs) if limit is not None]
    if len(given) > 1:
        raise UsageError("give only one of `limit_rows`, `limit_tokens` and `limit_epochs`.")
    if limit_rows is not None:
        return check_whole("limit_rows", limit_rows, 0)
    if limit_tokens is not None:
        return check_whole("limit_tokens", limit_tokens, 0) // rows.seq_len
    if limit_epochs is None:
        return None
    if not 0 <= limit_epochs < math.inf:
        raise UsageError(f"`limit_epochs` is {limit_epochs}; it must be 0 or a positive number.")
    if rows.mixture is not None:
        raise UsageError(
            "each source of a mixture has its own epochs; use `limit_rows` or `limit_tokens`."
        )
    return round(limit_epochs * rows.orders[0].windows)
