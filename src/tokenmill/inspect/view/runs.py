"""The page of runs."""

from __future__ import annotations

from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.viewer import Page, Routes, Viewer


def show_runs(viewer: Viewer, query: Query) -> Page:
    """Return the page."""
    del viewer, query
    return Page(template="runs.html", title="Runs", section="/runs")


ROUTES: Routes = (("/runs", show_runs),)
