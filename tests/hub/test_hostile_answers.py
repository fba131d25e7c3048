"""A Hub that answers wrongly, endlessly or with hostile names: an error with the cure, and no harm."""

from __future__ import annotations

import hashlib
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import tokenmill
from tokenmill.errors import InputError, TokenizerError, TokenmillError, UsageError, WorkError
from tokenmill.hub import http, repository
from tokenmill.tokenizers import load_tokenizer

INFO = {"id": "lab/web", "sha": "1" * 40}
CARD = {"type": "file", "path": "x.txt", "size": 1}
CARD["oid"] = hashlib.sha1(b"blob 1\0x").hexdigest()
Answer = Callable[[socket.socket], None]


def answer(body: bytes, status: str = "200 OK", *lines: str, length: int | None = None) -> Answer:
    """Send a response; `length` is the length that its header claims."""
    size = len(body) if length is None else length
    head = "\r\n".join(
        [f"HTTP/1.1 {status}", f"Content-Length: {size}", "Connection: close", *lines, "\r\n"]
    )
    return lambda client: client.sendall(head.encode() + body)


def answer_json(value: Any) -> Answer:
    return answer(json.dumps(value).encode())


def drip(client: socket.socket, pause: float = 0.05, block: bytes = b" ") -> None:
    """Send a body that never ends."""
    client.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while True:
        client.sendall(block)
        time.sleep(pause)


@contextmanager
def serve(**answers: Answer) -> Iterator[tuple[str, list[str]]]:
    """Serve `commit`, `files` and `file` on this machine; yields the address and all requests."""
    requests: list[str] = []

    def talk(client: socket.socket) -> None:
        try:
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(1 << 16) or b"\r\n\r\n"
            requests.append(head.decode())
            path = requests[-1].split()[1] if requests[-1].strip() else ""
            kind = "commit" if "/revision/" in path else "files" if "/tree/" in path else "file"
            answers[kind](client)
        except OSError:  # the client is gone
            pass
        finally:
            client.close()

    def accept() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}", requests
        finally:
            server.shutdown(socket.SHUT_RDWR)


def download(monkeypatch: pytest.MonkeyPatch, folder: Path, **answers: Answer) -> list[str]:
    """Download from a Hub that gives these answers, which are right by default."""
    right = {"commit": answer_json(INFO), "files": answer_json([CARD])}
    with serve(**{**right, "file": answer(b"x"), **answers}) as (url, requests):
        monkeypatch.setenv("HF_ENDPOINT", url)
        tokenmill.download("lab/web", to=folder)
    return requests


COMMITS = {
    "not found": (answer(b"", "404 Not Found"), InputError, "HTTP 404"),
    "not found, with a list": (answer(b"[1]", "404 Not Found"), InputError, "HTTP 404"),
    "not authorized": (answer(b"", "401 Unauthorized"), InputError, "HTTP 401"),
    "forbidden": (answer(b"", "403 Forbidden"), InputError, "HTTP 403"),
    "busy": (answer(b"", "429 Too Many"), WorkError, "HTTP 429"),
    "broken": (answer(b'{"errors": [1]}', "500 Error"), WorkError, "HTTP 500"),
    "down": (answer(b"", "503 Unavailable"), WorkError, "HTTP 503"),
    "a teapot": (answer(b"", "418 Teapot"), WorkError, "HTTP 418"),
    "no redirect": (answer(b"", "302 Found"), WorkError, "HTTP 302"),
    "a file": (answer(b"", "302 Found", "Location: file:///etc/passwd"), WorkError, "reach"),
    "nowhere": (answer(b"", "302 Found", "Location: http://["), WorkError, "reach"),
    "a page": (answer(b"<html>Log in</html>"), InputError, "login page"),
    "nothing": (answer(b""), InputError, "no valid JSON"),
    "half": (answer(b'{"sha": "', length=99), WorkError, "Cannot reach the Hub"),
    "no status": (lambda client: client.sendall(b"hello\r\n\r\n"), WorkError, "reach"),
    "a list": (answer_json([INFO]), InputError, "no commit"),
    "no commit": (answer_json({**INFO, "sha": None}), InputError, "no commit"),
    "a path": (answer_json({**INFO, "sha": "../../../x"}), InputError, "no commit"),
    "deep": (answer(b"[" * 100_000), InputError, "no valid JSON"),
    "not UTF-8": (answer(b'{"sha": "\xff"}'), InputError, "no valid JSON"),
    "compressed": (
        answer(b"\x28\xb5\x2f\xfd", "200 OK", "Content-Encoding: zstd"),
        InputError,
        "no valid JSON",
    ),
}


