"""Make the pictures of docs/view.md from the demo: every page, light and dark.

python tests/inspect/browser/make_screenshots.py [FOLDER]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from view_demo import ROOT, make_demo_data, write_demo_runs
from view_pages import ARGUMENTS, Visit, find_browser, serve

import tokenmill
from tokenmill.inspect.run_opening import open_run
from tokenmill.inspect.stats.stats import stats

RUNS = "/runs?smooth=30"
PAGES = {
    "overview": "/",
    "documents": "/documents",
    "document": "/document/100?data=code&split=train",
    "batches": "/batches?run=wider&step=1240",
    "rows": "/batches?run=wider&row=19842#row-19842",
    "search": "/search?q=resume",
    "runs": RUNS,
}
# The name of the temporary folder says nothing, and would differ in each picture.
_SHORTEN = """(folder) => {
    const all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (all.nextNode()) all.currentNode.data = all.currentNode.data.replaceAll(folder, "");
}"""


def take_pictures(browser: Any, url: str, folder: Path) -> None:
    """Write `view-NAME.png` and `view-NAME-dark.png` of each page."""
    for scheme, end in (("light", ""), ("dark", "-dark")):
        visit = Visit(browser, url, color_scheme=scheme, reduced_motion="reduce")
        for name, path in PAGES.items():
            visit.go(path)
            if name == "runs":
                visit.wait_for_charts()
                visit.page.wait_for_selector("[data-charts][data-filled]:not([data-searching])")
                box = visit.page.locator("#loss .plane").bounding_box()
                x, y = box["x"] + box["width"] * 1240.5 / 3000, box["y"] + box["height"] * 0.3
                visit.page.mouse.move(x, y)
            visit.page.wait_for_timeout(300)
            visit.page.evaluate(_SHORTEN, str(Path.cwd()) + "/")
            # A page that is all text would be a large file.
            size = {"x": 0, "y": 0, "width": 1100, "height": 600 if name == "rows" else 700}
            visit.page.screenshot(clip=size, path=folder / f"view-{name}{end}.png")
            visit.page.mouse.move(2, 2)
        visit.context.close()
        assert not visit.problems, visit.problems


def main(folder: Path) -> None:
    """Make the demo, serve it and take the pictures."""
    from playwright.sync_api import sync_playwright

    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        os.chdir(place)  # the pages show relative paths
        data = make_demo_data(Path("data"))
        runs = write_demo_runs(Path("runs"), data)
        datasets = {name: tokenmill.open(path) for name, path in data.items()}
        for dataset in datasets.values():
            stats(dataset, progress=False)
        browser = playwright.chromium.launch(executable_path=str(find_browser()), args=ARGUMENTS)
        with serve(datasets, {path.name: open_run(path) for path in runs}) as url:
            take_pictures(browser, url, folder)
            time.sleep(0.1)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/images")
