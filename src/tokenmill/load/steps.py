"""Batches and rows by their numbers, for frameworks that ask for them one by one.

Guarantees: a batch or row is what `tokenmill.Loader` gives for that number, whoever asks, in whatever
order and from however many threads. Costs: the order is computed for `BLOCK` rows at once, which
takes three times as long as for one row, and remembered; after that a batch is a gather and a cast.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.load.loader import Loader
from tokenmill.load.maker import Batch, Group
from tokenmill.load.rows import Rows

BLOCK = 4_096
_BLOCKS = 16  # that are remembered: some MB


class NearPlaces:
    """Where rows are, for numbers that are often near each other."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._locate_block = lru_cache(maxsize=_BLOCKS)(self._locate)

    def __reduce__(self) -> tuple[Any, ...]:
        return NearPlaces, (self.rows,)

    def locate(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Where the rows from `first` on are."""
        block, place = divmod(first, BLOCK)
        if place + count > BLOCK:
            return self.rows.locate(np.arange(first, first + count))
        return self._locate_block(block)[place : place + count]

    def _locate(self, block: int) -> npt.NDArray[np.int64]:
        return self.rows.locate(np.arange(block * BLOCK, (block + 1) * BLOCK))


class Steps:
    """The batches of a loader by their steps, in memory of their own.

    >>> from tokenmill.store.tokens import Tokens
    >>> loader = Loader(Tokens.of(range(1_000)), batch_size=2, seq_len=4, seed=1)
    >>> Steps(loader)[0].inputs.tolist()
    [[440, 441, 442, 443], [524, 525, 526, 527]]
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self._places = NearPlaces(loader.rows)

    def __getitem__(self, step: int) -> Batch:
        maker = self.loader.maker
        row = step * maker.global_batch
        end = row + maker.global_batch
        is_short = self.loader.limit is not None and end > self.loader.limit
        if row < 0 or is_short or maker.documents:
            return self.loader.batch_from(row)
        first = row + maker.rank * maker.batch_size
        rows = maker.rows.read(self._places.locate(first, maker.batch_size))
        return next(maker.finish(Group(rows, [first], [end], None)))
