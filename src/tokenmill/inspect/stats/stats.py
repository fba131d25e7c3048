"""`tokenmill.stats`: what a dataset consists of.

Tokens per source, lengths of documents, frequent and unused ids, bytes per token, scripts, repeated
lines, documents that rows cut, and the epochs that a training budget amounts to.

Guarantees: counts are exact if everything was read (`Statistics.sample`). Otherwise they describe
evenly spaced blocks, always the same ones. Memory is bounded for any number of tokens and documents.

Costs: one pass over the document tables and one over the tokens, and the decoding of at most eight
million tokens. By default, at most `SAMPLE` tokens are read, and fewer of remote data. The result is
kept beside the dataset (`kept.py`), and later calls only read it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.named import open_named
from tokenmill.dataset.opening import Dataset
from tokenmill.errors import FolderError, TokenizerError, UsageError
from tokenmill.inspect.stats.budget import find_epochs
from tokenmill.inspect.stats.documents import (
    EndCounter,
    LengthCounter,
    count_documents,
    make_columns,
)
from tokenmill.inspect.stats.kept_statistics import find_tokenizer, keep, read_kept
from tokenmill.inspect.stats.result import (
    Omitted,
    Sample,
    Sources,
    SplitCount,
    Statistics,
    TokenCount,
    Unused,
)
from tokenmill.inspect.stats.sample import share_limit
from tokenmill.inspect.stats.texts import (
    TEXT_TOKENS,
    LineCounter,
    ScriptCounter,
    count_scripts_by_id,
    is_split,
    read_text,
)
from tokenmill.inspect.stats.tokens import IdCounter, count_tokens
from tokenmill.progress import Watcher, watching
from tokenmill.store.documents import Documents
from tokenmill.store.manifest import DOCUMENT_DTYPE
from tokenmill.tokenizers import Tokenizer
from tokenmill.training.validation import bytes_per_token
from tokenmill.wording import brief

SAMPLE = 10**10  # tokens to read, by default
SAMPLE_REMOTE = 2 * 10**8
DOCUMENTS = 1 << 28  # documents to read, at most
DOCUMENTS_REMOTE = 1 << 22
SEQ_LENS = (512, 1024, 2048, 4096, 8192, 32768)  # lengths of rows that are always examined
_MOST_SEQ_LENS = 32
_FREQUENT = 1000  # ids to list
_LONGEST_ROW = 1 << 62  # tokens
_LONGEST = 200  # characters of the text of an id

AnyPath = str | os.PathLike[str]
Integers = npt.NDArray[np.int64]


def stats(
    data: AnyPath | Dataset | Sequence[AnyPath],
    *,
    split: str | None = None,
    seq_len: int = 1024,
    budget: int | None = None,
    sample: int | Literal["all"] | None = None,
    tokenizer: str | Tokenizer | None = None,
    dtype: npt.DTypeLike | None = None,
    format: str | None = None,
    eot_id: int | None = None,
    vocab_size: int | None = None,
    column: str | None = None,
    fresh: bool = False,
    progress: bool | None = None,
    watcher: Watcher | None = None,
) -> Statistics:
    """Return statistics of a dataset, or of the datasets of a mixture.

    To cancel the work, raise an exception in `watcher.advance`. `stats` raises it again, and keeps
    no results.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import tokenmill
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("To be, or not to be.<|endoftext|>That is the question.")
    >>> _ = tokenmill.prepare(folder / "a.txt", folder / "data", tokenizer="bytes", val_fraction=0)
    >>> found = stats(folder / "data", seq_len=8)
    >>> found.tokens, found.documents, found.lengths.longest, found.cut(8).documents_cut
    (43, 2, 22, 2)
    >>> found.frequent[0].text, found.scripts.scripts[0].script
    (' ', 'Latin')

    Parameters
    ----------
    data
        A path as in `tokenmill.open`, an opened dataset, or several datasets as "NAME=PATH:WEIGHT".
    split
        Only this split. By default, all splits together.
    seq_len
        Tokens per row, to count the documents that rows cut, and the epochs of a budget.
    budget
        Number of tokens to train on. `Statistics.budget` says how many epochs of each source this is.
    sample
        How many tokens to read at most, or "all". By default, 10 billion; 200 million if the data is
        in an object store.
    tokenizer, dtype, format, eot_id, vocab_size, column
        As in `tokenmill.open`.
    fresh
        Whether to compute the statistics again, even if they are kept from an earlier call.
    progress, watcher
        As in `tokenmill.prepare`.
    """
    if not 1 <= seq_len <= _LONGEST_ROW:
        raise UsageError(f"`seq_len` is {brief(seq_len)}; it must be from 1 to {_LONGEST_ROW:,}.")
    if isinstance(sample, int) and sample < 1:
        raise UsageError(f"`sample` is {sample}; it must be 1 token or more, or 'all'.")
    options: dict[str, Any] = {"tokenizer": tokenizer, "dtype": dtype, "format": format}
    options |= {"eot_id": eot_id, "vocab_size": vocab_size, "column": column}
    opened = _open(data, options)
    # Compute the budget first, because this is quick and may raise an error.
    spent = _find_budget(opened, budget, seq_len)
    with watching(watcher, progress) as shown:
        parts = {
            name: _find(dataset, split, seq_len, sample, fresh, shown)
            for name, (dataset, _) in opened.items()
        }
    found = parts[""] if "" in parts else _join(parts)
    return replace(found, budget=spent) if spent else found


def read_stats(dataset: Dataset, split: str | None = None) -> Statistics | None:
    """Return the statistics that an earlier call of `stats` kept, without computing any.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import tokenmill
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "x.npy", np.arange(10))
    >>> read_stats(tokenmill.open(folder / "x.npy")) is None
    True
    """
    return read_kept(dataset, split)


def _open(
    data: AnyPath | Dataset | Sequence[AnyPath], options: dict[str, Any]
) -> dict[str, tuple[Dataset, float]]:
    """Return the datasets by name, each with its weight. A single dataset has the name ""."""
    if isinstance(data, Dataset):
        return {"": (data, 1.0)}
    return open_named(data, cache_bytes=0, **options)


def _find_budget(
    opened: dict[str, tuple[Dataset, float]], budget: int | None, seq_len: int
) -> tuple[Any, ...]:
    if budget is None:
        return ()
    sources = {
        name or str(dataset.path): (len(dataset["train"]), weight)
        for name, (dataset, weight) in opened.items()
    }
    return find_epochs(sources, budget, seq_len)


def _join(parts: dict[str, Statistics]) -> Statistics:
    """Return the statistics of a mixture: totals, and the statistics of its datasets."""
    splits: dict[str, SplitCount] = {}
    for part in parts.values():
        for one in part.splits:
            so_far = splits.get(one.name, SplitCount(name=one.name, tokens=0, documents=0))
            is_known = so_far.documents is not None and one.documents is not None
            splits[one.name] = SplitCount(
                name=one.name,
                tokens=so_far.tokens + one.tokens,
                documents=(so_far.documents or 0) + (one.documents or 0) if is_known else None,
            )
    first = next(iter(parts.values()))
    return Statistics(
        path=", ".join(parts),
        format="mixture",
        tokenizer=first.tokenizer,
        tokenizer_fingerprint=first.tokenizer_fingerprint,
        vocab_size=first.vocab_size,
        eot_id=first.eot_id,
        split=first.split,
        splits=tuple(splits.values()),
        sample=Sample(
            tokens=sum(part.sample.tokens for part in parts.values()),
            documents=sum(part.sample.documents for part in parts.values()),
            is_all=all(part.sample.is_all for part in parts.values()),
        ),
        bytes_per_token=None,
        frequent=(),
        unused=None,
        lengths=None,
        cuts=(),
        scripts=None,
        lines=None,
        omitted=(Omitted(part="other figures", reason="they are in `parts`, for each dataset"),),
        parts=parts,
    )


def _find(
    dataset: Dataset,
    split: str | None,
    seq_len: int,
    sample: int | Literal["all"] | None,
    fresh: bool,
    watcher: Watcher,
) -> Statistics:
    """Return the kept statistics if they answer the request; otherwise compute and keep new ones."""
    names = list(dataset) if split is None else [split]
    total = sum(len(dataset[name]) for name in names)
    is_remote = any(dataset[name].is_remote for name in names)
    default = SAMPLE_REMOTE if is_remote else SAMPLE
    limit = total if sample == "all" else min(sample or default, total)
    lengths = {*SEQ_LENS, seq_len}
    kept = None if fresh else read_kept(dataset, split)
    if kept is not None:
        known = {one.seq_len for one in kept.cuts}
        if (kept.sample.is_all or kept.sample.tokens >= limit) and (
            not kept.cuts or seq_len in known
        ):
            return kept
        lengths |= {one for one in known if len(known) < _MOST_SEQ_LENS}
    if limit < total and sample is None:
        watcher.note(
            f"There are {total:,} tokens; reading about {limit:,} of them in evenly spaced blocks. To "
            "read all, pass `sample='all'`."
        )
    found = _Computation(dataset, names, split, sorted(lengths), limit, watcher).run()
    try:
        keep(dataset, found)
    except (OSError, FolderError) as error:  # a full disk, or a folder that cannot be used
        reason = error.strerror if isinstance(error, OSError) else None
        watcher.note(f"The statistics cannot be kept: {reason or error}")
    return found


class _Computation:
    """Computes the statistics of some splits of a dataset, taken together."""

    def __init__(
        self,
        dataset: Dataset,
        names: list[str],
        split: str | None,
        seq_lens: Sequence[int],
        limit: int,
        watcher: Watcher,
    ) -> None:
        self.dataset, self.split, self.limit, self.watcher = dataset, split, limit, watcher
        self.splits = [dataset[name] for name in names]
        self.total = sum(map(len, self.splits))
        self.omitted: list[Omitted] = []
        self.lengths = LengthCounter(seq_lens)
        self.documents: dict[str, int | None] = {}
        found = find_tokenizer(dataset)
        self.tokenizer = None if isinstance(found, TokenizerError) else found
        if isinstance(found, TokenizerError):
            what = "text of tokens, bytes per token, scripts, repeated lines"
            self.omit(what, f"the tokenizer is unknown: {found}")
        self.vocab_size = dataset.vocab_size
        if self.vocab_size is None and self.tokenizer is not None:
            self.vocab_size = self.tokenizer.vocab_size
        self.counter = IdCounter(self.vocab_size, str(dataset.path))
        self.byte_lengths: Integers | None = None
        self.columns = self._make_columns()

    def omit(self, part: str, reason: str) -> None:
        self.omitted.append(Omitted(part=part, reason=reason))

    def _make_columns(self) -> Integers | None:
        """Return zeros for each source, or None if the sources of documents are unknown."""
        manifest = self.dataset.manifest
        tables = [tokens.documents for tokens in self.splits]
        if manifest is None or not all(isinstance(table, Documents) for table in tables):
            reason = (
                f"data in the format {self.dataset.format} does not say where documents are from"
            )
            self.omit("sources", reason)
            return None
        return make_columns(manifest.sources, len(Sources.COLUMNS))

    def run(self) -> Statistics:
        self._read_documents()
        read = self._read_tokens()
        scripts, lines = self._read_text()
        counts, read_documents = self.counter.counts, self.lengths.documents
        bytes_per_token = None
        if self.byte_lengths is not None:
            whole = int(counts @ self.byte_lengths[: len(counts)])
            bytes_per_token = whole / read if whole else None
        sizes = [
            SplitCount(
                name=tokens.split, tokens=len(tokens), documents=self.documents.get(tokens.split)
            )
            for tokens in self.splits
        ]
        known = [one.documents for one in sizes if one.documents is not None]
        has_documents = all(map(_has_documents, self.splits)) and bool(self.splits)
        manifest = self.dataset.manifest
        fingerprint = None if self.tokenizer is None else self.tokenizer.fingerprint
        return Statistics(
            path=str(self.dataset.path),
            format=self.dataset.format,
            tokenizer=None if self.tokenizer is None else self.tokenizer.name,
            tokenizer_fingerprint=fingerprint,
            vocab_size=self.vocab_size,
            eot_id=self.dataset.eot_id,
            split=self.split,
            splits=tuple(sizes),
            sample=Sample(
                tokens=read,
                documents=read_documents,
                is_all=read == self.total and read_documents >= sum(known),
            ),
            bytes_per_token=bytes_per_token,
            frequent=self._find_frequent(read),
            unused=self._find_unused(),
            lengths=self.lengths.find_lengths() if has_documents else None,
            cuts=self.lengths.find_cuts() if has_documents else (),
            scripts=scripts,
            lines=lines,
            omitted=tuple(self.omitted),
            counts=counts,
            sources=None
            if self.columns is None or manifest is None
            else Sources(manifest.sources, self.columns, has_bytes=self.tokenizer is not None),
        )

    def _read_documents(self) -> None:
        tables = [tokens for tokens in self.splits if tokens.documents is not None]
        for tokens in self.splits:
            if not _has_documents(tokens):
                self.omit(
                    "documents",
                    f"split {tokens.split!r} has neither a document table nor an end-of-text id; if the "
                    "tokens have one, pass `eot_id=ID`",
                )
        numbers = {tokens.split: len(tokens.documents or ()) for tokens in tables}
        self.documents |= numbers
        total = sum(numbers.values())
        is_remote = any(tokens.is_remote for tokens in tables)
        limit = min(total, DOCUMENTS_REMOTE if is_remote else DOCUMENTS)
        if self.limit < self.total:
            limit = min(limit, self.limit)
        self.watcher.begin("reading document tables", limit * DOCUMENT_DTYPE.itemsize)
        for tokens in tables:
            own = share_limit(limit, numbers[tokens.split], total)
            columns = None if self.columns is None else self.columns[:2]
            count_documents(tokens, self.lengths, columns, own, self._advance_documents)

    def _advance_documents(self, documents: int) -> None:
        self.watcher.advance(documents * DOCUMENT_DTYPE.itemsize)

    def _read_tokens(self) -> int:
        """Count all ids, or those of a sample; returns how many tokens were read."""
        if self.tokenizer is not None and self.vocab_size is not None:
            self.byte_lengths = bytes_per_token(self.tokenizer, self.vocab_size)
        self.watcher.begin("counting tokens", self.limit * self.dataset.dtype.itemsize)
        read = 0
        for tokens in self.splits:
            before = self.lengths.documents
            is_found_by_id = tokens.documents is None and tokens.eot_id is not None
            own = share_limit(self.limit, len(tokens), self.total)
            some = count_tokens(
                tokens,
                self.counter,
                EndCounter(tokens, self.lengths) if is_found_by_id else None,
                self.byte_lengths,
                None if self.columns is None else self.columns[2:],
                own,
                self._advance_tokens,
            )
            read += some
            if is_found_by_id:
                is_all = some == len(tokens)
                found = self.lengths.documents - before
                self.documents[tokens.split] = found if is_all else None
        return read

    def _advance_tokens(self, tokens: int) -> None:
        self.watcher.advance(tokens * self.dataset.dtype.itemsize)

    def _read_text(self) -> tuple[Any, Any]:
        """Return the scripts and the repeated lines; None if the tokenizer is unknown."""
        if self.tokenizer is None or self.byte_lengths is None or not self.total:
            return None, None
        counts = self.counter.counts
        limit = min(TEXT_TOKENS, self.limit)
        self.watcher.begin("decoding tokens", limit * self.dataset.dtype.itemsize)
        scripts, share = count_scripts_by_id(self.tokenizer, counts, self.byte_lengths)
        decoded = ScriptCounter() if is_split(share) else None
        lines = LineCounter()
        for tokens in self.splits:
            own = share_limit(limit, len(tokens), self.total)
            read_text(
                tokens, self.tokenizer, self.byte_lengths, decoded, lines, own, self._advance_tokens
            )
        return (
            (decoded or scripts).find(share, is_decoded=decoded is not None),
            lines.find(is_sample=lines.tokens < self.total),
        )

    def _find_frequent(self, read: int) -> tuple[TokenCount, ...]:
        counts = self.counter.counts
        some = min(_FREQUENT, len(counts))
        largest = np.argpartition(-counts, some - 1)[:some] if some else np.empty(0, np.int64)
        order = np.lexsort((largest, -counts[largest]))
        return tuple(
            self._describe(number, int(counts[number]), read)
            for number in largest[order].tolist()
            if counts[number]
        )

    def _find_unused(self) -> Unused | None:
        if self.vocab_size is None:
            reason = (
                "the size of the vocabulary is unknown; pass `vocab_size=N` or `tokenizer=NAME`"
            )
            self.omit("unused ids", reason)
            return None
        unused = np.flatnonzero(self.counter.counts[: self.vocab_size] == 0)
        return Unused(
            count=len(unused),
            share=len(unused) / self.vocab_size,
            examples=tuple(self._describe(number, 0, 1) for number in unused[:_FREQUENT].tolist()),
        )

    def _describe(self, number: int, times: int, total: int) -> TokenCount:
        text = None
        if self.tokenizer is not None:
            try:
                text = self.tokenizer.decode([number])[:_LONGEST]
            except TokenizerError:  # a gap in the vocabulary
                text = None
        return TokenCount(
            id=number, count=times, share=times / total, text=text, bytes=self._find_bytes(number)
        )

    def _find_bytes(self, number: int) -> str | None:
        """Return the bytes of an id in hexadecimal if they are known, and not valid UTF-8."""
        spelling = self._spellings[number] if number < len(self._spellings) else None
        try:
            (spelling or b"").decode()
        except UnicodeDecodeError:
            assert spelling is not None
            return spelling[: _LONGEST // 3].hex(" ")
        return None

    @cached_property
    def _spellings(self) -> Sequence[bytes | None]:
        return () if self.tokenizer is None else self.tokenizer.spellings() or ()


def _has_documents(tokens: Any) -> bool:
    return tokens.documents is not None or tokens.eot_id is not None
