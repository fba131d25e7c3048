"""The page of runs shows the losses by source file, and rows that stand out in ordinary steps."""

from __future__ import annotations

import re
import sys
import time
from html import unescape
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "browser"))

from view_demo import RunWriter, make_dataset

import tokenmill
from tokenmill.inspect.run_opening import open_run
from tokenmill.inspect.view.file_losses import sample_file_losses
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.rendering import Templates
from tokenmill.inspect.view.runs import show_points, show_runs
from tokenmill.inspect.view.viewer import Viewer
from tokenmill.load.loader import Loader
from tokenmill.training.config import Config

STEPS = 100
CONFIG = Config(layers=1, heads=1, width=8, seq_len=32, batch_tokens=2048, max_steps=STEPS)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run on a dataset of three files, the file of each target, and a row with a high loss."""
    folder = tmp_path_factory.mktemp("findings")
    texts = {
        name: [f"{name} {number} " + "word " * (number % 9) for number in range(count)]
        for name, count in (("large", 90), ("middle", 60), ("<b>", 30))
    }
    data = make_dataset(texts, folder / "data", tokenizer="bytes")
    tokens = tokenmill.open(data)["train"]
    documents = list(tokens.documents)
    owners = np.repeat([one.source.path for one in documents], [one.length for one in documents])
    # An independent oracle: rows of positions instead of tokens.
    positions = tokenmill.Tokens.of(np.arange(len(tokens)))
    how = {"batch_size": CONFIG.batch_rows, "seq_len": CONFIG.seq_len, "seed": CONFIG.seed}
    twin = Loader(positions, **how)
    files = owners[np.stack([twin.batch_at(step).targets for step in range(STEPS)])]
    losses = 3 + (files == "large.jsonl").mean(axis=2)
    random = np.random.default_rng(1)
    losses += random.normal(0, 0.05, losses.shape) + random.normal(0, 0.2, (STEPS, 1))
    losses[40, 7] += 7
    writer = RunWriter(folder / "run", [str(data)], Loader(tokens, **how), CONFIG)
    writer.write(losses)
    writer.close()
    return tokenmill.open(data), open_run(folder / "run"), files, losses.astype(np.float32)


def test_losses_by_file_are_means_over_the_targets_of_each_file(made):
    _, view, files, losses = made
    found = sample_file_losses(view)
    paths = [one.path for one in view.datasets[""].manifest.sources]
    names = [next(path for path in paths if path == name) for name in found.names]
    sizes = [int((files == name).sum()) for name in names]
    assert len(names) == 3
    assert sizes == sorted(sizes, reverse=True)
    assert found.rows == STEPS * CONFIG.batch_rows
    for file, name in enumerate(names):
        counts = (files == name).sum(axis=2)
        for first, last, width in ((0, STEPS, 10), (20, 50, 16)):
            steps, means = found.find(file, first, last, width)
            assert len(steps) == -(-(last - first) // width)
            for at, begin in enumerate(range(first, last, width)):
                some = slice(begin, min(begin + width, last))
                expected = np.average(losses[some], weights=counts[some])
                assert means[at] == pytest.approx(expected, rel=1e-6)
                assert begin <= steps[at] < begin + width


def test_the_page_has_the_losses_by_file_and_the_rows_that_stand_out(made):
    dataset, view, _, losses = made
    viewer = Viewer(datasets={"": dataset}, runs={"run": view})
    for _ in range(600):
        page = show_runs(viewer, Query({}))
        if not page.values["is_searching"]:
            break
        time.sleep(0.1)
    html = Templates(names={"viewer": viewer}).render(page, data="")
    assert "By source file, from a sample of 6,400 rows." in html
    assert "&lt;b&gt;.jsonl" in html
    assert html.count('data-id="0:source:') == 3
    curves = {one["id"]: one for one in show_points(viewer, Query({})).values["curves"]}
    assert {f"0:source:{file}" for file in range(3)} <= set(curves)
    assert max(curves["0:source:0"]["values"]) < 9
    assert not page.values["spikes"]
    (panel,) = re.findall(r'<section class="panel" id="high-rows".*?</section>', html, re.DOTALL)
    row = 40 * CONFIG.batch_rows + 7
    assert f"/batches?run=run&row={row}#row-{row}" in unescape(panel)
    assert f"{losses[40, 7]:.4f}" in panel
    begin, end = view.span(row).start, view.span(row).stop
    held = {
        one.number
        for one in dataset["train"].documents
        if begin < one.start + one.length and one.start < end
    }
    linked = {int(number) for number in re.findall(r"/document/(\d+)", panel)}
    assert linked
    assert linked <= held
