"""Count documents by length, documents that rows cut, and the tokens of each source.

Costs: document tables are read once, in blocks, at some 10 million documents per second. Lengths are
counted by their 11 leading bits, which takes half a megabyte for any number of documents. Without a
table, documents are found by their end-of-text ids while the tokens are counted (`tokens.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError
from tokenmill.inspect.stats.result import LengthBin, Lengths, Quantile, RowCuts
from tokenmill.inspect.stats.sample import choose_blocks
from tokenmill.store.documents import Documents
from tokenmill.store.tables import SourceTable
from tokenmill.store.tokens import Tokens

BLOCK = 1 << 17  # documents read at once
SHARES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
_BITS = 10  # bits of a length after its first 1; so lengths up to 2,047 are counted exactly
_SHIFT = 52 - _BITS  # moves away all bits of a float64 but its sign, its exponent and these bits
_ONE = int(np.float64(1).view(np.int64)) >> _SHIFT

Integers = npt.NDArray[np.int64]


class LengthCounter:
    """Counts documents by length, and for several lengths of rows the documents that rows cut."""

    def __init__(self, seq_lens: Sequence[int]) -> None:
        self._codes = np.zeros(64 << _BITS, np.int64)
        self._tokens = np.zeros(64, np.int64)  # n: tokens of documents of 2**n to 2**(n+1)-1 tokens
        self._empty = 0
        self._longest, self._shortest = 0, 1 << 62
        self._cuts = {length: np.zeros(3, np.int64) for length in sorted(set(seq_lens))}

    @property
    def documents(self) -> int:
        """How many documents were counted."""
        return self._empty + int(self._codes.sum())

    def add(self, starts: Integers, ends: Integers) -> None:
        """Count documents by where they start and end in their split."""
        lengths = ends - starts
        if not len(lengths):
            return
        self._longest = max(self._longest, int(lengths.max()))
        self._shortest = min(self._shortest, int(lengths.min()))
        full = lengths > 0
        if not full.all():
            self._empty += len(full) - int(np.count_nonzero(full))
            starts, ends, lengths = starts[full], ends[full], lengths[full]
        codes = (lengths.astype(np.float64).view(np.int64) >> _SHIFT) - _ONE
        self._codes += np.bincount(codes, minlength=len(self._codes))
        # These float sums are exact, because the documents of a block have fewer than 2**53 tokens.
        sums = np.bincount(codes >> _BITS, weights=lengths, minlength=len(self._tokens))
        self._tokens += sums.astype(np.int64)
        for length, found in self._cuts.items():
            borders = (starts // length + 1) * length  # where the row of the first token ends
            cut = ends > borders
            found += (
                np.count_nonzero(cut),
                lengths[cut].sum(),
                (ends - borders)[cut].sum(),
            )

    def find_lengths(self) -> Lengths:
        """Return the histogram and the quantiles."""
        counts = self._codes.reshape(64, -1).sum(axis=1)
        bins = [LengthBin(first=0, last=0, documents=self._empty, tokens=0)] if self._empty else []
        used = np.flatnonzero(counts).tolist()
        bins += [
            LengthBin(
                first=1 << n,
                last=(2 << n) - 1,
                documents=int(counts[n]),
                tokens=int(self._tokens[n]),
            )
            for n in (range(used[0], used[-1] + 1) if used else ())
        ]
        documents = self.documents
        return Lengths(
            documents=documents,
            tokens=int(self._tokens.sum()),
            shortest=self._shortest if documents else 0,
            longest=self._longest,
            quantiles=tuple(
                Quantile(share=share, length=self._find_quantile(share, documents))
                for share in SHARES
                if documents
            ),
            bins=tuple(bins),
        )

    def _find_quantile(self, share: float, documents: int) -> int:
        """Return the smallest length that at least this share of the documents do not exceed."""
        rank = max(1, int(np.ceil(share * documents)))
        if rank <= self._empty:
            return 0
        code = int(np.searchsorted(np.cumsum(self._codes), rank - self._empty))
        return int(np.int64((code + _ONE) << _SHIFT).view(np.float64))

    def find_cuts(self) -> tuple[RowCuts, ...]:
        """Return for each length of rows how many documents and tokens the cuts affect."""
        documents, tokens = self.documents, int(self._tokens.sum())
        return tuple(
            RowCuts(
                seq_len=length,
                documents=documents,
                tokens=tokens,
                documents_cut=int(found[0]),
                tokens_of_cut=int(found[1]),
                tokens_without_start=int(found[2]),
            )
            for length, found in self._cuts.items()
        )


class EndCounter:
    """Finds documents by their end-of-text ids, in blocks of tokens that are given in order."""

    def __init__(self, tokens: Tokens, lengths: LengthCounter) -> None:
        assert tokens.eot_id is not None
        self._eot_id, self._after = tokens.eot_id, tokens.eot != "before"
        self._total, self._lengths = len(tokens), lengths
        self._start: int | None = None  # where the document at the end of the last block starts
        self._stop = 0

    def add(self, start: int, ids: npt.NDArray[Any]) -> None:
        """Count the documents that end in a block and begin in it or in the blocks just before it."""
        if start != self._stop:
            self._start = None
        self._stop = start + len(ids)
        starts = np.flatnonzero(ids == self._eot_id) + (start + self._after)
        if start == 0 and not (len(starts) and starts[0] == 0):
            starts = np.append(0, starts)
        if self._start is not None:
            starts = np.append(self._start, starts)
        if self._stop == self._total and len(starts) and starts[-1] != self._total:
            starts = np.append(starts, self._total)
        if len(starts):
            self._lengths.add(starts[:-1], starts[1:])
            self._start = int(starts[-1])


def count_documents(
    tokens: Tokens,
    lengths: LengthCounter,
    columns: Integers | None,
    limit: int,
    advance: Callable[[int], None],
) -> None:
    """Count about `limit` documents at most of a split that has a document table.

    If `columns` is given, adds the tokens and the documents of each source to its first two rows.
    Reports the number of documents read to `advance`.
    """
    table = tokens.documents
    assert table is not None
    reader = None
    if columns is not None:
        assert isinstance(table, Documents)
        reader = SourceReader(table, columns.shape[1])
    for first, last in choose_blocks(len(table), limit, BLOCK):
        edges = table.starts(first, last)
        lengths.add(edges[:-1], edges[1:])
        if columns is not None and reader is not None:
            _add_sources(columns, reader.read(first, last), np.diff(edges))
        advance(last - first)


def _add_sources(columns: Integers, sources: Integers, lengths: Integers) -> None:
    """Add the lengths of documents to row 0 of `columns`, and their number to row 1, by source."""
    if len(sources) and sources[0] == sources[-1] and (sources == sources[0]).all():
        columns[0, sources[0]] += lengths.sum()
        columns[1, sources[0]] += len(lengths)
        return
    np.add.at(columns[0], sources, lengths)
    np.add.at(columns[1], sources, 1)


class SourceReader:
    """Reads the sources of documents, and keeps those of the block that it read last."""

    def __init__(self, table: Documents, source_count: int) -> None:
        self._table, self._source_count = table, source_count
        self._first, self._held = 0, np.empty(0, np.int64)

    def read(self, first: int, last: int) -> Integers:
        """Return the number of the source of each of the documents [first, last)."""
        if first < self._first or last > self._first + len(self._held):
            parts = [np.empty(0, np.int64)]
            for number, records in self._table.read_records(first) if first < last else ():
                parts.append(self._check(records["source"]))
                if number + len(records) >= last:
                    break
            self._first, self._held = first, np.concatenate(parts)
        return self._held[first - self._first : last - self._first]

    def _check(self, found: npt.NDArray[np.uint64]) -> Integers:
        if (found >= self._source_count).any():
            raise DatasetError(
                f"A document table names source {found.max():,}, but the dataset has "
                f"{self._source_count:,} sources. Find all problems with: tokenmill verify DATA"
            )
        return found.astype(np.int64)


def make_columns(sources: SourceTable, rows: int) -> Integers:
    """Return `rows` zeros for each source, after checking that the table has all its sources."""
    list(islice(sources, 1))
    return np.zeros((rows, len(sources)), np.int64)
