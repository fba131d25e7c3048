"""A bad document is planted in a corpus, a model is trained, and its losses name the document."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tokenmill
from tokenmill.cli import main

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from culprit import find_culprit

from tokenmill.inspect.run_opening import open_run

DOCUMENTS, STEPS = 2000, 160
SMALL = {"layers": 1, "heads": 1, "width": 32, "seq_len": 64, "batch_tokens": 1024}


@pytest.fixture(scope="module", params=["torch", "jax"])
def trained(request, tmp_path_factory):
    pytest.importorskip(request.param)
    if request.param == "torch":
        sys.modules["torch"].set_num_threads(1)
    folder = tmp_path_factory.mktemp(request.param)
    return find_culprit(
        folder,
        DOCUMENTS,
        steps=STEPS,
        seed=len(request.param),
        backend=request.param,
        warmup_steps=10,
        **SMALL,
    )


def test_the_culprit_is_named_first(trained):
    found = trained.report
    first = found.suspects[0]
    assert first.document.number == trained.planted == trained.first
    assert first.is_certain
    assert first.high_rows >= 4
    assert first.excess > 5 * sum(one.excess for one in found.suspects[1:])
    worst = found.rows[0].explained
    assert trained.planted in {part.document.number for part in worst.documents}


def test_explain_and_where_agree(trained):
    """From the row to the document, and from the document to all of its rows."""
    run, report = trained.run, trained.report
    document = report.suspects[0].document
    for row in report.suspects[0].first_rows:
        (explained,) = tokenmill.explain(run=run, row=row, text_length=0).rows
        assert document.number in {part.document.number for part in explained.documents}
    view = open_run(run)
    last = document.start + document.length
    rows = view.find_rows("", document.start, last, last_row=report.row_count).tolist()
    assert set(report.suspects[0].first_rows) <= set(rows)
    starts = [view.rows.origin(row)[1] for row in range(report.row_count)]
    length = SMALL["seq_len"]
    held = [
        n for n, start in enumerate(starts) if start < last and start + length >= document.start
    ]
    assert rows == held
    (found,) = tokenmill.where([], document.key, run=run).documents
    assert (found.start, found.length) == (document.start, document.length)
    assert found.visits.read == len(rows)
    visits = {visit.row: visit for visit in found.visits.first}
    assert visits.keys() <= set(rows)
    both = visits.keys() & set(report.suspects[0].first_rows)
    assert both
    for row in both:
        (explained,) = tokenmill.explain(run=run, row=row).rows
        assert (explained.place.step, explained.loss) == (visits[row].step, visits[row].loss)
    losses = np.fromfile(run / "row_losses.f32", "<f4")
    assert len(losses) == report.row_count
    worst = report.rows[0]
    assert worst.loss == losses[worst.explained.place.row]


def test_moved_data_must_be_named(trained, tmp_path, capsys):
    if trained.run.name != "run-torch":
        pytest.skip("one backend is enough")
    data = trained.run.parents[1] / "data"
    moved = data.rename(tmp_path / "moved")
    try:
        assert main(["spikes", str(trained.run)]) == 1
        assert str(data) in capsys.readouterr().err
        assert main(["spikes", str(trained.run), "--data", str(moved), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["suspects"][0]["document"]["number"] == trained.planted
    finally:
        moved.rename(data)
    (trained.run / "data.json").rename(tmp_path / "data.json")
    assert main(["spikes", str(trained.run)]) == 1
    assert "--data" in capsys.readouterr().err
    (tmp_path / "data.json").rename(trained.run / "data.json")


def test_the_command_runs_in_a_process_of_its_own(trained):
    ended = subprocess.run(
        [sys.executable, "-m", "tokenmill.cli", "spikes", str(trained.run)],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert f"Most suspicious: document {trained.planted}," in ended.stdout
    assert "Traceback" not in ended.stderr
    assert f"tokenmill explain --run {trained.run} --row " in ended.stdout
