"""Read pieces of remote files through a cache, several at once.

Guarantees: a piece that is missing from the cache is fetched once, even if several threads and
processes want it: the others wait until it is in the cache, or until the one that fetches it fails or
dies. At most `REQUESTS` requests of a process run at once, and neighbouring pieces share one.

Costs: memory for the requests that run, of at most `LONGEST` bytes each.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tokenmill.storage.cache import PIECE, PieceCache, make_piece_key

REQUESTS = 16
SMALL_REQUESTS = 64  # of a few kilobytes each
LONGEST = 1 << 20  # bytes of a request
_PAUSE = 0.005  # seconds between looks at a piece that another process fetches
_PATIENCE = 120.0  # seconds to wait for another process


@dataclass(frozen=True)
class RemoteFile:
    """A file whose pieces are cached. `identity` names the file and its version.

    `fetch(start, stop)` returns these bytes of the file.
    """

    identity: str
    size: int
    fetch: Callable[[int, int], bytes]

    def key(self, number: int) -> bytes:
        """The key of a piece."""
        return make_piece_key(self.identity, number)

    def find_bytes(self, first: int, last: int) -> tuple[int, int]:
        """Where the pieces [first, last) start and end in the file."""
        return first * PIECE, min(last * PIECE, self.size)

    def find_parts(self, start: int, stop: int) -> list[Part]:
        """The parts of pieces that the bytes [start, stop) consist of.

        >>> RemoteFile("a", 200_000, lambda start, stop: b"").find_parts(131_000, 131_100)
        [Part(number=0, first=131000, last=131072), Part(number=1, first=0, last=28)]
        """
        return [
            Part(number, max(0, start - number * PIECE), min(PIECE, stop - number * PIECE))
            for number in range(start // PIECE, -(-stop // PIECE))
        ]


class Part(NamedTuple):
    """Some bytes of a piece."""

    number: int  # of the piece
    first: int
    last: int


Piece = tuple[RemoteFile, int]  # a file, and the number of a piece


class Pieces:
    """Pieces of remote files, from a cache or from their files."""

    def __init__(self, cache: PieceCache) -> None:
        self.cache = cache

    def read(self, wanted: Sequence[Piece]) -> Iterator[tuple[int, bytes]]:
        """The bytes of pieces, each with its place in `wanted`, in any order.

        Each should occur once, and neighbours should be next to each other.
        """
        keys = [file.key(number) for file, number in wanted]
        there = [place for place, key in enumerate(keys) if self.cache.has(key)]
        missing = sorted(set(range(len(wanted))).difference(there))
        fetched = self._fetch_runs(wanted, missing)
        found = next(fetched, None)  # starts the requests, and waits for one
        damaged = []
        for place in there:
            data = self.cache.get(keys[place])
            if data is None:
                damaged.append(place)
            else:
                yield place, data
        if found is not None:
            yield from found
        for run in fetched:
            yield from run
        for run in self._fetch_runs(wanted, damaged):
            yield from run

    def fetch(self, wanted: Sequence[Piece], is_stopped: Callable[[], bool]) -> None:
        """Bring pieces into the cache; ends early once `is_stopped` returns True."""
        for _ in self.fetch_each(wanted):
            if is_stopped():
                break

    def fetch_each(self, wanted: Sequence[Piece]) -> Iterator[int]:
        """Bring pieces into the cache; yields the bytes of each request when it is done."""
        keys = (file.key(number) for file, number in wanted)
        missing = [place for place, key in enumerate(keys) if not self.cache.has(key)]
        for run in self._fetch_runs(wanted, missing):
            yield sum(len(data) for _, data in run)

    def _fetch_runs(
        self, wanted: Sequence[Piece], places: Sequence[int]
    ) -> Iterator[list[tuple[int, bytes]]]:
        """Fetch pieces; yields those of each request when it is done."""
        pool = make_pool(os.getpid())
        running: dict[Future[list[bytes]], list[int]] = {}
        try:
            for run in _join_neighbours(wanted, places):
                while len(running) >= REQUESTS:
                    yield from _take_done(running)
                file, first = wanted[run[0]]
                running[pool.submit(self._fetch_run, file, first, len(run))] = run
            while running:
                yield from _take_done(running)
        finally:
            for future in running:
                future.cancel()

    def _fetch_run(self, file: RemoteFile, first: int, count: int) -> list[bytes]:
        """The pieces [first, first + count) of a file, from the file or from whoever fetches them."""
        found: dict[int, bytes] = {}
        waiting = set(range(first, first + count))
        deadline = time.monotonic() + _PATIENCE
        while True:
            found |= self._fetch_claimed(file, sorted(waiting), is_late=time.monotonic() > deadline)
            for number in waiting.difference(found):
                if self.cache.has(file.key(number)):
                    data = self.cache.get(file.key(number))
                    if data is not None:
                        found[number] = data
            waiting.difference_update(found)
            if not waiting:
                return [found[number] for number in range(first, first + count)]
            time.sleep(_PAUSE)

    def _fetch_claimed(
        self, file: RemoteFile, numbers: list[int], *, is_late: bool
    ) -> dict[int, bytes]:
        """Fetch the pieces that nobody else fetches; all of them if the others take too long."""
        found: dict[int, bytes] = {}
        with ExitStack() as stack:
            claimed = []
            for number in numbers:
                key = file.key(number)
                is_claimed = stack.enter_context(self.cache.claim(key))
                if not (is_claimed or is_late):
                    continue
                # Another process may have fetched it just before it was claimed here.
                data = self.cache.get(key) if self.cache.has(key) else None
                if data is None:
                    claimed.append(number)
                else:
                    found[number] = data
            for start, stop in _find_runs(claimed):
                begin, end = file.find_bytes(start, stop)
                data = file.fetch(begin, end)
                assert len(data) == end - begin
                for number in range(start, stop):
                    place = (number - start) * PIECE
                    found[number] = data[place : place + PIECE]
                    self.cache.put(file.key(number), found[number])
        return found


def _take_done(running: dict[Future[list[bytes]], list[int]]) -> Iterator[list[tuple[int, bytes]]]:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        yield list(zip(running.pop(future), future.result(), strict=True))


def _join_neighbours(wanted: Sequence[Piece], places: Sequence[int]) -> Iterator[list[int]]:
    """Divide places into runs of neighbouring pieces, for one request each."""
    run: list[int] = []
    for place in places:
        file, number = wanted[place]
        if run:
            before, last = wanted[run[-1]]
            if before is not file or number != last + 1 or len(run) * PIECE >= LONGEST:
                yield run
                run = []
        run.append(place)
    if run:
        yield run


def _find_runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The runs of consecutive numbers, each as its first and the one after its last.

    >>> _find_runs([2, 3, 4, 9])
    [(2, 5), (9, 10)]
    """
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


@lru_cache(maxsize=1)
def make_pool(process: int) -> ThreadPoolExecutor:  # noqa: ARG001  (a fork has no threads)
    """The threads that send requests."""
    return ThreadPoolExecutor(REQUESTS + SMALL_REQUESTS, "tokenmill-pieces")
