"""The search page."""

from __future__ import annotations

from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.viewer import Page, Routes, Viewer


def show_search(viewer: Viewer, query: Query) -> Page:
    """Return the page."""
    del viewer, query
    return Page(template="search.html", title="Search", section="/search")


ROUTES: Routes = (("/search", show_search),)
