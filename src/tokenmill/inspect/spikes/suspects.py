"""Rank the documents of rows that stand out, and find what these documents have in common.

A document's `excess` is the product of two factors. The first is a sum over its rows that stand
out: each row's excess, times the share of the row's targets that belong to the document. The second
is a fraction: of the document's targets that were read, how many were in rows that stand out. So if
two documents are in the same bad row, the one whose other rows are ordinary ranks below the one whose
rows all stand out.

If losses are known only per step, the same is computed with steps instead of rows. Every document in
a step that stands out is then a suspect, and documents rank by the number of such steps they are in.

Cost: about 1 ms per document. At most `MOST_SUSPECTS` documents are examined, with at most
`_MOST_READ` rows each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.inspect.explain import decode_beginning
from tokenmill.inspect.row_documents import (
    Integers,
    Parts,
    find_epochs,
    find_parts,
    has_documents,
    is_remote,
)
from tokenmill.inspect.run_view import RunView
from tokenmill.inspect.spikes.levels import Floats
from tokenmill.inspect.spikes.scan import RowCurve, Scan, StepCurve
from tokenmill.progress import Watcher
from tokenmill.store.documents import Document

MOST_SUSPECTS = 64
TEXT_LENGTH = 80  # characters of the beginning of a document
_MOST_READ = 8192  # rows of one document to examine, at most
_MOST_COMPUTED = 1 << 25  # rows to compute; if a document needs more, only known high rows are used
_MOST_REMOTE = 64  # rows to look up in an object store
_LISTED = 16  # rows of a suspect to list
_BEGINNING = 64  # tokens of the beginnings that are compared with each other
_SAME = 16  # if only steps are known, documents that begin with the same tokens count as one
_ALIKE = 0.5  # the least share of common runs of three tokens in beginnings that are alike
_SAME_FILE = 0.5  # the least share of the excess that the suspects of one file must have


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A document in rows that stand out: the tokens [start, start + length) of a source's split.

    `document` is None if the data has no document table. `rows` counts its rows that were read and
    have a loss, and `high_rows` those of them that stand out. `epochs` counts the epochs in which it
    was read, and `high_epochs` those in which it stood out. `first_rows` and `first_steps` are the
    first rows that stand out, and their steps. `beside` is the index of a more suspicious document
    that is in all of this document's high rows; then this document may be harmless. `text` is the
    beginning of this document, or None if the tokenizer is unknown.
    """

    source: str
    document: Document | None
    start: int
    length: int
    text: str | None
    excess: float
    rows: int
    high_rows: int
    epochs: int
    high_epochs: int
    first_rows: tuple[int, ...]
    first_steps: tuple[int, ...]
    beside: int | None = None

    @property
    def is_certain(self) -> bool:
        """Whether it was read in several epochs and stood out in each, which is strong evidence."""
        return self.epochs > 1 and self.high_epochs == self.epochs


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What several suspects have in common. `kind` is "text" for a similar beginning, or "file".

    `name` is the beginning or the file. `suspects` are their indices in the list of suspects. `share`
    is their share of the excess of all suspects, and `steps` the number of steps in which they
    stand out.
    """

    kind: str
    name: str
    suspects: tuple[int, ...]
    share: float
    steps: int


class Judge:
    """Decides which rows stand out, by their losses or, if only these are known, those of steps."""

    def __init__(
        self, view: RunView, curve: RowCurve | StepCurve, scan: Scan, threshold: float
    ) -> None:
        self._view, self._curve, self._scan, self._threshold = view, curve, scan, threshold
        self._phases = np.array([(p.step, p.row, p.batch_rows) for p in view.phases], np.int64).T
        self.has_rows = isinstance(curve, RowCurve)
        last = view.step_rows(curve.number(curve.steps - 1)).stop
        self.row_count = last if curve.rows is None else curve.rows

    def find_steps(self, rows: Integers) -> tuple[Integers, Integers]:
        """Return the step of each row, and how many rows the step has."""
        steps, firsts, sizes = self._phases
        at = np.maximum(firsts.searchsorted(rows, "right") - 1, 0)
        return steps[at] + (rows - firsts[at]) // sizes[at], sizes[at]

    def measure(self, rows: Integers) -> tuple[Floats, Floats, Floats]:
        """Return the excess, the score and the loss of sorted rows, NaN where unknown.

        If only the losses of steps are known, these are those of the row's step.
        """
        steps, _ = self.find_steps(rows)
        if isinstance(self._curve, RowCurve):
            losses = self._curve.read_rows(rows).astype(np.float64)
        else:
            steps, losses = self._curve.find(steps)
        return *self._scan.judge(steps, losses), losses

    def judge(self, rows: Integers) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Return the excess of each row (NaN if unknown), and whether it stands out.

        `rows` must be sorted.
        """
        excess, scores, _ = self.measure(rows)
        with np.errstate(invalid="ignore"):
            return excess, (scores >= self._threshold) & (excess > 0)

    def find_shares(self, rows: Integers, counts: Integers) -> Floats:
        """Return the share of each known loss that comes from `counts` targets of the row."""
        targets = np.full(len(rows), float(self._view.seq_len))
        if isinstance(self._curve, StepCurve):
            targets *= self.find_steps(rows)[1]
        shares: Floats = counts / targets
        return shares


