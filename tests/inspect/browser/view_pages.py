"""A server of the viewer's pages in this process, and a browser."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenmill.dataset.opening import Dataset
from tokenmill.inspect.run_view import RunView
from tokenmill.inspect.view.app import make_app

TOKEN = "let-me-in"
SIZE = {"width": 1100, "height": 700}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@contextmanager
def serve(datasets: Mapping[str, Dataset], runs: Mapping[str, RunView]) -> Iterator[str]:
    """Serve pages; yields the URL without a slash at its end."""
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    app = make_app(datasets, runs, TOKEN)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


def set_up(url: str) -> str:
    """Return the URL that lets a browser in."""
    return f"{url}/?token={TOKEN}"


def find_browser() -> Path | None:
    """Return the system's Chromium, if there is one."""
    return Path(CHROMIUM) if CHROMIUM else None


class Visit:
    """A tab that remembers everything that should not happen."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.url = url
        self.context = browser.new_context(**({"viewport": SIZE} | options))
        self.page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.problems: list[str] = []
        self.page.on("console", self._read)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", self._check)
        self.page.goto(set_up(url))

    def _read(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text}")

    def _dismiss(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _check(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:", "about:")):
            self.problems.append(f"request to {request.url}")

    def go(self, path: str) -> Any:
        """Open a page; returns the answer."""
        return self.page.goto(self.url + path)

    def open_runs(self, query: str = "") -> None:
        """Open the page of runs, and wait until its script has all points."""
        self.go(f"/runs{query}")
        self.wait_for_charts()

    def wait_for_charts(self) -> None:
        self.page.wait_for_selector("[data-charts][data-filled]")
