"""Join tokens in several folders: their shards and documents end to end, split by split.

All must have the same format, dtype, vocabulary and end of text; otherwise, an error names the
difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError
from tokenmill.formats.base import Contents
from tokenmill.store.documents import (
    Document,
    DocumentList,
    DocumentTable,
    inside,
    split_numbers,
    sums,
)
from tokenmill.store.shards import JoinedShards

Integers = npt.NDArray[np.int64]


def join_contents(parts: Mapping[str, tuple[str, Contents]]) -> tuple[str, Contents]:
    """The format and contents of some folders together, by their names, in order."""
    names = list(parts)
    facts = [_list_facts(*parts[name]) for name in names]
    for name, other in zip(names, facts, strict=True):
        for what, value in other.items():
            if value != facts[0][what]:
                raise DatasetError(
                    f"{names[0]} and {name} cannot be opened together: the {what} is "
                    f"{facts[0][what]} in one and {value} in the other. Open each by itself."
                )
        if parts[name][1].manifest is not None:
            raise DatasetError(
                f"{name} is a prepared dataset, which must be opened by itself. To train on several, "
                "pass them to tokenmill.Mixture."
            )
    format, first = parts[names[0]]
    splits, documents = {}, {}
    for split in dict.fromkeys(split for name in names for split in parts[name][1].splits):
        having = [name for name in names if split in parts[name][1].splits]
        contents = [parts[name][1] for name in having]
        shards = JoinedShards(tuple(one.splits[split] for one in contents), tuple(having))
        splits[split] = shards
        tables = [one.documents[split] for one in contents if split in one.documents]
        if len(tables) == len(having):
            counts = [int(part.counts.sum()) for part in shards.parts]
            documents[split] = JoinedDocuments(tables, counts, split)
    return format, replace(first, splits=splits, documents=documents)


def _list_facts(format: str, contents: Contents) -> dict[str, Any]:
    """What folders that are opened together must agree on."""
    return {
        "format": format,
        "dtype": ", ".join(sorted({shards.dtype.name for shards in contents.splits.values()})),
        "end-of-text id": contents.eot_id,
        "side of the end-of-text id": contents.eot,
        "vocabulary size": contents.vocab_size,
        "tokenizer": contents.tokenizer,
    }


class JoinedDocuments(DocumentList):
    """The documents of several tables, each of so many tokens, end to end."""

    def __init__(self, parts: Sequence[DocumentTable], tokens: Sequence[int], split: str) -> None:
        self._parts, self._split = list(parts), split
        self._token_starts = sums(tokens)

    @cached_property
    def _numbers(self) -> Integers:
        return sums([len(part) for part in self._parts])

    def __len__(self) -> int:
        return int(self._numbers[-1])

    def __getitem__(self, number: int) -> Document:
        number = inside(number, len(self), "document")
        part = int(np.searchsorted(self._numbers, number, side="right")) - 1
        return self._place(part, self._parts[part][number - int(self._numbers[part])])

    def at(self, token: int) -> Document:
        """The document that holds a token of the split."""
        token = inside(token, int(self._token_starts[-1]), "token")
        part = int(np.searchsorted(self._token_starts, token, side="right")) - 1
        return self._place(part, self._parts[part].at(token - int(self._token_starts[part])))

    def _place(self, part: int, document: Document) -> Document:
        return replace(
            document,
            split=self._split,
            number=document.number + int(self._numbers[part]),
            start=document.start + int(self._token_starts[part]),
        )

    def borders(self, first: int, last: int) -> Integers:
        """Where the documents [first, last) begin, and where the last of them ends."""
        found = np.empty(last - first + 1, np.int64)
        for part, low, high, place in split_numbers(self._numbers, first, last + 1):
            starts = self._parts[part].borders(low, high)[:-1]
            found[place : place + high - low] = starts + self._token_starts[part]
        if last >= len(self):
            found[-1] = self._token_starts[-1]
        return found

    def count_before(self, token: int) -> int:
        """How many documents begin before a token of the split, or before its end."""
        part = int(np.searchsorted(self._token_starts, token, side="left")) - 1
        if part < 0:
            return 0
        before = self._parts[part].count_before(token - int(self._token_starts[part]))
        return int(self._numbers[part]) + before

    def find_edges(self, starts: Integers, length: int) -> Integers:
        """Where documents begin in the rows [start, start + length), laid end to end; sorted."""
        bounds = self._token_starts
        first = bounds.searchsorted(starts, "right") - 1
        last = bounds.searchsorted(starts + (length - 1), "right") - 1
        found = [np.empty(0, np.int64)]
        for part in np.unique(first[first == last]).tolist():
            rows = np.flatnonzero((first == part) & (last == part))
            edges = self._parts[part].find_edges(starts[rows] - bounds[part], length)
            found.append(rows[edges // length] * length + edges % length)
        for row in np.flatnonzero(first != last).tolist():
            start = int(starts[row])
            for part in range(int(first[row]), int(last[row]) + 1):
                low, high = (
                    max(start, int(bounds[part])),
                    min(start + length, int(bounds[part + 1])),
                )
                if low < high:
                    edges = self._parts[part].find_edges(np.array([low - bounds[part]]), high - low)
                    found.append(edges + (row * length + low - start))
        return np.sort(np.concatenate(found))
