"""Search all tokens of a split, or ranges of them, chunk by chunk and in order.

Neighbouring chunks are read and searched by a few threads at once. At most `THREADS + 1` chunks are
in memory, so memory does not depend on the size of the data. The first chunks are small, so that a
search for something common shows its first results at once.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tokenmill.inspect.search.pattern import Hits, Pattern
from tokenmill.inspect.search.vocabulary import AnyIds, Integers
from tokenmill.progress import Watcher
from tokenmill.store.tokens import Tokens

FIRST_CHUNK, CHUNK, REMOTE_CHUNK = 1 << 17, 1 << 21, 1 << 22  # tokens
THREADS = min(4, os.cpu_count() or 1)
MARGIN = 64  # tokens before and after a chunk, to show what is around a hit


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was found in a chunk: the hits, and the ids around them. `ids[0]` is token `start`."""

    hits: Hits
    ids: AnyIds
    start: int


def scan(
    tokens: Tokens,
    pattern: Pattern,
    watcher: Watcher,
    *,
    ranges: Iterable[tuple[int, int]] | None = None,
    chunk: int | None = None,
    with_ids: bool = True,
    reached: Callable[[int], None] | None = None,
) -> Iterator[Found]:
    """Yield everything that begins in the given ranges of tokens, in order; by default, in all tokens.

    The ranges must be in order, and not overlap. Occurrences that cross into another document are
    left out. Without `with_ids`, `Found.ids` is empty. `reached` is called with a token when all
    occurrences before it were yielded.
    """
    chunk = chunk or (REMOTE_CHUNK if tokens.is_remote else CHUNK)

    view = tokens.viewer()

    def search(low: int, high: int) -> Iterable[Found]:
        start = max(low - MARGIN, 0)

        def find(ids: AnyIds) -> Iterator[Hits]:
            # Search without the margin before the chunk, since hits may not begin there.
            for hits in pattern.find(ids[low - start :], high - low):
                yield keep_within_documents(tokens, hits.moved(low), ids, start)

        with view(start, min(high + pattern.width + MARGIN, len(tokens))) as ids:
            blocks = list(islice(find(ids), 2))
            if not any(map(len, blocks)) and len(blocks) < 2:
                return ()
            kept = ids.copy() if with_ids or len(blocks) > 1 else ids[:0]
        if len(blocks) > 1:  # too many hits for memory, so find them again when they are used
            return (Found(hits=hits, ids=kept, start=start) for hits in find(kept))
        return (Found(hits=blocks[0], ids=kept, start=start),)

    pending: deque[tuple[int, int, Future[Iterable[Found]]]] = deque()
    most = 0
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="search")
    try:
        for low, high in _cut([(0, len(tokens))] if ranges is None else ranges, chunk):
            pending.append((low, high, pool.submit(search, low, high)))
            # Search the first chunk alone: it is the sample from which the pattern chooses its anchor.
            while len(pending) > most:
                yield from _take(pending, watcher, reached)
            most = THREADS
        while pending:
            yield from _take(pending, watcher, reached)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _take(
    pending: deque[tuple[int, int, Future[Iterable[Found]]]],
    watcher: Watcher,
    reached: Callable[[int], None] | None,
) -> Iterator[Found]:
    low, high, future = pending.popleft()
    yield from future.result()
    watcher.advance(high - low)
    if reached is not None:
        reached(high)


def _cut(ranges: Iterable[tuple[int, int]], chunk: int) -> Iterator[tuple[int, int]]:
    """Cut ranges into chunks; the first chunks are smaller."""
    size = min(FIRST_CHUNK, chunk)
    for low, high in ranges:
        while low < high:
            yield low, min(low + size, high)
            low += size
            size = min(2 * size, chunk)


def keep_within_documents(tokens: Tokens, hits: Hits, ids: AnyIds, start: int) -> Hits:
    """Return the hits that do not cross from one document to the next. `ids[0]` is token `start`."""
    if not (hits.last > hits.first).any():
        return hits
    low, high = int(hits.first.min()), int(hits.last.max())
    starts = find_starts(tokens, low + 1, high + 1, ids, start)
    if starts is None:
        return hits
    before = starts.searchsorted(hits.first, "right")
    return hits.where(before == starts.searchsorted(hits.last, "right"))


def find_starts(tokens: Tokens, low: int, high: int, ids: AnyIds, start: int) -> Integers | None:
    """Return where documents start in [low, high); None if unknown. `ids[0]` is token `start`."""
    table = tokens.documents
    if table is not None:
        return table.starts(table.count_before(low), table.count_before(high))[:-1]
    if tokens.eot_id is None:
        return None
    after = tokens.eot != "before"
    first = max(low - after - start, 0)
    found: Integers = np.flatnonzero(ids[first : high - after - start] == tokens.eot_id)
    return found + (start + first + after)
