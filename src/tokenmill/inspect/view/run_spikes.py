"""The spikes of runs, for the page of runs: marks in its chart and rows of its tables.

If no step of a run stands out, but rows do, the page lists these rows and the documents behind them.

A thread searches for spikes, because a long run takes seconds: see `inspect/spikes/spikes.py`. Then
it samples the losses by source file. A page waits at most `WAIT` seconds for the first result; the
script of the page asks again. A growing run is searched again each time it has grown by a twentieth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event, Lock, Thread

import numpy as np

from tokenmill.errors import TokenmillError
from tokenmill.inspect.run_view import RunView
from tokenmill.inspect.spikes.spikes import Spike, SpikeReport, find_spikes
from tokenmill.inspect.view.charts import Mark, Series
from tokenmill.inspect.view.file_losses import FileLosses, sample_file_losses
from tokenmill.inspect.view.row_parts import describe_document
from tokenmill.inspect.view.viewer import Viewer, make_link
from tokenmill.progress import Nobody
from tokenmill.store.documents import Document
from tokenmill.wording import one_line

LIMIT = 20  # spikes of a run to show
WAIT = 0.7  # seconds to wait for a first result
_GROWTH = 1.05
_LISTED = 3  # rows of a spike to list, and documents


@dataclass(frozen=True, kw_only=True)
class Link:
    """A name and the page that it leads to."""

    name: str
    link: str


@dataclass(frozen=True, kw_only=True)
class ShownSpike:
    """A spike of run `number`, at the step with the highest loss."""

    number: int
    run: str
    step: int
    loss: float
    excess: float
    cause: str
    link: str
    rows: tuple[Link, ...]
    documents: tuple[Link, ...]


@dataclass(frozen=True, kw_only=True)
class ShownRow:
    """A row of run `number` that stands out, though its step does not."""

    number: int
    run: str
    row: Link
    step: int
    loss: float
    excess: float
    documents: tuple[Link, ...]


@dataclass(frozen=True, kw_only=True)
class ShownSuspect:
    """A document that stands out in `high_rows` of the `rows` of run `number` that hold it."""

    number: int
    run: str
    document: Link
    rows: int
    high_rows: int
    steps: tuple[Link, ...]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a search found in a run. `files` is None if there are no losses by source file."""

    report: SpikeReport
    files: FileLosses | None


