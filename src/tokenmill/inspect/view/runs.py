"""The page of runs: their losses as charts that can be zoomed, and their spikes.

`/runs` is the page, `/runs/charts` only its charts, for a script that zooms, and `/runs/points` the
points that are new since the charts were drawn, for a script that extends the curves of live runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tokenmill.inspect.view.charts import Series, draw_chart
from tokenmill.inspect.view.file_losses import FileLosses
from tokenmill.inspect.view.loss_charts import WINDOWS, LossCharts, Shown, list_points
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.run_curves import RunCurves
from tokenmill.inspect.view.run_spikes import (
    Findings,
    ShownRow,
    ShownSuspect,
    SpikeSearch,
    list_high_rows,
    list_spikes,
    make_marks,
)
from tokenmill.inspect.view.viewer import Data, Page, Viewer, make_link
from tokenmill.wording import counted, one_line

READING = 1.0  # seconds to read losses for one answer


def show_runs(viewer: Viewer, query: Query) -> Page:
    """Return the page."""
    if not viewer.runs:
        return Page(template="no_runs.html", title="Runs", section="/runs")
    return Page(template="runs.html", title="Runs", section="/runs", values=_draw(viewer, query))


def show_charts(viewer: Viewer, query: Query) -> Page:
    """Return only the part of the page with the charts."""
    return Page(template="charts.html", title="Runs", values=_draw(viewer, query))


def show_points(viewer: Viewer, query: Query) -> Data:
    """Return the progress of each run, and the points that are new since `after`.

    `after` has the number of steps that each run had before, separated by commas. If a run has fewer
    steps now, it was restarted, and all its points are returned.
    """
    runs = open_curves(viewer)
    numbers = [number for number in query.text("after").split(",") if number]
    known = {n: int(text) for n, text in enumerate(numbers) if text.isdecimal() and len(text) < 16}
    charts = LossCharts(runs, Shown.read(query))
    curves = charts.curves(known) if known else charts.curves()
    if not known:
        for number, run in charts.visible:
            curves += _find_source_curves(viewer, charts, number, run)
    return Data(
        values={
            "runs": [
                {
                    "key": run.name,
                    "steps": run.steps,
                    "live": run.is_live,
                    "restarted": run.steps < known.get(number, 0),
                }
                for number, run in enumerate(runs)
            ],
            "curves": [list_points(one) for one in curves if len(one.steps)],
        }
    )


def open_curves(viewer: Viewer) -> list[RunCurves]:
    """Return the curves of all runs, with what the runs have written so far.

    Reading takes about `READING` seconds at most; the next call continues.
    """
    found = []
    until = time.monotonic() + READING
    for name, view in viewer.runs.items():
        curves = viewer.kept.setdefault(("curves", name), RunCurves(name, view))
        curves.refresh(until=until)
        found.append(curves)
    return found


def _draw(viewer: Viewer, query: Query) -> dict[str, Any]:
    runs = open_curves(viewer)
    shown = Shown.read(query)
    charts = LossCharts(runs, shown)
    curves = charts.curves()
    found, is_searching = _search(viewer, charts)
    spikes = [
        spike
        for number, run in charts.visible
        if number in found
        for spike in list_spikes(viewer, number, run.name, found[number].report)
    ]
    high_rows, suspects = _list_high_rows(viewer, charts, found)
    main = charts.chart("loss", _describe(charts), curves, marks=make_marks(spikes, curves))
    by_source = [
        _draw_sources(viewer, charts, number, run, own)
        for number, run in charts.visible
        if (own := _find_source_curves(viewer, charts, number, run))
    ]
    axis = shown.values | {"from": str(charts.first), "to": str(charts.last)}
    return {
        "charts": charts,
        "shown": shown,
        "svg": draw_chart(main),
        "by_source": by_source,
        "spikes": spikes,
        "high_rows": high_rows,
        "suspects": suspects,
        "is_searching": is_searching,
        "unread_steps": sum(run.unread_steps for _, run in charts.visible),
        "windows": WINDOWS,
        "runs": [_summarize(number, run, shown) for number, run in enumerate(runs)],
        "points": make_link("/runs/points", **axis, width=shown.width),
        "batches": "/batches",
        "is_live": any(run.is_live for run in runs),
    }


def _search(viewer: Viewer, charts: LossCharts) -> tuple[dict[int, Findings], bool]:
    """Return what is known of the visible runs, and whether a first search is in progress."""
    known: dict[int, Findings] = {}
    is_searching = False
    for number, run in charts.visible:
        search: SpikeSearch = viewer.kept.setdefault(("spikes", run.name), SpikeSearch())
        found, searches = search.get(run.view)
        is_searching |= searches and (found is None or found.files is None)
        if found is not None:
            known[number] = found
    return known, is_searching


def _list_high_rows(
    viewer: Viewer, charts: LossCharts, found: Mapping[int, Findings]
) -> tuple[list[ShownRow], list[ShownSuspect]]:
    rows: list[ShownRow] = []
    suspects: list[ShownSuspect] = []
    for number, run in charts.visible:
        if number in found:
            more = list_high_rows(viewer, number, run.name, found[number].report)
            rows += more[0]
            suspects += more[1]
    return rows, suspects


def _find_source_curves(
    viewer: Viewer, charts: LossCharts, number: int, run: RunCurves
) -> list[Series]:
    """Return the losses by source of a mixture, or those by source file of a single dataset."""
    if run.sources:
        return charts.source_curves(number)
    files = _find_files(viewer, run)
    return [] if files is None else charts.file_curves(number, files)


def _find_files(viewer: Viewer, run: RunCurves) -> FileLosses | None:
    search: SpikeSearch | None = viewer.kept.get(("spikes", run.name))
    return None if search is None or search.found is None else search.found.files


def _draw_sources(
    viewer: Viewer, charts: LossCharts, number: int, run: RunCurves, curves: list[Series]
) -> dict[str, Any]:
    label = f"Loss by source of {one_line(run.name)}"
    chart = charts.chart(f"sources-{number}", label, curves, height=270)
    return {
        "name": run.name,
        "number": number,
        "curves": curves,
        "svg": draw_chart(chart),
        "files": None if run.sources else _find_files(viewer, run),
    }


def _summarize(number: int, run: RunCurves, shown: Shown) -> dict[str, Any]:
    last, metrics = run.metrics.last, run.metrics
    rate = last.get("tokens_per_second")
    return {
        "number": number,
        "name": run.name,
        "is_hidden": number in shown.hidden,
        "toggle": shown.toggle(number).link,
        "steps": run.steps,
        "max_steps": run.max_steps,
        "is_live": run.is_live,
        "loss": last.get("loss"),
        "val_loss": metrics.val_losses[-1] if metrics.val_losses else None,
        "best": min(metrics.val_losses, default=None),
        "tokens": last.get("tokens"),
        "rate": rate if isinstance(rate, (int, float)) else None,
    }


def _describe(charts: LossCharts) -> str:
    """Return what the main chart shows, in words, for screen readers."""
    parts = []
    for _, run in charts.visible:
        last = run.metrics.last.get("loss")
        loss = f", training loss {last:.4g}" if isinstance(last, (int, float)) else ""
        val = run.metrics.val_losses
        val_loss = f", validation loss {val[-1]:.4g}" if val else ""
        parts.append(f"{one_line(run.name)}: {counted(run.steps, 'step')}{loss}{val_loss}")
    return f"Loss by step. {'; '.join(parts) or 'No run is shown'}."
