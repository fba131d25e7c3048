"""The losses of a run on one dataset by source file, from a sample of its rows.

The rows are those that `tokenmill spikes` samples. A row's loss counts for each of its documents,
weighted by the number of the row's targets that belong to the document. Costs: about 0.2 ms per row
of the sample, so a run of any length takes a few seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenmill.inspect.row_documents import find_parts, is_remote
from tokenmill.inspect.run_view import RunView
from tokenmill.inspect.spikes.groups import REMOTE_SAMPLE, SAMPLE, choose_rows, name_sources
from tokenmill.inspect.spikes.scan import RowCurve
from tokenmill.inspect.view.step_losses import Floats, Integers

MOST_FILES = 8  # files to show: those with the most targets in the sample
_PIECE = 500  # rows to read at once


@dataclass(frozen=True, kw_only=True, eq=False)
class FileLosses:
    """The sampled losses of some files. The arrays have an entry for each part of a row.

    `files` has the index of the part's file in `names`, and `counts` the number of its targets.
    `rows` is the size of the sample, and `file_count` counts all files in it.
    """

    names: tuple[str, ...]
    rows: int
    file_count: int
    files: Integers
    steps: Integers
    losses: Floats
    counts: Floats

    def find(self, file: int, first: int, last: int, width: int) -> tuple[Floats, Floats]:
        """Return the mean steps of a file in buckets of `width` steps, and its mean losses there.

        Only buckets of the steps [first, last) in which the sample has the file are returned.
        """
        chosen = (self.files == file) & (self.steps >= first) & (self.steps < last)
        counts, steps = self.counts[chosen], self.steps[chosen]
        buckets = (steps - first) // width
        length = int(buckets.max()) + 1 if len(buckets) else 0
        totals = np.bincount(buckets, counts, length)
        known = totals > 0
        places = np.bincount(buckets, counts * steps, length)[known] / totals[known]
        means = np.bincount(buckets, counts * self.losses[chosen], length)[known] / totals[known]
        return places, means


def sample_file_losses(view: RunView) -> FileLosses | None:
    """Return the losses of a run by file; None for a mixture, or if fewer than two files are known."""
    (tokens, *others) = view.rows.tokens
    curve = RowCurve(view.phases, view.losses_count, view.losses)
    if others or tokens.documents is None or not curve.rows:
        return None
    chosen = choose_rows(curve.rows, REMOTE_SAMPLE if is_remote(view) else SAMPLE)
    losses = curve.read_rows(chosen).astype(np.float64)
    chosen, losses = chosen[np.isfinite(losses)], losses[np.isfinite(losses)]
    steps = curve.find_steps(chosen)
    numbers: dict[str, int] = {}
    columns: list[tuple[Integers, Integers, Floats, Floats]] = []
    for low in range(0, len(chosen), _PIECE):
        parts = find_parts(view, chosen[low : low + _PIECE])
        names = name_sources(view, parts)
        files = [numbers.setdefault(name, len(numbers)) for name in names]
        rows = low + parts.rows
        columns.append(
            (np.array(files, np.int64), steps[rows], losses[rows], parts.counts.astype(np.float64))
        )
    if len(numbers) < 2:
        return None
    every, at, values, counts = (np.concatenate(column) for column in zip(*columns, strict=True))
    most = np.argsort(-np.bincount(every, counts, len(numbers)), kind="stable")[:MOST_FILES]
    places = np.full(len(numbers), -1)
    places[most] = np.arange(len(most))
    is_shown = places[every] >= 0
    known = list(numbers)
    return FileLosses(
        names=tuple(known[number] for number in most.tolist()),
        rows=len(chosen),
        file_count=len(numbers),
        files=places[every][is_shown],
        steps=at[is_shown],
        losses=values[is_shown],
        counts=counts[is_shown],
    )
