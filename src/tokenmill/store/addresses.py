"""Copy rows out of any number of mapped arrays in one go.

NumPy copies rows of one array in native code, but rows that lie in many shards or in several sources
would be a loop. All maps of a process lie in its one memory, so rows are found by their addresses,
and all memory from the first of them on is seen as one array of overlapping rows. Whoever gives
addresses has checked that each row lies inside an array, and holds these arrays: nothing else of
that memory is ever touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["copy_rows", "find_address"]


def find_address(array: npt.NDArray[Any]) -> int:
    """Where an array begins in memory."""
    return int(array.__array_interface__["data"][0])


def copy_rows(
    addresses: npt.NDArray[np.int64],
    length: int,
    dtype: np.dtype[Any],
    held: Sequence[npt.NDArray[Any]],
) -> npt.NDArray[Any]:
    """The `length` ids from each address on, (rows, length); they are inside the arrays `held`.

    >>> first, second = np.arange(5), np.arange(50, 55)
    >>> addresses = np.array([find_address(second), find_address(first) + 8])
    >>> copy_rows(addresses, 3, first.dtype, [first, second])
    array([[50, 51, 52],
           [ 1,  2,  3]])
    """
    if not len(addresses):
        return np.empty((0, length), dtype)
    lowest, highest = int(addresses.min()), int(addresses.max())
    memory = np.asarray(_Memory(lowest, highest - lowest + 1, length * dtype.itemsize, held))
    # Each row is one element: copying it costs less than a row of a second dimension does.
    return memory[addresses - lowest].view(dtype).reshape(len(addresses), length)


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
