"""A Hub on 127.0.0.1, in its own process, that serves folders and fails on request.

It answers what huggingface_hub asks for: a repository's commit, its files page by page with their
checksums, and the files themselves with ranges, large ones through a redirect.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PAGE = 2  # files listed per response
BLOCK = 1 << 14


class LocalHub:
    """Starts the server on a folder that holds OWNER/NAME/…, and talks to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def __enter__(self) -> LocalHub:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def environment(self, home: Path) -> dict[str, str]:
        """Environment variables that point a process to this Hub and to its own cache."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}

    def put(self, repository: str, files: dict[str, bytes]) -> None:
        """Write files into a repository, which changes its commit."""
        for name, data in files.items():
            path = self.folder / repository / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def fail(self, **faults: Any) -> None:
        """Set the faults from now on (none by default), and forget earlier requests."""
        request = urllib.request.Request(f"{self.url}/faults", json.dumps(faults).encode())
        urllib.request.urlopen(request).close()

    def requests(self, what: str = "/cdn/") -> list[dict[str, Any]]:
        """The requests since the last `fail` whose path contains `what`."""
        with urllib.request.urlopen(f"{self.url}/requests") as answer:
            return [one for one in json.load(answer) if what in one["path"]]

    def sent(self) -> int:
        """The number of bytes of files sent since the last `fail`."""
        return sum(one["sent"] for one in self.requests("/"))


def llmc_shard(ids: list[int], *, claims: int | None = None) -> bytes:
    """A shard of llm.c with GPT-2 tokens."""
    count = len(ids) if claims is None else claims
    header = struct.pack("<3i", 20240520, 1, count).ljust(1024, b"\0")
    return header + struct.pack(f"<{len(ids)}H", *ids)


FAULTS: dict[str, Any] = {}
REQUESTS: list[dict[str, Any]] = []
LOCK = threading.Lock()


def take(fault: str) -> bool:
    """Whether this fault is still due; counts it down."""
    with LOCK:
        left = FAULTS.get(fault, 0)
        FAULTS[fault] = left - 1 if left else 0
        return left > 0


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *arguments: object) -> None:
        """Ignore clients that were killed."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with LOCK:
            FAULTS.clear()
            FAULTS.update(json.loads(body))
            REQUESTS.clear()
        self.answer(200, b"{}")

    def do_GET(self) -> None:
        if self.path == "/requests":
            return self.answer(200, json.dumps(REQUESTS).encode())
        self.entry = {"path": self.path, "range": self.headers["Range"], "sent": 0}
        self.entry["token"] = self.headers["Authorization"]
        with LOCK:
            REQUESTS.append(self.entry)
        path, _, query = self.path.partition("?")
        path = urllib.parse.unquote(path)
        if match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self.answer_commit(match[1], match[2] or "main")
        if match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/tree/([^/]+)", path):
            return self.answer_files(match[1], match[2], query)
        if match := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.redirect_to_file(match[1], match[3])
        if match := re.fullmatch(r"/cdn/(.+)", path):
            return self.send_file(self.folder / match[1])
        return self.answer(404)

    def answer_commit(self, repository: str, revision: str) -> None:
        if status := FAULTS.get("status"):
            return self.answer(status)
        if not (self.folder / repository).is_dir():
            return self.answer(401, code="RepoNotFound")  # the Hub's answer without a login
        commit = find_commit(self.folder / repository)
        if revision not in ("main", "refs/convert/parquet", commit):
            return self.answer(404, code="RevisionNotFound")
        return self.answer(200, json.dumps({"id": repository, "sha": commit}).encode())

    def answer_files(self, repository: str, commit: str, query: str) -> None:
        assert commit == find_commit(self.folder / repository)
        entries = [
            describe(self.folder / repository, path) for path in walk(self.folder / repository)
        ]
        for entry in entries:
            entry.update(FAULTS.get("claims", {}).get(entry["path"], {}))
        first = int(urllib.parse.parse_qs(query).get("cursor", ["0"])[0])
        more = {}
        if first + PAGE < len(entries):
            here = f"http://{self.headers['Host']}{self.path.partition('?')[0]}"
            more = {"Link": f'<{here}?recursive=True&cursor={first + PAGE}>; rel="next"'}
        return self.answer(200, json.dumps(entries[first : first + PAGE]).encode(), more)

    def redirect_to_file(self, repository: str, name: str) -> None:
        path = self.folder / repository / name
        if FAULTS.get("gated"):
            return self.answer(403, code="GatedRepo")
        if not path.is_file() or name in FAULTS.get("gone", ()):
            return self.answer(404, code="EntryNotFound")
        entry = describe(self.folder / repository, path)
        marks = {"X-Repo-Commit": find_commit(self.folder / repository)}
        if "lfs" not in entry:
            return self.send_file(path, {**marks, "ETag": f'"{entry["oid"]}"'})
        marks["X-Linked-ETag"] = f'"{entry["lfs"]["oid"]}"'
        marks["X-Linked-Size"] = str(entry["size"])
        # A different host name, as the real Hub redirects to another host.
        place = f"http://localhost:{self.server.server_address[1]}"
        where = f"{place}/cdn/{repository}/{urllib.parse.quote(name)}"
        return self.answer(302, headers={**marks, "Location": where})

    def send_file(self, path: Path, headers: dict[str, str] | None = None) -> None:
        data = path.read_bytes()
        start, size = 0, len(data)
        match = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        if match and not FAULTS.get("ignore_range"):
            start = int(match[1])
        if take("alter"):
            data = data[: size // 2] + bytes([data[size // 2] ^ 1]) + data[size // 2 + 1 :]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        for name, value in {**(headers or {}), "Content-Length": str(size - start)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = take("cut") and start + FAULTS["cut_after"]
        for place in range(start, size, BLOCK):
            if cut and place >= cut:
                self.close_connection = True
                return
            time.sleep(FAULTS.get("delay", 0))
            block = data[place : place + BLOCK]
            try:
                self.wfile.write(block)
            except OSError:  # the client is gone
                self.close_connection = True
                return
            self.entry["sent"] += len(block)

    def answer(
        self,
        status: int,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        code: str | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def walk(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def describe(folder: Path, path: Path) -> dict[str, Any]:
    """A file as the Hub lists it: git's checksum, and SHA-256 for large files."""
    stat = path.stat()
    return dict(_describe(folder, path, stat.st_size, stat.st_mtime_ns))


@cache
def _describe(folder: Path, path: Path, *_: int) -> dict[str, Any]:
    data = path.read_bytes()
    entry: dict[str, Any] = {
        "type": "file",
        "path": path.relative_to(folder).as_posix(),
        "size": len(data),
        "oid": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
    }
    if path.suffix in (".bin", ".parquet"):
        digest = hashlib.sha256(data).hexdigest()
        entry["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 134}
    return entry


def find_commit(folder: Path) -> str:
    listed = json.dumps([describe(folder, path) for path in walk(folder)])
    return hashlib.sha1(listed.encode()).hexdigest()


if __name__ == "__main__":
    Handler.folder = Path(sys.argv[1])
    with Server(("127.0.0.1", 0), Handler) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
