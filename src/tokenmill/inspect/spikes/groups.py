"""The mean loss by source and by length of the documents, from a sample of the rows.

A row's loss counts for each of its documents, weighted by the number of the row's targets that belong
to the document. A keyed permutation chooses the rows, so the sample is always the same. Costs: about
0.2 ms per row, so at most `SAMPLE` rows are read, whatever the length of the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tokenmill.inspect.row_documents import Integers, Parts, find_parts, is_remote
from tokenmill.inspect.run_view import RunView
from tokenmill.inspect.spikes.levels import Floats
from tokenmill.inspect.spikes.scan import RowCurve
from tokenmill.inspect.spikes.suspects import Judge
from tokenmill.order.permutation import derive_keys, make_key, permute
from tokenmill.progress import Watcher

SAMPLE = 10_000  # rows of the sample
REMOTE_SAMPLE = 200  # rows of data in an object store, where each may need a request
MOST_SOURCES = 10
_PIECE = 500  # rows to read at once

Key = TypeVar("Key", str, int)


@dataclass(frozen=True, kw_only=True)
class LossGroup:
    """The losses of the documents of one source or of one range of lengths.

    `tokens` is the number of targets in the sample, and `loss` their mean loss. `excess` is by how
    much the rows' losses exceed, on average, those of the rows around them. A source is the path of a
    file, in a mixture after the name of its dataset. `count` is the number of sources in the group:
    more than 1 only in the group that joins all sources that are not listed.
    """

    name: str
    tokens: int
    loss: float
    excess: float
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class LossGroups:
    """Losses by source and by length of the documents. `rows` is the size of the sample."""

    rows: int = 0
    sources: tuple[LossGroup, ...] = ()
    lengths: tuple[LossGroup, ...] = ()


def choose_rows(rows: int, most: int) -> Integers:
    """Return `most` of the rows, or all of them, in ascending order.

    >>> choose_rows(1000, 5).tolist() == choose_rows(1000, 5).tolist(), choose_rows(3, 5).tolist()
    (True, [0, 1, 2])
    """
    if rows <= most:
        return np.arange(rows)
    key = derive_keys(make_key("spikes", rows), 0)
    return np.sort(permute(np.arange(most), rows, key))


def group_losses(view: RunView, curve: RowCurve, judge: Judge, watcher: Watcher) -> LossGroups:
    """Return the losses of a sample of rows by source and by length of the documents."""
    assert curve.rows is not None
    chosen = choose_rows(curve.rows, REMOTE_SAMPLE if is_remote(view) else SAMPLE)
    losses = curve.read_rows(chosen).astype(np.float64)
    excess, _ = judge.judge(chosen)
    known = ~np.isnan(excess)
    rows, losses, excess = chosen[known], losses[known], excess[known]
    sources: dict[str, Floats] = {}
    lengths: dict[int, Floats] = {}
    watcher.begin("reading documents", len(rows) * view.seq_len, unit="tokens")
    for low in range(0, len(rows), _PIECE):
        here = slice(low, low + _PIECE)
        parts = find_parts(view, rows[here])
        values = np.stack(
            (np.ones(len(parts.rows)), losses[here][parts.rows], excess[here][parts.rows])
        )
        sums = (values * parts.counts).T
        _add(sources, name_sources(view, parts), sums)
        if all(tokens.documents is not None for tokens in view.rows.tokens):
            sizes = np.log2(np.maximum(parts.stops - parts.starts, 1)).astype(int)
            _add(lengths, sizes.tolist(), sums)
        watcher.advance(min(_PIECE, len(rows) - low) * view.seq_len)
    return LossGroups(
        rows=len(rows),
        sources=_fold(sources),
        lengths=tuple(
            _make(f"{1 << size:,} to {(2 << size) - 1:,}", lengths[size])
            for size in sorted(lengths)
        ),
    )


def name_sources(view: RunView, parts: Parts) -> list[str]:
    """Return the source of each part: the path of its file, in a mixture after the dataset's name."""
    names = []
    for source, start in zip(parts.sources.tolist(), parts.starts.tolist(), strict=True):
        documents = view.rows.tokens[source].documents
        file = None if documents is None else documents.at(start).source
        named = (view.rows.names[source], "" if file is None else file.path)
        names.append(": ".join(part for part in named if part) or "unknown file")
    return names


def _add(groups: dict[Key, Floats], keys: Iterable[Key], sums: Floats) -> None:
    for key, values in zip(keys, sums, strict=True):
        groups[key] = groups[key] + values if key in groups else values


def _fold(groups: dict[str, Floats]) -> tuple[LossGroup, ...]:
    """Return the sources that add the most loss, and one group of all others."""
    ordered = sorted(groups, key=lambda name: (-groups[name][2], name))
    shown, rest = ordered, []
    if len(ordered) > MOST_SOURCES + 1:
        shown, rest = ordered[:MOST_SOURCES], ordered[MOST_SOURCES:]
    found = [_make(name, groups[name]) for name in shown]
    if rest:
        found.append(_make("all others", np.sum([groups[name] for name in rest], 0), len(rest)))
    return tuple(found)


def _make(name: str, sums: npt.NDArray[np.float64], count: int = 1) -> LossGroup:
    tokens, loss, excess = sums.tolist()
    return LossGroup(
        name=name, tokens=int(tokens), loss=loss / tokens, excess=excess / tokens, count=count
    )
