"""The page of batches."""

from __future__ import annotations

from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.viewer import Page, Routes, Viewer


def show_batches(viewer: Viewer, query: Query) -> Page:
    """Return the page."""
    del viewer, query
    return Page(template="batches.html", title="Batches", section="/batches")


ROUTES: Routes = (("/batches", show_batches),)
