"""The memory of a worker: how much text fits in it, and how the worker stays within its share.

A worker takes `_BASE` for Python, NumPy, the tokenizer and work on one block. Text that must be
held whole takes another `COPIES` times its size, for copies of the text as read, parsed and
cleaned, and above all for the tokenizer: to merge the bytes of a word, the tokenizer takes 25 times
the size of the word.

A tokenizer caches every word that it has encoded. `Workspace` clears the cache when the process
grows too large. Each check takes about 10 µs; there is one after each slice of text. If words never
repeat, one slice can make the cache grow by many times the size of the slice. So a worker with less
memory uses smaller slices.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from tokenmill.sources.records import COPIES
from tokenmill.tokenizers import Tokenizer
from tokenmill.wording import size

DEFAULT_SHARE = 288 << 20  # bytes per worker
LEAST_SHARE = 128 << 20
_BASE = 120 << 20
_LEAST_HELD = 1 << 20
_LEAST_GROWTH = 24 << 20  # clearing the cache must free at least this much to be worth it
_RESERVE = 8 << 20  # bytes of the share to leave free within a chunk
_LEAST_SLICE = 2 << 20  # smaller slices clear the cache twice as often if words never repeat
_MOST_SLICE = 8 << 20  # the size of a slice with the default share or more


def holdable_bytes(share: int) -> int:
    """Return how many bytes of one document a worker with this share of the memory may hold.

    >>> holdable_bytes(300_000_000) >> 20
    5
    """
    return max(_LEAST_HELD, (share - _BASE) // COPIES)


def share_to_hold(size: int) -> int:
    """Return how many bytes of memory a worker needs to hold a document of `size` bytes.

    >>> holdable_bytes(share_to_hold(1 << 30)) == 1 << 30
    True
    """
    return _BASE + COPIES * size


def suggest_less_memory(workers: int, memory: int) -> str:
    """Return the advice to use half as many workers and half as much memory, if possible.

    >>> suggest_less_memory(8, 2_400_000_000)
    'Run the command again with `workers=4` and `memory=1200000000`.'
    >>> suggest_less_memory(1, 134_217_728)
    'A worker needs at least 134.2 MB. Free some memory, or raise the memory limit of the job.'
    """
    fewer = max(1, workers // 2)
    less = max(memory // 2, fewer * LEAST_SHARE)
    if fewer == workers and less >= memory:
        return (
            f"A worker needs at least {size(memory)}. Free some memory, or raise the memory limit of "
            "the job."
        )
    change = f"`workers={fewer}` and " if fewer < workers else ""
    return f"Run the command again with {change}`memory={less}`."


def machine_memory() -> int:
    """Return the bytes of memory in this machine, or 0 if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0


def memory_in_use() -> int:
    """Return the resident bytes of this process, or 0 if unknown."""
    try:
        with Path("/proc/self/statm").open("rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Workspace:
    """The state that a worker keeps between tasks: the tokenizer and a share of the memory.

    Unpickling makes a new workspace, which measures the memory of its own process.
    """

    def __init__(self, tokenizer: Tokenizer, share: int) -> None:
        self.tokenizer = tokenizer
        room = _MOST_SLICE * (share - _BASE) // (DEFAULT_SHARE - _BASE)
        self.slice_bytes = max(_LEAST_SLICE, min(_MOST_SLICE, room))
        self._share = share
        self._limit = self._next_limit()

    def __reduce__(self) -> tuple[type[Workspace], tuple[Tokenizer, int]]:
        return Workspace, (self.tokenizer, self._share)

    def check_memory(self, *, within_chunk: bool = False) -> None:
        """Release memory if the process has grown too large.

        Within a chunk, the process also holds the chunk and copies of it, so more is allowed.
        """
        limit = max(self._limit, self._share - _RESERVE) if within_chunk else self._limit
        if memory_in_use() > limit:
            self.release_memory()

    def spare_memory(self) -> int:
        """Release memory, and return how many bytes of the share a task may then use."""
        self.release_memory()
        return max(0, self._share - (memory_in_use() or _BASE) - _RESERVE)

    def release_memory(self) -> None:
        """Clear the tokenizer's cache and return free memory to the system."""
        self.tokenizer.forget()
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # otherwise glibc keeps the freed memory
        self._limit = self._next_limit()

    def _next_limit(self) -> int:
        """Return the size of the process, in bytes, at which to release memory next.

        A tokenizer's table of words doubles when it is full. For a moment, the old and the new
        table both exist, so only half of the remaining memory may be used.
        """
        now = memory_in_use()
        # If little was freed, releasing again soon would take time and free little.
        return now + max(_LEAST_GROWTH, (self._share - now) // 2)
