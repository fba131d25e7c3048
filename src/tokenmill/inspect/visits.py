"""Find out when a run reads some tokens: the rows that hold them, and their steps, ranks and epochs.

Rows are computed from the order, so a run of any length costs the same, except for the order
`random`, where rows are tried one after another. A row has one token more than the model reads, its
last target, and counts as holding that token too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenmill.inspect.run_view import RunView
from tokenmill.inspect.whereabouts import Visit, Visits
from tokenmill.store.documents import Integers

_PASSES = 64  # over the data, to look for rows that are not read yet
_CHUNK = 1 << 24  # rows to search at once


def find_visits(view: RunView, source: str, start: int, stop: int, most: int) -> Visits:
    """Return when the tokens [start, stop) of a source are read; at most `most` rows of each kind."""
    number = view.rows.names.index(source)
    order = view.rows.orders[number]
    windows = max(1, order.windows)
    share = _find_share(view, number)
    one_pass = max(1, int(windows / share)) if share else 0
    horizon = _PASSES * one_pass
    rows = None
    if view.rows.settings.order != "random":
        rows = len(order.find_windows(start, stop))
    first = _take(_search(view, source, start, stop, 0, horizon, one_pass), most)
    read = latest = upcoming = None
    if view.row_count is not None:
        read, last = 0, -1
        for found in _search(view, source, start, stop, 0, view.row_count, one_pass):
            read += len(found)
            last = int(found[-1])
        latest = _visit(view, last, start, stop) if last >= 0 else None
        later = view.row_count + horizon
        coming = _take(_search(view, source, start, stop, view.row_count, later, one_pass), 1)
        upcoming = _visit(view, coming[0], start, stop) if coming else None
    return Visits(
        first=tuple(_visit(view, row, start, stop) for row in first),
        rows=rows,
        read=read,
        latest=latest,
        next=upcoming,
    )


def _find_share(view: RunView, number: int) -> float:
    """Return the share of a run's rows that come from a source; of the smallest phase that has any."""
    mixture = view.rows.mixture
    if mixture is None:
        return 1.0
    data: Any = view.rows.data
    shares = [weights[number] / sum(weights) for _, weights in data.phases]
    return min((share for share in shares if share > 0), default=0.0)


def _search(
    view: RunView, source: str, start: int, stop: int, first: int, last: int, step: int
) -> Iterator[Integers]:
    """Yield the rows in [first, last) that hold one of the tokens, some at a time."""
    step = max(1, min(step, _CHUNK))
    while first < last:
        found = view.find_rows(
            source, start, stop, first_row=first, last_row=min(first + step, last)
        )
        if len(found):
            yield np.asarray(found, np.int64)
        first += step


def _take(parts: Iterator[Integers], most: int) -> list[int]:
    taken: list[int] = []
    for part in parts:
        taken += part[: most - len(taken)].tolist()
        if len(taken) == most:
            break
    return taken


def _visit(view: RunView, row: int, start: int, stop: int) -> Visit:
    place, span = view.place(row), view.span(row)
    loss = None
    if row < view.losses_count:
        value = float(view.losses(row, row + 1)[0])
        loss = None if np.isnan(value) else value
    return Visit(
        row=row,
        epoch=place.epoch,
        step=place.step,
        rank=place.rank,
        index=place.index,
        start=max(start, span.start) - span.start,
        stop=min(stop, span.stop) - span.start,
        loss=loss,
    )
