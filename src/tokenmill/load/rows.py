"""All rows of a run: from a row's number to its tokens.

Guarantees: a row follows from the tokens of the sources, the settings and its number alone, not
from how many rows are asked for at once, nor from how the tokens are divided into files. Costs: one
computation of the order for all rows asked for, and one gather, or one for each source where these
differ in dtype.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TokenmillError, UsageError
from tokenmill.load.mixture import Mixture
from tokenmill.order.documents import DocumentBatch, cut_at_id, locate_documents
from tokenmill.order.mixture import MixtureOrder
from tokenmill.order.rows import Kind, RowOrder
from tokenmill.store.documents import sums
from tokenmill.store.gather import MANY, RowReader
from tokenmill.store.tokens import Tokens, join

Integers = npt.NDArray[np.int64]


class Rows:
    """The rows of one source or of a mixture, in the order in which a run takes them.

    >>> rows = Rows(Tokens.of(range(100, 200)), seq_len=9, seed=1, order="sequential")
    >>> rows.read(rows.locate(np.array([2])), np.empty((1, 10), np.int32)).tolist()
    [[118, 119, 120, 121, 122, 123, 124, 125, 126, 127]]
    """

    def __init__(
        self,
        data: Tokens | Mixture,
        *,
        seq_len: int,
        seed: int = 0,
        order: Kind = "shuffled",
        shuffle_block: int | None = None,
        in_memory: bool = False,
    ) -> None:
        seq_len, seed = check_whole("seq_len", seq_len, 1), check_whole("seed", seed)
        if shuffle_block is not None:
            shuffle_block = check_whole("shuffle_block", shuffle_block, 1)
        if not isinstance(data, (Tokens, Mixture)):
            raise UsageError(
                f"a loader takes the tokens of a split or a Mixture, not {type(data).__name__}. "
                'Give data["train"] rather than data; an array goes in as Tokens.of(array).'
            )
        if in_memory:
            data = data.in_memory()
        self.data = data
        mixture = data if isinstance(data, Mixture) else None
        self.names = ("",) if isinstance(data, Tokens) else data.names
        self.tokens = (data,) if isinstance(data, Tokens) else data.tokens
        self.seq_len = seq_len
        self.orders = tuple(
            RowOrder(
                tokens=len(tokens),
                seq_len=seq_len,
                seed=seed,
                name=name,
                kind=order,
                shuffle_block=shuffle_block,
            )
            for name, tokens in zip(self.names, self.tokens, strict=True)
        )
        self.mixture: MixtureOrder | None = None
        if mixture:
            self.mixture = MixtureOrder(
                names=mixture.names, phases=mixture.phases, seed=seed, block=mixture.block
            )

        dtype = np.result_type(*(tokens.dtype for tokens in self.tokens))
        self.dtype = dtype if dtype.kind in "iu" else np.dtype(np.int64)  # of int64 and uint64
        # Where the tokens of each source begin, when all are laid end to end.
        self._firsts = sums([len(tokens) for tokens in self.tokens])[:-1]
        self._joined = self.tokens[0] if len(self.tokens) == 1 else join(self.tokens)

    def locate(self, rows: Integers) -> Integers:
        """Where some rows (1-D, from 0 on) begin, in the tokens of all sources end to end."""
        if self.mixture is None:
            return self.orders[0].starts(rows)
        sources, numbers = self.mixture.assign(rows)
        starts = np.empty_like(numbers)
        for source, order in enumerate(self.orders):
            chosen = np.flatnonzero(sources == source)  # several times as fast as a mask
            starts[chosen] = order.starts(numbers[chosen]) + self._firsts[source]
        return starts

    def origin(self, row: int) -> tuple[str, int]:
        """The name of the source that a row is of ("", if there is but one), and its first token.

        >>> rows = Rows(Tokens.of(range(100)), seq_len=9, order="sequential")
        >>> rows.origin(2)
        ('', 18)
        """
        start = int(self.locate(np.array([row]))[0])
        source = int(self._firsts.searchsorted(start, "right")) - 1
        return self.names[source], start - int(self._firsts[source])

    def read(self, starts: Integers, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """The tokens of some rows, (rows, seq_len + 1), in `out` or an array of their own dtype."""
        length = self.seq_len + 1
        if self.are_near:
            for tokens, _, own in self._by_source(starts):
                tokens.read_ahead(own, length)
        if self._joined is not None:
            return self._joined.gather(starts, length, self.dtype, out)
        if out is None:
            out = np.empty((len(starts), length), self.dtype)
        for tokens, chosen, own in self._by_source(starts):
            # An id that is too large for `out` is found before rows are put in their places.
            fits = np.can_cast(tokens.dtype, out.dtype)
            out[chosen] = tokens.gather(own, length, tokens.dtype if fits else out.dtype)
        return out

    def find(self, starts: Integers, *, documents: bool = False) -> FoundRows:
        """Some rows, for those who read them in parts, with their documents if these are asked for."""
        edges = self._find_known_edges(starts) if documents else None
        return FoundRows(self, starts, self._find_reader(starts), edges)

    # What is wrong with a row, the two below leave for those to meet who read it.

    def _find_reader(self, starts: Integers) -> RowReader:
        tokens = self._joined
        if tokens is not None and tokens.dtype == self.dtype and not self.are_near:
            with suppress(TokenmillError, OSError):
                return tokens.find_rows(starts, self.seq_len + 1)
        return lambda first, last: self.read(starts[first:last])

    def _find_known_edges(self, starts: Integers) -> Integers | None:
        """Where documents begin, if tables tell it, and not too many."""
        if all(tokens.documents and tokens.shard_count <= MANY for tokens in self.tokens):
            with suppress(TokenmillError, OSError):
                return np.sort(self._find_edges(starts))
        return None

    def _by_source(self, starts: Integers) -> Iterator[tuple[Tokens, Integers, Integers]]:
        """Each source that some of the rows are of, their numbers, and where they begin in it."""
        sources = self._firsts.searchsorted(starts, "right") - 1
        for source, tokens in enumerate(self.tokens):
            chosen = np.flatnonzero(sources == source)
            if len(chosen):
                yield tokens, chosen, starts[chosen] - self._firsts[source]

    @property
    def are_near(self) -> bool:
        """Whether rows that follow each other are near each other in the files."""
        order = self.orders[0]
        return order.kind == "sequential" or order.shuffle_block is not None

    def check_documents(self) -> None:
        """Raise an error now if the start of documents is unknown for any source."""
        for tokens in self.tokens:
            tokens.find_document_starts(np.empty(0, np.int64), self.seq_len)

    def find_documents(self, starts: Integers, rows: npt.NDArray[Any]) -> DocumentBatch:
        """The documents of some rows, which were read."""
        if self._end_of_text is not None:
            return cut_at_id(rows, *self._end_of_text)
        return locate_documents(self._find_edges(starts, rows), len(rows), self.seq_len)

    def _find_edges(self, starts: Integers, rows: npt.NDArray[Any] | None = None) -> Integers:
        """Where documents begin in the inputs of some rows, laid end to end; `rows` as in
        `Tokens.find_document_starts`."""
        if len(self.tokens) == 1:
            return self.tokens[0].find_document_starts(starts, self.seq_len, rows)
        found = [np.empty(0, np.int64)]
        for tokens, chosen, own in self._by_source(starts):
            own_rows = rows[chosen] if tokens.documents is None and rows is not None else None
            edges = tokens.find_document_starts(own, self.seq_len, own_rows)
            at = edges // self.seq_len
            found.append(edges + (chosen[at] - at) * self.seq_len)
        return np.concatenate(found)

    @cached_property
    def _end_of_text(self) -> tuple[int, str] | None:
        """The one id that ends or begins documents in all sources, if that is how to find them."""
        ways = {(tokens.documents is None, tokens.eot_id, tokens.eot) for tokens in self.tokens}
        by_id, eot_id, eot = ways.pop()
        return (eot_id, eot) if by_id and eot_id is not None and not ways else None

    def counts(self, row: int) -> dict[str, int]:
        """How many of the first `row` rows come from each source, by its name."""
        if self.mixture is None:
            return {self.names[0]: row}
        return dict(zip(self.names, self.mixture.counts(row).tolist(), strict=True))

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that decides which tokens row n holds, JSON-able."""
        first = self.orders[0]
        identity: dict[str, Any] = {
            "seq_len": self.seq_len,
            "seed": first.seed,
            "order": first.kind,
            "shuffle_block": first.shuffle_block,
            "sources": {
                name: {"tokens": len(tokens), "fingerprint": tokens.fingerprint}
                for name, tokens in zip(self.names, self.tokens, strict=True)
            },
        }
        if self.mixture is not None:
            identity["names"] = list(self.names)  # in their order, which is not that of `sources`
            identity["weights"] = [[row, list(weights)] for row, weights in self.mixture.phases]
            identity["block"] = self.mixture.block
        return identity


class FoundRows(NamedTuple):
    """Some rows of a run that were found at once, to be read in parts."""

    rows: Rows
    starts: Integers
    read: RowReader
    edges: Integers | None  # where documents begin in all of them, if it is known

    def find_documents(self, first: int, last: int, rows: npt.NDArray[Any]) -> DocumentBatch:
        """The documents of the rows from the first to before the last, which were read."""
        if self.edges is None:
            return self.rows.find_documents(self.starts[first:last], rows)
        begin, end = first * self.rows.seq_len, last * self.rows.seq_len
        some = slice(*self.edges.searchsorted((begin, end)))
        return locate_documents(self.edges[some] - begin, len(rows), self.rows.seq_len)


def check_whole(name: str, value: Any, least: int | None = None) -> int:
    """A setting that must be a whole number, as Python's own kind, which JSON can hold.

    >>> check_whole("seq_len", np.int64(1024))
    1024
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"`{name}` is {value!r}; it must be a whole number.") from None
    if least is not None and number < least:
        raise UsageError(f"`{name}` is {number}; it must be {least} or more.")
    return number
