"""Memory for batches, taken again once nobody holds the batch that was in it.

A fresh array of half a megabyte costs several times what filling it costs, because the system
hands out its pages one by one. A buffer that nobody refers to any more is as good as fresh: views
of an array, tensors made of it and arrays that alias it all hold a reference to it, so its count of
references says whether it is free.
"""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["AlignedBuffers", "Buffers"]


class Buffers:
    """Arrays of one shape and dtype; not for several threads at once."""

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike, most: int) -> None:
        self._shape, self._dtype, self._most = shape, dtype, most
        self._arrays: list[npt.NDArray[Any]] = []

    def take(self) -> npt.NDArray[Any]:
        """An array with anything in it, that nobody else refers to."""
        # The first that is free, because the fewer are in use, the more stay in the cache.
        for number in range(len(self._arrays)):
            if sys.getrefcount(self._arrays[number]) == _FREE:
                return self._arrays[number]
        array = self._make(self._shape, self._dtype)
        if len(self._arrays) < self._most:
            self._arrays.append(array)
        return array

    def _make(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.empty(shape, dtype)


class AlignedBuffers(Buffers):
    """The same, each at the beginning of a page: JAX takes such memory as it is on the CPU, where it
    would otherwise copy it."""

    def _make(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        # Of no other array, so that views refer to this one.
        return np.ndarray(shape, dtype, mmap.mmap(-1, max(size, 1)))


def _count_free() -> int:
    """The references that a free array in a list is found to have, which Python versions count
    differently."""
    arrays, place = [np.empty(1)], 0
    return sys.getrefcount(arrays[place])


_FREE = _count_free()
