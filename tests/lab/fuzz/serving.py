"""A server on 127.0.0.1 that answers from the files of a case, in the process that reads it."""

from __future__ import annotations

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .case import Case


class Handler(BaseHTTPRequestHandler):
    """Answers from `case`; subclasses define `do_GET`."""

    protocol_version = "HTTP/1.1"
    case: Case

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()  # type: ignore[attr-defined]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None: ...


_servers: dict[tuple[int, type[Handler]], _Server] = {}


def serve(handler: type[Handler], case: Case) -> str:
    """Serve a case in this process; returns the address."""
    key = os.getpid(), handler
    if key not in _servers:
        for other in [other for other in _servers if other[0] != os.getpid()]:
            del _servers[other]  # of the process that this one was forked from
        server = _servers[key] = _Server(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    handler.case = case
    return f"http://127.0.0.1:{_servers[key].server_port}"
