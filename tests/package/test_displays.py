"""What objects look like in a notebook: escaped, short, and made without reading data."""

from __future__ import annotations

import html.parser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_builder import build, edit_manifest

import tokenmill
from tokenmill.html import CELL, ROWS, render
from tokenmill.training.rank_run import RunReport

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e&\"'"


class Reader(html.parser.HTMLParser):
    """Collects tags and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


def read(shown: Any) -> list[str]:
    """Check the display of an object; returns its texts."""
    text = shown._repr_html_()
    reader = Reader(text)
    assert {*reader.tags} <= {"div", "b", "table", "caption", "tr", "th", "td"}
    assert len(text) < 20_000
    assert len(repr(shown)) < 5_000
    for character in "\x1b\u202e":
        assert character not in text
    return reader.cells


def test_cells_are_escaped_and_short_and_few() -> None:
    text = render(HOSTILE, [(HOSTILE, HOSTILE)] * 99, ("", (HOSTILE,), [("x" * 9999,)] * 99))
    reader = Reader(text)
    assert "script" not in reader.tags
    assert max(map(len, reader.cells)) <= CELL
    assert reader.tags.count("tr") == 2 * ROWS + 2
    assert f"… and {99 - ROWS} more" in reader.cells


def test_datasets_tokens_and_documents_show_their_size(tmp_path: Path) -> None:
    build(tmp_path / "<b>a")
    data = tokenmill.open(tmp_path / "<b>a")
    cells = read(data)
    assert f"Dataset {tmp_path / '<b>a'}" in cells
    assert cells[cells.index("train") :][:4] == ["train", "68", "5", "7"]
    assert "bytes" in cells
    assert {"68", "uint16", "5 documents", "256 after each document"} <= {*read(data["train"])}
    assert "5 documents" in read(data["train"].documents)
    empty = tmp_path / "empty"
    build(empty, {"train": []})
    read(tokenmill.open(empty))
    cut = tmp_path / "cut"
    build(cut, {"train": ["abc", "de"]})
    held = tokenmill.open(cut, val_fraction=0.4)
    assert "not counted yet" in read(held["val"].documents)
    assert len(held["val"].documents) == 1
    assert "1 document" in read(held["val"].documents)


def test_names_of_strangers_are_escaped(tmp_path: Path) -> None:
    build(tmp_path / "d")
    edit_manifest(
        tmp_path / "d", lambda body: body["tokenizer"].update(name=HOSTILE, fingerprint=HOSTILE)
    )
    assert any("alert" in cell for cell in read(tokenmill.open(tmp_path / "d")))


def test_displays_read_no_shard(tmp_path: Path) -> None:
    build(tmp_path / "d")
    data = tokenmill.open(tmp_path / "d")
    for split in ("train", "val"):
        (tmp_path / "d" / split).rename(tmp_path / "d" / f"{split}.away")
    for shown in (data, data["train"], data["val"].documents):
        read(shown)


def test_many_splits_are_not_all_shown(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    build(folder, {f"split{n:04}": ["text"] for n in range(300)})
    data = tokenmill.open(folder)
    read(data)
    assert "and 280 more splits" in repr(data)


def test_batches_show_a_few_ids() -> None:
    tokens = tokenmill.Tokens.of(np.arange(10_000), eot_id=7)
    settings = {"batch_size": 4, "seq_len": 100, "seed": 0, "order": "sequential"}
    batch = next(tokenmill.Loader(tokens, **settings))
    assert repr(batch) == "<Batch of 4 x 100 int64, from row 0>"
    cells = read(batch)
    assert "100 101 102 103 104 105 106 107 108 109 110 111 …" in cells
    documented = next(tokenmill.Loader(tokens, **settings, documents=True))
    assert repr(documented) == "<DocumentedBatch of 4 x 100 int64, from row 0>"
    read(documented)


def test_reports_show_their_results(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("To be, or not to be.")
    report = tokenmill.prepare(
        tmp_path / "a.txt", tmp_path / "<i>d", tokenizer="bytes", val_fraction=0
    )
    cells = read(report)
    assert cells[cells.index("train") :][:4] == ["train", "21", "1", "1"]
    run = RunReport(
        path=Path("<i>run"),
        step=1200,
        loss=1.5,
        val_loss=None,
        bits_per_byte=None,
        was_stopped=True,
    )
    assert read(run)[1:] == ["step", "1,200", "loss", "1.5000", "stopped"]
    for other in (
        tokenmill.stats(tmp_path / "<i>d"),
        tokenmill.diff(tmp_path / "<i>d", tmp_path / "<i>d"),
    ):
        assert any("<i>d" in cell for cell in read(other))


def test_answers_about_documents_show_them(tmp_path: Path) -> None:
    folder = tmp_path / "<b>d"
    (tmp_path / "<i>.txt").write_text(f"one {HOSTILE}\ntwo\ntwo\nfour\n")
    tokenmill.prepare(
        tmp_path / "<i>.txt", folder, tokenizer="bytes", documents="line", val_fraction=0
    )
    settings = {"seq_len": 8, "batch_size": 2}
    found = tokenmill.where(folder, "<i>.txt:2", **settings)
    assert repr(found) == "<Whereabouts of the file '<i>.txt:2': 1 document>"
    cells = read(found)
    assert {"1", "train", "two<|endoftext|>"} <= {*cells}
    assert any(cell.startswith("step ") for cell in cells)
    found = tokenmill.where(folder, "<i>.txt:3")
    expected = "<Whereabouts of the file '<i>.txt:3': not in the dataset: duplicate>"
    assert repr(found) == expected
    assert {"duplicate", "The same text", "two<|endoftext|>"} <= {*read(found)}
    assert "3 in train" in read(tokenmill.where(folder, "<i>.txt"))
    read(tokenmill.where(folder, HOSTILE, kind="text"))
    assert repr(tokenmill.where(folder, "five", kind="text")).endswith("nothing found>")

    explained = tokenmill.explain(folder, step=0, **settings)
    assert repr(explained).startswith("<Explanation of step 0: 2 rows, ")
    assert "Explanation of step 0" in read(explained)
    many = tokenmill.explain(folder, step=0, seq_len=8, batch_size=99)
    assert any("more" in cell for cell in read(many))
    token = tokenmill.explain(folder, token=3, **settings)
    assert repr(token).startswith("<Explanation of token 3: ")
    read(token)

    match = next(tokenmill.search(folder, "alert"))
    assert repr(match).startswith("<Match in train, document 0, token ")
    assert "[alert]" in repr(match)
    assert {"found", "alert"} <= {*read(match)}
    excluded = tokenmill.exclude(folder, "document=0", because=HOSTILE)
    assert repr(excluded) == f"<Excluded '{tmp_path}/<b>d.exclude.jsonl': 1 added, 0 removed>"
    assert any("alert" in cell for cell in read(excluded))


def test_spikes_show_steps_and_documents(tmp_path: Path) -> None:
    texts = [f"text {number} {'x' * (number % 30)}" for number in range(60)]
    build(tmp_path / "d", {"train": [*texts, HOSTILE]})
    data = tokenmill.open(tmp_path / "d")["train"]
    settings = {"seq_len": 16, "batch_size": 4, "seed": 0}
    loader = tokenmill.Loader(data, **settings)
    last = data.documents[-1].start
    rows = len(data) // 16 * 4
    losses = [2.0 + 5 * (loader.rows.origin(row)[1] + 16 > last) for row in range(rows)]
    np.save(tmp_path / "l.npy", np.array(losses) + np.linspace(0.1, 0, rows))
    found = tokenmill.spikes(losses=tmp_path / "l.npy", per="row", data=tmp_path / "d", **settings)
    assert found.suspects
    assert {"Spikes of the loss", "Documents that stand out"} <= {*read(found)}


def test_problems_are_a_table(tmp_path: Path) -> None:
    build(tmp_path / "d")
    assert read(tokenmill.verify(tmp_path / "d")) == ["No problems"]
    (tmp_path / "d/train/shard_00000.bin").unlink()
    problems = tokenmill.verify(tmp_path / "d")
    assert isinstance(problems, list)
    assert "train/shard_00000.bin" in read(problems)


@pytest.mark.parametrize("count", [0, 1, ROWS + 5])
def test_long_lists_of_problems_are_shortened(count: int) -> None:
    from tokenmill.dataset.problems import Problem, ProblemList

    one = Problem(file=HOSTILE, what="is gone", cure="Copy it.")
    problems = ProblemList([one] * count)
    read(problems)
    assert ("more" in repr(problems)) == (count > ROWS)
    assert problems == [one] * count
