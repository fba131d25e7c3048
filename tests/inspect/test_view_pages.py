"""The pages of `tokenmill view` show what is in the dataset, however hostile its text and names are."""

from __future__ import annotations

import json
import re
import time
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from view_client import Viewer, read_links, read_tags, read_text

import tokenmill
from tokenmill.inspect.view.scan import Filter, find_documents
from tokenmill.inspect.view.spelling import Speller, split_text
from tokenmill.tokenizers import load_tokenizer

HOSTILE = [
    "<script>alert(1)</script>",
    "</title></textarea>'\"><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }} {% raw %} ${7*7}",
    "&lt;b&gt; &amp;amp; &#x3c;",
    "nul \x00 escape \x1b[31m bell \x07",
    "pay\u202egnp.exe\u202c and \u2066isolated\u2069",
    "zero\u200bwidth, soft\xadhyphen, \ufeffmark",
    "e\u0301 accents a\u0308\u0323 \u0e01\u0e33 \u0915\u094d\u0937\u093f",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea",
    "مرحبا بالعالم שלום עולם mixed العربية",
    "line one\nline two\r\nline three\ttab",
    "\ufffd real replacement \ufffd\ufffd",
]


TOKENIZERS = {name: load_tokenizer(name) for name in ("gpt2", "bytes")}
SPELLERS = {name: Speller(tokenizer) for name, tokenizer in TOKENIZERS.items()}


