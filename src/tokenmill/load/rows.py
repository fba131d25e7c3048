"""The rows of a run: from a row's number to its tokens and documents.

Guarantees: a row depends only on the tokens of the sources, the settings and its number, not on how
many rows are read at once or how the tokens are divided into files. Costs: one computation of the
order for all rows of a call, and one gather. If the dtypes of the sources differ, each source needs
its own gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TokenmillError, UsageError
from tokenmill.load.mixture import Mixture
from tokenmill.load.settings import RowSettings
from tokenmill.order.documents import DocumentBatch, locate_documents, locate_documents_by_id
from tokenmill.order.mixture import MixtureOrder
from tokenmill.order.rows import RowOrder
from tokenmill.storage.cache import PieceCache
from tokenmill.store.documents import sums
from tokenmill.store.gather import MANY
from tokenmill.store.row_source import RowReader
from tokenmill.store.tokens import Tokens, join

Integers = npt.NDArray[np.int64]


class RunRows:
    """The rows of one source or of a mixture, in the order of the run.

    >>> settings = RowSettings(seq_len=9, seed=1, order="sequential")
    >>> rows = RunRows(Tokens.of(range(100, 200)), settings)
    >>> rows.read(rows.locate(np.array([2])), np.empty((1, 10), np.int32)).tolist()
    [[118, 119, 120, 121, 122, 123, 124, 125, 126, 127]]
    """

    def __init__(
        self, data: Tokens | Mixture, settings: RowSettings, *, in_memory: bool = False
    ) -> None:
        if not isinstance(data, (Tokens, Mixture)):
            raise UsageError(
                f"a loader reads the tokens of a split or a Mixture, not {type(data).__name__}. "
                'If you have a dataset, pass one of its splits, such as data["train"]. If you have an '
                "array, pass Tokens.of(array)."
            )
        if in_memory:
            data = data.in_memory()
        self.data, self.settings, self.seq_len = data, settings, settings.seq_len
        self.names = ("",) if isinstance(data, Tokens) else data.names
        self.tokens = (data,) if isinstance(data, Tokens) else data.tokens
        self.orders = tuple(
            RowOrder(
                tokens=len(tokens),
                seq_len=settings.seq_len,
                seed=settings.seed,
                name=name,
                kind=settings.order,
                block_rows=settings.block_rows,
                group_blocks=settings.group_blocks,
            )
            for name, tokens in zip(self.names, self.tokens, strict=True)
        )
        self.mixture: MixtureOrder | None = None
        if isinstance(data, Mixture):
            self.mixture = MixtureOrder(
                names=data.names, phases=data.phases, seed=settings.seed, block=data.block
            )
        dtype = np.result_type(*(tokens.dtype for tokens in self.tokens))
        # NumPy gives float64 for int64 and uint64 together.
        self.dtype = dtype if dtype.kind in "iu" else np.dtype(np.int64)
        # Where the tokens of each source start when all sources are joined end to end.
        self._source_starts = sums([len(tokens) for tokens in self.tokens])[:-1]
        self._asked = _Recent(4 * (settings.group_blocks or 0) * len(self.tokens))
        self._joined = self.tokens[0] if len(self.tokens) == 1 else join(self.tokens)

    def locate(self, rows: Integers) -> Integers:
        """Return where rows start, in the tokens of all sources joined end to end; `rows` is 1-D."""
        if self.mixture is None:
            return self.orders[0].starts(rows)
        sources, starts = self.locate_in_sources(rows)
        starts += self._source_starts[sources]
        return starts

    def locate_in_sources(self, rows: Integers) -> tuple[Integers, Integers]:
        """Return the index of each row's source, and where the row starts in it; `rows` is 1-D."""
        if self.mixture is None:
            return np.zeros_like(rows), self.orders[0].starts(rows)
        sources, numbers = self.mixture.assign(rows)
        starts = np.empty_like(numbers)
        for source, order in enumerate(self.orders):
            chosen = np.flatnonzero(sources == source)  # several times as fast as a mask
            starts[chosen] = order.starts(numbers[chosen])
        return sources, starts

    def origin(self, row: int) -> tuple[str, int]:
        """Return the name of a row's source ("" without a mixture), and where the row starts in it.

        >>> settings = RowSettings(seq_len=9, order="sequential")
        >>> RunRows(Tokens.of(range(100)), settings).origin(2)
        ('', 18)
        """
        start = int(self.locate(np.array([row]))[0])
        source = int(self._source_starts.searchsorted(start, "right")) - 1
        return self.names[source], start - int(self._source_starts[source])

    def read(self, starts: Integers, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return the tokens of the rows at `starts`, as an array of shape (rows, seq_len + 1).

        The tokens are written to `out`, or to a new array of `self.dtype`.
        """
        length = self.seq_len + 1
        if self._are_neighbours and not self.caches:
            for tokens, own, width in self._find_new(starts):
                tokens.read_ahead(own, width)
        if self._joined is not None:
            return self._joined.gather(starts, length, self.dtype, out)
        if out is None:
            out = np.empty((len(starts), length), self.dtype)
        for tokens, chosen, own in self._divide_by_source(starts):
            # `gather` refuses an id that does not fit; this assignment would not.
            fits = np.can_cast(tokens.dtype, out.dtype)
            out[chosen] = tokens.gather(own, length, tokens.dtype if fits else out.dtype)
        return out

    def resolve(self, starts: Integers, *, documents: bool = False) -> ResolvedRows:
        """Look up the files of many rows at once. The rows can then be read a few at a time.

        With `documents`, also looks up the documents of the rows. Errors are deferred: reading an
        affected row raises them.
        """
        document_starts = self._find_tabled_documents(starts) if documents else None
        return ResolvedRows(self, starts, self._find_reader(starts), document_starts)

    def _find_reader(self, starts: Integers) -> RowReader:
        tokens = self._joined
        if tokens is not None and tokens.dtype == self.dtype and not self._are_neighbours:
            with suppress(TokenmillError, OSError):
                return tokens.find_rows(starts, self.seq_len + 1)
        return lambda first, last: self.read(starts[first:last])

    def _find_tabled_documents(self, starts: Integers) -> Integers | None:
        """Return where documents start in the rows at `starts`, according to document tables.

        The positions are sorted, and count tokens in the inputs of all rows, joined end to end.
        Returns None if a source has no table or too many shards to keep open, or if the lookup fails.
        """
        if all(tokens.documents and tokens.shard_count <= MANY for tokens in self.tokens):
            with suppress(TokenmillError, OSError):
                return np.sort(self._find_document_starts(starts))
        return None

    def _divide_by_source(self, starts: Integers) -> Iterator[tuple[Tokens, Integers, Integers]]:
        """Divide rows by source.

        Yields the tokens of each source, the indices of its rows in `starts`, and where these rows
        start in the tokens of the source.
        """
        sources = self._source_starts.searchsorted(starts, "right") - 1
        for source, tokens in enumerate(self.tokens):
            chosen = np.flatnonzero(sources == source)
            if len(chosen):
                yield tokens, chosen, starts[chosen] - self._source_starts[source]

    @property
    def _are_neighbours(self) -> bool:
        """Whether consecutive rows are near each other in the files."""
        return self.settings.order in ("sequential", "blocks")

    @cached_property
    def caches(self) -> list[PieceCache]:
        """The caches through which the tokens are read."""
        return [tokens.cache for tokens in self.tokens if tokens.cache is not None]

    def stream(self, is_streaming: bool) -> None:
        """Say whether whole blocks of rows are being fetched into a cache.

        If so, reading a row that is not in the cache yet fetches that row alone.
        """
        for tokens in {*self.tokens, self._joined}:
            if tokens is not None and tokens.cache is not None:
                tokens.stream(is_streaming)

    def fetch(self, starts: Integers, is_stopped: Callable[[], bool]) -> None:
        """Fetch rows from slow storage before they are read. Ends early if `is_stopped()` is true."""
        for tokens, own, width in self._find_new(starts):
            tokens.fetch(own, width, is_stopped)

    def _find_new(self, starts: Integers) -> Iterator[tuple[Tokens, Integers, int]]:
        """Yield the ranges of tokens to fetch: the tokens of a source, the starts, and the length.

        A range is a row or, in the order `blocks`, a whole block that no recent call has yielded.
        Ranges come in the order in which the rows need them.
        """
        for tokens, chosen, own in self._divide_by_source(starts):
            if self.settings.block_rows is None:
                yield tokens, own, self.seq_len + 1
                continue
            # A block may be larger than the source, and than an int64.
            size = min(self.settings.block_rows * self.seq_len, len(tokens))
            before = int(starts[chosen[0]] - own[0])  # the tokens of earlier sources
            blocks, uses = np.unique(own // size, return_index=True)
            firsts = (blocks[uses.argsort()] * size).tolist()
            new = [first for first in firsts if not self._asked.has(before + first)]
            self._asked.add(before + first for first in new)
            whole = [first for first in new if first + size < len(tokens)]
            if whole:
                yield tokens, np.array(whole), size + 1
            if len(whole) < len(new):  # the last block
                last = (len(tokens) - 1) // size * size
                yield tokens, np.array([last]), len(tokens) - last

    def check_documents(self) -> None:
        """Raise an error if the documents of any source are unknown."""
        for tokens in self.tokens:
            tokens.find_document_starts(np.empty(0, np.int64), self.seq_len)

    def find_documents(self, starts: Integers, rows: npt.NDArray[Any]) -> DocumentBatch:
        """Return the documents of the rows at `starts`; `rows` has the tokens of these rows."""
        if self._end_of_text is not None:
            return locate_documents_by_id(rows, *self._end_of_text)
        return locate_documents(self._find_document_starts(starts, rows), len(rows), self.seq_len)

    def _find_document_starts(
        self, starts: Integers, rows: npt.NDArray[Any] | None = None
    ) -> Integers:
        """Return where documents start in the rows at `starts`, in any order.

        A position counts tokens in the inputs of all rows, joined end to end. `rows` has the tokens
        of the rows, if they were read already.
        """
        if len(self.tokens) == 1:
            return self.tokens[0].find_document_starts(starts, self.seq_len, rows)
        found = [np.empty(0, np.int64)]
        for tokens, chosen, own in self._divide_by_source(starts):
            own_rows = rows[chosen] if tokens.documents is None and rows is not None else None
            own_starts = tokens.find_document_starts(own, self.seq_len, own_rows)
            at = own_starts // self.seq_len
            found.append(own_starts + (chosen[at] - at) * self.seq_len)
        return np.concatenate(found)

    @cached_property
    def _end_of_text(self) -> tuple[int, str] | None:
        """The end-of-text id, and whether it is before or after each document.

        None if sources differ in this, or if a source has a document table.
        """
        ways = {(tokens.documents is None, tokens.eot_id, tokens.eot) for tokens in self.tokens}
        by_id, eot_id, eot = ways.pop()
        return (eot_id, eot) if by_id and eot_id is not None and not ways else None

    def counts(self, row: int) -> dict[str, int]:
        """Return how many of the first `row` rows come from each source, by name."""
        if self.mixture is None:
            return {self.names[0]: row}
        return dict(zip(self.names, self.mixture.counts(row).tolist(), strict=True))

    def count_epoch(self, limit_rows: int | None) -> int:
        """Return the number of rows in an epoch: `limit_rows` if given, else all rows of the source.

        A mixture needs `limit_rows`, and raises an error without it.
        """
        if limit_rows is not None:
            return limit_rows
        if self.mixture is not None:
            raise UsageError(
                "a mixture needs `limit_rows`, because each source has its own epochs."
            )
        return self.orders[0].windows

    def learn_identity(self, state: Mapping[str, Any]) -> None:
        """Take fingerprints (hashes of some of the tokens) from a saved state, to save requests.

        Only done for sources that are slow to read and have the same checksums in the state.
        """
        with suppress(AttributeError, LookupError, TypeError):  # `check_state` names what is wrong
            for name, tokens in zip(self.names, self.tokens, strict=True):
                tokens.learn_fingerprint(state["sources"][name]["fingerprint"])

    def find_growth_cure(self, state: Mapping[str, Any]) -> str | None:
        """Return what to do if a state is of an earlier generation of the data; None if it is not."""
        found: dict[str, int] = {}
        with suppress(AttributeError, LookupError, TypeError):  # `check_state` names what is wrong
            for name, tokens in zip(self.names, self.tokens, strict=True):
                there = state["sources"][name]
                number = tokens.find_generation(there["tokens"], there["fingerprint"])
                if number is not None and there["tokens"] != len(tokens):
                    found[name] = number
        if not found:
            return None
        cures = " and ".join(
            f"tokenmill.open({f'PATH of {name}' if name else 'path'}, generation={number})"
            for name, number in found.items()
        )
        return (
            "The dataset has grown since the state was saved. To resume with the rows of that run, open "
            f"the data with {cures}."
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides which tokens row n holds, as values for JSON."""
        identity: dict[str, Any] = {
            **self.settings.identity,
            "sources": {
                name: {
                    "tokens": len(tokens),
                    "fingerprint": tokens.identity,
                    **({"generation": tokens.generation} if tokens.earlier else {}),
                }
                for name, tokens in zip(self.names, self.tokens, strict=True)
            },
        }
        if self.mixture is not None:
            identity["names"] = list(self.names)  # JSON objects, such as `sources`, have no order
            identity["weights"] = [[row, list(weights)] for row, weights in self.mixture.phases]
            identity["block"] = self.mixture.block
        return identity


class _Recent:
    """A set of the last `most` numbers that were added, or up to about twice as many.

    There is no lock, because a fork could inherit a locked lock. So threads may lose a number.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._new: set[int] = set()
        self._old: set[int] = set()

    def has(self, number: int) -> bool:
        return number in self._new or number in self._old

    def add(self, numbers: Iterable[int]) -> None:
        self._new.update(numbers)
        if len(self._new) > self._most:
            self._new, self._old = set(), self._new


class ResolvedRows(NamedTuple):
    """Rows whose files were looked up. They can be read a few at a time."""

    rows: RunRows
    starts: Integers
    read: RowReader
    document_starts: Integers | None  # from tables: positions in all rows joined end to end

    def find_documents(self, first: int, last: int, rows: npt.NDArray[Any]) -> DocumentBatch:
        """Return the documents of the rows [first, last); `rows` has the tokens of these rows."""
        if self.document_starts is None:
            return self.rows.find_documents(self.starts[first:last], rows)
        start, stop = first * self.rows.seq_len, last * self.rows.seq_len
        some = slice(*self.document_starts.searchsorted((start, stop)))
        return locate_documents(self.document_starts[some] - start, len(rows), self.rows.seq_len)
