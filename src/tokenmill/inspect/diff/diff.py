"""`tokenmill.diff`: the documents that two datasets do not share.

Guarantees: documents are equal if their keys, 128-bit hashes of their texts, are equal. They are
compared as multisets: a text that one dataset has twice and the other once counts as one document
removed or added. Order does not matter. Memory is bounded for any number of documents. A file whose
size is not the one in the manifest is an error that names it.

Costs: the sizes of all shards are looked up, and all document tables are read once. If the datasets
have more than a million documents together, 48 bytes for each document are written to a temporary
folder; `TMPDIR` chooses where. If a dataset has no keys of texts, all its tokens are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.opening import Dataset
from tokenmill.dataset.opening import open as open_dataset
from tokenmill.errors import DatasetError, TokenizerError, TokenmillError
from tokenmill.html import render
from tokenmill.inspect.diff.documents import Side, is_imported
from tokenmill.inspect.diff.matching import ENTRY, Entries, Tally
from tokenmill.inspect.diff.partitions import LIMIT, divide
from tokenmill.progress import Watcher, watching
from tokenmill.tokenizers import Tokenizer
from tokenmill.wording import brief, count, counted, one_line

_SOURCES = 1000  # sources to list, at most
_LONGEST = 200  # characters of a setting's value
_PARTS, _DEPTH = 20, 3  # of a setting's value that is a list or a mapping

AnyPath = str | os.PathLike[str]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Total:
    """A number of documents, and their tokens."""

    documents: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Moved:
    """The documents that moved between two splits. `tokens` is their length in the second dataset."""

    before: str
    after: str
    documents: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class SourceDifference:
    """The documents of one source that were removed and added."""

    path: str
    removed: Total
    added: Total


@dataclass(frozen=True, kw_only=True)
class SettingDifference:
    """A setting that differs, and its value in each dataset, shortened; None if it has no value."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, kw_only=True)