class SpikeSearch:
    """Searches a run for spikes, again whenever it has grown. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ready = Event()
        self._rows = 0  # rows of the run when it was last searched
        self._is_searching = False
        self._found: Findings | None = None

    @property
    def found(self) -> Findings | None:
        """What the newest search found; None if none has ended."""
        return self._found

    def get(self, view: RunView) -> tuple[Findings | None, bool]:
        """Return what the newest search found, or None, and whether a search is in progress."""
        rows, is_new = view.losses_count, False
        with self._lock:
            if rows < self._rows:  # the run was restarted
                self._rows, self._found = 0, None
            if not self._is_searching and rows and rows >= max(1, self._rows * _GROWTH):
                self._is_searching, self._rows = True, rows
                self._ready.clear()
                is_new = self._found is None
                Thread(target=self._search, args=(view,), name="spikes", daemon=True).start()
        if is_new:
            self._ready.wait(WAIT)
        with self._lock:
            return self._found, self._is_searching

    def _search(self, view: RunView) -> None:
        try:
            report = find_spikes(view, limit=LIMIT, watcher=Nobody())
            files = self._found.files if self._found is not None else None
            with self._lock:
                self._found = Findings(report=report, files=files)
            self._ready.set()
            files = sample_file_losses(view)
            with self._lock:
                self._found = Findings(report=report, files=files)
        except (TokenmillError, OSError, ValueError):
            pass  # such as a run that was restarted meanwhile
        finally:
            with self._lock:
                self._is_searching = False
            self._ready.set()


def list_spikes(viewer: Viewer, number: int, name: str, report: SpikeReport) -> list[ShownSpike]:
    """Return the spikes of a run, the highest first, with links to their rows and documents."""
    return [_describe(viewer, number, name, report, spike) for spike in report.spikes]


def _describe(
    viewer: Viewer, number: int, name: str, report: SpikeReport, spike: Spike
) -> ShownSpike:
    rows = [high.explained for high in spike.rows[:_LISTED]]
    found: dict[tuple[str, int], Document] = {}
    for suspect in (report.suspects[place] for place in spike.suspects):
        if suspect.document is not None:
            found[suspect.source, suspect.document.number] = suspect.document
    for row in rows:
        for part in row.documents[:_LISTED]:
            if part.document is not None:
                found.setdefault((row.span.source, part.document.number), part.document)
    return ShownSpike(
        number=number,
        run=name,
        step=spike.peak_step,
        loss=spike.loss,
        excess=spike.excess,
        cause=spike.cause,
        link=make_link("/batches", run=name, step=spike.peak_step),
        rows=tuple(_link_row(name, row.place.row) for row in rows),
        documents=tuple(
            _link_named(viewer, source, document)
            for (source, _), document in list(found.items())[:_LISTED]
        ),
    )


def list_high_rows(
    viewer: Viewer, number: int, name: str, report: SpikeReport
) -> tuple[list[ShownRow], list[ShownSuspect]]:
    """Return the rows and documents that stand out in a run none of whose steps stands out."""
    if report.spikes:
        return [], []
    rows = [
        ShownRow(
            number=number,
            run=name,
            row=_link_row(name, one.explained.place.row),
            step=one.explained.place.step,
            loss=one.loss,
            excess=one.excess,
            documents=tuple(
                _link_named(viewer, one.explained.span.source, part.document)
                for part in one.explained.documents[:_LISTED]
                if part.document is not None
            ),
        )
        for one in report.rows
    ]
    suspects = [
        ShownSuspect(
            number=number,
            run=name,
            document=_link_named(viewer, one.source, one.document),
            rows=one.rows,
            high_rows=one.high_rows,
            steps=tuple(
                Link(name=f"{step:,}", link=make_link("/batches", run=name, step=step))
                for step in one.first_steps[:_LISTED]
            ),
        )
        for one in report.suspects
        if one.document is not None
    ]
    return rows, suspects


def _link_row(run: str, row: int) -> Link:
    return Link(name=f"{row:,}", link=f"{make_link('/batches', run=run, row=row)}#row-{row}")


def _link_named(viewer: Viewer, source: str, document: Document) -> Link:
    return Link(
        name=one_line(describe_document(document)), link=link_document(viewer, source, document)
    )


def link_document(viewer: Viewer, source: str, document: Document) -> str:
    """Return the URL of the page of a document."""
    data = source if source in viewer.datasets else ""
    return make_link(f"/document/{document.number}", data=data, split=document.split)


def make_marks(spikes: Sequence[ShownSpike], curves: Sequence[Series]) -> list[Mark]:
    """Return a mark for each spike, at the highest loss that the curve shows near it."""
    by_run = {one.id: one for one in curves}
    marks = []
    for spike in spikes:
        curve = by_run.get(f"{spike.number}:train")
        if curve is None or not len(curve.steps):
            continue
        at = int(np.abs(curve.steps - spike.step).argmin())
        drawn = [curve.values[at], *([curve.high[at]] if curve.high is not None else [])]
        height = max((value for value in drawn if math.isfinite(value)), default=math.nan)
        if math.isnan(height):
            continue
        marks.append(
            Mark(
                step=spike.step,
                value=float(height),
                colour=spike.number,
                label=f"Spike of {one_line(spike.run)} at step {spike.step:,}: "
                f"loss {spike.loss:.4g}, {spike.excess:.4g} above usual",
                link=spike.link,
            )
        )
    return marks
