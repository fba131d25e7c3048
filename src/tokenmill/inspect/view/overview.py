"""The overview: what a dataset contains."""

from __future__ import annotations

from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.viewer import Page, Routes, Viewer


def show_overview(viewer: Viewer, query: Query) -> Page:
    """Return the page."""
    name, dataset = viewer.choose_dataset(query)
    return Page(
        template="overview.html",
        title="Overview",
        section="/",
        values={"name": name, "dataset": dataset},
    )


ROUTES: Routes = (("/", show_overview),)
