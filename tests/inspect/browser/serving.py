"""A server of the viewer's pages in this process, and a browser."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tokenmill.dataset.opening import Dataset
from tokenmill.inspect.run_view import RunView
from tokenmill.inspect.view.app import make_app

TOKEN = "let-me-in"
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
