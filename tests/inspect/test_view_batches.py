"""The page of batches shows the rows of a loader, with their documents and inputs."""

from __future__ import annotations

import json
import re
from html import unescape
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.errors import TokenmillError
from tokenmill.inspect.view.batches import PAGE_ROWS, show_batches
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.rendering import Templates
from tokenmill.inspect.view.row_parts import find_row_documents
from tokenmill.inspect.view.row_pieces import Part, cut_pieces
from tokenmill.inspect.view.viewer import Page, Viewer
from tokenmill.load.loader import Loader
from tokenmill.store.tokens import Tokens
from tokenmill.training.augment import augment
from tokenmill.training.config import Config

EOT = 256


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tokenmill.Dataset:
    folder = tmp_path_factory.mktemp("batches")
    texts = [f"text {number} " + "abcdefgh"[: number % 9] * (number % 7) for number in range(400)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "a.jsonl").write_text(lines)
    tokenmill.prepare(folder / "a.jsonl", folder / "data", tokenizer="bytes", workers=1)
    return tokenmill.open(folder / "data")


def show(dataset: tokenmill.Dataset, **query: object) -> Page:
    values = {name: str(value) for name, value in query.items()}
    return show_batches(Viewer(datasets={"": dataset}), Query(values))


def test_datasets_with_weights_are_read_as_a_mixture(
    dataset: tokenmill.Dataset, tmp_path: Path
) -> None:
    (tmp_path / "b.txt").write_text("\n".join(f"other {number}" for number in range(300)))
    tokenmill.prepare(tmp_path / "b.txt", tmp_path / "b", tokenizer="bytes", documents="line")
    datasets = {"a": dataset, "b": tokenmill.open(tmp_path / "b")}
    weights = {"a": 0.6, "b": 0.4}
    viewer = Viewer(datasets=datasets, weights=weights)
    sizes = {"seq_len": 32, "batch_size": 12}
    query = {name: str(value) for name, value in (sizes | {"step": 5}).items()}
    page = show_batches(viewer, Query(query))
    named = [f"{name}={one.path}:{weights[name]}" for name, one in datasets.items()]
    expected = tokenmill.explain(named, step=5, **sizes).rows
    assert [row.span for row in page.values["rows"]] == [row.span for row in expected]
    assert {row.span.source for row in page.values["rows"]} == {"a", "b"}
    html = Templates(names={"viewer": viewer}).render(page, data="")
    assert "mixture: a 0.6, b 0.4" in html
    for link in re.findall(r'href="(/document/[^"]*)"', html):
        assert "data=" in link
    (link,) = re.findall(r'href="(/batches[^"]*)" rel="next"', html)
    assert show_batches(viewer, Query(parse(link))).values["settings"].loader["data"] != "a"
    alone = show_batches(viewer, Query(query | {"data": "b"}))
    assert {row.span.source for row in alone.values["rows"]} == {""}
    html = Templates(names={"viewer": viewer}).render(alone, data="b")
    assert {parse(link)["data"] for link in re.findall(r'href="(/document/[^"]*)"', html)} == {"b"}


def parse(link: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(unescape(link)).query))


@pytest.mark.parametrize("order", ["shuffled", "sequential", "blocks", "random"])
def test_rows_and_texts_are_those_of_the_loader(dataset: tokenmill.Dataset, order: str) -> None:
    settings = {"seq_len": 50, "seed": 7, "order": order}
    for step, rank in ((0, 0), (3, 1), (100, 2)):
        page = show(dataset, batch_size=5, world_size=3, step=step, rank=rank, **settings)
        loader = Loader(dataset["train"], batch_size=5, rank=rank, world_size=3, **settings)
        batch = loader.batch_from(step * 15)
        tokens = np.hstack([batch.inputs, batch.targets[:, -1:]])
        rows = page.values["rows"]
        assert [row.place.row for row in rows] == list(range(batch.row, batch.row + 5))
        assert {row.place.rank for row in rows} == {rank}
        for row, ids in zip(rows, tokens, strict=True):
            shown = "".join(
                "\x00" if piece.kind == "special" else piece.text for piece in row.pieces
            )
            expected = "".join("\x00" if one == EOT else chr(one) for one in ids.tolist())
            assert shown == expected


