"""What `tokenmill.stats` returns: plain figures that can be stored as JSON, and their display.

Unknown figures are None, and `omitted` says why. If only a part of the data was read, `sample` says
how much, and the figures describe that part: they are not scaled up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from tokenmill.html import render
from tokenmill.store.tables import SourceTable
from tokenmill.wording import count, counted, one_line

MANY_EPOCHS = 4.0  # more epochs than these hardly lower the loss further
_SHOWN = 10

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SplitCount:
    """The size of a split. `documents` is None if it is unknown where documents start."""

    name: str
    tokens: int
    documents: int | None


@dataclass(frozen=True, kw_only=True)
class Sample:
    """How many `tokens` and `documents` were read; `is_all` says whether that is all of the data.

    `documents` is 0 if it is unknown where documents start.
    """

    tokens: int
    documents: int
    is_all: bool


@dataclass(frozen=True, kw_only=True)
class SourceCount:
    """The tokens of one input file. `bytes_per_token` is None if the tokenizer is unknown."""

    path: str
    tokens: int
    documents: int
    bytes_per_token: float | None


@dataclass(frozen=True, kw_only=True)
class LengthBin:
    """The documents of `first` to `last` tokens, and how many tokens they have together."""

    first: int
    last: int
    documents: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Quantile:
    """A share of the documents, and the length in tokens that they do not exceed."""

    share: float
    length: int


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The lengths of documents in tokens. Each of the `bins` goes from one power of two to the next.

    Quantiles are exact up to 2,047 tokens; longer ones are at most 0.1% too small.
    """

    documents: int
    tokens: int
    shortest: int
    longest: int
    quantiles: tuple[Quantile, ...]
    bins: tuple[LengthBin, ...]

    @property
    def mean(self) -> float:
        """The mean length in tokens."""
        return self.tokens / self.documents if self.documents else 0.0


@dataclass(frozen=True, kw_only=True)
class RowCuts:
    """What rows of `seq_len` tokens do to documents if a row starts at every multiple of `seq_len`.

    `documents_cut` documents are in more than one row. They have `tokens_of_cut` tokens, of which
    `tokens_without_start` are in a later row than the first token of their document: there, the model
    does not see how the document begins.
    """

    seq_len: int
    documents: int
    tokens: int
    documents_cut: int
    tokens_of_cut: int
    tokens_without_start: int

    @property
    def share_of_documents(self) -> float:
        """The share of documents that are in more than one row."""
        return self.documents_cut / self.documents if self.documents else 0.0

    @property
    def share_of_tokens(self) -> float:
        """The share of tokens that the model sees without the start of their document."""
        return self.tokens_without_start / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, kw_only=True)
class TokenCount:
    """An id, how often it occurs, its share of all tokens, and its text if the tokenizer is known.

    `bytes` are the id's bytes in hexadecimal, such as "e2 80", if they are not valid UTF-8: such an id
    is a part of a character, and its text is only U+FFFD.
    """

    id: int
    count: int
    share: float
    text: str | None
    bytes: str | None = None

    def quote(self, most: int = 200) -> str:
        """Return at most `most` characters of the text in quotes, or the bytes; "" if unknown.

        >>> TokenCount(id=3, count=1, share=1.0, text="a").quote()
        "'a'"
        >>> TokenCount(id=3, count=1, share=1.0, text="\ufffd", bytes="e2 80").quote()
        'bytes e2 80'
        """
        if self.bytes is not None:
            return f"bytes {self.bytes[:most]}"
        return "" if self.text is None else repr(self.text[:most])


@dataclass(frozen=True, kw_only=True)
class Unused:
    """The ids of the vocabulary that never occur: their number, their share, and the first few."""

    count: int
    share: float
    examples: tuple[TokenCount, ...]


@dataclass(frozen=True, kw_only=True)
class ScriptCount:
    """The letters of one script, such as Latin, and their share of all letters."""

    script: str
    letters: int
    share: float


