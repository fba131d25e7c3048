"""Find where documents start in a sequence of tokens, block by block.

The starts come from the document table if there is one, otherwise from the end-of-text ids. Memory
is bounded: at most `BLOCK` starts of a table, or `WINDOW` tokens, are read at once. Only a table
can have empty documents. An empty document starts where the next document starts or, if it is the
last document, where the tokens end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenmill.storage.files import create_unnamed
from tokenmill.store.tokens import Tokens

WINDOW = 1 << 20
BLOCK = 1 << 16

Integers = npt.NDArray[np.int64]


def find_document_starts(
    tokens: Tokens, first: int, stop: int, *, window: int = WINDOW
) -> Iterator[Integers]:
    """Yield the positions in [first, stop) where documents start, in order.

    If `stop` is the end of the tokens, empty documents at the end are included.

    >>> tokens = Tokens.of([5, 0, 6, 7, 0, 8], eot_id=0)
    >>> [starts.tolist() for starts in find_document_starts(tokens, 1, 6)]
    [[2, 5]]
    """
    documents = tokens.documents
    if documents is None:
        for low in range(first, stop, window):
            yield _find_by_eot(tokens, low, min(low + window, stop))
        return
    last = len(documents) if stop == len(tokens) else documents.count_before(stop)
    for number in range(documents.count_before(first), last, BLOCK):
        yield documents.starts(number, min(number + BLOCK, last))[:-1]


def _find_by_eot(tokens: Tokens, low: int, high: int) -> Integers:
    """Return the positions in [low, high) where documents start, found by the end-of-text id.

    The tokens are read as a copy, so that no shard stays memory-mapped.
    """
    if tokens.eot_id is None:  # this call raises an error that says how to pass the id
        return tokens.find_document_starts(np.array([low]), high - low) + low
    after = tokens.eot != "before"
    first = max(low - after, 0)
    starts = np.flatnonzero(tokens.read(first, high - after) == tokens.eot_id) + (first + after)
    # The first token always starts a document.
    return starts if low or (len(starts) and not starts[0]) else np.append(0, starts)


def find_next_start(tokens: Tokens, place: int, *, window: int = WINDOW) -> int:
    """Return the first document start at or after `place`, or the end of the tokens."""
    if tokens.documents is not None:
        number = tokens.documents.count_before(place)
        return int(tokens.documents.starts(number, number)[0])
    for starts in find_document_starts(tokens, place, len(tokens), window=window):
        if len(starts):
            return int(starts[0])
    return len(tokens)


def split_between_documents(tokens: Tokens, least: int) -> Iterator[tuple[int, int]]:
    """Yield ranges (start, stop) of whole documents. Only the last may be shorter than `least`.

    >>> list(split_between_documents(Tokens.of([5, 0, 6, 7, 0, 8, 0], eot_id=0), 3))
    [(0, 5), (5, 7)]
    """
    start = 0
    while start < len(tokens):
        stop = find_next_start(tokens, min(start + least, len(tokens)))
        yield start, stop
        start = stop


def skip_empty(blocks: Iterator[Integers], length: int) -> Iterator[Integers]:
    """Yield only the starts of documents that have tokens. `length` is where the last one ends.

    >>> [some.tolist() for some in skip_empty(iter([np.array([0, 2, 2]), np.array([2, 5])]), 5)]
    [[0, 2], []]
    """
    before = -1
    for starts in blocks:
        fresh = starts[np.diff(starts, prepend=before) > 0]
        before = int(starts[-1]) if len(starts) else before
        yield fresh[fresh < length]


def count_empty(tokens: Tokens) -> int:
    """Count the documents without tokens."""
    if tokens.documents is None:
        return 0
    blocks = skip_empty(find_document_starts(tokens, 0, len(tokens)), len(tokens))
    return len(tokens.documents) - sum(len(starts) for starts in blocks)


def count_if_same(one: Iterator[Integers], other: Iterator[Integers]) -> int | None:
    """Count the starts if both iterators yield the same starts; otherwise return None.

    The iterators may divide the starts into different blocks.

    >>> count_if_same(iter([np.array([0, 2]), np.array([5])]), iter([np.array([0, 2, 5])]))
    3
    """
    blocks = one, other
    rest: list[Integers] = [np.empty(0, np.int64)] * 2
    count = 0
    while True:
        for side, more in enumerate(blocks):
            while not len(rest[side]) and (block := next(more, None)) is not None:
                rest[side] = block
        some = min(map(len, rest))
        if not some:
            return None if any(map(len, rest)) else count
        if not np.array_equal(rest[0][:some], rest[1][:some]):
            return None
        rest, count = [starts[some:] for starts in rest], count + some


class SpilledStarts:
    """Keeps the document starts of a range in a temporary file, to read them several times.

    Starts count from the first token of the range, where a document must start. If `empty` is
    False, empty documents are skipped.

    >>> with SpilledStarts(Tokens.of([5, 0, 6, 7, 0, 8], eot_id=0), 2, 6, Path(".")) as spilled:
    ...     spilled.count, [block.tolist() for block in spilled.blocks()]
    (2, [[0, 3, 4]])
    """

    def __init__(
        self, tokens: Tokens, first: int, stop: int, folder: Path, *, empty: bool = True
    ) -> None:
        self._tokens, self._first, self._stop, self._folder = tokens, first, stop, folder
        self._empty = empty
        self.count = 0

    def __enter__(self) -> SpilledStarts:
        self._file = create_unnamed(self._folder)
        try:
            found = find_document_starts(self._tokens, self._first, self._stop)
            for starts in found if self._empty else skip_empty(found, self._stop):
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
        """Yield the starts in blocks.

        The last entry of a block is also the first start of the next block; in the last block, it
        is the end of the range.
        """
        for low in range(0, self.count, WINDOW):
            self._file.seek(low * 8)
            yield np.frombuffer(self._file.read(8 * (min(WINDOW, self.count - low) + 1)), "<i8")
