"""Serve the application on this machine until Ctrl-C.

The server listens on 127.0.0.1 only. It runs in the main thread.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from tokenmill.dataset.named import parse_named
from tokenmill.dataset.opening import Dataset
from tokenmill.dataset.opening import open as open_dataset
from tokenmill.dataset.paths import AnyPath
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.inspect.view.security import TOKEN_NAME, Application
from tokenmill.progress import Watcher

if TYPE_CHECKING:
    from tokenmill.inspect.run_view import RunView

HOST = "127.0.0.1"
PORT = 8765
_TRIES = 20  # ports to try after the default one
_CONNECTIONS = 100
_GRACE = 2  # seconds that unfinished answers get when the server ends


def view(
    data: AnyPath | Sequence[AnyPath] = (),
    *,
    runs: Sequence[AnyPath] = (),
    port: int | None = None,
    browser: bool = True,
    announce: Callable[[str], None] = print,
    **opening: Any,
) -> None:
    """Show datasets and runs in the browser, until Ctrl-C.

    >>> view("no/such/folder")
    Traceback (most recent call last):
    ...
    tokenmill.errors.DatasetError: no/such/folder does not exist. Make a dataset with: \
tokenmill prepare TEXTS --out no/such/folder

    Parameters
    ----------
    data
        A dataset, or several as "NAME=PATH:WEIGHT", as in `tokenmill.train`. By default, the data
        of the first of `runs`.
    runs
        Folders of runs of `tokenmill.train`.
    port
        The port to listen on; by default 8765, or the first free one after it.
    browser
        Whether to open the page in the browser.
    announce
        Called with the URL when the server answers.
    opening
        Options of `tokenmill.open`, such as `tokenizer`.
    """
    check_libraries()
    datasets, views, weights = open_all(data, runs, opening)
    serve(datasets, views, weights=weights, port=port, browser=browser, announce=announce)


def export(
    data: AnyPath | Sequence[AnyPath],
    folder: AnyPath,
    *,
    split: str | None = None,
    document: Sequence[int] = (),
    documents: int = 0,
    watcher: Watcher | None = None,
    **opening: Any,
) -> list[Path]:
    """Write the overview and some documents as HTML files to a folder, and return their paths.

    `document` has the numbers of documents to write. `documents` is how many more to write, evenly
    spaced in the split; by default, in train.
    """
    if documents < 0:
        raise UsageError(f"`documents` is {documents:,}; it must be 0 or more.")
    check_libraries()
    from tokenmill.inspect.view import export as exporting
    from tokenmill.inspect.view.listing import get_documents
    from tokenmill.inspect.view.viewer import order_splits

    datasets, _, _ = open_all(data, (), opening)
    if len(datasets) > 1:
        raise UsageError("only one dataset can be exported at a time. Name one dataset.")
    (dataset,) = datasets.values()
    split = next(iter(order_splits(dataset)), "train") if split is None else split
    tokens = dataset[split]  # raises an error if there is no such split
    numbers = set(document)
    if documents:
        length = len(get_documents(dataset, tokens))
        chosen = range(min(documents, length))
        numbers.update(number * length // max(1, min(documents, length)) for number in chosen)
    return exporting.export(dataset, folder, split=split, documents=numbers, watcher=watcher)


def open_all(
    data: AnyPath | Sequence[AnyPath], runs: Sequence[AnyPath], opening: Mapping[str, Any]
) -> tuple[dict[str, Dataset], dict[str, RunView], dict[str, float]]:
    """Open the datasets and runs by name, and return them with the weights of the datasets.

    Without `data`, the datasets are those of the first run, and there are no weights.
    """
    given = [data] if isinstance(data, (str, os.PathLike)) else list(data)
    named = parse_named(given)
    views: dict[str, RunView] = {}
    for folder in runs:
        name = Path(folder).name or str(folder)
        if name in views:
            name = str(folder)
        views[name] = _open_run(folder, given)
    if not named and not views:
        raise UsageError(
            "there is nothing to show. Name a dataset, or the folder of a run: tokenmill view DATA, "
            "or tokenmill view --run RUN"
        )
    if not named:
        # Pages show the data as it is on disk, and what a run held out as held out.
        return dict(next(iter(views.values())).whole), views, {}
    # Open remote datasets without a cache, since only a few tokens are read.
    options = {"cache_bytes": 0, **opening}
    datasets = {one.name: open_dataset(one.path, **options) for one in named}
    return datasets, views, {one.name: one.weight for one in named}


def _open_run(folder: AnyPath, data: Sequence[AnyPath]) -> RunView:
    from tokenmill.inspect.run_opening import open_run

    try:
        return open_run(folder)
    except TokenmillError:
        if not data:
            raise
    return open_run(folder, data=data)  # the data of the run may have been moved


def serve(
    datasets: Dataset | Mapping[str, Dataset],
    runs: Mapping[str, RunView],
    *,
    weights: Mapping[str, float] | None = None,
    port: int | None = None,
    browser: bool = True,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve the pages until Ctrl-C or SIGTERM. `announce` gets the URL as soon as the server answers.

    By default, the port is 8765 or the first free one after it.
    """
    import uvicorn

    from tokenmill.inspect.view.app import make_app

    listener = listen(port)
    token, once = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    number = listener.getsockname()[1]
    address = f"http://{HOST}:{number}/?{TOKEN_NAME}="
    app = make_app(datasets, runs, token, weights=weights, once=once if browser else "")
    logger = logging.getLogger("uvicorn.error")
    level = logger.level

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            announce(address + token)
            if browser:
                Thread(target=_open, args=(address + once,), daemon=True).start()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # It cancels pages that are not ready in time, and would report each as an error.
            logger.setLevel(logging.CRITICAL)
            await super().shutdown(sockets)

    server = Server(_configure(app))
    with listener, suppress(KeyboardInterrupt):  # uvicorn raises it again after it has ended
        try:
            server.run(sockets=[listener])
        finally:
            logger.setLevel(level)


def _configure(app: Application) -> Any:
    import uvicorn

    return uvicorn.Config(
        app,
        log_config=None,
        log_level="error",
        access_log=False,
        # These need no search for other libraries, and the limits below are those of h11.
        loop="asyncio",
        http="h11",
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS,
        h11_max_incomplete_event_size=32 << 10,
        timeout_graceful_shutdown=_GRACE,
    )


def listen(port: int | None) -> socket.socket:
    """Return a socket that listens on a port of 127.0.0.1; by default, on the first free one."""
    ports: Sequence[int] = range(PORT, PORT + _TRIES) if port is None else (port,)
    for number in (*ports, *([0] if port is None else [])):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # Without this option, the port would stay in use for a minute after the viewer ended.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, number))
            listener.listen()
        except (OSError, OverflowError) as error:
            listener.close()
            reason = getattr(error, "strerror", None) or str(error)
        else:
            return listener
    raise UsageError(
        f"port {port} of this machine cannot be used: {reason}. Choose another `port`, or omit it."
    )


def check_libraries() -> None:
    """Raise an error that says how to install the extra `view` if a library of it is missing."""
    try:
        import jinja2  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"the viewer needs the library {error.name}. Install it with: "
            "pip install 'tokenmill[view]'"
        ) from None


def _open(url: str) -> None:
    with suppress(Exception):  # there may be no browser; the URL is printed
        webbrowser.open(url)
