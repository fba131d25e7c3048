"""Where documents begin, from any tokens that tell it, some at a time.

From the table of documents where there is one, else by the end-of-text id. Memory holds what
begins in a window of `WINDOW` tokens. Empty documents begin nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tokenmill.store.tokens import Tokens

__all__ = ["WINDOW", "cut_between", "find_starts", "next_start"]

WINDOW = 1 << 20

Integers = npt.NDArray[np.int64]


def find_starts(tokens: Tokens, first: int, stop: int) -> Iterator[Integers]:
    """The starts of the documents that begin from token `first` to before `stop`, in order.

    >>> tokens = Tokens.of([5, 0, 6, 7, 0, 8], eot_id=0)
    >>> [starts.tolist() for starts in find_starts(tokens, 1, 6)]
    [[2, 5]]
    """
    for low in range(first, stop, WINDOW):
        _, places = tokens.find_edges(np.array([low]), min(WINDOW, stop - low))
        yield places + low


def next_start(tokens: Tokens, place: int) -> int:
    """The first token from `place` on that a document begins with; the end if there is none."""
    for starts in find_starts(tokens, place, len(tokens)):
        if len(starts):
            return int(starts[0])
    return len(tokens)


def cut_between(tokens: Tokens, least: int) -> Iterator[tuple[int, int]]:
    """Ranges of at least `least` tokens (but for the last) that cut no document.

    >>> list(cut_between(Tokens.of([5, 0, 6, 7, 0, 8, 0], eot_id=0), 3))
    [(0, 5), (5, 7)]
    """
    start = 0
    while start < len(tokens):
        stop = next_start(tokens, min(start + least, len(tokens)))
        yield start, stop
        start = stop
