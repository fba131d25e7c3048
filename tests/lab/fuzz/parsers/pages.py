"""Requests to `tokenmill view`: the real server, on a dataset whose text tries to run scripts.

No request gets an answer with status 500, or text of the dataset that is not escaped. Without the
token, nothing about the dataset is answered. The answer is bounded, and comes in time.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from random import Random
from urllib.parse import quote

from tests.store.dataset_builder import build

import tokenmill
from tokenmill.errors import UsageError
from tokenmill.inspect.run_opening import open_run
from tokenmill.inspect.run_view import RunView
from tokenmill.training.run_reading import DataOrigin, RunPhase, write_run_data

from ..case import Case, Parser, require
from ..mutate import INTEGERS, STRINGS, change_bytes

TOKEN = "right-token-of-the-fuzzer"
SCRIPT = "<script>alert(1)</script>"
_TEXTS = {
    "train": [
        *(f"{SCRIPT} document {n} \x1b[31m \u202e &amp; '\" {{{{ 7 * 7 }}}}" for n in range(60)),
        "a long one " * 900,
    ],
    "val": [f"</textarea>{SCRIPT}", "\0 \ud7ff \U000e0041"],
}
_PATHS = (
    *(
        "/",
        "/documents",
        "/dropped",
        "/document/0",
        "/document/7",
        "/document/60",
        "/batches",
        "/runs",
        "/search",
    ),
    *(
        "/statistics",
        "/static/style.css",
        "/static/",
        "/nothing",
        "/document/",
        "/document/x",
        "//",
    ),
    *(
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/../../../etc/passwd",
        "/runs/run",
        "/run/run",
    ),
    *("/batch", "/row/3", "/export", "/runs/charts", "/runs/points", "/batches", "/search"),
)
_NAMES = (
    *("data", "split", "run", "first", "number", "start", "at", "tokens", "source", "scan", "q"),
    *(
        "text",
        "regex",
        "step",
        "rank",
        "row",
        "page",
        "from",
        "to",
        "index",
        "format",
        "sort",
        "key",
    ),
    *(
        "open",
        "colour",
        "kind",
        "after",
        "hide",
        "smooth",
        "logx",
        "logy",
        "from",
        "to",
        "row",
        "step",
    ),
    *("seq_len", "batch_size", "world_size", "seed", "order", "limit", "width", "document", "what"),
)
_GOOD = (
    "0",
    "1",
    "5",
    "train",
    "val",
    "run",
    "words",
    "shuffled",
    "blocks",
    "document",
    "16",
    "a+",
)
_NUMBERS = [str(number) if abs(number) < 1 << 99 else "9" * 5_000 for number in INTEGERS]
_METHODS = ("GET",) * 12 + (
    "HEAD",
    "POST",
    "PUT",
    "OPTIONS",
    "DELETE",
    "TRACE",
    "CONNECT",
    "get",
    "\0",
)
_HOSTS = ("127.0.0.1:PORT",) * 12 + (
    *("localhost:PORT", "127.0.0.1", "evil.example:PORT", "127.0.0.1:PORT:1", "", "[::1]:PORT"),
    *("127.0.0.1:PORT.evil.example", "LOCALHOST:PORT", "127.0.0.1:99999", "\xff"),
)
_LONGEST = 4 << 20  # bytes of an answer
_PATIENCE = 12.0  # seconds


class PageParser(Parser):
    """`{TOKEN}` and `{PORT}` in a request stand for the token and the port of the server."""

    name = "view"

    def prepare(self, folder: Path) -> None:
        self.sound = {}
        self.is_there = all(find_spec(one) for one in ("starlette", "uvicorn", "jinja2"))
        if not self.is_there:
            return
        from tokenmill.inspect.view import app  # noqa: F401  (before the process forks)

        # Not the folder of a case, which is emptied.
        self.place = Path(f"/tmp/tokenmill-fuzz-view-{os.getpid()}")
        build(self.place / "data", _TEXTS, shard_tokens=2_000)
        self.data = tokenmill.open(self.place / "data")
        loader = tokenmill.Loader(self.data["train"], batch_size=4, seq_len=32, seed=1, prefetch=0)
        origin = DataOrigin.of([str(self.place / "data")])
        phase = RunPhase(step=0, row=0, batch_rows=4, world_size=2)
        (self.place / "run").mkdir(exist_ok=True)
        write_run_data(self.place / "run", origin, loader.rows.identity, phase)
        self.runs: dict[str, RunView] = {"run": open_run(self.place / "run")}

    def list_sound(self) -> list[Case]:
        if not self.is_there:
            return []
        paths = ("/", "/documents", "/dropped", "/document/0", "/runs", "/batches", "/search")
        return [Case({"request": _write("GET", path, with_token=True)}) for path in paths]

    def make(self, random: Random) -> Case:
        path = random.choice(_PATHS)
        if random.randrange(4) == 0:
            path += quote(random.choice(STRINGS), safe="/%?#", errors="surrogatepass")
        pairs = []
        for _ in range(random.choice((0, 1, 1, 2, 3, 5, 150))):
            value = random.choice(
                (random.choice(_GOOD), random.choice(_NUMBERS), random.choice(STRINGS))
                if random.randrange(2)
                else _GOOD
            )
            name = random.choice(_NAMES if random.randrange(8) else STRINGS)
            pairs.append(
                f"{quote(name, errors='surrogatepass')}={quote(value, errors='surrogatepass')}"
            )
        query = "&".join(pairs)
        with_token = random.randrange(8) > 0
        request = _write(
            random.choice(_METHODS),
            f"{path}?{query}" if query else path,
            host=random.choice(_HOSTS),
            with_token=with_token,
            more=random.choice(
                (
                    *(b"",) * 8,
                    b"Origin: http://evil.example\r\n",
                    b"Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n",
                    b"Content-Length: 99999999999\r\n",
                    b"Transfer-Encoding: chunked\r\n",
                    b"X: " + b"y" * 40_000 + b"\r\n",
                    b"Cookie: a=b; \xff=\xfe; tokenmill=x\r\n",
                    b"Host: other\r\n",
                    b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
                )
            ),
        )
        if random.randrange(6) == 0:
            request = change_bytes(random, request)
        return Case({"request": request})

    def check(self, case: Case, folder: Path) -> None:
        if not self.is_there:
            return
        server = _Server.of_process(self)
        request = case.files["request"].replace(b"PORT", str(server.port).encode())
        head, body = server.ask(request)
        require(len(head) + len(body) <= _LONGEST, "the answer is too long")
        if not head:
            return  # closed without an answer: not a request
        status = re.match(rb"HTTP/1\.1 ([0-9]{3}) ", head)
        require(status is not None, f"the answer begins with {head[:40]!r}")
        code = int(status[1]) if status else 0
        require(code < 500, f"the status is {code}: {body[-300:]!r}")
        require(SCRIPT.encode() not in body, "text of the dataset is not escaped")
        require(b"bug in tokenmill" not in body, f"the page admits a bug: {body[-300:]!r}")
        require(b"root:x:0" not in body, "a file of the system was sent")
        if b"with-cookie" not in request and b"document 3" in body:
            require(False, "text was sent without the token")
        if case.facts.get("intact"):
            require(code == 200, f"the status of a sound request is {code}")


def _write(
    method: str, path: str, *, host: str = "127.0.0.1:PORT", with_token: bool, more: bytes = b""
) -> bytes:
    """A request. The server's test client replaces the cookie `with-cookie` by the right one."""
    cookie = b"Cookie: with-cookie\r\n" if with_token else b""
    line = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n".encode("utf-8", "surrogatepass")
    return line + cookie + more + b"Connection: close\r\n\r\n"


