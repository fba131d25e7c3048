"""The order of one source's rows: from a row's number to its first token.

Guarantees: the start of a row depends only on the fields of `RowOrder` and the row's number. All
kinds of order but `random` visit every window once per epoch, for any number of windows and any
size of blocks. Each epoch, seed and name has its own shuffled order. Rows never end: one epoch
follows another, and row 10**15 costs as much as row 0. All kinds but `random` can be inverted: the row
that visits a window in an epoch is computed, and costs as much as the window of a row.

A window is a range of `seq_len + 1` tokens; one starts every `seq_len` tokens. So the last token of
a window is also the first of the next: the last target of one row and the first input of another.

Costs, in calls for many thousands of rows: 15 to 30 ns a shuffled row, 100 ns a row in blocks, and
less than 10 ns a sequential or random row. A call for a few shuffled rows takes 0.1 to 0.3 ms, so ask
for many rows at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError
from tokenmill.order.blocks import BlockShuffle, choose_blocks
from tokenmill.order.permutation import (
    LARGEST_SIZE,
    Places,
    derive_keys,
    make_key,
    permute,
    unpermute,
)

Kind = Literal["shuffled", "blocks", "sequential", "random"]

_MANY = 4_096  # with at least this many rows per epoch, one call per epoch is faster


@dataclass(frozen=True, kw_only=True)
class RowOrder:
    """The order of the rows of one source.

    >>> order = RowOrder(tokens=1_000, seq_len=100, seed=1, name="web")
    >>> order.windows
    9
    >>> order.starts(np.arange(9)).tolist()
    [400, 700, 100, 200, 300, 800, 600, 500, 0]

    Parameters
    ----------
    tokens
        The length of the source.
    seq_len
        The number of inputs of a row; the row has one token more.
    seed
        Seed of the order.
    name
        The name of the source; sources with different names have different orders.
    kind
        shuffled (each window once per epoch), blocks (the same, but in blocks of neighbours: see
        `BlockShuffle`), sequential, or random (any start, with replacement).
    block_rows, group_blocks
        For `blocks`: the windows of a block, and the blocks whose rows are shuffled together. By
        default, a block has about `BLOCK_TOKENS` tokens, and a group has `GROUP_BLOCKS` blocks.
    """

    tokens: int
    seq_len: int
    seed: int = 0
    name: str = ""
    kind: Kind = "shuffled"
    block_rows: int | None = None
    group_blocks: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UsageError(
                f"`order` is {self.kind!r}; it must be one of {', '.join(get_args(Kind))}."
            )
        if self.seq_len < 1:
            raise UsageError(f"`seq_len` is {self.seq_len}; it must be at least 1.")
        source = f"source {self.name!r}" if self.name else "the source"
        if self.tokens <= self.seq_len:
            raise UsageError(
                f"{source} has {self.tokens:,} tokens, too few for one row of `seq_len` + 1 = "
                f"{self.seq_len + 1:,}. Use "
                + (f"a `seq_len` of at most {self.tokens - 1:,}, or " if self.tokens > 1 else "")
                + "more data."
            )
        if self.tokens > LARGEST_SIZE:
            raise UsageError(f"{source} has {self.tokens:,} tokens; at most 2**62 can be ordered.")
        sizes = choose_blocks(self.kind, self.seq_len, self.block_rows, self.group_blocks)
        for name, size in zip(("block_rows", "group_blocks"), sizes, strict=True):
            object.__setattr__(self, name, size)

    @property
    def windows(self) -> int:
        """The number of rows in an epoch, one for each window."""
        return (self.tokens - 1) // self.seq_len

    def starts(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the position of each row's first token. `rows` may have any order and shape."""
        rows = check_rows(rows)
        flat = rows.ravel()
        starts = self._draw(flat) if self.kind == "random" else self._visit(flat) * self.seq_len
        return starts.reshape(rows.shape)

    def find_windows(self, start: int, stop: int) -> range:
        """Return the windows that hold one of the tokens [start, stop).

        A token is in one window, or in two if it is the last of one and the first of the next. The
        last few tokens of a source may be in no window.

        >>> RowOrder(tokens=1_000, seq_len=100).find_windows(100, 101)
        range(0, 2)
        """
        if start >= stop:
            return range(0)
        first = max(0, -(-start // self.seq_len) - 1)
        return range(first, max(first, min(self.windows, (stop - 1) // self.seq_len + 1)))

    def rows_of(self, windows: Places, epochs: Places) -> Places:
        """Return the row that visits each window in each epoch: the inverse of `starts`.

        Both arrays are 1-D and have the same length. The order `random` has no inverse.

        >>> order = RowOrder(tokens=1_000, seq_len=100, seed=1, name="web")
        >>> order.rows_of(np.array([4, 7, 4]), np.array([0, 0, 1])).tolist()
        [0, 1, 16]
        >>> order.starts(np.array([16])).tolist()
        [400]
        """
        if self.kind == "random":
            raise UsageError("the order 'random' has no inverse: it may visit a place repeatedly.")
        if not len(windows):
            return np.empty(0, np.int64)
        firsts = epochs * self.windows
        if self.kind == "sequential":
            return firsts + windows
        keys = derive_keys(self._key, epochs[:1] if (epochs == epochs[0]).all() else epochs)
        if self.block_rows is None or self.group_blocks is None:
            return firsts + unpermute(windows, self.windows, keys)
        shuffle = BlockShuffle(self.windows, self.block_rows, self.group_blocks)
        return firsts + shuffle.invert(windows, keys)

    @cached_property
    def _key(self) -> int:
        return make_key("rows", self.kind, self.seed, self.name)

    def _draw(self, rows: Places) -> Places:
        numbers = derive_keys(self._key, rows)
        return (numbers % np.uint64(self.tokens - self.seq_len)).view(np.int64)

    def _visit(self, rows: Places) -> Places:
        """Return the number of each row's window, a range of `seq_len + 1` tokens."""
        if not len(rows):
            return rows
        first, last = (int(row) // self.windows for row in (rows.min(), rows.max()))
        if first < last <= first + len(rows) // _MANY:
            # One epoch at a time, because one key for all rows is faster than one for each.
            if (rows[1:] < rows[:-1]).any():
                order, found = rows.argsort(), np.empty_like(rows)
                found[order] = self._visit(rows[order])
                return found
            cuts = rows.searchsorted(np.arange(first + 1, last + 1) * self.windows)
            return np.concatenate([self._visit(epoch) for epoch in np.split(rows, cuts)])
        numbers = rows // self.windows if first < last else first
        places = rows - numbers * self.windows
        if self.kind == "sequential":
            return places
        keys = derive_keys(self._key, numbers)
        if self.block_rows is None or self.group_blocks is None:
            return permute(places, self.windows, keys)
        return BlockShuffle(self.windows, self.block_rows, self.group_blocks)(places, keys)


def check_rows(rows: npt.NDArray[np.int64]) -> Places:
    """Return row numbers as an array. Raises `UsageError` if one is negative.

    >>> check_rows(np.array([4, -1]))
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: row -1 does not exist: rows count from 0.
    """
    rows = np.asarray(rows, np.int64)
    if rows.size and rows.min() < 0:
        raise UsageError(f"row {rows.min()} does not exist: rows count from 0.")
    return rows
