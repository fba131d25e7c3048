"""Datasets, files and runs of strangers: whatever they contain is shown, and nothing of it runs."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from view_demo import RunWriter, make_dataset
from view_pages import TOKEN, Visit, serve, set_up

import tokenmill
from tokenmill.inspect.run_opening import open_run
from tokenmill.load.loader import Loader
from tokenmill.training.config import Config

SCRIPT = "<script>alert('script')</script><img src=x onerror=alert('image')>"
QUOTES = "\"' onload=\"alert('load')\" style='position:fixed;top:0;width:100%;height:100%'"
CLOSING = "</title></style></textarea></svg></select></span></p></section><h1>not a title</h1>"
BIDI = "\u202egnp.exe\u202c \u2067abc\u2069 \u200b\ufeff\x1b[31mred\x07\x00"
TEMPLATE = "{{ 7 * 7 }} {% raw %} ${7*7} #{7*7} &lt;b&gt; &#60;i&#62;"
TEXTS = [
    SCRIPT,
    QUOTES,
    CLOSING,
    BIDI,
    TEMPLATE,
    "\u0301" * 60,  # marks without a letter
    "x" * 600,  # a word without a place to break
    "שלום עולם مرحبا بالعالم",
    "👩‍👩‍👧‍👦" * 5,
    "javascript:alert(1) data:text/html,<script>alert(1)</script> http://example.com/x.png",
]
RUN = "run \u202e<img src=x onerror=alert(1)>\"' &amp; %2e%2e?#"
FILE = "<script>alert(1)<\u2215script> \u202e\"' &amp;=?#"
CONFIG = Config(
    layers=1,
    heads=1,
    width=8,
    seq_len=64,
    batch_tokens=512,
    max_steps=400,
    mask_fraction=0.1,
    within_documents=True,
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of a dataset and a run in which every name and text is hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    texts = [f"{text} {number}" for number in range(6) for text in TEXTS]
    data = make_dataset({FILE: texts}, folder / f"data {FILE}", tokenizer="bytes")
    dataset = tokenmill.open(data)
    loader = Loader(dataset["train"], batch_size=CONFIG.batch_rows, seq_len=CONFIG.seq_len, seed=42)
    writer = RunWriter(folder / RUN, [str(data)], loader, CONFIG)
    losses = 5 + np.random.default_rng(1).normal(0, 0.05, (300, writer.rows))
    losses[200, 3] += 50
    writer.write(losses, val_loss=5.2)
    writer.close()
    with serve({"": dataset}, {RUN: open_run(folder / RUN)}) as url:
        yield url


def name_kind(path: str) -> tuple[str, ...]:
    """The kind of a page: its path without numbers, and the names of its parameters."""
    name, _, query = path.partition("?")
    return re.sub(r"[0-9]+", "N", name), *sorted(one.split("=")[0] for one in query.split("&"))


def find_pages(visit: Visit) -> list[str]:
    """The pages that links lead to, from the overview on: two of each kind."""
    found: list[str] = []
    waiting = ["/"]
    while waiting and len(found) < 20:
        found.append(waiting.pop(0))
        visit.go(found[-1])
        check_layout(visit, found[-1])
        links = visit.page.eval_on_selector_all(
            "a[href]", "all => all.map(one => one.getAttribute('href'))"
        )
        for link in dict.fromkeys(link.split("#")[0] for link in links):
            known = [*found, *waiting]
            if link and link not in known:
                kinds = [name_kind(one) for one in known]
                waiting += [link] if kinds.count(name_kind(link)) < 2 else []
    return found


def check_layout(visit: Visit, path: str) -> None:
    page = visit.page
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    assert page.locator("h1").count() == 1, path  # no title came from a text
    assert page.evaluate("document.querySelectorAll('main').length") == 1, path
    header = page.locator("header.top").bounding_box()
    main = page.locator("main").bounding_box()
    foot = page.locator("footer").bounding_box()
    assert header["y"] + header["height"] <= main["y"] + 1, path
    assert main["y"] + main["height"] <= foot["y"] + 1, path
    wide = page.evaluate(
        f"""() => [...document.querySelectorAll('.panel')].filter(one => {{
            const box = one.getBoundingClientRect();
            return box.left < -1 || box.right > {width} + 1;
        }}).length"""
    )
    assert wide == 0, path
    strange = page.evaluate(
        """() => [...document.querySelectorAll('main *')].filter(one =>
            ['SCRIPT', 'IMG', 'IFRAME', 'OBJECT', 'EMBED', 'STYLE', 'LINK', 'BASE'].includes(one.tagName)
            || [...one.attributes].some(each => each.name.startsWith('on') || each.name === 'style'
                && !one.matches('.readout'))).map(one => one.outerHTML.slice(0, 200))"""
    )
    assert strange == [], path


def test_no_text_or_name_leaves_its_place(browser: Any, hostile: str) -> None:
    visit = Visit(browser, hostile)
    pages = find_pages(visit)
    for start in ("/documents", "/document/", "/batches", "/runs", "/search"):
        assert any(path.startswith(start) for path in pages), start
    for path in ("/batches?step=200&colour=losses", f"/search?q={quote(SCRIPT)}"):
        visit.go(path)
        check_layout(visit, path)
    visit.page.set_viewport_size({"width": 390, "height": 800})
    for path in pages:
        visit.go(path)
        check_layout(visit, path)
    visit.page.set_viewport_size({"width": 1100, "height": 700})
    visit.open_runs("?from=150&to=250")
    box = visit.page.locator("#loss .plane").bounding_box()
    visit.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30)
    assert "onerror=alert(1)" in visit.page.locator(".readout:visible").inner_text()
    check_layout(visit, "/runs")
    visit.context.close()
    assert not visit.problems


def test_direction_marks_are_shown_by_name_and_not_obeyed(browser: Any, hostile: str) -> None:
    visit = Visit(browser, hostile)
    seen: set[str] = set()
    for step in range(60):
        visit.go(f"/batches?step={step}")
        seen |= set(visit.page.locator(".row-text .hiddenchar").all_inner_texts())
        text = visit.page.evaluate("document.documentElement.textContent")
        assert not any(mark in text for mark in "\u202e\u202c\u2067\x1b\x07\x00\ufeff")
        if {"RLO", "PDF", "ZWSP"} <= seen:
            break
    assert {"RLO", "PDF", "ZWSP"} <= seen
    visit.context.close()
    assert not visit.problems


class _OtherSite(BaseHTTPRequestHandler):
    """A page of another origin that tries to read the viewer's pages in every way."""

    def __init__(self, *arguments: Any, target: str, **named: Any) -> None:
        self.target = target
        super().__init__(*arguments, **named)

    def do_GET(self) -> None:
        body = f"""<!doctype html><title>other</title><iframe id=frame src="{self.target}/"></iframe>
            <script src="{self.target}/runs/points"></script><img id=image src="{self.target}/">
            <script>
            window.results = {{}};
            const tries = {{
                plain: () => fetch("{self.target}/"),
                cookies: () => fetch("{self.target}/runs/points", {{credentials: "include"}}),
                blind: () => fetch("{self.target}/", {{mode: "no-cors", credentials: "include"}}),
                token: () => fetch("{self.target}/?token=guess", {{credentials: "include"}}),
            }};
            Promise.all(Object.entries(tries).map(async ([name, go]) => {{
                try {{ const a = await go(); results[name] = a.type + " " + (await a.text()).length; }}
                catch (error) {{ results[name] = "failed"; }}
            }})).then(() => {{ document.title = "done"; }});
            </script>""".encode()
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def test_pages_of_other_origins_can_neither_read_nor_embed(browser: Any, hostile: str) -> None:
    visit = Visit(browser, hostile)  # has the cookie
    other = ThreadingHTTPServer(("127.0.0.1", 0), partial(_OtherSite, target=hostile))
    threading.Thread(target=other.serve_forever, daemon=True).start()
    try:
        statuses: dict[str, int] = {}
        visit.page.on("response", lambda answer: statuses.update({answer.url: answer.status}))
        visit.page.goto(f"http://127.0.0.1:{other.server_port}/")
        visit.page.wait_for_function("() => document.title === 'done'")
        found = visit.page.evaluate("results")
        assert set(found.values()) <= {"failed", "opaque 0"}
        # Files of the application itself, such as its icon, are public.
        read = {
            name: status
            for name, status in statuses.items()
            if name.startswith(f"{hostile}/") and "/static/" not in name
        }
        assert read
        assert min(read.values()) >= 400, read
        assert all("tokenmill" not in frame.content() for frame in visit.page.frames[1:])
    finally:
        other.shutdown()
        other.server_close()
        visit.context.close()


