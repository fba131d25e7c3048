"""Decoded frames of compressed shards, kept for the next rows. One cache serves the whole process.

Frames that were decoded together share memory and are dropped together, the least recently used
first, so that the cache holds at most `CACHE_BYTES`. A fork starts with an empty cache.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import NamedTuple

CACHE_BYTES = 64 << 20


class Decoded(NamedTuple):
    """Frames that were decoded together: their numbers, and the memory of their contents."""

    owner: int
    numbers: list[int]
    memory: list[object]
    bytes: int


Place = tuple[int, Decoded]  # the memory address of a frame's content, and what keeps it alive


class FrameCache:
    """Where decoded frames are in memory. The numbers of frames are those of their `owner`.

    >>> cache = FrameCache(100)
    >>> cache.add(Decoded(1, [5, 6], [], 60), [1000, 1030])
    >>> [place and place[0] for place in cache.find(1, [6, 7])], cache.find(2, [6])
    ([1030, None], [None])
    >>> cache.add(Decoded(2, [6], [], 60), [2000])
    >>> cache.find(1, [6])
    [None]
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Forget everything. In a fork, a thread that does not exist may hold the lock."""
        self._lock = threading.Lock()
        self._places: dict[int, dict[int, Place]] = {}
        self._by_use: OrderedDict[int, Decoded] = OrderedDict()
        self.bytes = 0

    def find(self, owner: int, numbers: list[int]) -> list[Place | None]:
        """The places of frames; None for those that are not in the cache."""
        with self._lock:
            places = self._places.get(owner)
            if places is None:
                return [None] * len(numbers)
            found = [places.get(number) for number in numbers]
            for used in {id(place[1]) for place in found if place is not None}:
                if used in self._by_use:
                    self._by_use.move_to_end(used)
            return found

    def add(self, decoded: Decoded, addresses: list[int]) -> None:
        """Add frames that were just decoded, and drop those that were not used for longest."""
        with self._lock:
            places = self._places.setdefault(decoded.owner, {})
            for number, address in zip(decoded.numbers, addresses, strict=True):
                places[number] = address, decoded
            self._by_use[id(decoded)] = decoded
            self.bytes += decoded.bytes
            while self.bytes > self._most:
                self._drop(self._by_use.popitem(last=False)[1])

    def _drop(self, oldest: Decoded) -> None:
        self.bytes -= oldest.bytes
        places = self._places.get(oldest.owner, {})
        for number in oldest.numbers:
            if (place := places.get(number)) is not None and place[1] is oldest:
                del places[number]  # unless another thread decoded the frame again
        if not places:
            self._places.pop(oldest.owner, None)


CACHE = FrameCache(CACHE_BYTES)
