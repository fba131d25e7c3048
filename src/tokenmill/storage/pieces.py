"""Read pieces of remote files through a cache, several at once.

A piece is a block of `PIECE` bytes of a file.

Guarantees: if several threads and processes want the same missing piece, one of them fetches it,
and the others wait until the piece is in the cache. If the one that fetches fails, dies or takes
over two minutes, another one fetches the piece. Neighbouring pieces share a request. Each call runs
at most `REQUESTS` requests at once.

Costs: memory for the running requests, of at most `LONGEST` bytes each.
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

REQUESTS = 16  # that run at once
SMALL_REQUESTS = 64  # that run at once, if all are small
LONGEST = 1 << 20  # bytes of a request
_PAUSE = 0.005  # seconds between checks for a piece that another process fetches
_PATIENCE = 120.0  # seconds to wait for another process


@dataclass(frozen=True)
class RemoteFile:
    """A file whose pieces are cached. `identity` names the file and its version.

    `fetch(start, stop)` returns the bytes [start, stop) of the file.
    """

    identity: str
    size: int
    fetch: Callable[[int, int], bytes]

    def key(self, number: int) -> bytes:
        """Return the key of piece `number` in the cache."""
        return make_piece_key(self.identity, number)

    def find_bytes(self, first: int, last: int) -> tuple[int, int]:
        """Return where the pieces [first, last) start and end in the file."""
        return first * PIECE, min(last * PIECE, self.size)

    def find_parts(self, start: int, stop: int) -> list[Part]:
        """Divide the bytes [start, stop) of the file into parts, each inside one piece.

        >>> RemoteFile("a", 200_000, lambda start, stop: b"").find_parts(131_000, 131_100)
        [Part(number=0, first=131000, last=131072), Part(number=1, first=0, last=28)]
        """
        return [
            Part(number, max(0, start - number * PIECE), min(PIECE, stop - number * PIECE))
            for number in range(start // PIECE, -(-stop // PIECE))
        ]


class Part(NamedTuple):
    """The bytes [first, last) of piece `number`."""

    number: int
    first: int
    last: int


Piece = tuple[RemoteFile, int]  # a file, and the number of a piece in it


class Pieces:
    """Reads pieces of remote files from a cache, or else from the files."""

    def __init__(self, cache: PieceCache) -> None:
        self.cache = cache

    def read(self, wanted: Sequence[Piece]) -> Iterator[tuple[int, bytes]]:
        """Yield each piece as its index in `wanted` and its bytes, in any order.

        `wanted` should have each piece once, and neighbouring pieces next to each other.
        """
        keys = [file.key(number) for file, number in wanted]
        there = [place for place, key in enumerate(keys) if self.cache.has(key)]
        missing = sorted(set(range(len(wanted))).difference(there))
        fetched = self._fetch_runs(wanted, missing)
        found = next(fetched, None)  # starts the requests, and waits for the first
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
        """Fetch pieces into the cache. Ends early once `is_stopped` returns True."""
        for _ in self.fetch_each(wanted):
            if is_stopped():
                break

    def fetch_each(self, wanted: Sequence[Piece]) -> Iterator[int]:
        """Fetch pieces into the cache. After each request, yields how many bytes it fetched."""
        keys = (file.key(number) for file, number in wanted)
        missing = [place for place, key in enumerate(keys) if not self.cache.has(key)]
        for run in self._fetch_runs(wanted, missing):
            yield sum(len(data) for _, data in run)

    def _fetch_runs(
        self, wanted: Sequence[Piece], places: Sequence[int]
    ) -> Iterator[list[tuple[int, bytes]]]:
        """Fetch the pieces at these indices of `wanted`.

        After each request, yields its pieces: for each, the index in `wanted` and the bytes.
        """
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
        """Return the pieces [first, first + count) of a file. Waits for those that others fetch."""
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
        """Fetch the pieces that no other thread or process is fetching; with `is_late`, fetch all."""
        found: dict[int, bytes] = {}
        with ExitStack() as stack:
            claimed = []
            for number in numbers:
                key = file.key(number)
                is_claimed = stack.enter_context(self.cache.claim(key))
                if not (is_claimed or is_late):
                    continue
                # Another process may have fetched the piece just before this one claimed it.
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
    """Divide `places`, indices of `wanted`, into runs of neighbouring pieces: one per request."""
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
    """Return sorted numbers as ranges [first, last) of consecutive numbers.

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
    """Return the pool of threads that send requests. Each process has one."""
    return ThreadPoolExecutor(REQUESTS + SMALL_REQUESTS, "tokenmill-pieces")
