"""A cache of decoded frames of compressed shards. The whole process shares one cache.

Frames that were decoded together share memory and are dropped together. If the cache would exceed
`CACHE_BYTES`, the least recently used frames are dropped. A forked process starts with an empty
cache.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import NamedTuple

CACHE_BYTES = 64 << 20


class Decoded(NamedTuple):
    """Frames that were decoded together: their numbers, and the memory with their contents."""

    owner: int
    numbers: list[int]
    memory: list[object]
    bytes: int


Place = tuple[int, Decoded]  # the memory address of a frame's content, and what keeps it alive


class FrameCache:
    """Finds decoded frames in memory. Each `owner`, such as a split, numbers its own frames.

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
        """Forget all frames, and make a new lock: a fork may inherit the old one locked."""
        self._lock = threading.Lock()
        self._places: dict[int, dict[int, Place]] = {}
        self._by_use: OrderedDict[int, Decoded] = OrderedDict()
        self.bytes = 0

    def find(self, owner: int, numbers: list[int]) -> list[Place | None]:
        """Return the memory address of each frame, and its `Decoded`; None if it is not cached."""
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
        """Add frames that were just decoded. If the cache is full, drop the least recently used ones."""
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
