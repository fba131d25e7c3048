"""The search page: every occurrence of a text or of ids. Each request searches for a limited time."""

from __future__ import annotations

from tokenmill.inspect.view.finding import Wanted, find_matches
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.viewer import Page, Viewer, find_next_split, make_link

PAGE = 50  # matches of a page


def show_search(viewer: Viewer, query: Query) -> Page:
    """Return the page, with the occurrences from token `first` on."""
    name, dataset = viewer.choose_dataset(query)
    split = viewer.choose_split(query, dataset)
    kind = query.choice("kind", ("text", "any-case", "ids"))
    wanted = Wanted(text=query.text("q"), is_ids=kind == "ids", ignore_case=kind == "any-case")
    first = query.number("first", 0)
    found = None
    if wanted.text:
        found = find_matches(dataset, wanted, split=split, first=first, limit=PAGE)
    given = {
        "data": name,
        "split": split,
        "splits": query.text("splits"),
        "q": wanted.text,
        "kind": "" if kind == "text" else kind,
    }
    next_split = find_next_split(query, dataset, split)
    next_link = None
    if found is not None and found.next is not None:
        next_link = make_link("/search", **given, first=found.next)
    elif found is not None and next_split is not None:
        next_link = make_link("/search", **{**given, "split": next_split})
    return Page(
        template="search.html",
        title=f"Search: {wanted.text[:60]}" if wanted.text else "Search",
        section="/search",
        values={
            "name": name,
            "dataset": dataset,
            "split": split,
            "count_all": len(dataset[split]),
            "wanted": wanted,
            "kind": kind,
            "found": found,
            "next_link": next_link,
            "next_split": next_split if found is not None and found.next is None else None,
            "start_link": make_link("/search", **given) if first else None,
        },
    )
