"""Copy rows out of any number of mapped arrays in one go.

NumPy copies rows of one array in native code, but rows that lie in many shards or in several sources
would be a loop. All maps of a process lie in its one memory, so rows are found by their addresses,
and all memory from the first of them on is seen as one array of overlapping rows. Whoever gives
addresses has checked that each row lies inside an array, and holds these arrays: nothing else of
that memory is ever touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

_LONG = 1 << 18  # bytes that take longer to copy than threads take to wake each other


def find_address(array: npt.NDArray[Any]) -> int:
    """Where an array begins in memory."""
    return int(array.__array_interface__["data"][0])


class RowsInMemory:
    """The `length` ids from each address on, one row each; they are inside the arrays `held`.

    Called with two numbers, it copies the rows from the first to before the second.

    >>> first, second = np.arange(5), np.arange(50, 55)
    >>> addresses = np.array([find_address(second), find_address(first) + 8, find_address(first)])
    >>> RowsInMemory(addresses, 3, first.dtype, [first, second])(0, 2)
    array([[50, 51, 52],
           [ 1,  2,  3]])
    """

    def __init__(
        self,
        addresses: npt.NDArray[np.int64],
        length: int,
        dtype: np.dtype[Any],
        held: Sequence[npt.NDArray[Any]],
    ) -> None:
        self._length, self._dtype, self._held = length, dtype, held
        self._lowest = int(addresses.min())
        self._places = addresses - self._lowest
        self._bytes = int(self._places.max()) + length * dtype.itemsize

    def __call__(self, first: int, last: int) -> npt.NDArray[Any]:
        places, size = self._places[first:last], self._length * self._dtype.itemsize
        rows = len(places)
        if not rows:
            return np.empty((0, self._length), self._dtype)
        pieces = _count_pieces(rows, size)
        if pieces > 1:
            size //= pieces
            places = np.add.outer(places, np.arange(pieces) * size).ravel()
        memory = np.asarray(_Memory(self._lowest, self._bytes - size + 1, size, self._held))
        # Each row is one element: copying it costs less than a row of a second dimension does.
        copied = memory[places]
        return copied.view(np.uint8).view(self._dtype).reshape(rows, self._length)


@lru_cache(maxsize=64)
def _count_pieces(rows: int, size: int) -> int:
    """Of how many elements each row of some bytes is best made: one, unless the rows are few and long.

    NumPy lets other threads run while it copies more than 500 elements, and not while it copies fewer.

    >>> _count_pieces(2_048, 4_098), _count_pieces(256, 32_772), _count_pieces(4, 2_050)
    (1, 2, 1)
    """
    least = -(-501 // rows)
    if least == 1 or rows * size < _LONG:
        return 1
    return next((n for n in range(least, 16 * least) if size % n == 0), 1)


class _Memory:
    """Rows of some bytes, one from each byte on, for NumPy, which keeps this and so what is held."""

    def __init__(
        self, address: int, count: int, size: int, held: Sequence[npt.NDArray[Any]]
    ) -> None:
        self.held = held
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),
            "shape": (count,),
            "strides": (1,),
            "typestr": f"|V{size}",
        }
