"""The overview: what a dataset contains, and where it comes from.

The page shows at once what the manifest says. Statistics of the tokens are shown if they are kept
beside the dataset; otherwise they are computed in the background, and the page shows the progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tokenmill.dataset.opening import Dataset
from tokenmill.inspect.info import Info, describe_dataset
from tokenmill.inspect.stats.result import Statistics
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.rendering import list_parts
from tokenmill.inspect.view.viewer import Data, Page, Routes, Viewer
from tokenmill.inspect.view.work import Progress
from tokenmill.wording import count, one_line

SOURCES_SHOWN = 12
TOKENS_SHOWN = 24
_WIDTH = 1000.0  # width of a bar, in units of its drawing
_LEAST_COLUMN = 1.5  # the least height, in percent, of a column that is not empty


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What became of documents: kept, or dropped for a reason. `kind` is the CSS class of the bar.

    `number` counts the reasons from 1; it is 0 for the documents that were kept.
    """

    number: int
    name: str
    kind: str
    documents: int
    bytes: int
    x: float
    width: float


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the histogram of lengths: its place in percent, and the documents behind it."""

    first: int
    last: int
    documents: int
    tokens: int
    x: float
    width: float
    height: float


def show_overview(viewer: Viewer, query: Query) -> Page:
    """Return the page."""
    name, dataset = viewer.choose_dataset(query)
    info = describe_once(dataset)
    found: Statistics | Progress | None = None
    if viewer.statistics is not None and dataset.splits:
        found = viewer.statistics.get(name)
    statistics = found if isinstance(found, Statistics) else None
    return Page(
        template="overview.html",
        title=one_line(dataset.path.name),
        section="/",
        values={
            "name": name,
            "dataset": dataset,
            "info": info,
            "fates": list(list_fates(info)),
            "settings": flatten(info.settings),
            "statistics": statistics,
            "progress": found if isinstance(found, Progress) else None,
            "sources": [] if statistics is None else (statistics.sources or [])[:SOURCES_SHOWN],
            "columns": list_columns(statistics),
            "frequent": [] if statistics is None else statistics.frequent[:TOKENS_SHOWN],
            # The figures are those of all splits, so that links lead through all of them.
            "splits": "all" if len(dataset.splits) > 1 else None,
        },
    )


def show_progress(viewer: Viewer, query: Query) -> Data:
    """Return how far the computation of a dataset's statistics is."""
    name, _ = viewer.choose_dataset(query)
    if viewer.statistics is None:
        return Data(values={"state": "none", "share": None, "words": ""})
    found = viewer.statistics.get(name, start=False)
    if isinstance(found, Progress):
        return Data(values={"state": found.state, "share": found.share, "words": found.words})
    return Data(values={"state": "ready", "share": 1.0, "words": ""})


@lru_cache(maxsize=64)
def describe_once(dataset: Dataset) -> Info:
    """Return the facts about a dataset, which do not change while it is open."""
    return describe_dataset(dataset)


def list_fates(info: Info) -> Iterator[Fate]:
    """Yield what became of the documents that were read; nothing if that is unknown."""
    if info.documents_in is None or info.documents is None:
        return
    kept = info.documents_in - sum(one.documents for one in info.dropped)
    parts = [("kept", kept, info.bytes_kept or 0)]
    parts += [(one.reason, one.documents, one.bytes) for one in info.dropped if one.documents]
    bars = list_parts([(name, documents) for name, documents, _ in parts], _WIDTH)
    for number, ((name, documents, size), (_, x, width)) in enumerate(
        zip(parts, bars, strict=True)
    ):
        kind = "p0" if number == 0 else ("p1" if number % 2 else "p2")
        yield Fate(
            number=number, name=name, kind=kind, documents=documents, bytes=size, x=x, width=width
        )


def list_columns(statistics: Statistics | None) -> list[Column]:
    """Return the columns of the histogram of lengths, of equal width."""
    if statistics is None or statistics.lengths is None or not statistics.lengths.bins:
        return []
    bins = statistics.lengths.bins
    highest = max(one.documents for one in bins) or 1
    step = 100 / len(bins)
    return [
        Column(
            first=one.first,
            last=one.last,
            documents=one.documents,
            tokens=one.tokens,
            x=round(number * step, 3),
            width=round(step * 0.86, 3),
            height=round(max(100 * one.documents / highest, _LEAST_COLUMN), 2)
            if one.documents
            else 0.0,
        )
        for number, one in enumerate(bins)
    ]


def flatten(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return settings as (name, value) pairs, without those that are not set."""
    rows: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            rows += flatten(value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            rows.append((f"{prefix}{name}", "yes" if value else "no"))
        elif value is not None and value not in ([], ""):
            rows.append((f"{prefix}{name}", count(value) if isinstance(value, int) else str(value)))
    return rows


ROUTES: Routes = (("/", show_overview), ("/statistics", show_progress))