class _Candidate(NamedTuple):
    source: int
    start: int
    stop: int
    near: int  # a token in a row that stands out


def find_suspects(
    view: RunView, judge: Judge, rows: Integers, watcher: Watcher
) -> tuple[Suspect, ...]:
    """Return the documents in the given rows, most suspicious first.

    Documents that appear only in ordinary rows are left out.
    """
    if not has_documents(view) or not len(rows):
        return ()
    rows = np.unique(rows)
    excess, is_high = judge.judge(rows)
    rows, excess = rows[is_high], excess[is_high]
    if is_remote(view):
        worst = np.sort(np.argsort(-excess, kind="stable")[:_MOST_REMOTE])
        rows, excess = rows[worst], excess[worst]
    parts = find_parts(view, rows)
    candidates = _choose(view, judge, parts, rows, excess)
    watcher.begin("examining documents", 0)
    found = []
    for candidate in candidates:
        examined = _examine(view, judge, candidate, rows)
        if examined is not None and examined[0].excess > 0:
            found.append(examined)
    found.sort(key=lambda one: (-one[0].excess, one[0].source, one[0].start))
    if not judge.has_rows:
        found.sort(key=lambda one: -one[0].high_rows)
    return tuple(
        replace(one, beside=_find_beside(own, found[:number]))
        for number, (one, own) in enumerate(found)
    )


def _find_beside(
    rows: frozenset[int], before: Sequence[tuple[Suspect, frozenset[int]]]
) -> int | None:
    return next((number for number, (_, others) in enumerate(before) if rows <= others), None)


def _choose(
    view: RunView, judge: Judge, parts: Parts, rows: Integers, excess: Floats
) -> list[_Candidate]:
    """Return the documents to examine."""
    if not len(parts.rows):
        return []
    shares = judge.find_shares(rows[parts.rows], parts.counts)
    documents, firsts, at = np.unique(
        np.stack((parts.sources, parts.starts, parts.stops), axis=1),
        axis=0,
        return_index=True,
        return_inverse=True,
    )
    at = at.ravel()
    sums = np.bincount(at, excess[parts.rows] * shares)
    if not judge.has_rows:  # documents that are in several of the steps come first
        steps = judge.find_steps(rows[parts.rows])[0]
        pairs = np.unique(np.stack((at, steps), axis=1), axis=0)
        times = np.bincount(pairs[:, 0], minlength=len(documents))
        alike = _count_alike(view, documents, pairs)
        sums = np.maximum(times, alike) * (1 + sums.max()) + sums
    order = np.lexsort((np.arange(len(documents)), -sums))[:MOST_SUSPECTS]
    begins = view.spans(rows[parts.rows[firsts[order]]])[1]
    return [
        _Candidate(source, start, stop, near)
        for (source, start, stop), near in zip(
            documents[order].tolist(), begins.tolist(), strict=True
        )
    ]


def _count_alike(view: RunView, documents: Integers, pairs: Integers) -> Integers:
    """Return for each document how many steps have one that begins with the same `_SAME` tokens."""
    beginnings: dict[bytes, set[int]] = {}
    keys = []
    for source, start, stop in documents.tolist():
        tokens = view.rows.tokens[source]
        keys.append(tokens[start : min(stop, start + _SAME)].astype(np.int64).tobytes())
    for document, step in pairs.tolist():
        beginnings.setdefault(keys[document], set()).add(step)
    return np.array([len(beginnings[key]) for key in keys], np.int64)


