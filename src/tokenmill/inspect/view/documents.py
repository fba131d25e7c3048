"""The list of documents, and one document."""

from __future__ import annotations

from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.viewer import Page, Routes, Viewer


def show_documents(viewer: Viewer, query: Query) -> Page:
    """Return the page with the list of documents."""
    name, dataset = viewer.choose_dataset(query)
    split = viewer.choose_split(query, dataset)
    return Page(
        template="documents.html",
        title="Documents",
        section="/documents",
        values={"name": name, "dataset": dataset, "split": split},
    )


ROUTES: Routes = (("/documents", show_documents),)