@pytest.mark.parametrize(
    ("headers", "path"),
    [
        ({"Host": "evil.example"}, f"/?token={TOKEN}"),
        ({"Host": "evil.example:80"}, "/runs/points"),
        ({}, "/"),
        ({}, "/?token=guess"),
        ({}, "/runs/charts"),
        ({"Origin": "http://evil.example"}, f"/?token={TOKEN}"),
    ],
)
def test_requests_of_strangers_are_refused(
    hostile: str, headers: dict[str, str], path: str
) -> None:
    address = hostile.removeprefix("http://")
    connection = http.client.HTTPConnection(address)
    connection.putrequest("GET", path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    assert answer.status in (400, 401, 403, 404, 421), path
    assert "set-cookie" not in {name.lower() for name, _ in answer.getheaders()}
    assert "guides" not in body
    assert FILE not in body
    connection.close()


def test_the_printed_url_opens_the_page_and_leaves_no_token_behind(
    browser: Any, hostile: str
) -> None:
    visit = Visit(browser, hostile)
    assert visit.page.url == f"{hostile}/"
    stranger = browser.new_context().new_page()
    assert stranger.goto(hostile).status in (401, 403)
    assert stranger.goto(set_up(hostile)).status == 200
    stranger.context.close()
    visit.context.close()
