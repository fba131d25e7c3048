"""How much text a worker can hold in its share of the memory.

A worker takes `_BASE` for Python, NumPy, the tokenizer and work on one block. Text that must be held
whole costs `_COPIES` times its size on top: the copies as read, parsed and cleaned, and most of all
merging, which takes 25 times the size of a word.
"""

from __future__ import annotations

import os

PARSED = 4  # a record that is parsed whole and then cut costs this many times less

_BASE = 120 << 20
_COPIES = 32
_LEAST = 1 << 20


def most_held(budget: int) -> int:
    """How many bytes of one document a worker with this budget may hold.

    >>> most_held(300_000_000) >> 20
    5
    """
    return max(_LEAST, (budget - _BASE) // _COPIES)


def needed_budget(size: int) -> int:
    """The budget of a worker that has to hold this many bytes of one document.

    >>> most_held(needed_budget(1 << 30)) == 1 << 30
    True
    """
    return _BASE + _COPIES * size


def machine_memory() -> int:
    """The bytes of memory in this machine."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0
