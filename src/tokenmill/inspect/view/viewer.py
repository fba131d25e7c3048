"""What the pages show: the datasets, the runs, and how a page is made from a template.

A page is a function `(Viewer, Query) -> Page | Data`. It runs in a thread, so it may read files; a few
pages run at once. It raises errors of `tokenmill.errors`, which are shown as pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import UsageError
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.work import StatisticsWork
from tokenmill.store.tokens import Tokens

if TYPE_CHECKING:
    from tokenmill.inspect.run_view import RunView


class MissingPageError(UsageError):
    """What a URL names does not exist."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page: the name of its template, its title, and the values that the template shows.

    `section` is the path of the entry in the navigation that the page belongs to.
    """

    template: str
    title: str
    section: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, kw_only=True)
class Data:
    """An answer in JSON, for scripts of the pages."""

    values: Any


@dataclass(frozen=True, kw_only=True)
class Viewer:
    """The datasets by name and the runs by name.

    A single dataset has the name "", as in `RunView.datasets`; several have the names of the mixture,
    and `weights` are its weights, if any were given.
    If `statistics` is None, no statistics are computed.
    """

    datasets: Mapping[str, Dataset]
    runs: Mapping[str, RunView] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    kept: dict[tuple[str, ...], Any] = field(
        default_factory=dict
    )  # what pages keep between requests
    statistics: StatisticsWork | None = None

    def choose_dataset(self, query: Query) -> tuple[str, Dataset]:
        """Return the name and the dataset that `data=NAME` chooses; by default, the first one."""
        if not self.datasets:
            raise MissingPageError("No dataset is open. Start the viewer with: tokenmill view DATA")
        name = query.choice("data", tuple(self.datasets))
        return name, self.datasets[name]

    def name_data(self, query: Query) -> str:
        """Return the name of a dataset that `data=NAME` chooses, for links to other pages, or ""."""
        name = query.text("data")
        return name if name in self.datasets else ""

    def choose_split(self, query: Query, dataset: Dataset) -> str:
        """Return the split that `split=NAME` chooses; by default, train or the first one."""
        splits = order_splits(dataset)
        if not splits:
            raise MissingPageError(f"{dataset.path} has no tokens.")
        return query.choice("split", splits)

    def choose_run(self, query: Query) -> tuple[str, RunView]:
        """Return the name and the run that `run=NAME` chooses; by default, the first one."""
        if not self.runs:
            raise MissingPageError(
                "No run is open. Start the viewer with: tokenmill view --run RUN"
            )
        name = query.choice("run", tuple(self.runs))
        return name, self.runs[name]


def order_splits(dataset: Dataset) -> list[str]:
    """Return the names of the splits in the order of the pages: train first."""
    return sorted(dataset.splits, key=lambda name: name != "train")


def find_next_split(query: Query, dataset: Dataset, split: str) -> str | None:
    """Return the split to continue with after `split`, if `splits=all` asks for all of them."""
    if query.choice("splits", ("one", "all")) == "one":
        return None
    names = order_splits(dataset)
    return next(iter(names[names.index(split) + 1 :]), None)


@lru_cache(maxsize=256)
def read_tokens(dataset: Dataset, split: str) -> Tokens:
    """Return the tokens of a split, read from their files without memory maps.

    Maps would count as memory of the process. And if a mapped file were truncated, the operating
    system would kill the server.
    """
    return dataset[split].unmapped()


PageFunction = Callable[[Viewer, Query], "Page | Data"]


def make_link(path: str, **parameters: object) -> str:
    """Return the URL of a page of the viewer. Parameters that are None or empty are omitted.

    >>> make_link("/documents", split="val", first=None, text="a&b")
    '/documents?split=val&text=a%26b'
    """
    given = {
        name: str(value)
        for name, value in parameters.items()
        if value is not None and value is not False and value != ""
    }
    return quote(path) + (f"?{urlencode(given)}" if given else "")
