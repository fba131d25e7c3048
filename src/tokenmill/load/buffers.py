"""Memory for batches, taken again once nobody holds the batch that was in it.

A fresh array of half a megabyte costs several times what filling it costs, because the system
hands out its pages one by one. A buffer that nobody refers to any more is as good as fresh: views
of an array, tensors made of it and arrays that alias it all hold a reference to it, so its count of
references says whether it is free.
"""

from __future__ import annotations

import mmap
import sys
from collections import deque
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Buffers:
    """Arrays of one shape and dtype."""

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike, most: int) -> None:
        self._shape, self._dtype, self._most = shape, np.dtype(dtype), most
        self._arrays: deque[npt.NDArray[Any]] = deque()

    def take(self) -> npt.NDArray[Any]:
        """An array with anything in it, that nobody else refers to."""
        # Taken out while it is looked at: no two threads find the same one free, without a lock,
        # which a fork might find locked. Free ones come first: the fewer are in use, the more stay in
        # the cache.
        for _ in range(len(self._arrays)):
            try:
                array = self._arrays.popleft()
            except IndexError:  # another thread looks at it
                break
            if sys.getrefcount(array) == _FREE:
                self._arrays.appendleft(array)
                return array
            self._arrays.append(array)
            del array
        array = self._make()
        if len(self._arrays) < self._most:
            self._arrays.append(array)
        return array

    def _make(self) -> npt.NDArray[Any]:
        """At the beginning of a page: JAX takes such memory as it is on the CPU, where it would
        otherwise copy it. A fork gets memory of its own."""
        size = int(np.prod(self._shape)) * self._dtype.itemsize
        # Of no other array, so that views refer to this one.
        return np.ndarray(self._shape, self._dtype, mmap.mmap(-1, max(size, 1), _PRIVATE))


@cache
def keep_freed_memory() -> None:
    """Let arrays of some megabytes come and go without the system.

    glibc gives what is freed back to the system, which hands it out again page by page, unless it
    has seen a larger block come and go: then it keeps twice as much as that. It learns from blocks
    below 32 MB, with what it adds to them. Others do nothing.
    """
    np.empty((32 << 20) - 2 * mmap.PAGESIZE, np.uint8)


def _count_free() -> int:
    """The references that a free array is found to have, which Python versions count differently."""
    array = np.empty(1)
    return sys.getrefcount(array)


_FREE = _count_free()
