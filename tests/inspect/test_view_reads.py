"""A document's page says in which steps each run read it, and with which loss."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from view_client import Viewer, read_tags

sys.path.insert(0, str(Path(__file__).parent / "browser"))

from view_demo import RunWriter, make_dataset

import tokenmill
from tokenmill.inspect.run_opening import open_run
from tokenmill.inspect.view.batches import show_batches
from tokenmill.inspect.view.documents import show_document
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.rendering import Templates
from tokenmill.inspect.view.viewer import Viewer as ViewerPages
from tokenmill.load.loader import Loader
from tokenmill.training.config import Config

CONFIG = Config(layers=2, heads=2, width=64, seq_len=32, batch_tokens=128, max_steps=40)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A dataset, a run on it whose loss of row n is n / 10, and the tokens of each row."""
    folder = tmp_path_factory.mktemp("reads")
    texts = {"a": [f"document {n} " + "word " * (n % 40) for n in range(60)]}
    data = make_dataset(texts, folder / "data", tokenizer="bytes")
    tokens = tokenmill.open(data)["train"]
    loader = Loader(tokens, batch_size=CONFIG.batch_rows, seq_len=CONFIG.seq_len, seed=CONFIG.seed)
    writer = RunWriter(folder / "<run>", [str(data)], loader, CONFIG)
    writer.write(np.arange(40 * CONFIG.batch_rows).reshape(40, -1) / 10)
    writer.close()
    # An independent oracle: rows of positions instead of tokens, read by the loader itself.
    positions = tokenmill.Tokens.of(np.arange(len(tokens)))
    twin = Loader(positions, batch_size=CONFIG.batch_rows, seq_len=CONFIG.seq_len, seed=CONFIG.seed)
    rows = [
        set(row.tolist()) | {int(row[-1]) + 1}
        for step in range(40)
        for row in twin.batch_at(step).inputs
    ]
    return data, folder / "<run>", tokens, rows


