"""The list of documents: a page that starts at a given document, with filters that search from there.

Costs: an unfiltered page reads one record and the first tokens of each document on it, wherever it
starts. `scan` bounds the work of filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import UsageError
from tokenmill.inspect.view.finding import Wanted, find_matches
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.scan import Filter, Found, find_documents
from tokenmill.inspect.view.spelling import Speller, find_speller
from tokenmill.inspect.view.viewer import (
    MissingPageError,
    Page,
    Viewer,
    find_next_split,
    make_link,
    read_tokens,
)
from tokenmill.store.documents import Document, DocumentTable
from tokenmill.store.tokens import Tokens
from tokenmill.wording import harmless

PAGE = 50  # documents of a page
EXCERPT = 160  # characters of a document in a list
_EXCERPT_TOKENS = 48
_MOST_SOURCES = 100  # sources whose name ends with the text of the filter


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A document in a list: its origin and the beginning of its text."""

    document: Document
    text: str


def show_documents(viewer: Viewer, query: Query) -> Page:
    """Return the list of documents from number `first` on."""
    name, dataset = viewer.choose_dataset(query)
    split = viewer.choose_split(query, dataset)
    tokens = read_tokens(dataset, split)
    documents = get_documents(dataset, tokens)
    first = _choose_first(query, tokens, documents)
    source = query.text("source")
    wanted = Filter(
        sources=_find_sources(dataset, source) if source else None,
        least=_optional(query, "least"),
        most=_optional(query, "most"),
    )
    by_order = not query.flag("scan")
    text = query.text("text")
    if text:
        found = _find_by_text(dataset, documents, wanted, text, split, first)
    else:
        found = find_documents(documents, wanted, first=first, limit=PAGE, by_order=by_order)
    next_split = find_next_split(query, dataset, split)
    given = {
        "data": name,
        "split": split,
        "splits": query.text("splits"),
        "source": source,
        "least": wanted.least,
        "most": wanted.most,
        "text": text,
        "scan": None if by_order else 1,
    }
    is_filtered = bool(wanted or text)
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
            "text": text,
            "is_filtered": is_filtered,
            "source": source,
            "given": given,
            "next_link": _link(given, found.next)
            if found.next is not None or next_split is None
            else _link({**given, "split": next_split}, 0),
            "next_split": next_split if found.next is None else None,
            "is_all": query.text("splits") == "all",
            "before_link": None if is_filtered or not first else _link(given, max(0, first - PAGE)),
            "start_link": _link(given, 0) if first else None,
            "all_link": make_link("/documents", data=name, split=split) if is_filtered else None,
            "scan_link": _link({**given, "scan": 1}, first) if found.used_order else None,
        },
    )


def show_listed(dataset: Dataset, split: str, numbers: Sequence[int]) -> Page:
    """Return a page that lists the documents with these numbers, without filters."""
    tokens = read_tokens(dataset, split)
    documents = get_documents(dataset, tokens)
    return Page(
        template="documents.html",
        title="Documents",
        section="/documents",
        values={
            "name": "",
            "dataset": dataset,
            "split": split,
            "count_all": len(documents),
            "entries": [describe(tokens, documents[n], find_speller(dataset)) for n in numbers],
            "found": Found(numbers=tuple(numbers), first=0, last=len(documents), next=None),
            "is_filtered": True,
            "is_all": False,
            "next_link": None,
        },
    )


def _find_by_text(
    dataset: Dataset,
    documents: DocumentTable,
    wanted: Filter,
    text: str,
    split: str,
    first: int,
) -> Found:
    """Return documents that contain a text and match a filter, from document `first` on."""
    count = len(documents)
    if first >= count:
        return Found(numbers=(), first=first, last=count, next=None)
    start = int(documents.starts(first, first)[0])
    part = find_matches(
        dataset, Wanted(text=text), split=split, first=start, limit=PAGE, per_document=True
    )
    hits = [match.document for match in part.matches if match.document is not None]
    numbers = tuple(one.number for one in hits if _matches(dataset, one, wanted))
    following = None if part.next is None else documents.at(part.next).number
    # Search a document again if the time ran out in it, unless it is one of the hits.
    if following is not None and hits and following <= hits[-1].number:
        following = hits[-1].number + 1
    if following is not None and following <= first and not hits:
        following = first + 1  # skip a document that takes longer than one request
    last = count if following is None else following
    return Found(numbers=numbers, first=first, last=last, next=None if last >= count else following)


def _matches(dataset: Dataset, document: Document, wanted: Filter) -> bool:
    if wanted.least is not None and document.length < wanted.least:
        return False
    if wanted.most is not None and document.length > wanted.most:
        return False
    if wanted.sources is None or dataset.manifest is None:
        return wanted.sources is None
    names = {dataset.manifest.sources[number].path for number in wanted.sources}
    return document.source is not None and document.source.path in names


def get_documents(dataset: Dataset, tokens: Tokens) -> DocumentTable:
    """Return the document table of a split; raises an error if it has none."""
    if tokens.documents is None:
        raise MissingPageError(
            f"The split {tokens.split!r} of {dataset.path} has no document table, so its documents "
            "cannot be listed. Make a dataset with one: tokenmill import DATA --out FOLDER"
        )
    return tokens.documents


def describe(tokens: Tokens, document: Document, speller: Speller) -> Entry:
    """Return a document with the beginning of its text, on one line."""
    stop = min(document.length, _EXCERPT_TOKENS)
    ids = tokens[document.start : document.start + stop]
    if len(ids) and stop == document.length and int(ids[-1]) == tokens.eot_id:
        ids = ids[:-1]
    if len(ids) and int(ids[0]) == tokens.eot_id:
        ids = ids[1:]
    text = speller.decode(ids)
    if stop < document.length:
        text = text.rstrip("\ufffd")
    text = " ".join(text[: EXCERPT * 2].split())
    return Entry(document=document, text=harmless(text[:EXCERPT]))


def _choose_first(query: Query, tokens: Tokens, documents: DocumentTable) -> int:
    token = query.number("at", -1, low=-1)
    if token < 0:
        return query.number("first", 0)
    if token >= len(tokens):
        raise UsageError(f"at must be a number from 0 to {len(tokens) - 1:,}, got {token:,}.")
    return documents.at(token).number


def _optional(query: Query, name: str) -> int | None:
    found = query.number(name, -1, low=0)
    return None if found < 0 else found


@lru_cache(maxsize=256)
def _find_sources(dataset: Dataset, name: str) -> tuple[int, ...]:
    """Return the numbers of the sources whose path is a name, or ends with it."""
    if dataset.manifest is None:
        return ()
    found = dataset.manifest.sources.find(name, _MOST_SOURCES)
    exact = [number for number in found if dataset.manifest.sources[number].path == name]
    return tuple(exact or found)


def _link(given: dict[str, Any], first: int | None) -> str | None:
    return None if first is None else make_link("/documents", **given, first=first or None)
