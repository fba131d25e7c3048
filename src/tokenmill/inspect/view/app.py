"""The application: from a URL to a page.

Guarantees: every answer is a page, a file of `static/` or JSON; errors are pages too. The templates
escape all values in a page. Paths in a URL never become paths of files. At most `THREADS` pages are
computed at once, and memory maps are released between pages, so memory does not grow with the number
of requests. To start fast, only the overview is imported at first.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, cast
from weakref import finalize

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import TokenmillError, UsageError, lacks_memory
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.rendering import Templates
from tokenmill.inspect.view.security import Application, Guard, Refusal
from tokenmill.inspect.view.viewer import (
    Data,
    MissingPageError,
    Page,
    PageFunction,
    Viewer,
)
from tokenmill.inspect.view.work import StatisticsWork
from tokenmill.storage.mapping import drop_maps

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from tokenmill.inspect.run_view import RunView

THREADS = 4
MAPPED = 64 << 20  # bytes of mapped files in memory, above which the maps are released
STATIC = "/static/"
# The functions of the pages, which are imported when they are first needed.
PAGES = {
    "/": "overview:show_overview",
    "/statistics": "overview:show_progress",
    "/dropped": "dropped:show_dropped",
    "/documents": "listing:show_documents",
    "/document/{number}": "documents:show_document",
    "/batches": "batches:show_batches",
    "/runs": "runs:show_runs",
    "/runs/charts": "runs:show_charts",
    "/runs/points": "runs:show_points",
    "/search": "search:show_search",
}
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def make_app(
    datasets: Dataset | Mapping[str, Dataset],
    run_views: Mapping[str, RunView],
    token: str,
    *,
    weights: Mapping[str, float] | None = None,
    once: str = "",
) -> Application:
    """Return the application for some datasets and runs, by name; one dataset has the name "".

    `weights` are those of the mixture of the datasets, for batches without a run.
    Requests need `token`, or for one request `once`: see `security`.
    """
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    known = {"": datasets} if isinstance(datasets, Dataset) else dict(datasets)
    viewer = Viewer(
        datasets=known,
        runs=dict(run_views),
        weights=dict(weights or {}),
        statistics=StatisticsWork(known),
    )
    templates = Templates(names={"viewer": viewer})
    run_page = _make_runner()
    warm_up = Thread(target=_warm_up, args=(viewer,), daemon=True)
    started: list[bool] = []

    def after_page() -> None:
        bound_memory()
        if not started:  # warm up only after the first page was sent
            started.append(True)
            with suppress(RuntimeError):  # another page started it, or memory ran out
                warm_up.start()

    def make_handler(place: str) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            def answer() -> Response:
                try:
                    return make()
                finally:
                    after_page()

            def make() -> Response:
                query = Query(
                    {**request.query_params, **{k: str(v) for k, v in request.path_params.items()}}
                )
                try:
                    found = find_page(place)(viewer, query)
                    if isinstance(found, Page):
                        html = templates.render(found, data=viewer.name_data(query))
                        return _make_html(html, found.status)
                except Exception as error:
                    found = explain(error)
                    return _make_html(templates.render(found, data=""), found.status)
                return _make_json(found)

            return await run_page(answer)

        return handle

    async def handle_missing(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404
        page = _make_problem("Page not found", "Choose a page above.", status)
        return _make_html(templates.render(page, data=""), page.status)

    def refuse(reason: Refusal) -> Application:
        page = Page(
            template="refusal.html",
            title=reason.title,
            values={"text": reason.text, "target": reason.link},
            status=reason.status,
        )
        return _make_html(templates.render(page, data=""), page.status)

    routes = [Route(path, make_handler(place), methods=["GET"]) for path, place in PAGES.items()]
    routes += [
        Route(STATIC + name, _serve(data, name), methods=["GET"]) for name, data in read_static()
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: handle_missing})
    app.router.redirect_slashes = False
    return Guard(app, token=token, refuse=refuse, public=(STATIC,), once=once)


@cache
def find_page(place: str) -> PageFunction:
    """Return the function of a page, given as MODULE:FUNCTION of this package."""
    module, _, function = place.partition(":")
    return cast(PageFunction, getattr(import_module(f"{__package__}.{module}"), function))


def explain(error: Exception) -> Page:
    """Return the page that reports an error."""
    if isinstance(error, MissingPageError):
        return _make_problem("Not found", str(error), 404)
    if isinstance(error, UsageError):
        return _make_problem("This address has a wrong value", str(error), 400)
    if isinstance(error, TokenmillError):
        return _make_problem("This cannot be shown", str(error), 409)
    if lacks_memory(error):
        return _make_problem("Memory ran out", "Free some memory, and reload the page.", 409)
    if isinstance(error, OSError):
        reason = f"A file cannot be read: {error.strerror or error}. Fix that, and reload the page."
        return _make_problem("This cannot be shown", reason, 409)
    if os.environ.get("TOKENMILL_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)
    reason = (
        f"{type(error).__name__}: {str(error)[:300]}. This is a bug in tokenmill. Set "
        "TOKENMILL_DEBUG=1, start the viewer again, and report the address and everything that it "
        "prints."
    )
    return _make_problem("Unexpected error", reason, 500)


def read_static() -> list[tuple[str, bytes]]:
    """Return the names and contents of the scripts, styles and images of the application."""
    folder = files(__package__) / "static"
    return sorted((one.name, one.read_bytes()) for one in folder.iterdir() if one.is_file())


def bound_memory() -> None:
    """Release all memory maps if their pages take more than `MAPPED` bytes of memory."""
    try:
        shared = int(Path("/proc/self/statm").read_text().split()[2]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):  # not Linux
        shared = MAPPED + 1
    if shared > MAPPED:
        drop_maps()


def _warm_up(viewer: Viewer) -> None:
    """Import the other pages and load the tokenizers, so that the next page does not have to."""
    for place in PAGES.values():
        with suppress(Exception):  # the page reports errors
            find_page(place)
    from tokenmill.inspect.view.spelling import find_speller

    for dataset in viewer.datasets.values():
        with suppress(Exception):  # the page that needs the tokenizer reports errors
            find_speller(dataset).warm_up()


def _make_problem(title: str, text: str, status: int) -> Page:
    return Page(template="problem.html", title=title, values={"text": text}, status=status)


def _make_runner() -> Callable[[Callable[[], Response]], Awaitable[Response]]:
    """Return a function that makes an answer in one of `THREADS` threads.

    The threads do not keep the process alive, so that a slow page does not delay its end.
    """
    import asyncio

    waiting: SimpleQueue[tuple[Future[Response], Callable[[], Response]] | None] = SimpleQueue()
    threads: list[Thread] = []

    def work() -> None:
        while True:
            if (task := waiting.get()) is None:
                return
            future, function = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            del task, future, function  # while it waits, the thread keeps no page in memory

    async def run(function: Callable[[], Response]) -> Response:
        if len(threads) < THREADS:
            thread = Thread(target=work, name="page", daemon=True)
            try:
                thread.start()
                threads.append(thread)
            except RuntimeError:  # memory ran out
                if not threads:
                    raise
        future: Future[Response] = Future()
        waiting.put((future, function))
        return await asyncio.wrap_future(future)

    def end() -> None:
        for _ in threads:
            waiting.put(None)

    finalize(run, end)  # when the application is no longer used
    return run


def _make_html(html: str, status: int) -> Response:
    from starlette.responses import HTMLResponse

    # A file name that is not UTF-8 has lone surrogates, which cannot be sent.
    return HTMLResponse(html.encode("utf-8", "backslashreplace"), status_code=status)


def _make_json(found: Data) -> Response:
    from starlette.responses import Response

    return Response(json.dumps(found.values).encode(), media_type="application/json")


def _serve(data: bytes, name: str) -> Callable[[Request], Awaitable[Response]]:
    from starlette.responses import Response

    kind = next((kind for end, kind in _TYPES.items() if name.endswith(end)), "text/plain")

    async def handle(_: Request) -> Response:
        # After an update of tokenmill, the same URL has other contents.
        return Response(data, media_type=kind, headers={"cache-control": "no-cache"})

    return handle
