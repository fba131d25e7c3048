"""Classes that the loaders of all frameworks share.

    LoaderAdapter    a loader that converts the batches of a `Loader`
    BatchesByStep    batches by step, for frameworks that request them one by one
    RowPlaces        where rows start, for rows that are requested one by one

Guarantees: batches and rows are the same as from `tokenmill.Loader`, in any order and from any
number of threads.

Costs: the first access to a batch or row computes the order of `BLOCK` rows at once and caches it.
This takes only three times as long as computing the order of one row. After that, making a batch is
one gather and one cast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Generic, Self, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from tokenmill.load.batches import Batch, BatchGroup
from tokenmill.load.loader import Loader, SourceLedger
from tokenmill.load.rows import RunRows

BLOCK = 4_096
_BLOCKS = 16  # in the cache: a few MB

Converted = TypeVar("Converted", covariant=True)


class LoaderAdapter(ABC, Generic[Converted]):
    """A loader that converts each batch of another loader, `arrays`, for a framework."""

    arrays: Loader

    @abstractmethod
    def _convert(self, batch: Batch) -> Converted: ...

    @property
    def row(self) -> int:
        """The cursor: how many rows the run has consumed, on all ranks together."""
        return self.arrays.row

    @property
    def seq_len(self) -> int:
        """The number of input tokens per row."""
        return self.arrays.seq_len

    def __len__(self) -> int:
        return len(self.arrays)

    def __iter__(self) -> Self:
        iter(self.arrays)
        return self

    def __next__(self) -> Converted:
        return self._convert(next(self.arrays))

    def batch_at(self, step: int) -> Converted:
        """Return the batch of any step; see `tokenmill.Loader.batch_at`."""
        return self._convert(self.arrays.batch_at(step))

    def ledger(self) -> dict[str, SourceLedger]:
        """Return how much of each source the run has consumed so far, on all ranks together."""
        return self.arrays.ledger()

    def state_dict(self) -> dict[str, Any]:
        """Return the number of rows consumed, and the settings and data that define their order.

        The state is small, can be stored as JSON, and is the same on all ranks.
        """
        return self.arrays.state_dict()

    def load_state_dict(
        self, state: Mapping[str, Any], *, force: bool | Collection[str] = False
    ) -> None:
        """Resume a run; see `tokenmill.Loader.load_state_dict`."""
        self.arrays.load_state_dict(state, force=force)

    def close(self) -> None:
        """Stop the threads that read ahead; the next batch starts new threads."""
        self.arrays.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RowPlaces:
    """Finds where rows start. Caches the starts of neighbouring rows."""

    def __init__(self, rows: RunRows) -> None:
        self.rows = rows
        self._locate_block = lru_cache(maxsize=_BLOCKS)(self._locate)

    def __reduce__(self) -> tuple[Any, ...]:
        return RowPlaces, (self.rows,)

    def locate(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Return where the rows [first, first + count) start."""
        block, place = divmod(first, BLOCK)
        if place + count > BLOCK:
            return self.rows.locate(np.arange(first, first + count))
        return self._locate_block(block)[place : place + count]

    def _locate(self, block: int) -> npt.NDArray[np.int64]:
        return self.rows.locate(np.arange(block * BLOCK, (block + 1) * BLOCK))


class BatchesByStep:
    """The batches of a loader, by step. Each batch has its own memory.

    >>> from tokenmill.store.tokens import Tokens
    >>> loader = Loader(Tokens.of(range(1_000)), batch_size=2, seq_len=4, seed=1)
    >>> BatchesByStep(loader)[0].inputs.tolist()
    [[440, 441, 442, 443], [524, 525, 526, 527]]
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self._places = RowPlaces(loader.rows)

    def __getitem__(self, step: int) -> Batch:
        loader = self.loader
        row = step * loader.global_batch
        end = row + loader.global_batch
        is_short = loader.limit is not None and end > loader.limit
        if row < 0 or is_short or loader.settings.documents:
            return loader.batch_from(row)
        first = row + loader.rank * loader.batch_size
        rows = loader.rows.read(self._places.locate(first, loader.batch_size))
        return next(loader.reader.finish(BatchGroup(rows, [first], [end], None)))


def check_index(index: SupportsIndex, length: int, what: str) -> int:
    """Check an index, and return it counted from 0. A negative index counts from the end.

    >>> check_index(-1, 10, "rows")
    9
    """
    place = index.__index__()
    if not -length <= place < length:
        raise IndexError(f"{what} go from 0 to {length - 1:,}, got {place:,}")
    return place % length
