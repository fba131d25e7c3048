"""The order of one source's rows: from a row's number to its first token.

Guarantees: the start of a row depends only on (tokens, seq_len, seed, name, kind, shuffle_block) and
its number. Shuffled and sequential rows visit every window once per epoch, for any number of windows
and any size of blocks; no two epochs, seeds or names share an order. Rows never end: one epoch follows
another, and row 10**15 costs as much as row 0.

A row is `seq_len + 1` tokens. Its last token is also the first of the next window: the last target
of one row and the first input of the other.

Costs, in calls of many thousands: 15 to 30 ns a shuffled row, 100 ns with `shuffle_block`, and less
than 10 ns a sequential or random row. A call of a few shuffled rows takes 0.1 to 0.3 ms, so ask for
many at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError
from tokenmill.order.permutation import (
    LARGEST_SIZE,
    Keys,
    Places,
    derive_keys,
    make_key,
    permute,
    pick_keys,
)

Kind = Literal["shuffled", "sequential", "random"]

# Arguments of `derive_keys`: the keys that a block shuffle derives from an epoch's key.
_BLOCK_ORDER, _REST_PLACE, _FIRST_BLOCK = 0, 1, 2
_MANY = 4_096  # with at least this many rows of one epoch, a separate call is faster


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
        shuffled (each window once per epoch), sequential, or random (any start, with replacement).
    shuffle_block
        Shuffle blocks of this many neighbouring windows, and the windows in each, so that reads stay
        near each other; None shuffles all windows together.
    """

    tokens: int
    seq_len: int
    seed: int = 0
    name: str = ""
    kind: Kind = "shuffled"
    shuffle_block: int | None = None

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
        if self.shuffle_block is not None and self.shuffle_block < 1:
            raise UsageError(
                f"`shuffle_block` is {self.shuffle_block}; it must be at least 1, or None to shuffle "
                "all windows together."
            )
        if self.shuffle_block is not None and self.kind != "shuffled":
            raise UsageError(
                f"`shuffle_block` is {self.shuffle_block}, but `order` is {self.kind!r}: only a "
                "shuffled order has blocks. Omit `shuffle_block`, or use `order='shuffled'`."
            )

    @property
    def windows(self) -> int:
        """The number of rows in an epoch: windows of `seq_len + 1` tokens, one every `seq_len`."""
        return (self.tokens - 1) // self.seq_len

    def starts(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The first token of each row; rows count from 0, in any order and shape."""
        rows = check_rows(rows)
        flat = rows.ravel()
        starts = self._draw(flat) if self.kind == "random" else self._visit(flat) * self.seq_len
        return starts.reshape(rows.shape)

    @cached_property
    def _key(self) -> int:
        return make_key("rows", self.kind, self.seed, self.name)

    def _draw(self, rows: Places) -> Places:
        numbers = derive_keys(self._key, rows)
        return (numbers % np.uint64(self.tokens - self.seq_len)).view(np.int64)

    def _visit(self, rows: Places) -> Places:
        """The window of each row."""
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
        if self.shuffle_block is None:
            return permute(places, self.windows, keys)
        return _shuffle_blocks(places, self.windows, self.shuffle_block, keys)


def check_rows(rows: npt.NDArray[np.int64]) -> Places:
    """Row numbers as an array; negative ones are refused.

    >>> check_rows(np.array([4, -1]))
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: row -1 does not exist: rows count from 0.
    """
    rows = np.asarray(rows, np.int64)
    if rows.size and rows.min() < 0:
        raise UsageError(f"row {rows.min()} does not exist: rows count from 0.")
    return rows


def _shuffle_blocks(places: Places, windows: int, size: int, keys: Keys) -> Places:
    """The window at each place (n) of an epoch, shuffled block by block with `keys` (1 or n).

    All blocks but the last are full. The full blocks are shuffled. The key decides where the last
    block goes among them.
    """
    full, rest = divmod(windows, size)
    if not rest:
        return _shuffle_full_blocks(places, full, size, keys)
    numbers = derive_keys(keys, _REST_PLACE)
    first = (numbers % np.uint64(full + 1)).view(np.int64) * size
    offsets = places - first
    in_rest = (offsets >= 0) & (offsets < rest)
    chosen = np.flatnonzero(in_rest)
    result = np.empty_like(places)
    rest_keys = derive_keys(pick_keys(keys, chosen), _FIRST_BLOCK + full)
    result[chosen] = full * size + permute(offsets[chosen], rest, rest_keys)
    chosen = np.flatnonzero(~in_rest)
    others = (places - rest * (offsets >= rest))[chosen]
    result[chosen] = _shuffle_full_blocks(others, full, size, pick_keys(keys, chosen))
    return result


def _shuffle_full_blocks(places: Places, full: int, size: int, keys: Keys) -> Places:
    if not len(places):  # there may be no full block
        return places
    positions = places // size
    offsets = places - positions * size
    blocks = permute(positions, full, derive_keys(keys, _BLOCK_ORDER))
    return blocks * size + permute(offsets, size, derive_keys(keys, blocks + _FIRST_BLOCK))
