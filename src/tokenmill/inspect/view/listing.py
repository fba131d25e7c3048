"""The list of documents: a page from a position, and filters that scan forward from it.

Costs: an unfiltered page reads one record and the first tokens of each document on it, wherever it
starts. `scan` bounds the work of filters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import UsageError
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.scan import Filter, Found, find_documents
from tokenmill.inspect.view.spelling import Speller, find_speller
from tokenmill.inspect.view.viewer import MissingPageError, Page, Routes, Viewer, make_link
from tokenmill.store.documents import Document, DocumentTable
from tokenmill.store.tokens import Tokens
from tokenmill.wording import harmless

PAGE = 50  # documents
EXCERPT = 160  # characters of a document in a list
_EXCERPT_TOKENS = 48
_MOST_SOURCES = 100  # whose name ends in what was asked for


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A document in a list: its origin and the beginning of its text."""

    document: Document
    text: str


def show_documents(viewer: Viewer, query: Query) -> Page:
    """Return the list of documents from number `first` on."""
    name, dataset = viewer.choose_dataset(query)
    split = viewer.choose_split(query, dataset)
    tokens = dataset[split]
    documents = get_documents(dataset, tokens)
    first = _choose_first(query, tokens, documents)
    source = query.text("source")
    wanted = Filter(
        sources=_find_sources(dataset, source) if source else None,
        least=_optional(query, "least"),
        most=_optional(query, "most"),
    )
    by_order = not query.flag("scan")
    found = find_documents(documents, wanted, first=first, limit=PAGE, by_order=by_order)
    given = {
        "data": name,
        "split": split,
        "source": source,
        "least": wanted.least,
        "most": wanted.most,
        "scan": None if by_order else 1,
    }
    return Page(
        template="documents.html",
        title="Documents",
        section="/documents",
        values={
            "name": name,
            "dataset": dataset,
            "split": split,
            "count_all": len(documents),
            "entries": [
                describe(tokens, documents[n], find_speller(dataset)) for n in found.numbers
            ],
            "found": found,
            "wanted": wanted,
            "source": source,
            "given": given,
            "next_link": _link(given, found.next),
            "before_link": None if wanted or not first else _link(given, max(0, first - PAGE)),
            "start_link": _link(given, 0) if first else None,
            "all_link": make_link("/documents", data=name, split=split) if wanted else None,
            "scan_link": _link({**given, "scan": 1}, first) if found.used_order else None,
        },
    )


def get_documents(dataset: Dataset, tokens: Tokens) -> DocumentTable:
    """Return the document table of a split; raises an error if it has none."""
    if tokens.documents is None:
        raise MissingPageError(
            f"The split {tokens.split!r} of {dataset.path} has no document table, so its documents "
            "cannot be listed. Make a table with: tokenmill import DATA --out FOLDER"
        )
    return tokens.documents


def describe(tokens: Tokens, document: Document, speller: Speller) -> Entry:
    """Return a document with the beginning of its text, on one line."""
    stop = min(document.length, _EXCERPT_TOKENS)
    ids = tokens[document.start : document.start + stop]
    text = speller.decode(ids)
    if stop < document.length:
        text = text.rstrip("\ufffd")
    text = " ".join(text[: EXCERPT * 2].split())
    return Entry(document=document, text=harmless(text[:EXCERPT]))


def _choose_first(query: Query, tokens: Tokens, documents: DocumentTable) -> int:
    token = query.number("token", -1, low=-1)
    if token < 0:
        return query.number("first", 0)
    if token >= len(tokens):
        raise UsageError(f"token must be a number from 0 to {len(tokens) - 1:,}, got {token:,}.")
    return documents.at(token).number


def _optional(query: Query, name: str) -> int | None:
    found = query.number(name, -1, low=0)
    return None if found < 0 else found


@lru_cache(maxsize=256)
def _find_sources(dataset: Dataset, name: str) -> tuple[int, ...]:
    """Return the numbers of the sources with a name, or whose name ends in it."""
    if dataset.manifest is None:
        return ()
    found = dataset.manifest.sources.find(name, _MOST_SOURCES)
    exact = [number for number in found if dataset.manifest.sources[number].path == name]
    return tuple(exact or found)


def _link(given: dict[str, Any], first: int | None) -> str | None:
    return None if first is None else make_link("/documents", **given, first=first or None)


ROUTES: Routes = (("/documents", show_documents),)

__all__ = ["ROUTES", "Entry", "Found", "describe", "get_documents", "show_documents"]
