"""Where documents begin, from any tokens that tell it, some at a time.

From the table of documents where there is one, else by the end-of-text id. Memory holds what
begins in a window of `WINDOW` tokens. Empty documents begin nowhere.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from tokenmill.store.tokens import Tokens

__all__ = ["WINDOW", "SpilledStarts", "cut_between", "find_starts", "next_start"]

WINDOW = 1 << 20

Integers = npt.NDArray[np.int64]


def find_starts(tokens: Tokens, first: int, stop: int) -> Iterator[Integers]:
    """The starts of the documents that begin from token `first` to before `stop`, in order.

    >>> tokens = Tokens.of([5, 0, 6, 7, 0, 8], eot_id=0)
    >>> [starts.tolist() for starts in find_starts(tokens, 1, 6)]
    [[2, 5]]
    """
    for low in range(first, stop, WINDOW):
        high = min(low + WINDOW, stop)
        if tokens.documents is None and tokens.eot_id is not None:
            yield _find_by_eot(tokens, low, high)
        else:
            yield tokens.find_edges(np.array([low]), high - low) + low


def _find_by_eot(tokens: Tokens, low: int, high: int) -> Integers:
    """Like `Tokens.find_edges`, from a copy of the tokens: no shard stays mapped or in memory."""
    after = tokens.eot != "before"
    first = max(low - after, 0)
    starts = np.flatnonzero(tokens.read(first, high - after) == tokens.eot_id) + (first + after)
    # The first token always begins a document.
    return starts if low or (len(starts) and not starts[0]) else np.append(0, starts)


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


class SpilledStarts:
    """The starts of the documents in a range, on disk, to go through several times.

    They are counted from the range's beginning, where a document must begin.

    >>> with SpilledStarts(Tokens.of([5, 0, 6, 7, 0, 8], eot_id=0), 2, 6, Path(".")) as spilled:
    ...     spilled.count, [block.tolist() for block in spilled.blocks()]
    (2, [[0, 3, 4]])
    """

    def __init__(self, tokens: Tokens, first: int, stop: int, folder: Path) -> None:
        self._tokens, self._first, self._stop, self._folder = tokens, first, stop, folder
        self.count = 0

    def __enter__(self) -> SpilledStarts:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=self._folder)
        try:
            for starts in find_starts(self._tokens, self._first, self._stop):
                self._file.write((starts - self._first).astype("<i8").data)
                self.count += len(starts)
            self._file.write((self._stop - self._first).to_bytes(8, "little"))
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def blocks(self) -> Iterator[Integers]:
        """The starts of some documents, and of what follows them; then those of the next."""
        for low in range(0, self.count, WINDOW):
            self._file.seek(low * 8)
            yield np.frombuffer(self._file.read(8 * (min(WINDOW, self.count - low) + 1)), "<i8")
