"""Describe documents for `where`: their shards, the beginning of their text, and when they are read."""

from __future__ import annotations

from dataclasses import replace

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import TokenmillError
from tokenmill.inspect.explain import decode_beginning
from tokenmill.inspect.run_view import RunView
from tokenmill.inspect.where.visits import find_visits
from tokenmill.inspect.where.whereabouts import FoundDocument, Visits
from tokenmill.store.documents import Document

TEXT_LENGTH = 160  # characters of the beginning of a document
_IDS = 1024  # ids to decode, at most
_VISITS = 5  # rows to list, at most


class Describer:
    """Describes documents of datasets, and finds their rows if there is a `view` of a run."""

    def __init__(self, view: RunView | None) -> None:
        self._view = view

    def describe(self, name: str, dataset: Dataset, document: Document) -> FoundDocument:
        """Return a document with its place and when it is read. `name` is the dataset's in a mixture."""
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
        path = tokens.shard_name(shard)
        ids = tokens[start : start + min(length, _IDS)]
        try:
            text = decode_beginning(dataset, ids, TEXT_LENGTH, path)
        except TokenmillError:  # ids are damaged; the places of documents are still right
            text = None
        found = FoundDocument(
            name=name,
            path=str(dataset.path),
            split=split,
            start=start,
            length=length,
            shard=path,
            shard_token=shard_token,
            text=text,
        )
        view = self._view
        if view is None:
            return found
        return replace(
            found,
            visits=_find_visits(view, found),
            unread=view.find_unread(name, split, start, start + length),
        )


def _find_visits(view: RunView, found: FoundDocument) -> Visits | None:
    if found.split != view.split:
        return None
    # If the run held out the end of the split for validation, it does not read those tokens.
    stop = min(found.start + found.length, len(view.tokens(found.name)))
    if found.start >= stop:
        return None
    return find_visits(view, found.name, found.start, stop, _VISITS)