@dataclass(frozen=True, kw_only=True)
class Scripts:
    """The scripts of the text. Digits, punctuation and spaces are characters but not letters.

    `tokens` is how many tokens were examined. `split_share` is the share of the text, in bytes, that
    is in tokens with only a part of a character. If it is above 0.5%, scripts are counted in a sample
    of the decoded text (`is_decoded`). Otherwise, each id that occurs is decoded once, and parts of
    characters are left out.
    """

    characters: int
    letters: int
    tokens: int
    is_decoded: bool
    split_share: float
    scripts: tuple[ScriptCount, ...]


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines of at least `min_length` characters, and how many of them repeat an earlier one.

    They were counted in the text of `tokens` tokens. If `is_sample`, the share in all data is higher,
    because a line whose copies are not in the sample does not count as repeated.
    """

    lines: int
    repeated: int
    tokens: int
    min_length: int
    is_sample: bool

    @property
    def share(self) -> float:
        """The share of the lines that repeat an earlier line."""
        return self.repeated / self.lines if self.lines else 0.0


@dataclass(frozen=True, kw_only=True)
class SourceBudget:
    """What a training budget means for one source: how many of its tokens are trained on.

    `available` is how many training tokens the source has. `epochs` is how often each is used.
    """

    name: str
    share: float
    available: int
    trained: int
    epochs: float

    @property
    def has_many_epochs(self) -> bool:
        """Whether the source is repeated so often that further repeats hardly help."""
        return self.epochs > MANY_EPOCHS


@dataclass(frozen=True, kw_only=True)
class Omitted:
    """A part of the statistics that is missing, and why."""

    part: str
    reason: str


class Sources(Sequence[SourceCount]):
    """The tokens of every input file, largest first. Each entry is made when it is accessed.

    `columns` is an array with one column for each source, in the order of the dataset. Its rows are
    the tokens, the documents, the tokens that were read, and their bytes of text.
    """

    COLUMNS = ("tokens", "documents", "tokens_read", "bytes_read")

    def __init__(self, table: SourceTable, columns: Integers, *, has_bytes: bool) -> None:
        assert columns.shape == (len(self.COLUMNS), len(table))
        self._table, self.columns, self.has_bytes = table, columns, has_bytes

    @cached_property
    def _order(self) -> Integers:
        return np.argsort(-self.columns[0], kind="stable")

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, index: int) -> SourceCount: ...
    @overload
    def __getitem__(self, index: slice) -> list[SourceCount]: ...
    def __getitem__(self, index: int | slice) -> SourceCount | list[SourceCount]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        number = int(self._order[index])
        tokens, documents, tokens_read, bytes_read = self.columns[:, number].tolist()
        known = self.has_bytes and tokens_read
        return SourceCount(
            path=self._table[number].path,
            tokens=tokens,
            documents=documents,
            bytes_per_token=bytes_read / tokens_read if known else None,
        )

    def fold(self, first: int) -> SourceCount:
        """Return a single entry for all sources from number `first` on.

        Its path says how many sources these are.
        """
        rest = self.columns[:, self._order[first:]].sum(axis=1).tolist()
        return SourceCount(
            path=f"{counted(len(self) - first, 'more source')}",
            tokens=rest[0],
            documents=rest[1],
            bytes_per_token=rest[3] / rest[2] if self.has_bytes and rest[2] else None,
        )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sources)
            and self._table == other._table
            and np.array_equal(self.columns, other.columns)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Sources: {counted(len(self), 'source')}>"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The statistics of one dataset that are kept as JSON."""

    path: str
    format: str
    tokenizer: str | None
    tokenizer_fingerprint: str | None
    vocab_size: int | None
    eot_id: int | None
    split: str | None
    splits: tuple[SplitCount, ...]
    sample: Sample
    bytes_per_token: float | None
    frequent: tuple[TokenCount, ...]
    unused: Unused | None
    lengths: Lengths | None
    cuts: tuple[RowCuts, ...]
    scripts: Scripts | None
    lines: Lines | None
    omitted: tuple[Omitted, ...]

    @property
    def tokens(self) -> int:
        """The number of tokens of all splits."""
        return sum(split.tokens for split in self.splits)

    @property
    def documents(self) -> int | None:
        """The number of documents of all splits; None if unknown."""
        known = [split.documents for split in self.splits if split.documents is not None]
        return sum(known) if len(known) == len(self.splits) else None


@dataclass(frozen=True, kw_only=True, repr=False)
class Statistics(Figures):
    """The statistics of a dataset, or of the datasets of a mixture.

    `counts[id]` is how often an id occurs in the tokens that were read. `sources` is None if the
    dataset does not know the sources of its documents. `budget` has an entry for each source of a
    training run, if a budget was given. The statistics of a mixture have the statistics of its
    datasets in `parts`, by name; their other figures are totals.
    """

    counts: Integers = field(compare=False, default_factory=lambda: np.zeros(0, np.int64))
    sources: Sources | None = None
    budget: tuple[SourceBudget, ...] = ()
    parts: dict[str, Statistics] = field(default_factory=dict)

    def cut(self, seq_len: int) -> RowCuts | None:
        """Return what rows of `seq_len` tokens do to documents; None if unknown."""
        return next((one for one in self.cuts if one.seq_len == seq_len), None)

    def __repr__(self) -> str:
        words = [counted(self.tokens, "token")]
        if self.documents is not None:
            words.append(counted(self.documents, "document"))
        words += [f"{name}: {count(part.tokens)} tokens" for name, part in self._shown_parts()]
        if self.bytes_per_token is not None:
            words.append(f"{self.bytes_per_token:.2f} bytes per token")
        if not self.sample.is_all:
            words.append(f"from a sample of {counted(self.sample.tokens, 'token')}")
        return f"<Statistics {one_line(self.path)[:200]!r}: {', '.join(words)}>"

    def _shown_parts(self) -> Iterator[tuple[str, Statistics]]:
        for name in list(self.parts)[:_SHOWN]:
            yield one_line(name)[:60], self.parts[name]

    def _repr_html_(self) -> str:
        facts = [("tokens", count(self.tokens)), ("tokenizer", self.tokenizer or "unknown")]
        if self.documents is not None:
            facts.insert(1, ("documents", count(self.documents)))
        if self.bytes_per_token is not None:
            facts.append(("bytes per token", f"{self.bytes_per_token:.2f}"))
        if self.scripts is not None:
            main = [f"{one.script} {one.share:.1%}" for one in self.scripts.scripts[:4]]
            facts.append(("scripts", ", ".join(main)))
        if self.lines is not None:
            facts.append(("repeated lines", f"{self.lines.share:.1%}"))
        if not self.sample.is_all:
            facts.append(("sample", counted(self.sample.tokens, "token")))
        tables: list[tuple[str, Sequence[str], Sequence[Sequence[Any]]]] = []
        if self.sources is not None and len(self.sources):
            rows = [(one.path, count(one.tokens)) for one in self.sources[:_SHOWN]]
            tables.append(("Sources", ("file", "tokens"), rows))
        if self.frequent:
            shown = [(one.id, one.quote(), f"{one.share:.2%}") for one in self.frequent[:_SHOWN]]
            tables.append(("Frequent tokens", ("id", "text", "share"), shown))
        parts = [(name, count(part.tokens)) for name, part in self._shown_parts()]
        if parts:
            tables.append(("Datasets", ("name", "tokens"), parts))
        return render(f"Statistics of {self.path}", facts, *tables)