def _examine(
    view: RunView, judge: Judge, candidate: _Candidate, known: Integers
) -> tuple[Suspect, frozenset[int]] | None:
    """Judge the rows that hold a document, at most `_MOST_READ`.

    Returns the suspect and those of its rows that stand out; None if no row does.
    """
    source, start, stop, near = candidate
    name, length = view.rows.names[source], view.seq_len
    low, high = start, stop
    if stop - start > _MOST_READ * length:
        low = max(start, near - _MOST_READ // 2 * length)
        high = min(stop, low + _MOST_READ * length)
    order = view.order(name)
    reads = (2 + (high - low) // length) * (1 + judge.row_count // order.windows)
    if order.kind == "random":  # without an inverse, all rows must be computed
        reads = judge.row_count
    if reads > _MOST_COMPUTED:
        rows = known
    else:
        rows = view.find_rows(name, low, high, last_row=judge.row_count)
    rows = rows[:: 1 + len(rows) // _MOST_READ]
    sources, begins = view.spans(rows)
    counts = np.minimum(stop, begins + 1 + length) - np.maximum(start, begins + 1)
    inside = (counts > 0) & (sources == source)
    rows, counts = rows[inside], counts[inside]
    excess, is_high = judge.judge(rows)
    is_known = ~np.isnan(excess)
    shares = judge.find_shares(rows, counts)
    if not is_high.any():
        return None
    weight = float(shares[is_high].sum() / shares[is_known].sum())
    epochs = find_epochs(view, rows)
    tokens = view.rows.tokens[source]
    steps = judge.find_steps(rows)[0]
    if not judge.has_rows:  # a step counts once, however many of its rows hold the document
        once = np.unique(steps, return_index=True)[1]
        is_once = np.zeros(len(rows), bool)
        is_once[once] = True
    else:
        is_once = np.ones(len(rows), bool)
    document = None if tokens.documents is None else tokens.documents.at(start)
    shard = tokens.shard_name(tokens.locate(start)[0])
    beginning = tokens[start : min(stop, start + 4 * TEXT_LENGTH)]
    suspect = Suspect(
        source=name,
        document=document,
        start=start,
        length=stop - start,
        text=decode_beginning(view.datasets[name], beginning, TEXT_LENGTH, shard),
        excess=weight * float((excess[is_high] * shares[is_high]).sum()),
        rows=int((is_known & is_once).sum()),
        high_rows=int((is_high & is_once).sum()),
        epochs=len(np.unique(epochs[is_known])),
        high_epochs=len(np.unique(epochs[is_high])),
        first_rows=tuple(rows[is_high][:_LISTED].tolist()),
        first_steps=tuple(np.unique(steps[is_high])[:_LISTED].tolist()),
    )
    return suspect, frozenset(rows[is_high].tolist())


def find_shared(view: RunView, suspects: Sequence[Suspect]) -> tuple[Shared, ...]:
    """Return what several suspects have in common: a similar beginning, or the file."""
    total = sum(one.excess for one in suspects) or 1.0
    found = []
    for group in _group_alike(view, suspects):
        text = suspects[group[0]].text
        found.append(("text", "" if text is None else text, group))
    by_file: dict[str, list[int]] = {}
    for number, one in enumerate(suspects):
        if one.document is not None and one.document.source is not None:
            name = f"{one.source}: " if one.source else ""
            by_file.setdefault(name + one.document.source.path, []).append(number)
    if _count_files(view) > 1:
        for path, group in by_file.items():
            share = sum(suspects[number].excess for number in group) / total
            if len(group) > 1 and share >= _SAME_FILE:
                found.append(("file", path, group))
    return tuple(
        Shared(
            kind=kind,
            name=name,
            suspects=tuple(group),
            share=sum(suspects[number].excess for number in group) / total,
            steps=len({step for number in group for step in suspects[number].first_steps}),
        )
        for kind, name, group in found
    )


def _count_files(view: RunView) -> int:
    manifests = [dataset.manifest for dataset in view.datasets.values()]
    return sum(len(manifest.sources) for manifest in manifests if manifest is not None)


def _group_alike(view: RunView, suspects: Sequence[Suspect]) -> list[list[int]]:
    """Group suspects with similar beginnings; groups of one are left out."""
    runs = []
    for one in suspects:
        end = one.start + min(one.length, _BEGINNING)
        ids = view.tokens(one.source)[one.start : end].tolist()
        runs.append({tuple(ids[at : at + 3]) for at in range(max(1, len(ids) - 2))})
    groups: list[list[int]] = []
    for number, run in enumerate(runs):
        for group in groups:
            other = runs[group[0]]
            if len(run & other) >= _ALIKE * len(run | other):
                group.append(number)
                break
        else:
            groups.append([number])
    return [group for group in groups if len(group) > 1]
