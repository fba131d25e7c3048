"""`tokenmill view` shows its pages only to the browser that was given the token."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from view_client import Viewer, read_links, read_tags

import tokenmill

PAGES = [
    "/",
    "/documents",
    "/document/0",
    "/batches",
    "/runs",
    "/search",
    "/search?q=be",
    "/missing",
]


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("view")
    (folder / "a.txt").write_text("To be, or not to be.")
    data = folder / "secret_corpus"
    tokenmill.prepare(folder / "a.txt", data, tokenizer="bytes", val_fraction=0)
    with Viewer(data) as one:
        yield one


@pytest.mark.parametrize("page", PAGES)
def test_every_answer_has_strict_headers(viewer, page):
    answers = [viewer.get(page), viewer.ask(page), viewer.get(page, Host="example.org")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers
        assert "style=" not in answer.text
        assert "javascript:" not in answer.text
        for script in read_tags(answer.text, "script"):
            assert str(script["src"]).startswith("/static/")
        assert "http" not in " ".join(
            str(one.get("src") or one.get("href")) for one in read_tags(answer.text, "link")
        )


@pytest.mark.parametrize("page", PAGES)
def test_no_page_without_the_token(viewer, page):
    for headers in (
        {},
        {"Cookie": "tokenmill_1=x"},
        {"Cookie": viewer.cookie[:-1]},
        {"Cookie": viewer.cookie.partition("=")[0] + "=" + viewer.token},
        {"Cookie": "\x7f;;=;" * 100},
    ):
        answer = viewer.ask(page, headers)
        assert answer.status == 403
        assert "secret_corpus" not in answer.text
    for token in ("", "x", viewer.token[:-1], viewer.token + "x"):
        assert viewer.ask(f"/?token={token}").status == 403


def test_the_token_gives_a_cookie_and_the_same_page_without_it(viewer):
    answer = viewer.ask(f"/documents?split=train&token={viewer.token}&first=1")
    assert answer.status == 303
    assert answer.headers["location"] == "/documents?split=train&first=1"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert viewer.token not in cookie
    assert viewer.token not in viewer.page("/")


def test_a_link_to_a_token_of_a_document_keeps_its_place(viewer):
    (link, *_) = read_links(viewer.page("/search?q=be"), "/document/")
    assert "token=" not in link
    opened = viewer.ask(f"{link}&token={viewer.token}")
    assert (opened.status, opened.headers["location"]) == (303, link)
    other_site = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    assert read_links(viewer.get(link, **other_site).text, "/document/") == [link]
    assert "marked" in viewer.page(link)


def test_a_redirect_stays_on_this_server(viewer):
    for path in ("//example.org/", "/\\example.org", "///example.org//"):
        answer = viewer.ask(f"{path}?token={viewer.token}")
        assert answer.status == 303
        assert answer.headers["location"].startswith("/example.org")


@pytest.mark.parametrize(
    "host",
    [
        "example.org",
        "127.0.0.1",
        "localhost",
        "127.0.0.1:1",
        "127.0.0.1.nip.io:{port}",
        "",
        "[::1]:{port}",
    ],
)
def test_other_hosts_are_refused(viewer, host):
    host = host.format(port=viewer.host.partition(":")[2])
    assert viewer.get("/", Host=host).status == 421
    assert viewer.ask(f"/?token={viewer.token}", {"Host": host}).status == 421


def test_localhost_is_this_host(viewer):
    assert viewer.get("/", Host=viewer.host.replace("127.0.0.1", "LOCALHOST")).status == 200


def test_other_origins_are_refused(viewer):
    for origin in ("http://example.org", "null", f"https://{viewer.host}", "http://127.0.0.1:1"):
        assert viewer.get("/", Origin=origin).status == 403
    assert viewer.get("/", Origin=f"http://{viewer.host}").status == 200
    for site in ("cross-site", "same-site"):
        assert viewer.get("/", **{"Sec-Fetch-Site": site}).status == 403
        assert viewer.get("/static/view.css", **{"Sec-Fetch-Site": site}).status == 403
        assert viewer.ask(f"/?token={viewer.token}", {"Sec-Fetch-Site": site}).status == 403


def test_a_link_in_another_page_leads_here_after_a_click(viewer):
    followed = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    answer = viewer.get("/documents?first=1", **followed)
    assert answer.status == 403
    assert "/documents?first=1" in [one["href"] for one in read_tags(answer.text, "a")]
    framed = viewer.get("/documents?first=1", **{**followed, "Sec-Fetch-Dest": "iframe"})
    assert framed.status == 403
    assert "/documents?first=1" not in framed.text
    given = viewer.ask(f"/documents?token={viewer.token}", followed)
    assert given.status == 200
    assert "set-cookie" in given.headers
    assert viewer.token not in given.text


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "NONSENSE"]
)
def test_only_get_and_head(viewer, method):
    answer = viewer.ask("/", {"Cookie": viewer.cookie, "Content-Length": "0"}, method)
    assert answer.status == 405
    assert "tokenmill" in answer.text


def test_head_has_no_body(viewer):
    answer = viewer.ask("/", {"Cookie": viewer.cookie}, "HEAD")
    assert (answer.status, answer.text) == (200, "")


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/view.css%00",
        "/static/",
        "/document/../../etc/passwd",
        "/document/%2e%2e%2f",
        "/documents/",
        "//",
        "/%ff%fe",
    ],
)
def test_no_path_leads_to_a_file(viewer, path):
    answer = viewer.get(path)
    assert answer.status in (400, 404)
    assert "<html" in answer.text


@pytest.mark.parametrize(
    "query",
    [
        "first=-1",
        "first=x",
        "first=1e3",
        "first=99999999999999999999999",
        f"first={'9' * 5000}",
        "first=%00",
        "first=١",
        "split=nothing",
        "data=nothing",
        f"source={'a' * 2000}",
        "least=%ff",
        "at=999999",
        "text=%00%ff",
        "&".join(f"a{n}=1" for n in range(500)),
        "split=" + "%F0%9F%98%80" * 300,
        "first=1&first=2",
        "[]=1&first[]=3",
    ],
)
def test_wrong_values_are_pages(viewer, query):
    for path in ("/", "/documents", "/document/0", "/search", "/batches", "/runs", "/statistics"):
        path += "?" + query.encode("ascii", "ignore").decode()
        assert viewer.get(path).status in (200, 400, 404), path


@pytest.mark.parametrize("number", ["-1", "1", "x", "9" * 5000, "0x1", "1.0", "٣"])
def test_wrong_documents_are_pages(viewer, number):
    from urllib.parse import quote

    answer = viewer.get(f"/document/{quote(number, safe='%')}")
    assert answer.status in (400, 404)
    assert "<html" in answer.text


def test_static_files_say_their_type(viewer):
    for name, kind in (
        ("view.css", "text/css"),
        ("view.js", "text/javascript"),
        ("icon.svg", "image/svg+xml"),
    ):
        answer = viewer.ask(f"/static/{name}")
        assert answer.status == 200
        assert answer.headers["content-type"].startswith(kind)


def test_garbage_and_silence_do_not_stop_the_server(viewer):
    port = int(viewer.host.partition(":")[2])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    for data in (b"\x00\xff\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000, b"A" * 200_000):
        with socket.create_connection(("127.0.0.1", port)) as one:
            try:
                one.sendall(data)
                one.recv(1000)
            except OSError:
                pass
    assert viewer.get("/").status == 200
    for one in silent:
        one.close()


def test_only_this_machine_can_connect(viewer):
    port = int(viewer.host.partition(":")[2])
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [line[1] for line in lines if line[3] == "0A"]
    assert f"0100007F:{port:04X}" in listening
    assert f"00000000:{port:04X}" not in listening


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_server_ends_with_a_clear_line(tmp_path, number):
    (tmp_path / "a.txt").write_text("To be.")
    tokenmill.prepare(tmp_path / "a.txt", tmp_path / "data", tokenizer="bytes", val_fraction=0)
    viewer = Viewer(tmp_path / "data", "--port", "0")
    viewer.page("/")
    status, output = viewer.stop(number)
    assert "Traceback" not in output
    if number == signal.SIGINT:
        assert (status, output.splitlines()[-1]) == (0, "Stopped.")


def test_a_taken_port_is_an_error_that_names_it(tmp_path):
    (tmp_path / "a.txt").write_text("To be.")
    tokenmill.prepare(tmp_path / "a.txt", tmp_path / "data", tokenizer="bytes", val_fraction=0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "tokenmill.cli",
            "view",
            tmp_path / "data",
            "--port",
            str(port),
        ]
        result = subprocess.run([*command, "--no-browser"], capture_output=True, text=True)
    assert result.returncode == 2
    assert f"port {port} of this machine cannot be used" in result.stderr
    assert "--port" in result.stderr


def test_help_and_missing_data(tmp_path):
    command = [sys.executable, "-m", "tokenmill.cli", "view"]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True)
    assert shown.returncode == 0
    assert "--no-browser" in shown.stdout
    missing = subprocess.run([*command, tmp_path / "nothing"], capture_output=True, text=True)
    assert missing.returncode == 1
    assert "does not exist" in missing.stderr
    nothing = subprocess.run(command, capture_output=True, text=True)
    assert nothing.returncode == 2