class Example:
    """A document that was removed, added or moved; `kind` says which.

    A removed document is one of the first dataset, any other is one of the second. `start` is its
    first token in the split. `text` is its beginning, or None if the tokenizer is unknown.
    """

    kind: str
    split: str
    start: int
    number: int | None
    source: str
    offset: int | None
    tokens: int
    text: str | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Difference:
    """What differs between two datasets.

    `compared_by` is "keys" if documents were compared by the hashes of their texts, or "tokens" if a
    dataset has no such keys. `same` counts the documents that are in the same split of both, with
    their tokens in the first dataset; `same_tokens_after` is the number of their tokens in the second.
    `sources` are the sources with the largest differences; `more_sources` counts the others.
    """

    paths: tuple[str, str]
    compared_by: str
    same: Total
    same_tokens_after: int
    removed: Total
    added: Total
    moved: tuple[Moved, ...]
    sources: tuple[SourceDifference, ...]
    more_sources: int
    settings: tuple[SettingDifference, ...]
    examples: tuple[Example, ...]
    notes: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Whether both have the same documents in the same splits. `settings` do not count."""
        return not (self.removed.documents or self.added.documents or self.moved)

    @property
    def moved_documents(self) -> int:
        """How many documents are in another split."""
        return sum(one.documents for one in self.moved)

    def __repr__(self) -> str:
        names = " and ".join(repr(one_line(path)[:100]) for path in self.paths)
        return f"<Difference of {names}: {', '.join(self._words())}>"

    def _words(self) -> list[str]:
        words = [f"{counted(self.same.documents, 'document')} the same"]
        words += [
            f"{count(self.removed.documents)} removed",
            f"{count(self.added.documents)} added",
        ]
        words += [f"{count(self.moved_documents)} moved"]
        return words + (
            [f"{counted(len(self.settings), 'setting')} differ"] if self.settings else []
        )

    def _repr_html_(self) -> str:
        rows = [
            ("the same", count(self.same.documents), count(self.same.tokens)),
            ("removed", count(self.removed.documents), count(self.removed.tokens)),
            ("added", count(self.added.documents), count(self.added.tokens)),
        ]
        rows += [
            (f"moved from {one.before} to {one.after}", count(one.documents), count(one.tokens))
            for one in self.moved
        ]
        settings = [(one.name, one.before or "", one.after or "") for one in self.settings]
        return render(
            f"{self.paths[0]} and {self.paths[1]}",
            (),
            ("Documents", ("", "documents", "tokens"), rows),
            *([("Settings", ("", "first", "second"), settings)] if settings else []),
        )


def diff(
    one: AnyPath | Dataset,
    other: AnyPath | Dataset,
    *,
    tokenizer: str | Tokenizer | None = None,
    dtype: npt.DTypeLike | None = None,
    format: str | None = None,
    eot_id: int | None = None,
    column: str | None = None,
    progress: bool | None = None,
    watcher: Watcher | None = None,
) -> Difference:
    """Compare the documents of two datasets, and their settings.

    The options from `tokenizer` to `column` are as in `tokenmill.open`, for paths in other formats;
    prepared datasets need none.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import tokenmill
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name, text in (("a", "one<|endoftext|>two"), ("b", "two<|endoftext|>three")):
    ...     _ = (folder / "x.txt").write_text(text)
    ...     _ = tokenmill.prepare(folder / "x.txt", folder / name, tokenizer="bytes", val_fraction=0)
    >>> found = diff(folder / "a", folder / "b")
    >>> found.same.documents, found.removed, found.added
    (1, Total(documents=1, tokens=4), Total(documents=1, tokens=6))
    >>> [(example.kind, example.text) for example in found.examples]
    [('removed', 'one'), ('added', 'three')]
    """
    options: dict[str, Any] = {"tokenizer": tokenizer, "dtype": dtype, "format": format}
    options |= {"eot_id": eot_id, "column": column}
    datasets = _open(one, options), _open(other, options)
    with watching(watcher, progress) as shown:
        return compare(*datasets, shown)


def _open(data: AnyPath | Dataset, options: Mapping[str, Any]) -> Dataset:
    if isinstance(data, Dataset):
        return data
    given = {name: value for name, value in options.items() if value is not None}
    try:
        dataset = open_dataset(data, cache_bytes=0)
    except TokenmillError:
        if not given:
            raise
        return open_dataset(data, cache_bytes=0, **given)
    # A prepared dataset needs no options, so they may be meant for the other dataset only.
    return dataset if dataset.manifest else open_dataset(data, cache_bytes=0, **given)


def compare(one: Dataset, other: Dataset, watcher: Watcher, limit: int = LIMIT) -> Difference:
    """Compare two opened datasets; at most about `limit` documents are in memory at once."""
    by_tokens = any(some.manifest is None or is_imported(some) for some in (one, other))
    notes = _check_tokens(one, other) if by_tokens else ()
    sides = Side(one, by_tokens=by_tokens), Side(other, by_tokens=by_tokens)
    for side in sides:
        side.check_sizes()
    splits = tuple(dict.fromkeys((*sides[0].splits, *sides[1].splits)))
    watcher.begin("reading documents", sum(side.size for side in sides))
    numbers, paths = _number_sources(sides)
    tally = Tally(splits=len(splits), sources=len(paths))
    total = 0

    def read() -> Iterator[Entries]:
        for number, side in enumerate(sides):
            yield from side.read(number, splits, numbers[number])

    # If a dataset has no document table, reading it is the only way to count its documents.
    held: list[Entries] = []
    blocks = read()
    for entries in blocks:
        held.append(entries)
        total += len(entries)
        watcher.advance(_measure(sides, entries))
        if total > limit:
            break

    def rest() -> Iterator[Entries]:
        for entries in blocks:
            watcher.advance(_measure(sides, entries))
            yield entries

    for part in divide(chain(held, rest()), total, watcher, limit):
        tally.add(part)
    return _report(sides, splits, paths, tally, notes)


def _measure(sides: tuple[Side, Side], entries: Entries) -> int:
    """Return how many bytes were read for some entries of one side."""
    side = sides[int(entries["side"][0])] if len(entries) else sides[0]
    if side.hashes:
        return int(entries["tokens"].sum()) * side.dataset.dtype.itemsize
    return len(entries) * ENTRY.itemsize


def _check_tokens(one: Dataset, other: Dataset) -> tuple[str, ...]:
    """Check that ids mean the same in both datasets. Return notes for the user."""
    fingerprints = []
    for dataset in (one, other):
        try:
            fingerprints.append(dataset.tokenizer.fingerprint)
        except TokenizerError:
            fingerprints.append("")
    if all(fingerprints) and fingerprints[0] != fingerprints[1]:
        raise DatasetError(
            f"{one.path} and {other.path} were made with different tokenizers, and at least one of them "
            "has no keys of its texts. So their documents cannot be compared. Prepare both from text."
        )
    notes = [
        "documents are compared by their ids, because at least one dataset has no keys of its texts."
    ]
    if not all(fingerprints):
        notes.append(
            "the tokenizer of at least one dataset is unknown: equal ids count as equal texts."
        )
    if one.contents.eot != other.contents.eot:
        notes.append(
            "the end-of-text id is not in the same place in both datasets (before each document, after "
            "it, or nowhere), so documents with equal texts have different ids."
        )
    return tuple(notes)


def _number_sources(
    sides: tuple[Side, Side],
) -> tuple[tuple[Integers, Integers], list[tuple[int, int]]]:
    """Number the sources of both datasets; those with the same name have the same number.

    Returns the numbers for each side, and for each number a side and the source's number there.
    """
    hashes = [side.hash_sources() for side in sides]
    known, first, numbers = np.unique(
        np.concatenate(hashes), return_index=True, return_inverse=True
    )
    del known
    border = len(hashes[0])
    places = [(int(at >= border), int(at - border * (at >= border))) for at in first.tolist()]
    return (numbers[:border].astype(np.int64), numbers[border:].astype(np.int64)), places


def _report(
    sides: tuple[Side, Side],
    splits: tuple[str, ...],
    paths: list[tuple[int, int]],
    tally: Tally,
    notes: tuple[str, ...],
) -> Difference:
    def name_source(number: int) -> str:
        side, own = paths[number]
        return sides[side].name_source(own)

    changed = tally.removed[:, 0] + tally.added[:, 0]
    order = np.argsort(-changed, kind="stable")[: np.count_nonzero(changed)]
    examples = []
    for kind, side in (("removed", sides[0]), ("added", sides[1]), ("moved", sides[1])):
        for entry in tally.examples.get(kind, ()):
            split = splits[int(entry["split"])]
            number, start, offset, text = side.describe(split, int(entry["place"]))
            examples.append(
                Example(
                    kind=kind,
                    split=split,
                    start=start,
                    number=None if number < 0 else number,
                    source=name_source(int(entry["source"])),
                    offset=offset,
                    tokens=int(entry["tokens"]) // int(entry["count"]),
                    text=text,
                )
            )
    return Difference(
        paths=(str(sides[0].dataset.path), str(sides[1].dataset.path)),
        compared_by="tokens" if any(_is_by_tokens(side) for side in sides) else "keys",
        same=Total(documents=int(tally.same[0]), tokens=int(tally.same[1])),
        same_tokens_after=int(tally.same[2]),
        removed=_total(tally.removed.sum(axis=0)),
        added=_total(tally.added.sum(axis=0)),
        moved=tuple(
            Moved(
                before=splits[before],
                after=splits[after],
                documents=int(tally.moved[before, after, 0]),
                tokens=int(tally.moved[before, after, 1]),
            )
            for before, after in np.argwhere(tally.moved[:, :, 0]).tolist()
        ),
        sources=tuple(
            SourceDifference(
                path=name_source(number),
                removed=_total(tally.removed[number]),
                added=_total(tally.added[number]),
            )
            for number in order[:_SOURCES].tolist()
        ),
        more_sources=max(0, len(order) - _SOURCES),
        settings=_compare_settings(sides[0].dataset, sides[1].dataset),
        examples=tuple(examples),
        notes=notes,
    )


def _is_by_tokens(side: Side) -> bool:
    return side.hashes or is_imported(side.dataset)


def _total(numbers: Integers) -> Total:
    return Total(documents=int(numbers[0]), tokens=int(numbers[1]))


def _compare_settings(one: Dataset, other: Dataset) -> tuple[SettingDifference, ...]:
    before, after = dict(_list_settings(one)), dict(_list_settings(other))
    names = dict.fromkeys((*before, *after))
    if any(some.manifest is None or is_imported(some) for some in (one, other)):
        # Without settings of `prepare` on both sides, only what both know can differ.
        names = {name: None for name in names if name in before and name in after}
    return tuple(
        SettingDifference(
            name=name[: _LONGEST // 2],
            before=_describe(before[name]) if name in before else None,
            after=_describe(after[name]) if name in after else None,
        )
        for name in names
        if before.get(name) != after.get(name)
    )


def _list_settings(dataset: Dataset) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each fact and setting that may differ, except unknown ones."""
    manifest = dataset.manifest
    yield "format", dataset.format
    yield "dtype", dataset.dtype.name
    if dataset.vocab_size is not None:
        yield "vocabulary", dataset.vocab_size
    yield "end of text", dataset.contents.eot
    if dataset.eot_id is not None:
        yield "end-of-text id", str(dataset.eot_id)
    if manifest is None:
        return
    yield "tokenizer", manifest.tokenizer
    yield "tokenizer fingerprint", manifest.tokenizer_fingerprint
    if manifest.compression is not None:
        yield "compression", manifest.compression.name
    for name, value in manifest.settings.items():
        if value is not None and name != "content":  # "content" hashes the imported tokens
            yield str(name), value


def _describe(value: Any) -> str:
    """Return a value as a short text, without the syntax of Python.

    >>> _describe({"keys": 4000, "of": ["a", True]}), _describe([])
    ('keys: 4,000, of: a, yes', 'none')
    """
    return _describe_parts(value, _DEPTH)[:_LONGEST]


def _describe_parts(value: Any, depth: int) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and value.bit_length() <= 64:
        return count(value)
    if isinstance(value, (list, tuple, dict)) and depth:
        parts = value.items() if isinstance(value, dict) else [("", one) for one in value]
        shown = [
            f"{name}: {_describe_parts(one, depth - 1)}"
            if name
            else _describe_parts(one, depth - 1)
            for name, one in islice(parts, _PARTS)
        ]
        return ", ".join(shown) or "none"
    return brief(value)
