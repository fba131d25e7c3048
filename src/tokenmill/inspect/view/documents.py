"""The page of one document: its text divided into tokens, its origin, and the runs that read it.

A page shows at most `PAGE` tokens, so the cost does not grow with the length of the document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenmill.errors import UsageError
from tokenmill.inspect.run_view import RunView
from tokenmill.inspect.view.listing import get_documents
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.spelling import find_speller
from tokenmill.inspect.view.viewer import (
    MissingPageError,
    Page,
    Viewer,
    make_link,
    read_tokens,
)
from tokenmill.store.documents import Document
from tokenmill.store.tokens import Tokens, is_same_data

PAGE = 2000  # tokens of a page
BEFORE = 100  # tokens to show before the requested one
MOST_READS = 20  # rows of a run to list
Link = Callable[..., str | None]

_MOST_COMPUTED = 2_000_000  # rows to compute of an order that has no inverse


@dataclass(frozen=True, kw_only=True)
class Read:
    """A row of a run that holds tokens of the page."""

    row: int
    step: int
    rank: int
    epoch: int
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class RunReads:
    """When a run read the tokens of a page. `more` is how many further rows there are.

    `unknown` is how many rows there are before the first step that the run's folder describes.
    `held_out` is how many of the tokens the run held out for validation; `is_held_out` says whether
    these are all of them.
    """

    run: str
    reads: tuple[Read, ...]
    more: int
    rows: int
    unknown: int = 0
    held_out: int = 0
    is_held_out: bool = False


def show_document(viewer: Viewer, query: Query, *, link: Link = make_link) -> Page:
    """Return the page of a document. `link` makes the URLs of other pages."""
    name, dataset = viewer.choose_dataset(query)
    split = viewer.choose_split(query, dataset)
    tokens = read_tokens(dataset, split)
    documents = get_documents(dataset, tokens)
    number = query.number("number", 0)
    if number >= len(documents):
        raise MissingPageError(
            f"The split {split!r} has no document {number:,}: it has {len(documents):,}, numbered "
            f"from 0."
        )
    document = documents[number]
    start, stop, marked = _choose_range(query, document)
    ids = tokens[document.start + start : document.start + stop]
    speller = find_speller(dataset)
    groups = speller.spell(ids, document.start + start, is_first=start == 0)
    shard, shard_token = tokens.locate(document.start) if document.length else (0, 0)
    here = {"data": name, "split": split}

    def go(number: int, **more: Any) -> str | None:
        return link(f"/document/{number}", **here, **more)

    return Page(
        template="document.html",
        title=f"Document {number:,}",
        section="/documents",
        values={
            "name": name,
            "dataset": dataset,
            "split": split,
            "document": document,
            "count_all": len(documents),
            "shard": tokens.shard_name(shard),
            "shard_token": shard_token,
            "groups": groups,
            "marked": marked,
            "has_text": speller.has_text,
            "start": start,
            "stop": stop,
            "reads": list(
                _find_reads(viewer, tokens, document.start + start, document.start + stop)
            ),
            "previous_link": go(number - 1) if number else None,
            "next_link": go(number + 1) if number + 1 < len(documents) else None,
            "earlier_link": go(number, start=max(0, start - PAGE) or None) if start else None,
            "later_link": go(number, start=stop) if stop < document.length else None,
            "list_link": link("/documents", **here, first=number or None),
            "source_link": None
            if document.source is None
            else link("/documents", **here, source=document.source.path),
        },
    )


def _choose_range(query: Query, document: Document) -> tuple[int, int, int | None]:
    """Return the tokens to show, counted from the start of the document, and the marked token."""
    start = query.number("start", 0, high=max(0, document.length - 1))
    token = query.number("at", -1, low=-1)  # `token` is the token of the URL
    if token >= 0:
        if not document.start <= token < document.start + document.length:
            raise UsageError(
                f"token {token:,} is not in this document, which has the tokens {document.start:,} "
                f"to {document.start + document.length - 1:,}."
            )
        place = token - document.start
        start = 0 if place < PAGE - BEFORE else place - BEFORE
    return start, min(start + PAGE, document.length), token if token >= 0 else None


def _find_reads(viewer: Viewer, tokens: Tokens, start: int, stop: int) -> Iterator[RunReads]:
    """Yield for each run on this data the rows that hold some of the tokens [start, stop).

    A run with `val_fraction` reads the beginning of the split `train`; the rest was held out.
    """
    for name, run in viewer.runs.items():
        rows = run.row_count or 0
        for source in run.rows.names or ("",):
            own, dataset = run.tokens(source), run.datasets[source]
            if _is_same(own, tokens) or _is_same(run.whole[source].get(own.split), tokens):
                end = min(max(stop, start + 1), len(own))
            elif tokens.split == "val" and _is_same(dataset.get("val"), tokens):
                end = start
            else:
                continue
            last = rows
            if run.order(source).kind == "random":
                last = min(rows, _MOST_COMPUTED)
            found = run.find_rows(source, start, end, last_row=last)
            unknown = int(np.searchsorted(found, run.phases[0].row))
            found = found[unknown:]
            shown = found[:MOST_READS].tolist()
            yield RunReads(
                run=name,
                reads=tuple(_describe_read(run, row) for row in shown),
                more=len(found) - len(shown),
                rows=last,
                unknown=unknown,
                held_out=max(stop - max(end, start), 0),
                is_held_out=end <= start,
            )


def _is_same(one: Tokens | None, other: Tokens) -> bool:
    return (
        one is not None
        and one.split == other.split
        and len(one) == len(other)
        and is_same_data(one.identity, other.identity)
    )


def _describe_read(run: RunView, row: int) -> Read:
    place = run.place(row)
    (loss,) = run.losses(row, row + 1).tolist() or [np.nan]
    return Read(
        row=row,
        step=place.step,
        rank=place.rank,
        epoch=place.epoch,
        loss=None if np.isnan(loss) else loss,
    )
