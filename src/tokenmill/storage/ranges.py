"""Fetch ranges of remote files into a cache, before they are read.

Guarantees: a range may start or end inside a piece (`PIECE` bytes of a file); the rest of that
piece is not fetched. Pieces at either end of a range that are already in the cache are not fetched
again. Ranges are fetched in their order, several at once. If another process is fetching a range,
this one waits, and fetches the range itself only if the other process fails.

Requests start one after another. If they started all at once, they would also end at the same time,
and the network would then be idle until the next answers arrive: 15% of the time at 60 MB/s.

Some bytes are needed before their range is in the cache. `copy_ranges` fetches these bytes alone
and does not store them, so they are fetched twice. `Budget` limits how many bytes these are.

Costs: memory for the running requests, of at most `2 * LONGEST` bytes each.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import pairwise

from tokenmill.storage.cache import PIECE, PieceCache, make_piece_key
from tokenmill.storage.pieces import LONGEST, REQUESTS, SMALL_REQUESTS, RemoteFile, make_pool

_SMALL = 1 << 16  # bytes of a small request, at most
_INTERVAL = 0.03  # seconds between two answers, before the first measurement
_SHARE, _FREE = 0.02, 1 << 20  # may be fetched twice: this share of all ranges, plus these bytes
_LONGEST_WAIT = 2.0  # seconds to wait for a range if the budget is used up
_LOOK = 0.02  # seconds between looks at the cache
_PAUSE = 0.005  # seconds between checks for a range that another process fetches
_PATIENCE = 120.0  # seconds to wait for another process

Range = tuple[RemoteFile, int, int]  # a file, and where bytes start and end in it


class RangeFetcher:
    """Fetches ranges in the background. Not thread-safe: each thread needs its own."""

    def __init__(self, cache: PieceCache, budget: Budget) -> None:
        self._cache, self._budget = cache, budget
        self._interval, self._last_take, self._last_start = _INTERVAL, time.monotonic(), 0.0
        self._running: dict[Future[bool], Range] = {}
        self._left: list[Range] = []  # ranges that other processes are fetching

    def start(self, wanted: Sequence[Range], is_stopped: Callable[[], bool]) -> None:
        """Start to fetch ranges. Returns when all have started, or once `is_stopped` returns True."""
        parts = [part for whole in wanted for part in _cut(*whole)]
        is_small = all(stop - start <= _SMALL for _, start, stop in parts)
        most = SMALL_REQUESTS if is_small else REQUESTS
        for part in parts:
            while len(self._running) >= most:
                self._take(wait(self._running, return_when=FIRST_COMPLETED).done)
            early = self._last_start + self._interval / 2 - time.monotonic()
            if early > 0 and not is_small:
                time.sleep(early)
            if is_stopped():
                self.cancel()
                return
            self._submit(part)

    def finish(self, is_stopped: Callable[[], bool]) -> None:
        """Wait until all ranges are in the cache, or until `is_stopped` returns True."""
        deadline = time.monotonic() + _PATIENCE
        while self._running or self._left:
            while self._running:
                self._take(wait(self._running, return_when=FIRST_COMPLETED).done)
            if is_stopped():
                return
            if self._left:
                time.sleep(_PAUSE)
                left, self._left = self._left[:REQUESTS], self._left[REQUESTS:]
                for one in left:
                    self._submit(one, is_late=time.monotonic() > deadline)

    def cancel(self) -> None:
        """Forget all ranges. Requests that are already running continue in the background."""
        for future in self._running:
            future.cancel()
        self._running.clear()
        self._left.clear()

    def _submit(self, one: Range, *, is_late: bool = False) -> None:
        self._last_start = time.monotonic()
        future = make_pool(os.getpid()).submit(_fetch, self._cache, *one, is_late=is_late)
        self._running[future] = one

    def _take(self, done: set[Future[bool]]) -> None:
        now = time.monotonic()
        for future in done:
            one = self._running.pop(future)
            self._interval += 0.1 * ((now - self._last_take) / len(done) - self._interval)
            self._budget.earn(one[2] - one[1])
            if not future.result():
                self._left.append(one)
        self._last_take = now


class Budget:
    """How many bytes may be fetched twice: once alone, to have them now, and once in their range.

    About 2% of all ranges so far, plus 1 MB. There is no lock.
    """

    def __init__(self) -> None:
        self._left = float(_FREE)

    def earn(self, count: int) -> None:
        """Increase the budget after `count` bytes of ranges were fetched."""
        self._left += _SHARE * count

    def spend(self, count: int) -> bool:
        """Take `count` bytes from the budget. Returns False if not enough are left."""
        if self._left < count:
            return False
        self._left -= count
        return True


def copy_ranges(
    cache: PieceCache, wanted: Sequence[tuple[Range, memoryview]], budget: Budget
) -> Iterator[None]:
    """Copy the bytes of ranges to memory, from the cache or else from their files.

    Use this for a few bytes that are needed now, while a `RangeFetcher` is fetching a larger range
    around them. Fetched bytes are not stored in the cache. If the budget is used up, waits for the
    larger range, but at most two seconds. Yields None after each range, so that a caller can stop.
    """
    pool = make_pool(os.getpid())
    running: set[Future[None]] = set()
    try:
        for one, target in wanted:
            while len(running) >= SMALL_REQUESTS:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
            running.add(pool.submit(_copy, cache, *one, target, budget))
        for future in running:
            yield future.result()
    finally:
        for future in running:
            future.cancel()


def _copy(
    cache: PieceCache,
    file: RemoteFile,
    start: int,
    stop: int,
    target: memoryview,
    budget: Budget,
) -> None:
    deadline = time.monotonic() + _LONGEST_WAIT
    while not _copy_cached(cache, file, start, stop, target):
        if budget.spend(stop - start) or time.monotonic() > deadline:
            target[:] = file.fetch(start, stop)
            return
        time.sleep(_LOOK)


def _copy_cached(
    cache: PieceCache, file: RemoteFile, start: int, stop: int, target: memoryview
) -> bool:
    place = 0
    for part in file.find_parts(start, stop):
        size = part.last - part.first
        if not cache.copy(file.key(part.number), part.first, target[place : place + size]):
            return False
        place += size
    return True


def _fetch(cache: PieceCache, file: RemoteFile, start: int, stop: int, *, is_late: bool) -> bool:
    """Fetch the bytes of [start, stop) that are missing from the cache.

    Returns False if another thread or process is fetching them. `is_late` fetches them anyway.
    """
    with cache.claim(make_piece_key(f"{file.identity}\n{start}", stop)) as is_claimed:
        missing = [
            part
            for part in file.find_parts(start, stop)
            if not cache.covers(file.key(part.number), part.first, part.last)
        ]
        if not missing:
            return True
        if not (is_claimed or is_late):
            return False
        begin = missing[0].number * PIECE + missing[0].first
        end = missing[-1].number * PIECE + missing[-1].last
        data = memoryview(file.fetch(begin, end))
        assert len(data) == end - begin
        for part in file.find_parts(begin, end):
            place = part.number * PIECE + part.first - begin
            some = data[place : place + part.last - part.first]
            first, last = file.find_bytes(part.number, part.number + 1)
            cache.put_part(file.key(part.number), some, part.first, last - first)
    return True


def _cut(file: RemoteFile, start: int, stop: int) -> list[Range]:
    """Cut a range into requests of equal size, of at most `2 * LONGEST` bytes."""
    count = max(1, -(-(stop - start) // (2 * LONGEST)))
    cuts = [start + (stop - start) * number // count for number in range(count + 1)]
    return [(file, first, last) for first, last in pairwise(cuts)]
