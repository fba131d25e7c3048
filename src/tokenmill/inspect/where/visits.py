"""Find out when a run reads some tokens: the rows that hold them, and their steps, ranks and epochs.

Rows are computed from the order, so a run of any length costs the same, except for the order
`random`, where rows are tried one after another. A row has one token more than the model reads: its
last target. The row counts as holding that token too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tokenmill.inspect.run_view import RunView
from tokenmill.inspect.where.whereabouts import Visit, Visits
from tokenmill.store.documents import Integers

_EPOCHS = 3  # epochs in which to look for the first rows, and for the next row of a run
_EPOCHS_OF_DRAWS = 64  # the same for the order `random`, which may miss tokens in an epoch
_CHUNK = 1 << 24  # rows to search at once


def find_visits(view: RunView, source: str, start: int, stop: int, most: int) -> Visits:
    """Return when the tokens [start, stop) of a source are read; at most `most` rows are listed."""
    order = view.order(source)
    is_drawn = order.kind == "random"
    epochs = _EPOCHS_OF_DRAWS if is_drawn else _EPOCHS
    step = min(_CHUNK, max(1, view.find_epoch_end(source, 0)))

    def search(first: int, last: int) -> Iterator[Integers]:
        return _search(view, source, start, stop, first, last, step)

    first = _take(search(0, view.find_epoch_end(source, epochs - 1)), most)
    found = Visits(
        first=tuple(_visit(view, row, start, stop) for row in first),
        rows=None if is_drawn else len(order.find_windows(start, stop)),
    )
    if view.row_count is None:
        return found
    read, last = 0, -1
    for rows in search(0, view.row_count):
        read, last = read + len(rows), int(rows[-1])
    done = _count_rows(view, source, view.row_count) // order.windows
    coming = _take(search(view.row_count, view.find_epoch_end(source, done + epochs)), 1)
    return replace(
        found,
        read=read,
        latest=_visit(view, last, start, stop) if last >= 0 else None,
        next=_visit(view, coming[0], start, stop) if coming else None,
    )


def _count_rows(view: RunView, source: str, row: int) -> int:
    """Return how many rows of the run before `row` are rows of a source."""
    mixture = view.rows.mixture
    return row if mixture is None else int(mixture.counts(row)[view.rows.names.index(source)])


def _search(
    view: RunView, source: str, start: int, stop: int, first: int, last: int, step: int
) -> Iterator[Integers]:
    """Yield the rows in [first, last) that hold one of the tokens, some at a time."""
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
