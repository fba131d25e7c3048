"""Keys, forms and what the script of every page does: tokens, searches and work in progress."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from view_demo import make_dataset
from view_pages import Visit, serve

import tokenmill
from tokenmill.inspect.view.finding import Part, find_matches


def query(visit: Visit) -> dict[str, list[str]]:
    return parse_qs(urlsplit(visit.page.url).query)


def focused(visit: Visit) -> str:
    return str(visit.page.evaluate("document.activeElement.id || document.activeElement.name"))


def test_the_form_of_documents_filters_by_dataset_source_text_and_length(
    visit: Visit, demo: tuple[dict[str, Path], list[Path]]
) -> None:
    dataset = tokenmill.open(demo[0]["code"])
    tokens = dataset["train"]
    texts = [
        dataset.tokenizer.decode(tokens[one.start : one.start + one.length])
        for one in tokens.documents
    ]
    visit.go("/documents")
    visit.page.select_option("select[name=data]", "code")
    visit.page.fill("input[name=source]", "inspect.jsonl")
    visit.page.fill("input[name=text]", "import")
    visit.page.fill("input[name=least]", "1,000")
    visit.page.fill("input[name=most]", "3000")
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_url("**/documents?*most=3000*")
    expected = [
        one.number
        for one, text in zip(tokens.documents, texts, strict=True)
        if one.source.path.endswith("inspect.jsonl")
        and "import" in text
        and 1000 <= one.length <= 3000
    ]
    shown: list[str] = []
    while len(shown) < len(expected):  # the page continues by itself until it has found something
        visit.page.wait_for_selector("tbody tr")
        shown += visit.page.locator("tbody td:first-child a").all_inner_texts()
        if len(shown) < len(expected):
            visit.page.click("[rel=next]")
    assert [int(one.replace(",", "")) for one in shown] == expected
    assert expected
    assert visit.page.locator("input[name=source]").input_value() == "inspect.jsonl"
    visit.page.click("text=All >> nth=0")
    visit.page.wait_for_url("**/documents?*")
    assert set(query(visit)) == {"data", "split"}
    visit.page.fill("input[name=first]", str(len(tokens.documents) - 2))
    visit.page.click("form.filters button")
    visit.page.wait_for_url("**first=*")
    assert visit.page.locator("tbody tr").count() == 2


def test_the_panel_describes_the_token_under_the_pointer_and_at_the_arrow_keys(
    visit: Visit, demo: tuple[dict[str, Path], list[Path]]
) -> None:
    tokens = tokenmill.open(demo[0]["guides"])["train"]
    document = tokens.documents[3]
    visit.go("/document/3?data=guides")
    panel, groups = visit.page.locator("[data-inspector]"), visit.page.locator(".text .t")
    places = groups.evaluate_all("all => all.map(one => Number(one.id.slice(1)))")

    def check(number: int) -> None:
        text = " ".join(panel.inner_text().split())
        assert text.startswith(f"token {places[number]:,} id {tokens[places[number]]} bytes"), text

    assert places[0] == document.start
    assert "Point at a token" in panel.inner_text()
    groups.nth(4).hover()
    check(4)
    assert groups.nth(4).get_attribute("title") is None  # the panel replaces the title
    groups.nth(2).click()
    for key, number in (
        ("ArrowRight", 3),
        ("ArrowRight", 4),
        ("ArrowLeft", 3),
        ("Home", 0),
        ("ArrowLeft", 0),
        ("End", len(places) - 1),
        ("ArrowRight", len(places) - 1),
    ):
        visit.page.keyboard.press(key)
        assert focused(visit) == f"t{places[number]}"
        text = " ".join(panel.inner_text().split())
        assert text.startswith(f"token {places[number]:,} id {tokens[places[number]]}"), text
    visit.page.keyboard.press("Shift+Tab")  # only one token is in the order of the tab key
    assert not focused(visit).startswith("t")
    visit.page.keyboard.press("Tab")
    assert focused(visit) == f"t{places[-1]}"


def test_keys_lead_to_the_sections_and_to_the_search(visit: Visit) -> None:
    visit.go("/document/0")
    for key, path in (
        ("o", "/"),
        ("d", "/documents"),
        ("b", "/batches"),
        ("r", "/runs"),
        ("s", "/search"),
    ):
        visit.page.locator("main").focus()
        visit.page.keyboard.press("g")
        visit.page.keyboard.press(key)
        visit.page.wait_for_function("path => location.pathname === path", arg=path)
        visit.page.wait_for_load_state()
    visit.go("/")
    visit.page.keyboard.press("/")
    visit.page.wait_for_function("() => location.pathname === '/search'")
    visit.page.wait_for_load_state()
    visit.go("/documents")
    visit.page.keyboard.press("/")
    assert focused(visit) == "source"
    visit.page.keyboard.type("gst/")  # these are letters of a text now
    assert visit.page.locator("input[name=source]").input_value() == "gst/"
    assert urlsplit(visit.page.url).path == "/documents"
    visit.page.keyboard.press("Escape")
    assert focused(visit) != "source"
    before = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    visit.page.keyboard.press("t")
    assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    visit.page.keyboard.press("t")
    assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == before


def test_a_search_continues_by_itself_until_it_finds_something_or_escape(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    is_waiting, may_end = Event(), Event()

    def find_slowly(dataset: Any, wanted: Any, *, first: int, **options: Any) -> Part:
        """Find nothing among the first tokens, as if the time had run out."""
        asked.append(first)
        if wanted.text == "endless" or len(asked) < 4:
            if wanted.text == "endless" and first >= 3:
                is_waiting.set()
                may_end.wait(20)
            return Part(matches=(), first=first, last=first + 1, next=first + 1, used_index=False)
        return find_matches(dataset, wanted, first=first, **options)

    monkeypatch.setattr("tokenmill.inspect.view.search.find_matches", find_slowly)
    visit.go("/search?q=resume&data=guides")
    visit.page.wait_for_selector(".matches mark")
    assert asked == [0, 1, 2, 3]
    assert query(visit)["first"] == ["3"]
    visit.go("/search?q=endless")
    while not is_waiting.is_set():  # the page of token 2 is shown, and waits for the next one
        visit.page.wait_for_timeout(20)
    assert query(visit)["first"] == ["2"]
    visit.page.keyboard.press("Escape")  # the browser runs no other script while it waits
    visit.page.wait_for_timeout(100)
    may_end.set()
    visit.page.wait_for_timeout(400)
    assert query(visit)["first"] == ["2"]
    assert max(asked) == 3
    assert visit.page.locator("button:text('Stop')").count() == 0
    assert visit.page.locator("[data-continue]").count() == 1


def test_the_overview_shows_the_progress_of_statistics_and_then_the_statistics(
    browser: Any, tmp_path: Path
) -> None:
    texts = {"a": ["one document", "another document"] * 3}
    data = {
        name: tokenmill.open(make_dataset(texts, tmp_path / name, tokenizer="bytes"))
        for name in ("first", "second")
    }
    with serve(data, {}) as url:
        visit = Visit(browser, url)
        working = json.dumps({"state": "working", "share": 0.25, "words": "Step 1, 25%"})
        answers = [working]

        def answer(route: Any) -> None:
            if answers:
                route.fulfill(content_type="application/json", body=answers.pop())
            else:
                route.continue_()

        visit.page.route("**/statistics*", answer)
        visit.go("/?data=second")  # nobody asked for it before
        visit.page.wait_for_selector("[data-words]:text('Step 1, 25%')")
        assert visit.page.locator("progress").evaluate("one => one.value") == 0.25
        visit.page.wait_for_selector("h2:text('Length of documents')", timeout=30_000)
        assert visit.page.locator("progress").count() == 0
        visit.context.close()
        assert not visit.problems
