"""Find which documents are in a row, and where they begin and end in it.

Costs: a few binary searches in the document table. At most `most` documents are returned, since a row
may have as many documents as tokens. Without a table, documents end at end-of-text ids, and have no
numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenmill.errors import DatasetError, UsageError
from tokenmill.store.documents import Document
from tokenmill.store.tokens import Tokens


@dataclass(frozen=True, kw_only=True)
class RowDocuments:
    """The documents in a row: document n has the tokens [bounds[n], bounds[n + 1]) of the row.

    `numbers` are the documents' numbers in the split; empty without a document table. `count` is the
    number of all documents in the row, even if only the first ones are listed.
    """

    bounds: list[int]
    numbers: list[int]
    count: int
    begins_inside: bool  # whether the first document begins before the row


def find_row_documents(tokens: Tokens, start: int, stop: int, *, most: int) -> RowDocuments:
    """Return the documents in the tokens [start, stop) of a split.

    >>> find_row_documents(Tokens.of([5, 5, 0, 6, 7, 0, 8], eot_id=0), 1, 5, most=9)
    RowDocuments(bounds=[0, 2, 4], numbers=[], count=2, begins_inside=True)
    """
    if tokens.documents is None:
        return _find_by_id(tokens, start, stop, most)
    first = tokens.documents.at(start)
    # Some of the documents that start inside the row may be empty.
    count = max(tokens.documents.count_before(stop) - first.number, 1)
    listed = min(count, most)
    starts = np.clip(tokens.documents.starts(first.number, first.number + listed), start, stop)
    full = np.flatnonzero(np.diff(starts))
    return RowDocuments(
        bounds=[*(starts[full] - start).tolist(), int(starts[-1]) - start],
        numbers=(first.number + full).tolist(),
        count=count - (listed - len(full)),
        begins_inside=first.start < start,
    )


def _find_by_id(tokens: Tokens, start: int, stop: int, most: int) -> RowDocuments:
    try:
        places = tokens.find_document_starts(np.array([start]), stop - start).tolist()
    except (DatasetError, UsageError):  # nothing says where documents begin
        return RowDocuments(bounds=[0, stop - start], numbers=[], count=1, begins_inside=True)
    begins_inside = 0 not in places
    bounds = [0, *(place for place in places if place)]
    listed = bounds[:most]
    end = bounds[most] if len(bounds) > most else stop - start
    return RowDocuments(
        bounds=[*listed, end], numbers=[], count=len(bounds), begins_inside=begins_inside
    )


def describe_document(document: Document) -> str:
    """Return a short name for a document: its number, and its file without the folder.

    >>> describe_document(Document(number=7, split="train", start=0, length=5))
    'document 7'
    """
    if document.source is None:
        return f"document {document.number:,}"
    file = document.source.path.rstrip("/").rpartition("/")[2]
    return f"document {document.number:,} · {file}"
