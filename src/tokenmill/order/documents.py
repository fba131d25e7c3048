"""Where documents begin and end inside a batch, in the forms that attention kernels want.

Guarantees: what a `DocumentBatch` gives describes the same cuts: one at each beginning of a
document and one at each beginning of a row, since rows do not see each other. Costs: the cuts are a
sort of a few numbers, or one look at all tokens for the end-of-text id; the arrays of the batch's
shape are made when first asked for, at about 1 ns a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError

_FEW = 1 << 17  # flags that are looked at one by one


@dataclass(eq=False)  # not frozen: that would take longer than all the rest of it
class DocumentBatch:
    """The documents of a batch of rows, for the inputs; all arrays are int32.

    Parameters
    ----------
    rows, seq_len
        The shape of the batch.
    cu_seqlens
        (documents + 1): where each document begins in the rows laid end to end, and their length.
    """

    rows: int
    seq_len: int
    cu_seqlens: npt.NDArray[np.int32]

    @cached_property
    def ids(self) -> npt.NDArray[np.int32]:
        """(rows, seq_len): the number of each token's document in its row, from 0."""
        starts = self.cu_seqlens[:-1]
        row_firsts = np.flatnonzero(starts % self.seq_len == 0).astype(np.int32)
        numbers = np.arange(len(starts), dtype=np.int32) - row_firsts[starts // self.seq_len]
        return np.repeat(numbers, np.diff(self.cu_seqlens)).reshape(self.rows, self.seq_len)

    @cached_property
    def positions(self) -> npt.NDArray[np.int32]:
        """(rows, seq_len): the place of each token in its document, as far as the row shows it."""
        positions = np.arange(self.rows * self.seq_len, dtype=np.int32)
        positions -= np.repeat(self.cu_seqlens[:-1], np.diff(self.cu_seqlens))
        return positions.reshape(self.rows, self.seq_len)

    @cached_property
    def max_seqlen(self) -> int:
        """The tokens of the longest document, as far as a row shows it."""
        return int(np.diff(self.cu_seqlens).max(initial=0))

    def split(self, count: int) -> list[DocumentBatch]:
        """The documents of each of `count` batches of equal size, which these are together.

        >>> both = locate_documents(np.array([6]), rows=2, seq_len=4)
        >>> [batch.cu_seqlens.tolist() for batch in both.split(2)]
        [[0, 4], [0, 2, 4]]
        """
        if count == 1:
            return [self]
        rows = self.rows // count
        borders = np.arange(count + 1, dtype=np.int32) * np.int32(rows * self.seq_len)
        edges = self.cu_seqlens.searchsorted(borders).tolist()
        parts = zip(edges, edges[1:], borders, strict=False)
        cuts, length = self.cu_seqlens, self.seq_len
        return [
            DocumentBatch(rows, length, cuts[first : last + 1] - border)
            for first, last, border in parts
        ]


def cut_at_id(tokens: npt.NDArray[Any], eot_id: int, eot: str) -> DocumentBatch:
    """The documents of a batch, from its tokens, (rows, seq_len + 1), and the id that stands before
    or after each document, as `eot` says.

    >>> cut_at_id(np.array([[5, 0, 6, 7], [0, 8, 0, 0]]), 0, "after").cu_seqlens
    array([0, 2, 3, 4, 6], dtype=int32)
    >>> cut_at_id(np.array([[5, 0, 6, 7], [0, 8, 0, 0]]), 0, "before").cu_seqlens
    array([0, 1, 3, 5, 6], dtype=int32)
    """
    rows, width = tokens.shape
    _check_shape(rows, width - 1)
    memory = np.empty(tokens.size + 1, np.bool_)
    after = eot != "before"
    np.equal(tokens.reshape(-1), eot_id, out=memory[after : after + tokens.size])
    flags = memory[:-1].reshape(rows, width)
    flags[:, 0] = True  # a row begins here, whatever was before it
    flags[:, -1] = False  # no input is here
    found = _find_true(memory[:-1])
    cuts = np.empty(len(found) + 1, np.int32)
    np.subtract(found, found // width, out=cuts[:-1], casting="unsafe")
    cuts[-1] = rows * (width - 1)
    return DocumentBatch(rows, width - 1, cuts)


def locate_documents(edges: npt.NDArray[np.int64], rows: int, seq_len: int) -> DocumentBatch:
    """The documents of a batch, from where they begin in its rows laid end to end, in any order.

    A document without tokens begins where the next one does, and the two count as one.

    >>> batch = locate_documents(np.array([2, 4]), rows=2, seq_len=4)
    >>> batch.ids.tolist()
    [[0, 0, 1, 1], [0, 0, 0, 0]]
    >>> batch.positions.tolist()
    [[0, 1, 0, 1], [0, 1, 2, 3]]
    >>> batch.cu_seqlens.tolist(), batch.max_seqlen
    ([0, 2, 4, 8], 4)
    """
    total = _check_shape(rows, seq_len)
    edges = np.asarray(edges, np.int64)
    if edges.size and not 0 <= edges.min() <= edges.max() < total:
        raise UsageError(
            f"a document begins at token {edges[(edges < 0) | (edges >= total)][0]}, which is not in "
            f"a batch of {rows:,} rows of {seq_len:,} tokens. Give only what lies inside."
        )
    row_starts = np.arange(0, total + 1, seq_len, dtype=np.int32)
    cuts = np.concatenate((row_starts, edges), dtype=np.int32, casting="unsafe")
    cuts.sort()
    return DocumentBatch(rows, seq_len, cuts[np.append(True, cuts[1:] != cuts[:-1])])


def _check_shape(rows: int, seq_len: int) -> int:
    """The tokens of a batch that can carry its documents."""
    total = rows * seq_len
    if rows < 0 or seq_len < 1 or total >= 2**31:
        raise UsageError(
            f"a batch of {rows:,} rows of {seq_len:,} tokens cannot carry its documents: rows need "
            "at least one token, and a batch has below 2**31 in all. Use a smaller batch."
        )
    return total


def _find_true(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Where the flags, of which few are true, are so: eight at once, and eights of eights, are looked
    for first.

    >>> _find_true(np.arange(1_000_001) % 500_000 == 0).tolist()
    [0, 500000, 1000000]
    """
    if len(flags) < _FEW:
        return np.flatnonzero(flags)
    whole = len(flags) // 8 * 8
    eights = flags[:whole].view(np.uint64)
    some = _find_true(eights != 0)
    found = np.flatnonzero(eights[some].view(np.bool_))
    places = some[found >> 3] * 8 + (found & 7)
    return np.concatenate((places, np.flatnonzero(flags[whole:]) + whole))
