"""Where documents start and end inside a batch, in the forms that attention kernels need.

Guarantees: all arrays of a `DocumentBatch` describe the same documents. A document starts at each
known document start and at the start of each row, because attention does not cross rows. Costs: a
sort of the known starts or, if they are unknown, one comparison of all tokens with the end-of-text
id. `ids` and `positions` are made when they are first read, at about 1 ns a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError

_SCANNED_WHOLE = 1 << 17  # up to this many flags are faster to scan one by one


@dataclass(eq=False)  # not frozen: that would more than double the time to create one
class DocumentBatch:
    """The documents in the inputs of a batch; all arrays are int32.

    Parameters
    ----------
    rows, seq_len
        The shape of the batch.
    cu_seqlens
        Shape (documents + 1,): where each document starts if the rows are joined end to end. The
        last entry is the total length of the rows.
    """

    rows: int
    seq_len: int
    cu_seqlens: npt.NDArray[np.int32]

    @cached_property
    def ids(self) -> npt.NDArray[np.int32]:
        """Shape (rows, seq_len): the number of each token's document, counted from 0 in each row."""
        starts = self.cu_seqlens[:-1]
        row_firsts = np.flatnonzero(starts % self.seq_len == 0).astype(np.int32)
        numbers = np.arange(len(starts), dtype=np.int32) - row_firsts[starts // self.seq_len]
        return np.repeat(numbers, np.diff(self.cu_seqlens)).reshape(self.rows, self.seq_len)

    @cached_property
    def positions(self) -> npt.NDArray[np.int32]:
        """Shape (rows, seq_len): how far each token is from its document's start in the row."""
        positions = np.arange(self.rows * self.seq_len, dtype=np.int32)
        positions -= np.repeat(self.cu_seqlens[:-1], np.diff(self.cu_seqlens))
        return positions.reshape(self.rows, self.seq_len)

    @cached_property
    def max_seqlen(self) -> int:
        """The length of the longest document within a row."""
        return int(np.diff(self.cu_seqlens).max(initial=0))

    def split(self, count: int) -> list[DocumentBatch]:
        """Split into `count` batches of equal size.

        >>> both = locate_documents(np.array([6]), rows=2, seq_len=4)
        >>> [batch.cu_seqlens.tolist() for batch in both.split(2)]
        [[0, 4], [0, 2, 4]]
        """
        if count == 1:
            return [self]
        rows = self.rows // count
        batch_starts = np.arange(count + 1, dtype=np.int32) * np.int32(rows * self.seq_len)
        places = self.cu_seqlens.searchsorted(batch_starts).tolist()
        return [
            DocumentBatch(rows, self.seq_len, self.cu_seqlens[first : last + 1] - batch_start)
            for first, last, batch_start in zip(places, places[1:], batch_starts, strict=False)
        ]


def locate_documents(
    document_starts: npt.NDArray[np.int64], rows: int, seq_len: int
) -> DocumentBatch:
    """Describe the documents of a batch, given the positions where documents start.

    A position counts tokens in all rows joined end to end. The positions may come in any order. An
    empty document starts where the next document does; the two count as one.

    >>> batch = locate_documents(np.array([2, 4]), rows=2, seq_len=4)
    >>> batch.ids.tolist()
    [[0, 0, 1, 1], [0, 0, 0, 0]]
    >>> batch.positions.tolist()
    [[0, 1, 0, 1], [0, 1, 2, 3]]
    >>> batch.cu_seqlens.tolist(), batch.max_seqlen
    ([0, 2, 4, 8], 4)
    """
    total = _check_shape(rows, seq_len)
    document_starts = np.asarray(document_starts, np.int64)
    if document_starts.size and not 0 <= document_starts.min() <= document_starts.max() < total:
        outside = document_starts[(document_starts < 0) | (document_starts >= total)]
        raise UsageError(
            f"a document starts at token {outside[0]}, outside of a batch of "
            f"{rows:,} rows of {seq_len:,} tokens. Pass only starts inside the batch."
        )
    row_starts = np.arange(0, total + 1, seq_len, dtype=np.int32)
    starts = np.concatenate((row_starts, document_starts), dtype=np.int32, casting="unsafe")
    starts.sort()
    return DocumentBatch(rows, seq_len, starts[np.append(True, starts[1:] != starts[:-1])])


def locate_documents_by_id(
    tokens: npt.NDArray[Any], eot_id: int, eot: str, *, scanned_whole: int = _SCANNED_WHOLE
) -> DocumentBatch:
    """Describe the documents of a batch, found by the end-of-text id.

    `tokens` has shape (rows, seq_len + 1). `eot` is "before" or "after": where the end-of-text id
    is relative to each document. `scanned_whole` affects only the speed; see `_find_true`.

    >>> locate_documents_by_id(np.array([[5, 0, 6, 7], [0, 8, 0, 0]]), 0, "after").cu_seqlens
    array([0, 2, 3, 4, 6], dtype=int32)
    >>> locate_documents_by_id(np.array([[5, 0, 6, 7], [0, 8, 0, 0]]), 0, "before").cu_seqlens
    array([0, 1, 3, 5, 6], dtype=int32)
    """
    rows, width = tokens.shape
    _check_shape(rows, width - 1)
    memory = np.empty(tokens.size + 1, np.bool_)
    after = eot != "before"
    np.equal(tokens.reshape(-1), eot_id, out=memory[after : after + tokens.size])
    flags = memory[:-1].reshape(rows, width)
    flags[:, 0] = True  # each row starts a document
    flags[:, -1] = False  # the last token is not an input
    found = _find_true(memory[:-1], scanned_whole)
    starts = np.empty(len(found) + 1, np.int32)
    np.subtract(found, found // width, out=starts[:-1], casting="unsafe")
    starts[-1] = rows * (width - 1)
    return DocumentBatch(rows, width - 1, starts)


def _check_shape(rows: int, seq_len: int) -> int:
    """Return the number of tokens in a batch. Raises `UsageError` if it does not fit in int32."""
    total = rows * seq_len
    if rows < 0 or seq_len < 1 or total >= 2**31:
        raise UsageError(
            f"documents of a batch of {rows:,} rows of {seq_len:,} tokens cannot be located: a row "
            "needs at least 1 token, and a batch must have fewer than 2**31 tokens. Use a smaller "
            "batch."
        )
    return total


def _find_true(flags: npt.NDArray[np.bool_], scanned_whole: int) -> npt.NDArray[np.int64]:
    """Return the positions of all true flags.

    Fewer than `scanned_whole` flags are tested one by one. More flags are tested in groups of
    eight, and the groups in turn in groups of eight, which is fast if few flags are true.

    >>> _find_true(np.arange(1_000_001) % 500_000 == 0, 8).tolist()
    [0, 500000, 1000000]
    """
    if len(flags) < scanned_whole:
        return np.flatnonzero(flags)
    whole = len(flags) // 8 * 8
    eights = flags[:whole].view(np.uint64)
    some = _find_true(eights != 0, scanned_whole)
    found = np.flatnonzero(eights[some].view(np.bool_))
    places = some[found >> 3] * 8 + (found & 7)
    return np.concatenate((places, np.flatnonzero(flags[whole:]) + whole))
