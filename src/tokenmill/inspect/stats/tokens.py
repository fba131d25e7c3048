"""Count how often each id occurs, and the bytes of text of each source, in one pass over the tokens.

Costs: memory holds a few blocks of tokens and one number for each id. A thread reads the next block
while one is counted. Counting is one `np.bincount` per block; `benchmarks/stats.py` compares the pass
with `np.bincount` alone. If a block has documents of several sources, the length in bytes of each of
its tokens is also looked up in a table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError
from tokenmill.inspect.stats.documents import EndCounter, SourceReader
from tokenmill.inspect.stats.sample import choose_blocks
from tokenmill.store.documents import Documents
from tokenmill.store.tokens import Tokens

BLOCK = 1 << 20  # tokens read at once
COUNTED = 1 << 18  # tokens counted at once, so that a copy as 64-bit integers fits in the cache
MOST_IDS = 1 << 24  # ids of a vocabulary; counting more would take too much memory
_READERS_REMOTE = 4  # requests to an object store at once

Integers = npt.NDArray[np.int64]


class IdCounter:
    """Counts ids. If `vocab_size` is None (unknown), `counts` grows to hold the largest id."""

    def __init__(self, vocab_size: int | None, path: str) -> None:
        if vocab_size is not None and vocab_size > MOST_IDS:
            raise DatasetError(
                f"{path} has a vocabulary of {vocab_size:,} ids; statistics support at most "
                f"{MOST_IDS:,}."
            )
        self.counts = np.zeros(vocab_size or 0, np.int64)
        self._vocab_size, self._path = vocab_size, path

    def add(self, ids: npt.NDArray[Any], name: Callable[[], str]) -> Integers:
        """Count a block of ids, and return its counts. `name` returns the file, for errors."""
        if not len(ids):
            return np.zeros(len(self.counts), np.int64)
        if ids.dtype.itemsize > 2 or (self._vocab_size or 0) < 1 << 16:
            self._check(ids, name)
        if ids.dtype.itemsize > 4:
            ids = ids.astype(np.int64)  # np.bincount refuses uint64
        size = len(self.counts)
        found = np.bincount(ids[:COUNTED], minlength=size)
        for start in range(COUNTED, len(ids), COUNTED):
            more = np.bincount(ids[start : start + COUNTED], minlength=len(found))
            if len(more) > len(found):
                more, found = found, more
            found[: len(more)] += more
        if len(found) > size:
            self.counts = np.append(self.counts, np.zeros(len(found) - size, np.int64))
        self.counts += found
        return found

    def _check(self, ids: npt.NDArray[Any], name: Callable[[], str]) -> None:
        largest = int(ids.max())
        smallest = int(ids.min()) if ids.dtype.kind == "i" else 0
        if self._vocab_size is not None and largest >= self._vocab_size:
            raise DatasetError(
                f"{name()} or a later file has the id {largest}, but the vocabulary has only "
                f"{self._vocab_size:,} ids. Find all problems with: tokenmill verify {self._path}"
            )
        if smallest < 0 or largest >= MOST_IDS:
            raise DatasetError(
                f"{name()} or a later file has the id {smallest if smallest < 0 else largest}; "
                f"statistics support ids from 0 to {MOST_IDS - 1:,}. If the ids are read with the "
                "wrong type, pass `dtype` or `format`."
            )


def read_blocks(
    tokens: Tokens, limit: int, block: int = BLOCK
) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield (start, ids) for the blocks of `choose_blocks`; threads read the next blocks ahead."""
    readers = _READERS_REMOTE if tokens.is_remote and tokens.cache is None else 1
    waiting: deque[tuple[int, Future[npt.NDArray[Any]]]] = deque()
    pool = ThreadPoolExecutor(readers)
    try:
        for start, stop in choose_blocks(len(tokens), limit, block):
            waiting.append((start, pool.submit(tokens.read, start, stop)))
            if len(waiting) > readers:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def count_tokens(
    tokens: Tokens,
    counter: IdCounter,
    ends: EndCounter | None,
    byte_lengths: Integers | None,
    columns: Integers | None,
    limit: int,
    advance: Callable[[int], None],
) -> int:
    """Count about `limit` ids at most of a split. Return how many were read.

    If `columns` is given, adds the tokens and the bytes of each source to its first two rows; then
    `tokens.documents` must be `Documents`. Reports the number of tokens read to `advance`.
    """
    read = 0
    table, reader = tokens.documents, None
    if columns is not None and byte_lengths is not None:
        assert isinstance(table, Documents)
        reader = SourceReader(table, columns.shape[1])
    for start, ids in read_blocks(tokens, limit):
        found = counter.add(ids, lambda start=start: tokens.shard_name(tokens.locate(start)[0]))  # type: ignore[misc]
        if ends is not None:
            ends.add(start, ids)
        if reader is not None and columns is not None and byte_lengths is not None:
            assert isinstance(table, Documents)
            edges, sources = _find_source_runs(table, reader, start, start + len(ids))
            np.add.at(columns[0], sources, np.diff(edges))
            if len(sources) == 1:
                columns[1, sources[0]] += int(found @ byte_lengths[: len(found)])
            elif len(sources):
                sizes = np.add.reduceat(byte_lengths[ids], edges[:-1] - start)
                np.add.at(columns[1], sources, sizes)
        read += len(ids)
        advance(len(ids))
    return read


def _find_source_runs(
    table: Documents, reader: SourceReader, start: int, stop: int
) -> tuple[Integers, Integers]:
    """Divide the tokens [start, stop) into runs of one source each.

    Returns where the runs start, with `stop` at the end, and the number of the source of each.
    """
    first = max(table.count_before(start + 1) - 1, 0)
    last = table.count_before(stop)
    if first >= last:
        return np.array([stop]), np.empty(0, np.int64)
    sources = reader.read(first, last)
    starts = np.maximum(table.starts(first, last)[:-1], start)
    changes = np.append(0, np.flatnonzero(sources[1:] != sources[:-1]) + 1)
    edges = np.append(starts[changes], stop)
    edges[0] = start
    full = np.diff(edges) > 0  # omit empty documents, which would make runs without tokens
    return np.append(edges[:-1][full], stop), sources[changes][full]
