"""Find the documents in many rows at once. Results are columns: arrays with one entry per document.

Only the targets of a row count, which are its tokens after the first, because only targets have a
loss. If the data has a document table, two binary searches per row find its documents. If not,
documents end at end-of-text ids; then the start of a row's first document and the end of its last one
are searched for within `_FAR` tokens.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.inspect.run_view import RunView
from tokenmill.store.tokens import Tokens

Integers = npt.NDArray[np.int64]

_FAR = 1 << 20  # tokens to search for the start or end of a document, at most
_NEAR = 1 << 12  # tokens to search first
_AT_ONCE = 1 << 20  # tokens of the rows that are examined at once


class Parts(NamedTuple):
    """Parts of documents in rows, as columns with one entry for each part.

    `rows` has the index of the part's row among the requested rows. The document is the tokens from
    `starts` to before `stops` of the source with the index in `sources`. `counts` is how many
    targets of the row belong to the document.
    """

    rows: Integers
    sources: Integers
    starts: Integers
    stops: Integers
    counts: Integers

    def take(self, chosen: npt.NDArray[Any]) -> Parts:
        """Return the parts with these indices, or for which this mask is true."""
        return Parts(*(column[chosen] for column in self))


def has_documents(view: RunView) -> bool:
    """Return whether the documents of all sources are known."""
    return all(
        tokens.documents is not None or tokens.eot_id is not None for tokens in view.rows.tokens
    )


def is_remote(view: RunView) -> bool:
    """Return whether some of the data is in an object store, where each lookup may be a request."""
    return any(tokens.is_remote for tokens in view.rows.tokens)


def find_parts(view: RunView, rows: Integers) -> Parts:
    """Return the documents of rows, ordered by row and by their place in it."""
    columns: list[tuple[int, int, int, int, int]] = []
    at_once = max(1, _AT_ONCE // (view.seq_len + 1))
    for low in range(0, len(rows), at_once):
        sources, begins = view.spans(rows[low : low + at_once])
        for index, (source, begin) in enumerate(
            zip(sources.tolist(), begins.tolist(), strict=True), low
        ):
            first, last = begin + 1, begin + 1 + view.seq_len
            bounds = find_bounds(view.rows.tokens[source], first, last)
            for start, stop in pairwise(bounds):
                count = min(stop, last) - max(start, first)
                if count > 0:
                    columns.append((index, source, start, stop, count))
    table = np.array(columns, np.int64).reshape(-1, 5)
    return Parts(*table.T)


def find_bounds(tokens: Tokens, first: int, last: int) -> list[int]:
    """Return where the documents with the tokens [first, last) start, and where the last one ends.

    >>> find_bounds(Tokens.of([5, 0, 6, 7, 0, 8, 9], eot_id=0), 3, 6)
    [2, 5, 7]
    """
    if tokens.documents is not None:
        table = tokens.documents
        bounds = table.starts(table.count_before(first + 1) - 1, table.count_before(last))
        return [int(bound) for bound in bounds]
    if tokens.eot_id is None:
        return [first, last]
    inner = tokens.find_document_starts(np.array([first]), last - first) + first
    begin = [] if len(inner) and inner[0] == first else [_find_start(tokens, first)]
    return [*begin, *inner.tolist(), _find_stop(tokens, last)]


def _find_start(tokens: Tokens, token: int) -> int:
    """Return where the document with a token starts, at most `_FAR` tokens before it."""
    least, size, stop = max(0, token - _FAR), _NEAR, token + 1
    while stop > least:
        start = max(least, stop - size)
        found = tokens.find_document_starts(np.array([start]), stop - start)
        if len(found):
            return start + int(found[-1])
        stop, size = start, size * 4
    return least


def _find_stop(tokens: Tokens, token: int) -> int:
    """Return where the next document starts: at a token, or at most `_FAR` tokens after it."""
    most, size, start = min(len(tokens), token + _FAR), _NEAR, token
    while start < most:
        stop = min(most, start + size)
        found = tokens.find_document_starts(np.array([start]), stop - start)
        if len(found):
            return start + int(found[0])
        start, size = stop, size * 4
    return most


def find_epochs(view: RunView, rows: Integers) -> Integers:
    """Return for each row the epoch of its source."""
    windows = np.array([order.windows for order in view.rows.orders])
    if view.rows.mixture is None:
        epochs: Integers = rows // windows[0]
        return epochs
    sources, numbers = view.rows.mixture.assign(rows)
    found: Integers = numbers // windows[sources]
    return found