def _texts(generator: np.random.Generator, count: int) -> list[str]:
    words = ["alpha", "beta", "gamma", "delta", "needle", "été", "日本", "<b>"]
    return [
        " ".join(generator.choice(words, int(generator.geometric(0.03)))) + f" {number}"
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Hostile texts, and three files of 150 random texts, whose names are hostile too."""
    place = tmp_path_factory.mktemp("view")
    texts = place / "texts"
    texts.mkdir()
    generator = np.random.default_rng(5)
    (texts / "a hostile <b>&'\".jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in HOSTILE)
    )
    for number in range(3):
        (texts / f"part{number}.jsonl").write_text(
            "".join(json.dumps({"text": text}) + "\n" for text in _texts(generator, 150))
        )
    tokenmill.prepare(
        texts, place / "data <i>", val_fraction=0.1, tokenizer="gpt2", tokens_per_shard=10_000
    )
    return place / "data <i>"


@pytest.fixture(scope="module")
def viewer(folder):
    with Viewer(folder) as one:
        yield one


@pytest.fixture(scope="module")
def dataset(folder):
    return tokenmill.open(folder)


def _rows(html: str) -> list[int]:
    """The numbers of the listed documents."""
    return [int(re.findall(r"/document/(\d+)", link)[0]) for link in read_links(html, "/document/")]


def _all_pages(viewer: Viewer, path: str) -> list[int]:
    """The numbers of all listed documents, on this page and those that it continues with."""
    found: list[int] = []
    for _ in range(1000):
        html = viewer.page(path)
        found += _rows(html)
        following = [one for one in read_tags(html, "a") if one.get("rel") == "next"]
        if not following:
            return found
        path = str(following[0]["href"])
    raise AssertionError("it does not end")


def _all_listed(viewer: Viewer, path: str) -> list[tuple[str, int]]:
    """The splits and numbers of all listed documents, on this page and those after it."""
    found: list[tuple[str, int]] = []
    for _ in range(1000):
        html = viewer.page(path)
        for link in read_links(html, "/document/"):
            split = parse_qs(urlsplit(link).query)["split"][0]
            found.append((split, int(re.findall(r"/document/(\d+)", link)[0])))
        following = [one for one in read_tags(html, "a") if one.get("rel") == "next"]
        if not following:
            return found
        path = str(following[0]["href"])
    raise AssertionError("it does not end")


def test_reasons_for_dropping_documents_are_explained_with_examples(tmp_path):
    lines = ['{"text": "one"}', '{"text": "one"}', '{"text": ""}', '{"other<b>": 1}', "[}"]
    (tmp_path / "a<i>.jsonl").write_text("\n".join(lines) + "\n")
    tokenmill.prepare(tmp_path / "a<i>.jsonl", tmp_path / "data", tokenizer="bytes", val_fraction=0)
    with Viewer(tmp_path / "data") as one:
        html = one.page("/")
        links = {link for link in read_links(html, "/dropped") if "#" in link}
        assert len(links) == 4
        page = one.page("/dropped")
        anchors = {tag.get("id") for tag in read_tags(page, "tr")}
        assert {link.partition("#")[2] for link in links} <= anchors
    rejected = (tmp_path / "data" / "rejected.jsonl").read_text().splitlines()
    text = read_text(page)
    assert len(rejected) == 2
    for entry in map(json.loads, rejected):
        assert entry["source"] in text
        assert entry["reason"] in text
        assert f"line {entry['line']}, byte {entry['offset']}" in text
    assert "An earlier document has the same text" in text
    assert "<i>" not in page


def test_the_text_of_a_document_is_shown_exactly(viewer, dataset):
    tokens = dataset["train"]
    for number in range(40):
        document = tokens.documents[number]
        html = viewer.page(f"/document/{number}")
        (shown,) = re.findall(r'<div class="text".*?</div>', html, re.DOTALL)
        # What stands for a hidden character is removed; the character itself is not on the page.
        plain = re.sub(r'<span class="(newline|hiddenchar)".*?</span>', "", shown, flags=re.DOTALL)
        text = dataset.tokenizer.decode(tokens[document.start : document.start + document.length])
        hidden = [piece for piece in split_text(text) if piece.kind == "hidden"]
        visible = "".join(piece.text for piece in split_text(text) if piece.kind != "hidden")
        assert read_text(plain).strip("\n") == visible.strip("\n")
        assert len(re.findall('class="hiddenchar"', shown)) == len(hidden)
        positions = [int(one["id"][1:]) for one in read_tags(shown, "span") if "id" in one]
        assert positions[0] == document.start
        assert positions == sorted(positions)


def test_no_tag_or_control_character_of_a_dataset_is_in_a_page(viewer):
    pages = ["/", "/documents", "/search?q=script", "/documents?text=script"]
    pages += [f"/document/{number}" for number in range(12)]
    pages += [f"/search?q={quote(text.splitlines()[0])}" for text in HOSTILE]
    pages += [f"/documents?source={quote(text.splitlines()[0])}" for text in HOSTILE]
    for path in pages:
        html = viewer.page(path)
        # What was searched for is in a field again; all else is from the dataset.
        shown = re.sub('value="[^"]*"', "", html)
        assert not re.search(
            "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b\ufeff]", shown
        ), path
        assert [one.get("src") for one in read_tags(html, "script")] == ["/static/view.js"]
        assert not read_tags(html, "img")
        assert "onerror" not in {name for one in read_tags(html, "span") for name in one}


def test_names_of_hidden_characters_are_shown(viewer, dataset):
    tokens, names = dataset["train"], set()
    for number in range(12):
        document = tokens.documents[number]
        text = dataset.tokenizer.decode(tokens[document.start : document.start + document.length])
        pieces = [piece for piece in split_text(text) if piece.kind == "hidden"]
        names |= {piece.text for piece in pieces}
        html = viewer.page(f"/document/{number}")
        for piece in pieces:
            assert f'title="{piece.name}">{piece.text}</span>' in html
    assert {"RLO", "PDF", "LRI", "PDI", "ZWSP"} <= names
    assert split_text("\u202e")[0].name == "RIGHT-TO-LEFT OVERRIDE, U+202E"
    assert [piece.text for piece in split_text("\x00\x1b\x85\U000e0041")] == [
        "NUL",
        "ESC",
        "NEL",
        "U+E0041",
    ]


def test_a_list_goes_through_all_documents(viewer, dataset):
    for split in dataset:
        count = len(dataset[split].documents)
        assert _all_pages(viewer, f"/documents?split={split}") == list(range(count))
    assert _rows(viewer.page("/documents?first=100")) == list(range(100, 150))
    assert _rows(viewer.page("/documents?first=99999999")) == []
    token = dataset["train"].documents[77].start
    assert _rows(viewer.page(f"/documents?at={token}"))[0] == 77


@pytest.mark.parametrize(
    "wanted",
    [
        {"least": 50},
        {"most": 10},
        {"least": 20, "most": 40},
        {"source": "part1.jsonl"},
        {"source": "part1.jsonl", "scan": 1},
        {"source": "part2.jsonl", "most": 20},
        {"source": "nothing"},
        {"text": "needle"},
        {"text": "needle", "least": 60},
        {"text": "needle", "source": "part0.jsonl"},
        {"text": "日本 <b>"},
        {"text": "no such text"},
        {"least": 10**12},
    ],
)
def test_filters_find_what_brute_force_finds(viewer, dataset, wanted):
    tokens = dataset["train"]
    expected = []
    for document in tokens.documents:
        text = dataset.tokenizer.decode(tokens[document.start : document.start + document.length])
        if (
            wanted.get("least", 0) <= document.length <= wanted.get("most", 10**18)
            and document.source.path.endswith(wanted.get("source", ""))
            and wanted.get("text", "") in text
        ):
            expected.append(document.number)
    assert _all_pages(viewer, f"/documents?{urlencode(wanted)}") == expected
    if expected:
        middle = expected[len(expected) // 2]
        found = _all_pages(viewer, f"/documents?{urlencode(wanted)}&first={middle}")
        assert found == expected[len(expected) // 2 :]


def test_a_source_links_to_its_documents(viewer, dataset):
    html = viewer.page("/document/0")
    (link,) = [one for one in read_links(html, "/documents") if "source=" in one]
    numbers = _all_pages(viewer, link)
    source = dataset["train"].documents[0].source.path
    every = dataset["train"].documents
    assert numbers == [one.number for one in every if one.source.path == source]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 300),
    st.lists(st.integers(0, 3), max_size=4, unique=True),
    st.integers(0, 60) | st.none(),
    st.integers(0, 60) | st.none(),
    st.integers(1, 20),
)
def test_a_bounded_scan_finds_everything_in_order(dataset, first, sources, least, most, limit):
    documents = dataset["train"].documents
    wanted = Filter(sources=tuple(sources) or None, least=least, most=most)
    paths = {dataset.manifest.sources[number].path for number in sources}
    expected = [
        one.number
        for one in documents
        if one.number >= first
        and (not sources or one.source.path in paths)
        and (least or 0) <= one.length <= (most if most is not None else 10**9)
    ]
    found: list[int] = []
    place: int | None = first
    while place is not None:
        part = find_documents(documents, wanted, first=place, limit=limit, seconds=0)
        assert len(part.numbers) <= limit
        assert part.next is None or part.next > place
        found += part.numbers
        place = part.next
    assert found == expected


def test_search_finds_what_python_finds(viewer, dataset):
    tokens = dataset["train"]
    texts = [
        dataset.tokenizer.decode(tokens[one.start : one.start + one.length])
        for one in tokens.documents
    ]
    for wanted in ("needle", "amma del", "日本", "<b>", "<script>alert", "é", "no such text"):
        expected = [
            number
            for number, text in enumerate(texts)
            for _ in re.finditer(re.escape(wanted), text)
        ]
        assert _all_pages(viewer, f"/search?q={quote(wanted)}") == expected, wanted
    ids = dataset.tokenizer.encode(b" needle").tolist()
    assert _all_pages(viewer, f"/search?kind=ids&q={ids[0]}")
    assert viewer.get("/search?kind=ids&q=x").status == 400
    any_case = _all_pages(viewer, "/search?kind=any-case&q=NEEDLE")
    assert any_case == _all_pages(viewer, "/search?q=needle")


def test_a_match_links_to_its_token(viewer):
    html = viewer.page("/search?q=needle")
    for link in read_links(html, "/document/")[:5]:
        page = viewer.page(link)
        (marked,) = [one for one in read_tags(page, "span") if "marked" in str(one.get("class"))]
        token = int(re.findall(r"[?&;]at=(\d+)", link)[0])
        count = int(marked["title"].count("token: "))
        assert int(marked["id"][1:]) <= token < int(marked["id"][1:]) + count


def test_the_overview_shows_statistics_once_they_are_computed(viewer, dataset):
    viewer.page("/")
    for _ in range(600):
        state = json.loads(viewer.page("/statistics"))
        if state["state"] != "working":
            break
        assert state["share"] is None or 0 <= state["share"] <= 1
        time.sleep(0.1)
    assert state["state"] == "ready"
    html = viewer.page("/")
    for heading in ("Length of documents", "Sources", "Scripts", "Frequent tokens"):
        assert f"<h2>{heading}</h2>" in html
    every = [
        (split, one.number, one.length, one.source.path)
        for split in dataset
        for one in dataset[split].documents
    ]
    counted = 0
    for tag in read_tags(html, "a"):
        link = str(tag.get("href"))
        if not link.startswith("/documents?"):
            continue
        asked = {name: value for name, (value,) in parse_qs(urlsplit(link).query).items()}
        low, high = int(asked.get("least", 0)), int(asked.get("most", 1 << 60))
        expected = {
            (split, number)
            for split, number, length, path in every
            if low <= length <= high
            and asked.get("source", path) == path
            and asked.get("split", split) == split
        }
        assert set(_all_listed(viewer, link)) == expected, link
        if "aria-label" in tag and "least" in asked:
            assert f"{len(expected):,} document" in str(tag["aria-label"])
            counted += len(expected)
    assert counted == len(every)  # the columns of the histogram
    ids = np.concatenate([split[:] for split in dataset.values()])
    tokens = [one for one in read_tags(html, "a") if "kind=ids" in str(one.get("href"))]
    assert len(tokens) == 24
    wanted = int(parse_qs(urlsplit(str(tokens[5]["href"])).query)["q"][0])
    assert len(_all_listed(viewer, str(tokens[5]["href"]))) == np.count_nonzero(ids == wanted)


def test_a_long_document_has_pages(tmp_path):
    (tmp_path / "a.txt").write_text("word " * 9000)
    tokenmill.prepare(tmp_path / "a.txt", tmp_path / "data", tokenizer="bytes", val_fraction=0)
    with Viewer(tmp_path / "data") as one:
        path, positions = "/document/0", []
        while path:
            html = one.page(path)
            positions += [int(tag["id"][1:]) for tag in read_tags(html, "span") if "id" in tag]
            following = re.findall(r'href="([^"]+)"[^>]*>Later tokens', html)
            path = following[0].replace("&amp;", "&") if following else ""
        assert positions == list(range(len(tokenmill.open(tmp_path / "data")["train"])))


def test_without_a_tokenizer_ids_are_shown(tmp_path):
    np.save(tmp_path / "x.npy", np.array([5, 6, 7, 0, 8, 9, 0]))
    with Viewer(tmp_path / "x.npy") as one:
        assert "x.npy" in one.page("/")
        answer = one.get("/documents")
        assert answer.status == 404
        assert "has no document table" in answer.text
        assert one.get("/search?q=a").status in (400, 409)
        assert "6" in read_text(one.page("/search?kind=ids&q=7"))


def test_several_datasets_have_names(tmp_path):
    for name, text in (("a", "To be"), ("b", "or not to be")):
        (tmp_path / f"{name}.txt").write_text(text)
        tokenmill.prepare(
            tmp_path / f"{name}.txt", tmp_path / name, tokenizer="bytes", val_fraction=0
        )
    with Viewer(f"<one>={tmp_path}/a:0.5", f"two={tmp_path}/b:0.5") as viewer:
        assert read_text(viewer.page("/?data=two")).count("two")
        assert "or not" in read_text(viewer.page("/documents?data=two"))
        assert "or not" not in read_text(viewer.page("/documents?data=%3Cone%3E"))
        assert viewer.get("/documents?data=three").status == 400
        assert "<one>" not in viewer.page("/")


def test_a_damaged_dataset_is_a_page(tmp_path):
    (tmp_path / "a.txt").write_text("To be, or not to be.")
    data = tmp_path / "data"
    tokenmill.prepare(tmp_path / "a.txt", data, tokenizer="bytes", val_fraction=0)
    table = next((data / "train").glob("*.docs.npy"))
    with Viewer(data) as viewer:
        table.write_bytes(table.read_bytes()[:-10])
        answer = viewer.get("/documents")
        assert answer.status == 409
        assert table.name in answer.text
        assert viewer.get("/").status == 200


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), st.sampled_from(["gpt2", "bytes"]))
def test_groups_have_all_ids_and_the_whole_text(text, name):
    tokenizer, speller = TOKENIZERS[name], SPELLERS[name]
    ids = np.array(tokenizer.encode(text.encode()), np.int64)
    groups = speller.spell(ids, 1000)
    assert [one.id for group in groups for one in group.tokens] == ids.tolist()
    assert [one.position for group in groups for one in group.tokens] == list(
        range(1000, 1000 + len(ids))
    )
    assert "".join(group.text for group in groups) == text
    data = text.encode()
    known = [one.bytes for group in groups for one in group.tokens]
    if None not in known:
        assert bytes.fromhex("".join(known)) == data
    for group in groups:
        assert "".join(
            piece.text if piece.kind != "hidden" else "" for piece in group.pieces
        ) in "".join(one for one in group.text) or any(
            piece.kind == "hidden" for piece in group.pieces
        )


def test_a_letter_and_its_accents_are_one_group():
    tokenizer = load_tokenizer("bytes")
    for text, sizes in (("ae\u0301", [1, 3]), ("\U0001f44d\U0001f3fdx", [8, 1]), ("日本", [3, 3])):
        ids = np.array(tokenizer.encode(text.encode()), np.int64)
        groups = Speller(tokenizer).spell(ids, 0)
        assert [len(group.tokens) for group in groups] == sizes