class _Server:
    """The real server, in a thread of the process that runs the cases."""

    _running: tuple[int, _Server] | None = None

    @classmethod
    def of_process(cls, parser: PageParser) -> _Server:
        """The server of this process; after a fork, a new one."""
        if cls._running is None or cls._running[0] != os.getpid():
            cls._running = os.getpid(), cls(parser)
        return cls._running[1]

    def __init__(self, parser: PageParser) -> None:
        import uvicorn

        from tokenmill.inspect.view.app import make_app
        from tokenmill.inspect.view.server import _configure, listen

        try:
            listener = listen(0)
        except UsageError:
            listener = listen(None)
        self.port = listener.getsockname()[1]
        app = make_app({"": parser.data}, parser.runs, TOKEN)
        server = uvicorn.Server(_configure(app))
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
        until = time.monotonic() + _PATIENCE
        while not server.started and time.monotonic() < until:
            time.sleep(0.01)
        host = f"127.0.0.1:{self.port}"
        head, _ = self._send(f"GET /?token={TOKEN} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        found = re.search(rb"(?i)set-cookie: ([^;\r]+)", head)
        assert found is not None, head
        self._cookie = found[1]

    def ask(self, request: bytes) -> tuple[bytes, bytes]:
        """Send a request with the right cookie; returns the head and the body of the answer."""
        return self._send(request.replace(b"with-cookie", self._cookie))

    def _send(self, request: bytes) -> tuple[bytes, bytes]:
        data = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=_PATIENCE) as connection:
            try:
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
                while len(data) <= _LONGEST and (block := connection.recv(1 << 16)):
                    data += block
            except TimeoutError:
                require(False, "there was no answer in time")
            except OSError:
                pass  # the server closed the connection: the request was too large or malformed
        head, _, body = data.partition(b"\r\n\r\n")
        return head, body


PARSERS = [PageParser()]
