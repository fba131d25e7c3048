"""Describe documents for `where`: their shards, the beginning of their text, and when they are read."""

from __future__ import annotations

from dataclasses import replace

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import TokenmillError
from tokenmill.inspect.run_view import RunView
from tokenmill.inspect.visits import find_visits
from tokenmill.inspect.whereabouts import FoundDocument, Visits
from tokenmill.store.documents import Document

SHOWN = 40  # tokens of a document that are shown as text
_VISITS = 5  # rows that are listed


class Describer:
    """Describes documents of datasets, and finds their rows if there is a `view` of a run."""

    def __init__(self, view: RunView | None) -> None:
        self._view = view

    def describe(self, name: str, dataset: Dataset, document: Document) -> FoundDocument:
        """Return a document with its place and its visits. `name` is the dataset's in a mixture."""
        found = self._place(name, dataset, document.split, document.start, document.length)
        return replace(found, document=document)

    def describe_token(self, name: str, dataset: Dataset, split: str, token: int) -> FoundDocument:
        """Return the place of a token, in data without document tables."""
        return self._place(name, dataset, split, token, 1)

    def _place(
        self, name: str, dataset: Dataset, split: str, start: int, length: int
    ) -> FoundDocument:
        tokens = dataset[split]
        shard, shard_token = tokens.locate(min(start, len(tokens) - 1))
        found = FoundDocument(
            name=name,
            path=str(dataset.path),
            split=split,
            start=start,
            length=length,
            shard=tokens.shard_name(shard),
            shard_token=shard_token,
            text=_read_text(dataset, split, start, min(length, SHOWN)),
        )
        return replace(found, visits=self._find_visits(found))

    def _find_visits(self, found: FoundDocument) -> Visits | None:
        view = self._view
        if view is None or found.split != view.split:
            return None
        # A run may have held out the end of the split.
        stop = min(found.start + found.length, len(view.tokens(found.name)))
        if found.start >= stop:
            return None
        return find_visits(view, found.name, found.start, stop, _VISITS)


def _read_text(dataset: Dataset, split: str, start: int, length: int) -> str | None:
    try:
        return dataset.tokenizer.decode(dataset[split][start : start + length])
    except TokenmillError:  # the tokenizer is unknown, or the ids are not its own
        return None