@pytest.mark.parametrize("case", COMMITS)
def test_a_wrong_answer_about_the_commit_is_one_line_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    commit, kind, text = COMMITS[case]
    with pytest.raises(TokenmillError, match=text) as caught:
        download(monkeypatch, tmp_path / "out", commit=commit)
    assert isinstance(caught.value, kind)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


LISTINGS = {
    "an object": {"error": "no"},
    "a number": 7,
    "numbers": [7],
    "nothing in it": [{}],
    "no name": [{**CARD, "path": None}],
    "a number as the name": [{**CARD, "path": 3}],
    "no checksum": [{**CARD, "oid": None}],
    "a short checksum": [{**CARD, "oid": "abc"}],
    "a path as the checksum": [{**CARD, "oid": "../../x"}],
    "text as the size": [{**CARD, "size": "1"}],
    "a fraction": [{**CARD, "size": 1.5}],
    "no size": [{**CARD, "size": None}],
    "negative": [{**CARD, "size": -1}],
    "true": [{**CARD, "size": True}],
    "lfs without values": [{**CARD, "lfs": {"a": 1}}],
    "lfs as text": [{**CARD, "lfs": "x"}],
    "above": [{**CARD, "path": "../x.txt"}],
    "absolute": [{**CARD, "path": "/tmp/x.txt"}],
    "a backslash": [{**CARD, "path": "..\\x.txt"}],
    "a drive": [{**CARD, "path": "c:x.txt"}],
    "a NUL": [{**CARD, "path": "x\0.txt"}],
    "empty": [{**CARD, "path": ""}],
    "long": [{**CARD, "path": "x" * 10_000 + ".txt"}],
    "half a character": [{**CARD, "path": "\ud800.txt"}],
    "twice": [CARD, {**CARD, "oid": "3" * 40}],
}


@pytest.mark.parametrize("case", LISTINGS)
def test_a_hostile_listing_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    with pytest.raises(InputError) as caught:
        download(monkeypatch, tmp_path / "out", files=answer_json(LISTINGS[case]))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["²", "١٢٣", "x" * 200 + "²", "文" * 83, "A", "CON", "9" * 251])
def test_unusual_names_are_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    files = [{**CARD, "path": f"{name}.txt"}, {**CARD, "path": "a.txt"}]
    download(monkeypatch, tmp_path, files=answer_json(files))
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.txt", "a.txt"}


def test_pages_are_asked_from_the_same_server_and_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next page could be on a server that is not meant to get the user's token."""
    body = json.dumps([CARD]).encode()
    link = 'Link: <http://127.0.0.1:1/steal?cursor=2>; rel="next"'
    monkeypatch.setenv("HF_TOKEN", "made-up")
    with pytest.raises(InputError, match=r"'x\.txt' twice"):
        download(monkeypatch, tmp_path, files=answer(body, "200 OK", link))
    with pytest.raises(InputError, match="no list of the files"):
        download(monkeypatch, tmp_path, files=answer(b"[]", "200 OK", link))


def test_endless_and_slow_answers_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(http, "ANSWER_SECONDS", 0.3)
    with pytest.raises(WorkError, match=r"sent only .* bytes about lab/web"):
        download(monkeypatch, tmp_path, commit=drip)
    monkeypatch.setattr(http, "ANSWER_BYTES", 1 << 20)
    with pytest.raises(InputError, match=r"over 1,048,576 bytes"):
        download(monkeypatch, tmp_path, commit=lambda client: drip(client, 0, b"[" * 65536))