def test_borders_of_documents_are_those_of_the_table(dataset: tokenmill.Dataset) -> None:
    tokens = dataset["train"]
    owners = np.repeat(np.arange(len(tokens.documents)), tokens.documents.lengths)
    for start in range(0, len(tokens) - 60, 37):
        found = find_row_documents(tokens, start, start + 60, most=100)
        own = owners[start : start + 60]
        borders = [0, *(np.flatnonzero(np.diff(own)) + 1).tolist(), 60]
        assert found.bounds == borders
        assert found.numbers == own[borders[:-1]].tolist()
        assert found.count == len(found.numbers)
        assert found.begins_inside == (start > 0 and owners[start - 1] == own[0])
        few = find_row_documents(tokens, start, start + 60, most=2)
        assert few.bounds == borders[:3]
        assert few.count == found.count


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_pieces_have_every_token_once_and_mark_what_the_model_sees(data: st.DataObject) -> None:
    length = data.draw(st.integers(2, 60))
    ids = st.lists(st.sampled_from([97, 98, 99, EOT]), min_size=length, max_size=length)
    row = np.array(data.draw(ids))
    config = Config(
        seq_len=length - 1,
        batch_tokens=length - 1,
        mask_fraction=data.draw(st.sampled_from([0.0, 0.5])),
        noise_fraction=data.draw(st.sampled_from([0.0, 0.5])),
    )
    inputs, _ = augment(row[None], 3, config=config, vocab=257, eot_id=EOT)
    cuts = sorted(set(data.draw(st.lists(st.integers(1, length - 1), max_size=5))))
    bounds = [0, *cuts, length]
    parts = [
        Part(start=low, stop=high, number=number)
        for number, (low, high) in enumerate(pairwise(bounds))
    ]
    most = data.draw(st.integers(1, length))

    def spell(numbers: np.ndarray) -> str:
        return "".join("|" if one == EOT else chr(one) for one in numbers.tolist())

    pieces = cut_pieces(row, inputs[0], parts, spell, eot_id=EOT, vocab=257, most=most)
    place = 0
    for piece in pieces:
        size = 1 if piece.kind != "text" else len(piece.text)
        seen = [*inputs[0].tolist(), int(row[-1])][place : place + size]
        owner = next(n for n, part in enumerate(parts) if part.start <= place < part.stop)
        assert piece.part == owner
        assert place + size <= parts[owner].stop
        assert piece.is_first == (place == parts[owner].start)
        if piece.kind == "text":
            assert piece.text == spell(np.array(seen))
        changed = seen != row[place : place + size].tolist()
        assert (piece.kind == "changed") == changed
        if changed:
            assert piece.was == ("end of text" if row[place] == EOT else chr(row[place]))
        place += size
    assert place == most


def test_large_batches_and_long_rows_are_shown_in_part(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(3_000_000, dtype=np.uint16) % 50_000)
    dataset = tokenmill.open(tmp_path / "ids.npy", vocab_size=65_536)
    page = show(dataset, seq_len=1 << 20, batch_size=100_000, step=1)
    assert len(page.values["rows"]) == PAGE_ROWS
    html = Templates(names={"viewer": Viewer(datasets={"": dataset})}).render(page, data="")
    assert len(html) < 400_000
    opened = page.values["rows"][2].place.row
    page = show(dataset, seq_len=1 << 20, batch_size=100_000, step=1, open=opened)
    html = Templates(names={"viewer": Viewer(datasets={"": dataset})}).render(page, data="")
    assert len(html) < 500_000


def test_many_documents_in_a_row_are_drawn_in_bounded_size() -> None:
    tokens = Tokens.of(np.full(5000, 1), eot_id=1)
    found = find_row_documents(tokens, 0, 4097, most=1000)
    assert len(found.bounds) == 1001
    assert found.count == 4097


def test_pages_of_rows_lead_through_the_batch(dataset: tokenmill.Dataset) -> None:
    query: dict[str, object] = {"seq_len": 20, "batch_size": 40, "step": 2}
    seen: list[int] = []
    while True:
        page = show(dataset, **query)
        seen += [row.place.row for row in page.values["rows"]]
        if page.values["next_page"] is None:
            break
        query["first"] = re.search(r"first=(\d+)", page.values["next_page"])[1]
    assert seen == list(range(80, 120))
    assert "step=3" in page.values["next_step"]
    assert "first" not in page.values["next_step"]
    row = show(dataset, seq_len=20, batch_size=40, row=117)
    assert 117 in [one.place.row for one in row.values["rows"]]
    assert row.values["settings"].step == 2


def test_the_page_links_each_document(dataset: tokenmill.Dataset) -> None:
    page = show(dataset, seq_len=40, batch_size=2, order="sequential")
    html = Templates(names={"viewer": Viewer(datasets={"": dataset})}).render(page, data="")
    links = [unescape(link) for link in re.findall(r'href="(/document/[^"]*)"', html)]
    assert links[0] == "/document/0?split=train"
    assert len(set(links)) >= 3


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            "step rank row first open colour seq_len batch_size world_size seed order split run".split()
        ),
        st.integers(-5, 1 << 63).map(str)
        | st.sampled_from(["0", "1", "3", "losses", "blocks", "random", "train", "x", "-", "1e9"]),
    )
)
def test_any_address_is_a_page_or_an_error_that_says_what_is_wrong(
    dataset: tokenmill.Dataset, query: dict[str, str]
) -> None:
    viewer = Viewer(datasets={"": dataset})
    try:
        page = show_batches(viewer, Query(query))
    except TokenmillError:
        return
    assert "<h1>" in Templates(names={"viewer": viewer}).render(page, data="")
