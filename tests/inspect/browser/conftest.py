"""One server and one browser for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from view_demo import make_demo_data, write_demo_runs
from view_pages import ARGUMENTS, Visit, find_browser, serve

import tokenmill
from tokenmill.inspect.run_opening import open_run

NO_BROWSER = "no browser for the pages of tokenmill view; install Chromium and playwright"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = find_browser()
    if path is None:
        pytest.skip(NO_BROWSER)
    api = pytest.importorskip("playwright.sync_api", reason=NO_BROWSER)
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(path), args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], list[Path]]:
    """The paths of two datasets, and of two runs on a mixture of them."""
    folder = tmp_path_factory.mktemp("demo")
    data = make_demo_data(folder)
    return data, write_demo_runs(folder / "runs", data)


@pytest.fixture(scope="session")
def url(demo: tuple[dict[str, Path], list[Path]]) -> Iterator[str]:
    data, runs = demo
    datasets = {name: tokenmill.open(path) for name, path in data.items()}
    with serve(datasets, {path.name: open_run(path) for path in runs}) as address:
        yield address


@pytest.fixture
def visit(browser: Any, url: str) -> Iterator[Visit]:
    tab = Visit(browser, url)
    yield tab
    tab.context.close()
    assert not tab.problems