def test_a_document_lists_the_rows_that_hold_it(made):
    data, run, tokens, rows = made
    with Viewer(data, "--run", run) as viewer:
        for number in range(0, len(tokens.documents), 5):
            document = tokens.documents[number]
            own = set(range(document.start, document.start + document.length))
            expected = [number for number, row in enumerate(rows) if row & own]
            html = viewer.page(f"/document/{number}")
            (table,) = re.findall(r"<h2>Read by.*?</section>", html, re.DOTALL)
            assert "&lt;run&gt;" in table
            cells = re.findall(r'<td class="num">(?:<a[^>]*>)?([^<]*)', table)
            shown = [cells[at : at + 5] for at in range(0, len(cells), 5)]
            assert [int(row) for _, row, *_ in shown] == expected[:20]
            for step, row, rank, _, loss in shown:
                assert (int(step), rank) == (int(row) // CONFIG.batch_rows, "0")
                assert loss == f"{int(row) / 10:.3f}"
            if len(expected) > 20:
                assert f"and {len(expected) - 20:,} more" in table


def test_a_run_alone_shows_its_data(made):
    data, run, *_ = made
    with Viewer("--run", run) as viewer:
        assert str(data.name) in viewer.page("/")
        (link,) = [
            one for one in read_tags(viewer.page("/document/3"), "a") if one.get("rel") == "next"
        ]
        assert link["href"] == "/document/4?split=train"
        assert viewer.get("/document/3?start=999999").status == 400


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """A dataset with a single split, and a run that held out the last 30% of its tokens."""
    folder = tmp_path_factory.mktemp("held")
    (folder / "a.txt").write_text("".join(f"line {n} {'word ' * (n % 30)}\n" for n in range(60)))
    options = {"tokenizer": "bytes", "documents": "line", "val_fraction": 0}
    tokenmill.prepare(folder / "a.txt", folder / "data", **options)
    part = tokenmill.open(folder / "data", val_fraction=0.3)["train"]
    loader = Loader(part, batch_size=CONFIG.batch_rows, seq_len=CONFIG.seq_len, seed=CONFIG.seed)
    data = [str(folder / "data")]
    writer = RunWriter(folder / "run", data, loader, CONFIG, val_fraction=0.3)
    writer.write(np.ones((40, CONFIG.batch_rows)))  # more than one epoch
    writer.close()
    return folder / "data", folder / "run", len(part)


def test_a_document_that_a_run_held_out_is_shown_as_held_out(held):
    data, run, end = held
    documents = tokenmill.open(data)["train"].documents
    seen = set()
    for arguments in ((data, "--run", run), ("--run", run)):
        with Viewer(*arguments) as viewer:
            cut = documents.at(end - 1).number
            for number in (0, cut - 4, cut, cut + 1, len(documents) - 1):
                document = documents[number]
                html = viewer.page(f"/document/{number}?split=train")
                (table,) = re.findall(r"<h2>Read by.*?</section>", html, re.DOTALL)
                stop = document.start + document.length
                is_read = document.start < end
                assert ("/batches?" in table) == is_read
                assert ("does not train on this document" in table) == (not is_read)
                left = stop - end if document.start < end < stop else 0
                assert (f"Its last {left} token" in table) == bool(left)
                seen.add((is_read, bool(left)))
    assert {(True, False), (True, True), (False, False)} <= seen


def test_a_document_of_the_split_val_is_shown_as_held_out(made):
    data, run, *_ = made
    with Viewer(data, "--run", run) as viewer:
        html = viewer.page("/document/0?split=val")
        assert "Held out for validation: the run does not train on this document" in html


def test_a_viewer_of_nothing_says_what_to_type():
    with pytest.raises(RuntimeError, match="tokenmill view DATA, or tokenmill view --run RUN"):
        Viewer()


def test_a_run_whose_first_steps_are_unknown_is_shown_from_the_first_known_step(made, tmp_path):
    data, run, tokens, rows = made
    shutil.copytree(run, tmp_path / "late")
    record = json.loads((tmp_path / "late/data.json").read_text())
    first = 4 * CONFIG.batch_rows
    record["phases"] = [{**record["phases"][0], "step": 4, "row": first}]
    (tmp_path / "late/data.json").write_text(json.dumps(record))
    viewer = ViewerPages(
        datasets={"": tokenmill.open(data)}, runs={"late": open_run(tmp_path / "late")}
    )
    page = show_batches(viewer, Query({}))
    assert (page.values["settings"].step, page.values["batch"].start) == (4, first)
    assert page.values["previous_step"] is None
    assert show_batches(viewer, Query({"step": "5"})).values["previous_step"] is not None
    unknown = 0
    for number, document in enumerate(tokens.documents):
        own = set(range(document.start, document.start + document.length))
        page = show_document(viewer, Query({"number": str(number)}))
        (found,) = page.values["reads"]
        expected = [number for number, row in enumerate(rows) if row & own]
        assert [read.row for read in found.reads] == [one for one in expected if one >= first][:20]
        assert found.unknown == sum(one < first for one in expected)
        unknown += found.unknown
        html = Templates(names={"viewer": viewer}).render(page, data="")
        assert ("does not describe" in html) == bool(found.unknown)
    assert unknown
    os.truncate(tmp_path / "late/row_losses.f32", 4 * (first - 1))  # no known step has losses
    assert show_batches(viewer, Query({})).values["last_step"] is None


def stretch(run, folder, *, batch_rows):
    """A copy of a run, with losses of 2**34 rows that take no room on the disk."""
    shutil.copytree(run, folder)
    record = json.loads((folder / "data.json").read_text())
    record["phases"] = [{"step": 0, "row": 0, "batch_rows": batch_rows, "world_size": 1}]
    (folder / "data.json").write_text(json.dumps(record))
    os.truncate(folder / "row_losses.f32", 1 << 36)
    return folder


def test_losses_of_a_very_long_run_are_read_over_several_requests(made, tmp_path):
    data, run, *_ = made
    with Viewer(data, "--run", stretch(run, tmp_path / "long", batch_rows=1024)) as viewer:
        left = [1 << 24]
        for _ in range(3):
            html = viewer.page("/runs/charts")  # the client waits for at most 60 seconds
            assert "data-searching" in html
            (shown,) = re.findall("Reading the losses: ([0-9,]+) steps to go", html)
            left.append(int(shown.replace(",", "")))
        assert left == sorted(set(left), reverse=True)


def test_ctrl_c_does_not_wait_for_a_slow_page(made, tmp_path):
    data, run, *_ = made
    program = (
        "import sys\n"
        "from tokenmill.cli import main\n"
        "from tokenmill.inspect.view import runs\n"
        "runs.READING = 1e9\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    slow = stretch(run, tmp_path / "slow", batch_rows=1024)
    with Viewer(data, "--run", slow, program=("-c", program)) as viewer:
        connection = http.client.HTTPConnection(viewer.host, timeout=60)
        connection.request("GET", "/runs", headers={"Cookie": viewer.cookie})
        time.sleep(1)
        started = time.monotonic()
        status, output = viewer.stop()
        assert time.monotonic() - started < 15
        connection.close()
    assert status == 0
    assert set(output.splitlines()) <= {"Ctrl-C stops the viewer.", "Stopped."}  # no traceback


def test_compressed_shards_have_the_same_pages(made, tmp_path):
    data, *_ = made
    tokenmill.reshard(data, tmp_path / "small", tokens_per_shard=700, compress="zstd")
    with Viewer(data) as plain, Viewer(tmp_path / "small") as compressed:
        for path in ("/document/7", "/search?q=document+1", "/documents?text=word+word"):
            for _ in range(9):  # under load, one of the searches may end early
                texts = [
                    re.findall(
                        r'class="t[ "].*?</span>|<mark>.*?</mark>|/document/\d+', viewer.page(path)
                    )
                    for viewer in (plain, compressed)
                ]
                if texts[0] == texts[1]:
                    break
            assert texts[0] == texts[1]
            assert texts[0]