def test_the_body_of_an_error_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def endless(client: socket.socket) -> None:
        client.sendall(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n")
        while True:
            client.sendall(b"x" * 65536)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="HTTP 404"):
        download(monkeypatch, tmp_path, commit=endless)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_listing_of_millions_of_values_costs_little_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    body = b"[" + b"[]," * 10_000_000 + b"[]]"
    with pytest.raises(InputError, match="no valid JSON"):
        download(monkeypatch, tmp_path, files=answer(body))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_a_server_cannot_demand_a_long_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(http, "LONGEST_WAIT", 0.01)
    monkeypatch.setattr(repository, "_ATTEMPTS", 2)
    busy = answer(b"", "429 Too Many", "Retry-After: 999999999")
    started = time.monotonic()
    with pytest.raises(WorkError, match="HTTP 429"):
        download(monkeypatch, tmp_path, files=busy)
    assert time.monotonic() - started < 5
    monkeypatch.setattr(http, "LONGEST_WAIT", 300)
    waits = {"60": 60, "999999999": 300, "9" * 5000: 0, "²": 0, "-1": 0, "soon": 0}
    for text, seconds in waits.items():
        assert http._find_wait({"Retry-After": text}) == seconds
    assert http._find_wait({"RateLimit": '"api";r=0;t=55'}) == 55


BODIES = {
    "another length": answer(b"y", length=5),
    "too long": answer(b"y" * 100_000),
    "a page": answer(b"<html>"),
    "a bomb": answer(b"\x28\xb5\x2f\xfd", "200 OK", "Content-Encoding: zstd"),
}


@pytest.mark.parametrize("case", BODIES)
def test_a_wrong_body_never_becomes_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    with pytest.raises(WorkError, match="wrong checksum"):
        download(monkeypatch, tmp_path, file=BODIES[case])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://["])
def test_redirects_to_other_schemes_are_not_followed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    monkeypatch.setattr("tokenmill.hub.fetch._ATTEMPTS", 1)
    with pytest.raises(WorkError, match="Cannot reach the Hub"):
        download(monkeypatch, tmp_path, file=answer(b"", "302 Found", f"Location: {place}"))
    assert not list(tmp_path.glob("*.txt"))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (answer(b"", "404 Not Found"), r"the hub has no tokenizer\.json"),
        (answer(b"", "401 Unauthorized"), "the hub denies access"),
        (answer(b"", "500 Error"), "HTTP 500"),
        (answer(b"{", length=99), "could not be fetched"),
        (answer(b"<html>"), "not valid JSON"),
    ],
)
def test_a_wrong_answer_about_a_tokenizer_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: Answer, text: str
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with serve(commit=wrong, files=wrong, file=wrong) as (url, _):
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(TokenizerError, match=text):
            load_tokenizer("lab/tok")


@pytest.mark.parametrize("endpoint", ["x", "file:///etc", "http://", "http://[", "https://a b"])
def test_an_impossible_endpoint_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, endpoint: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(UsageError, match="HF_ENDPOINT is"):
        tokenmill.download("lab/web", to=tmp_path)


@pytest.mark.parametrize(
    "revision",
    [
        "../../x",
        "{absolute}",
        "..%2Fx",
        "a%2F%2Fb",
        "a%00b",
        "a%5Cb",
        "%ED%A0%80%2F..",
        ".x",
        "~",
    ],
)
def test_a_revision_cannot_become_a_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, revision: str
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    revision = revision.format(absolute=quote(str(tmp_path / "evil"), safe=""))
    with serve(commit=answer_json(INFO), files=answer_json([])) as (url, requests):
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(UsageError, match="is not a dataset on the Hub"):
            tokenmill.open(f"hf://datasets/lab/web@{revision}")
    assert requests == []
    assert list(tmp_path.rglob("*")) == []
