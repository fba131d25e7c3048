"""A keyed shuffle of [0, size) that is computed, not stored.

Guarantees: for every size from 1 to 2**62 and every key, no two places map to the same place. The
result depends only on (size, key, place) and will not change: docs/order.md specifies it to the bit,
and golden values pin it. Different keys, even neighbouring ones, give unrelated orders.

The shuffle is a Feistel network on the smallest grid of about sqrt(size) by sqrt(size) cells that
holds all places. Each round rotates every row, or every column, by a hash of the key and the number
of that row or column. Every round can be undone, so the whole sequence is a bijection. The grid may
have slightly more cells than there are places. A place that lands on an extra cell goes through all
rounds again, until it lands on a cell that is not extra. The inverse undoes the rounds, last round
first, and leaves extra cells in the same way.

Costs: memory for the result and 1 MB of work space. A call with many thousands of places takes
about 25 ns per place, and a call with a few places takes 0.1 ms. With tables of rotations, a place
takes about 15 ns. Tables are made if a call has one key and at least as many places as the grid has
rows, and the grid has at most 16,384 rows. The tables of a key take at most 5 MB; the tables of the
last 16 keys are cached. The inverse uses no tables. A `size` below 4,096 needs twice as many rounds, and a `size` below 64
needs four times as many. docs/order.md has the measurements.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.errors import UsageError

Places = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

LARGEST_SIZE = 2**62
# Each pair of rounds brings the order closer to a uniform one by a factor of the grid's shorter
# side, so small grids need more rounds.
ROUNDS = ((64, 32), (4_096, 16), (LARGEST_SIZE + 1, 8))  # (limit, rounds for sizes below it)

_WEYL = 0x9E3779B97F4A7C15
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
_LARGEST_TABLE = 16_384  # most rows of a grid with tables; the tables of a key then take 4.5 MB
_CHUNK = 32_768  # places processed at a time, so that the work space stays in the cache


class Permutation:
    """A bijection on [0, size) that a 64-bit key chooses.

    >>> shuffle = Permutation(10, key=7)
    >>> shuffle(np.arange(10)).tolist()
    [3, 5, 0, 9, 6, 1, 2, 8, 7, 4]
    """

    def __init__(self, size: int, key: int) -> None:
        if not 1 <= size <= LARGEST_SIZE:
            raise UsageError(f"`size` is {size:,}; a permutation has from 1 to 2**62 places.")
        if not 0 <= key < 2**64:
            raise UsageError(f"key is {key}; it must be from 0 to 2**64 - 1. See make_key.")
        self.size = size
        self.key = key

    def __repr__(self) -> str:
        return f"Permutation({self.size}, key={self.key:#018x})"

    def __call__(self, places: Places) -> Places:
        places = self._check(places)
        return permute(places.ravel(), self.size, _as_keys(self.key)).reshape(places.shape)

    def invert(self, places: Places) -> Places:
        """Return the places that map to these places.

        >>> shuffle = Permutation(10, key=7)
        >>> shuffle.invert(shuffle(np.arange(10))).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        """
        places = self._check(places)
        return unpermute(places.ravel(), self.size, _as_keys(self.key)).reshape(places.shape)

    def _check(self, places: Places) -> Places:
        places = np.asarray(places, np.int64)
        if places.size and not 0 <= places.min() <= places.max() < self.size:
            outside = places[(places < 0) | (places >= self.size)].flat[0]
            raise UsageError(f"place {outside} is not between 0 and {self.size - 1:,}.")
        return places


def make_key(*parts: int | str) -> int:
    """Return a 64-bit key for some values. The key depends on the values' order and types.

    >>> hex(make_key("rows", 1, "web"))
    '0x48a1d5b5b6542f45'
    >>> make_key(1, 23) == make_key(12, 3)
    False
    """
    encoded = bytearray()
    for part in parts:
        if isinstance(part, str):
            kind, content = b"s", part.encode("utf-8", "surrogatepass")
        else:
            kind, content = b"i", str(operator.index(part)).encode()
        encoded += kind + len(content).to_bytes(8, "little") + content
    return xxhash.xxh3_64_intdigest(bytes(encoded))


def derive_keys(keys: Keys | int, numbers: Places | int) -> Keys:
    """Return a new key for each key and number, such as the number of an epoch or block.

    Different numbers give different keys. Each argument may be a single value or an array; the
    result is always an array.

    >>> derive_keys(make_key("rows", 1, "web"), np.arange(2)).tolist()
    [6903143637703399420, 17818133443133240145]
    """
    multiples = (np.atleast_1d(numbers).astype(np.uint64) + np.uint64(1)) * np.uint64(_WEYL)
    return _mix(multiples + (_as_keys(keys) if isinstance(keys, int) else keys))


def permute(places: Places, size: int, keys: Keys) -> Places:
    """Return the new place of each place in [0, size). `keys` has one key for all, or one for each.

    >>> permute(np.array([3, 3]), 10, np.array([7, 8], np.uint64)).tolist()
    [9, 4]
    """
    return _walk(places, size, keys, _run_rounds)


def unpermute(places: Places, size: int, keys: Keys) -> Places:
    """Return the places that `permute` maps to `places`: its inverse.

    >>> unpermute(np.array([9, 4]), 10, np.array([7, 8], np.uint64)).tolist()
    [3, 3]
    """
    return _walk(places, size, keys, _undo_rounds)


def _walk(places: Places, size: int, keys: Keys, run: Callable[[Keys, int, Keys], None]) -> Places:
    """Run all rounds on each place, and again on those that land outside of [0, size)."""
    values = places.astype(np.uint64)
    keys = _mix(keys.copy())
    run(values, size, keys)
    outside = np.flatnonzero(values >= np.uint64(size))
    while len(outside):
        walking = values[outside]
        run(walking, size, pick_keys(keys, outside))
        values[outside] = walking
        outside = outside[walking >= np.uint64(size)]
    return values.view(np.int64)


def pick_keys(keys: Keys, chosen: npt.NDArray[np.intp]) -> Keys:
    """Return the key of each chosen place. If there is a single key, all places share it."""
    return keys if len(keys) == 1 else keys[chosen]


def _as_keys(key: int) -> Keys:
    return np.array([key], np.uint64)


def _mix(values: Keys) -> Keys:
    """Scramble numbers in place, one to one: the finalizer of SplitMix64."""
    values ^= values >> np.uint64(30)
    values *= _FIRST
    values ^= values >> np.uint64(27)
    values *= _SECOND
    values ^= values >> np.uint64(31)
    return values


def _run_rounds(values: Keys, size: int, keys: Keys) -> None:
    """Replace each value by its cell after all rounds of the shuffle, a chunk at a time.

    The grid may have slightly more than `size` cells, so a result may be `size` or more.
    """
    height, width, rounds = _choose_grid(size)
    tables = None
    if len(keys) == 1 and height <= _LARGEST_TABLE and height <= len(values):
        tables = _make_tables(height, width, rounds, int(keys[0]))
    for chunk, chunk_keys, row, column, spare in _cut_chunks(values, keys):
        np.floor_divide(chunk, np.uint64(width), out=row)
        np.multiply(row, np.uint64(width), out=column)
        np.subtract(chunk, column, out=column)
        if tables is not None:
            _rotate_by_tables(row, column, tables, spare[0])
        else:
            _rotate_by_keys(row, column, (height, width), rounds, chunk_keys.copy(), spare)
        np.add(row, column, out=chunk)


def _undo_rounds(values: Keys, size: int, keys: Keys) -> None:
    """Undo `_run_rounds`: replace each cell after all rounds by the cell before them."""
    height, width, rounds = _choose_grid(size)
    sides = height, width
    for chunk, chunk_keys, row, column, spare in _cut_chunks(values, keys):
        np.floor_divide(chunk, np.uint64(width), out=row)
        np.multiply(row, np.uint64(width), out=column)
        np.subtract(chunk, column, out=column)
        amounts, more = spare
        for number in reversed(range(rounds)):
            rotated, fixed = (column, row) if number % 2 else (row, column)
            side = np.uint64(sides[number % 2])
            round_keys = chunk_keys + np.uint64(number * _WEYL % 2**64)
            _find_amounts(fixed, round_keys, int(side), amounts, more)
            # The difference modulo the side. If it is negative, it wraps around to a huge number,
            # and adding the side makes it small again: the smaller of the two is the remainder.
            np.subtract(rotated, amounts, out=rotated)
            np.add(rotated, side, out=amounts)
            np.minimum(rotated, amounts, out=rotated)
        np.multiply(row, np.uint64(width), out=row)
        np.add(row, column, out=chunk)


def _choose_grid(size: int) -> tuple[int, int, int]:
    """Return the height and width of the grid for a size, and the number of rounds."""
    height = math.isqrt(size - 1) + 1
    height += height % 2  # if both sides were odd, only even permutations would be possible
    rounds = next(rounds for below, rounds in ROUNDS if size < below)
    return height, -(-size // height), rounds


def _cut_chunks(values: Keys, keys: Keys) -> Iterator[tuple[Keys, Keys, Keys, Keys, list[Keys]]]:
    """Yield chunks of values, with their keys and four arrays of work space of the same length."""
    work = np.empty((4, min(_CHUNK, len(values))), np.uint64)
    for start in range(0, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK]
        row, column, *spare = work[:, : len(chunk)]
        yield chunk, keys if len(keys) == 1 else keys[start : start + _CHUNK], row, column, spare


def _rotate_by_keys(
    row: Keys, column: Keys, sides: tuple[int, int], rounds: int, keys: Keys, spare: list[Keys]
) -> None:
    """Run all rounds of the shuffle on some cells of the grid, in place.

    `row` and `column` are the cells' coordinates, and `sides` are the height and width of the grid.
    `keys` is incremented in each round. At the end, `row` holds the number of the first cell in the
    row, instead of the row's own number.
    """
    amounts, more = spare
    rotated, fixed = row, column
    for number in range(rounds):
        side = sides[number % 2]
        _find_amounts(fixed, keys, side, amounts, more)
        keys += np.uint64(_WEYL)
        np.add(rotated, amounts, out=rotated)
        # Take the sum modulo the side. If the sum is below the side, subtracting the side wraps
        # around to a huge number, so the smaller of the two is the remainder.
        np.subtract(rotated, np.uint64(side), out=amounts)
        np.minimum(rotated, amounts, out=rotated)
        rotated, fixed = fixed, rotated
    np.multiply(row, np.uint64(sides[1]), out=row)


def _find_amounts(fixed: Keys, keys: Keys, side: int, amounts: Keys, spare: Keys) -> None:
    """Compute into `amounts` how far each cell moves in one round of the shuffle.

    The results are below `side`. They depend on `keys` and on `fixed`, the coordinate of each cell
    that does not change in the round.
    """
    np.bitwise_xor(fixed, keys, out=amounts)
    np.multiply(amounts, _FIRST, out=amounts)
    np.right_shift(amounts, _HALF, out=spare)
    np.bitwise_xor(amounts, spare, out=amounts)
    np.multiply(amounts, _SECOND, out=amounts)
    # The upper 32 bits, as a fraction of 2**32, times the side.
    np.right_shift(amounts, _HALF, out=amounts)
    np.multiply(amounts, np.uint64(side), out=amounts)
    np.right_shift(amounts, _HALF, out=amounts)


class _Tables(NamedTuple):
    """Lookup tables for all rounds of the shuffle, which rotate rows and columns of a grid.

    In each round, one coordinate stays fixed and the other rotates. The round's table in `rounds`
    maps the fixed coordinate to how far the other rotates. After the last round, `row` maps the
    first coordinate to the first cell of its row, and `column` maps the second coordinate to its
    column.

    To save operations, coordinates are not reduced modulo their side after each round. They grow, so
    each table repeats its entries as often as needed for the largest coordinate in that round.
    """

    rounds: list[Keys]
    row: Keys
    column: Keys


@lru_cache(maxsize=16)
def _make_tables(height: int, width: int, rounds: int, key: int) -> _Tables:
    tables = []
    keys = _as_keys(key)
    for number in range(rounds):
        side, other_side = (width, height) if number % 2 else (height, width)
        table, spare = np.arange(other_side, dtype=np.uint64), np.empty(other_side, np.uint64)
        _find_amounts(table, keys, side, table, spare)
        keys += np.uint64(_WEYL)
        tables.append(np.tile(table, (number + 1) // 2 + 1))
    row, column = (
        np.tile(np.arange(side, dtype=np.uint64), rounds // 2 + 1) for side in (height, width)
    )
    return _Tables(tables, row * np.uint64(width), column)


def _rotate_by_tables(row: Keys, column: Keys, tables: _Tables, spare: Keys) -> None:
    """Do the same as `_rotate_by_keys` with lookup tables, in a third of the operations."""
    rotated, fixed = row, column
    for table in tables.rounds:
        _look_up(table, fixed, spare)
        np.add(rotated, spare, out=rotated)
        rotated, fixed = fixed, rotated
    for table, coordinate in ((tables.row, row), (tables.column, column)):
        _look_up(table, coordinate, spare)
        coordinate[:] = spare


def _look_up(table: Keys, places: Keys, out: Keys) -> None:
    # All places are inside the table. "clip" only avoids NumPy's check of the bounds.
    table.take(places.view(np.int64), out=out, mode="clip")
