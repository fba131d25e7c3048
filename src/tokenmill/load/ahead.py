"""Fetch the rows of later steps in a thread, before they are read.

The order is computed, so the rows of every later step are known. The thread fetches rows up to
`distance` rows after the step that is read now. If tokens have a disk cache, the thread brings the
pieces of their files (128 KiB each) into the cache. If files are mapped, it asks the system to read
them.

Guarantees: the thread changes no batch. It ends when the `RowsAhead` is closed or dropped, or when the
program ends. If fetching fails, reading the row raises the error. Costs: the order of the rows is
computed a second time, 0.1 µs a row.
"""

from __future__ import annotations

import os
import threading
from weakref import finalize

import numpy as np

from tokenmill.errors import TokenmillError
from tokenmill.load.prefetch import LAST_WAIT, register_thread
from tokenmill.load.rows import RunRows
from tokenmill.load.settings import LoaderSettings
from tokenmill.load.state import MOST_ROWS
from tokenmill.storage.cache import PIECE
from tokenmill.wording import size

_AHEAD = 64 << 20  # bytes to fetch ahead on each rank, for orders other than `blocks`
_CHUNKS = 8  # `distance` rows are fetched in this many chunks
_CHUNK_ROWS = 65_536  # the most rows of this rank in a chunk


def start_ahead(
    rows: RunRows, settings: LoaderSettings, row: int, limit: int | None
) -> RowsAhead | None:
    """Start a thread that fetches the rows from `row` up to `limit` ahead of time.

    If `count_ahead` returns 0, starts no thread and returns None.
    """
    distance = count_ahead(rows, settings)
    stop = MOST_ROWS if limit is None else limit
    return RowsAhead(rows, settings, range(row, stop), distance) if distance else None


def count_ahead(rows: RunRows, settings: LoaderSettings) -> int:
    """Return how many rows of the run to fetch ahead, counting all ranks.

    The order `blocks` shuffles the rows of a group of blocks together. So this is a whole group,
    because the first rows of a group need most of its blocks. With a cache, this is half a group
    more, so that fetching does not pause while the last blocks of a group arrive. If the cache is
    too small for that, this is less, or 0.

    For other orders, the rows take `_AHEAD` bytes per rank, or a quarter of the cache if that is
    less. Without a cache, returns 0.
    """
    row_bytes = settings.seq_len * rows.dtype.itemsize
    limit = min((cache.limit for cache in rows.caches), default=0)
    if settings.block_rows is not None and settings.group_blocks is not None:
        group = settings.block_rows * settings.group_blocks
        if not limit:
            return group
        most = group + group // 2
        if limit >= sum(len(tokens) for tokens in rows.tokens) * rows.dtype.itemsize:
            return most
        return max(0, min(most, limit * 3 // 4 // row_bytes - group))
    if not limit:
        return 0
    if settings.order != "sequential":
        row_bytes += PIECE  # a row needs whole pieces
    return min(_AHEAD * settings.world_size, limit // 4) // row_bytes


def find_slow_order(rows: RunRows, settings: LoaderSettings) -> str | None:
    """Return a warning, with the cure, if a run over remote data will be slow. Otherwise None."""
    remote = [tokens for tokens in rows.tokens if tokens.is_remote and tokens.cache is not None]
    if not remote:
        return None
    data = sum(len(tokens) * tokens.dtype.itemsize for tokens in remote)
    limit = min(cache.limit for cache in rows.caches)
    if limit >= data or settings.order == "sequential":
        return None
    sizes = (
        f"The data has {size(data)}, but the cache in {rows.caches[0].folder} only {size(limit)}. "
    )
    if settings.block_rows is None:
        return (
            f"{sizes}With the order {settings.order!r}, nearly every row is a request of "
            f"{size(PIECE)}. Use `order='blocks'`, or a larger `cache_bytes`."
        )
    if count_ahead(rows, settings):
        return None
    return (
        f"{sizes}It cannot hold the blocks of two groups, so blocks are fetched several times. "
        "Use a larger `cache_bytes`, or smaller `group_blocks`."
    )


class _Work:
    """The state of the thread: the steps to fetch, and the step that is read now."""

    def __init__(self, rows: RunRows, settings: LoaderSettings, run: range, distance: int) -> None:
        self.changed = threading.Condition()
        self.process, self.is_stopped = os.getpid(), False
        self.row, self.run_rows = run.start, run
        self.rows, self.settings, self.distance = rows, settings, distance

    def run(self) -> None:
        """Fetch until `stop` is called or the run ends. This is the thread's main function."""
        step = self.settings.global_batch
        most = max(1, _CHUNK_ROWS // self.settings.batch_size)
        chunk = min(max(1, self.distance // step // _CHUNKS), most) * step
        row, stop = self.run_rows.start, self.run_rows.stop
        while row < stop and not self.is_stopped:
            with self.changed:
                if row - self.row > self.distance:
                    self.changed.wait()
                    continue
            if row + chunk > self.row:  # otherwise the rows were already read
                self._fetch(np.arange(row, min(row + chunk, stop), step))
            row += chunk

    def _fetch(self, step_rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        rank, size = self.settings.rank, self.settings.batch_size
        own = np.arange(rank * size, (rank + 1) * size)
        try:
            starts = self.rows.locate(np.add.outer(step_rows, own).ravel())
            self.rows.fetch(starts, lambda: self.is_stopped)
        except (TokenmillError, OSError):
            return  # reading the row raises the error again

    def stop(self) -> None:
        if self.process != os.getpid():  # in a fork, the thread that holds the lock does not exist
            return
        with self.changed:
            self.is_stopped = True
            self.changed.notify_all()


class RowsAhead:
    """Fetches this rank's rows of the range `run` in a thread, up to `distance` rows ahead.

    `run` and `distance` count the rows of all ranks.
    """

    def __init__(self, rows: RunRows, settings: LoaderSettings, run: range, distance: int) -> None:
        self._work = _Work(rows, settings, run, distance)
        # The thread does not refer to this object, so it is freed when nothing else does.
        self._thread = threading.Thread(target=self._work.run, name="tokenmill-ahead", daemon=True)
        register_thread(self._thread, self._work)
        finalize(self, self._work.stop)
        self._is_block_order = settings.block_rows is not None
        if self._is_block_order:
            rows.stream(True)
        self._thread.start()

    def reach(self, row: int) -> None:
        """Record that the step that starts at `row` is being read now."""
        with self._work.changed:
            self._work.row = max(self._work.row, row)
            self._work.changed.notify_all()

    def close(self) -> None:
        """Stop the thread, and wait until it has ended, unless a request takes very long."""
        self._work.stop()
        if self._is_block_order:
            self._work.rows.stream(False)
        if self._work.process == os.getpid() and self._thread.is_alive():
            self._thread.join(LAST_WAIT)
