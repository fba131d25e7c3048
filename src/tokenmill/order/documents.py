"""Where documents begin and end inside a batch, in the forms that attention kernels want.

Guarantees: the three arrays of a `DocumentBatch` describe the same cuts: one at each beginning of
a document and one at each beginning of a row, since rows do not see each other. Costs: three
passes over the batch, 1 to 2 ns a token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError

__all__ = ["DocumentBatch", "locate_documents"]


@dataclass(frozen=True, kw_only=True)
class DocumentBatch:
    """The documents of a batch of rows, for the inputs; all arrays are int32.

    Parameters
    ----------
    ids
        (rows, seq_len): the number of each token's document in its row, from 0.
    positions
        (rows, seq_len): the place of each token in its document, as far as the row shows it.
    cu_seqlens
        (documents + 1): where each document begins in the rows laid end to end, and their length.
    max_seqlen
        The tokens of the longest document, as far as a row shows it.
    """

    ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    cu_seqlens: npt.NDArray[np.int32]
    max_seqlen: int

    def split(self, count: int) -> list[DocumentBatch]:
        """The documents of each of `count` batches of equal size, which these are together.

        >>> both = locate_documents(np.array([1]), np.array([2]), rows=2, seq_len=4)
        >>> [batch.cu_seqlens.tolist() for batch in both.split(2)]
        [[0, 4], [0, 2, 4]]
        """
        if count == 1:
            return [self]
        rows, length = self.ids.shape
        size = rows // count
        borders = np.arange(count + 1) * (size * length)
        edges = np.searchsorted(self.cu_seqlens, borders).tolist()
        parts = []
        for number in range(count):
            some = slice(number * size, (number + 1) * size)
            first, last = edges[number], edges[number + 1]
            ends = self.cu_seqlens[first : last + 1] - np.int32(borders[number])
            parts.append(
                DocumentBatch(
                    ids=self.ids[some],
                    positions=self.positions[some],
                    cu_seqlens=ends,
                    max_seqlen=int(np.diff(ends).max()),
                )
            )
        return parts


def locate_documents(
    edge_rows: npt.NDArray[np.int64],
    edge_places: npt.NDArray[np.int64],
    rows: int,
    seq_len: int,
) -> DocumentBatch:
    """The documents of a batch, from the pairs (row, place) at which documents begin.

    A document without tokens begins where the next one does, and the two count as one.

    >>> batch = locate_documents(np.array([0, 1]), np.array([2, 0]), rows=2, seq_len=4)
    >>> batch.ids.tolist()
    [[0, 0, 1, 1], [0, 0, 0, 0]]
    >>> batch.positions.tolist()
    [[0, 1, 0, 1], [0, 1, 2, 3]]
    >>> batch.cu_seqlens.tolist(), batch.max_seqlen
    ([0, 2, 4, 8], 4)
    """
    total = rows * seq_len
    if rows < 0 or seq_len < 1 or total >= 2**31:
        raise UsageError(
            f"a batch of {rows:,} rows of {seq_len:,} tokens cannot carry its documents: rows need "
            "at least one token, and a batch has below 2**31 in all. Use a smaller batch."
        )
    edge_rows, edge_places = np.asarray(edge_rows, np.int64), np.asarray(edge_places, np.int64)
    inside = (edge_rows >= 0) & (edge_rows < rows) & (edge_places >= 0) & (edge_places < seq_len)
    if not inside.all():
        wrong = int(np.flatnonzero(~inside)[0])
        raise UsageError(
            f"a document begins at row {edge_rows[wrong]}, place {edge_places[wrong]}, which is "
            f"not in a batch of {rows:,} rows of {seq_len:,} tokens. Give only what lies inside."
        )
    begins = np.zeros((rows, seq_len), np.bool_)
    begins[:, 0] = True
    begins[edge_rows, edge_places] = True
    starts = np.flatnonzero(begins)
    cu_seqlens = np.append(starts, total).astype(np.int32)
    lengths = np.diff(cu_seqlens)
    row_firsts = np.flatnonzero(starts % seq_len == 0)
    numbers = np.arange(len(starts)) - row_firsts[starts // seq_len]
    positions = np.arange(total, dtype=np.int32) - np.repeat(cu_seqlens[:-1], lengths)
    return DocumentBatch(
        ids=np.repeat(numbers.astype(np.int32), lengths).reshape(rows, seq_len),
        positions=positions.reshape(rows, seq_len),
        cu_seqlens=cu_seqlens,
        max_seqlen=int(lengths.max(initial=0)),
    )
