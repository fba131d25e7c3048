"""Runs whose data is gone or whose files are unusual: what is asked gets an answer or a clear error."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import DatasetError, InputError
from tokenmill.inspect.run_opening import open_run, view_data
from tokenmill.inspect.view.batches import show_batches
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.rendering import Templates
from tokenmill.inspect.view.viewer import Viewer
from tokenmill.load.loader import Loader
from tokenmill.training.config import Config
from tokenmill.training.data import open_data
from tokenmill.training.run_folder import Record
from tokenmill.training.run_reading import DataOrigin, RunPhase, write_run_data


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    """Opening a pipe would hang."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset `c`, and with a run `r` on it."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "a.txt").write_text("\n".join(f"line {n} of text" for n in range(200)))
    how = {"tokenizer": "bytes", "documents": "line", "workers": 1, "val_fraction": 0}
    tokenmill.prepare(folder / "a.txt", folder / "c", **how)
    loader = Loader(tokenmill.open(folder / "c")["train"], batch_size=4, seq_len=8, seed=42)
    (folder / "r").mkdir()
    (folder / "r/config.json").write_text('{"seq_len": 8, "batch_tokens": 32}')
    phase = RunPhase(step=0, row=0, batch_rows=4, world_size=1)
    write_run_data(folder / "r", DataOrigin.of([str(folder / "c")]), loader.rows.identity, phase)
    record = Record(folder / "r", step=0, row=0)
    record.add_losses(0, np.arange(40, dtype=np.float32))
    record.close()
    return folder


def change(made: Path, run: Path, **values: object) -> Path:
    """A copy of the run with other values in its data.json."""
    shutil.copytree(made / "r", run)
    record = json.loads((run / "data.json").read_text())
    (run / "data.json").write_text(json.dumps({**record, **values}))
    return run


def test_a_run_whose_data_was_moved_says_so_and_how_to_name_it(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = {"data": [str(tmp_path / "gone\x1b" / "c")]}
    run = str(change(made, tmp_path / "run", origin=origin))
    commands = {
        "explain": ["explain", "--run", run, "--step", "1"],
        "spikes": ["spikes", run],
        "where": ["where", "--run", run, "document=3"],
        "view": ["view", "--run", run, "--no-browser", "--port", "0"],
    }
    for name, command in commands.items():
        assert main(command) == (2 if name == "where" else 1)
        said = capsys.readouterr().err
        assert f"The data of the run {run} is missing: " in said
        assert "\x1b" not in said
        flag = "DATA" if name == "where" else "--data"
        assert said.rstrip().endswith(f"does not exist. Give its new place with {flag}."), said
    here = ["--data", str(made / "c")]
    assert main([*commands["explain"], *here]) == 0
    with pytest.raises(DatasetError, match=r"gone does not exist\. Make a dataset"):
        open_run(run, data=tmp_path / "gone")
    text = change(made, tmp_path / "text", origin={"data": [], "input_file": "/gone/a.txt"})
    shutil.copy(made / "c/tokenizer_state.json", text)
    with pytest.raises(DatasetError, match=r"missing: /gone/a\.txt does not exist\. .*put it back"):
        open_run(text)


def test_a_text_whose_name_has_a_nul_or_that_is_a_pipe_is_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=r"'a\\x00b' cannot be read: embedded null byte"):
        open_data([], input_file="a\0b", tokenizer="bytes", config=Config())
    os.mkfifo(tmp_path / "pipe")
    for name in ("a\0b", str(tmp_path / "pipe")):
        run = change(made, tmp_path / f"run{len(name)}", origin={"data": [], "input_file": name})
        shutil.copy(made / "c/tokenizer_state.json", run)
        assert main(["explain", "--run", str(run), "--step", "1"]) == 1
        said = capsys.readouterr().err
        assert "a\\x00b does not exist" in said or "pipe in" in said
        assert "bug" not in said


HUGE = "99999999999999999999999"


@pytest.mark.parametrize("blocks", [(2**62 - 1, 1), (1, 2**62 - 1), (2**62 - 1, 2**62 - 1)])
def test_a_block_may_be_larger_than_the_data(made: Path, tmp_path: Path, blocks) -> None:
    tokens = tokenmill.open(made / "c")["train"]
    how = {"batch_size": 4, "seq_len": 8, "order": "blocks"}
    one_block = Loader(tokens, **how, block_rows=len(tokens), group_blocks=1)
    made_rows = Loader(tokens, **how, block_rows=blocks[0], group_blocks=blocks[1])
    if blocks[0] > 1:
        assert (made_rows.batch_at(3).tokens == one_block.batch_at(3).tokens).all()
    view = view_data(made / "c", **how, block_rows=blocks[0], group_blocks=blocks[1])
    assert (view.read(np.arange(12, 16)) == made_rows.batch_at(3).tokens).all()
    record = json.loads((made / "r/data.json").read_text())
    rows = {**record["rows"], "order": "blocks"}
    rows |= {"block_rows": blocks[0], "group_blocks": blocks[1]}
    run = open_run(change(made, tmp_path / "run", rows=rows))
    viewer = Viewer(datasets=run.datasets, runs={"run": run})
    assert len(show_batches(viewer, Query({})).values["rows"]) == 4


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        (["stats", "c", "--seq-len", HUGE], "--seq-len is a number of 77 bits; it must be from 1"),
        (
            [
                *("spikes", "--losses", "l.npy", "--per", "step", "--data", "c"),
                *("--seq-len", "8", "--batch-size", HUGE),
            ],
            "--batch-size times --world-size must be below 2**62",
        ),
        (["explain", "c", "--seq-len", "8", "--batch-size", HUGE, "--step", "0"], "2**62"),
        (["stats", "c", "--top", "-1"], "--top is -1; it must be 1 or more"),
        (["diff", "c", "c", "--top", "-1"], "--top is -1; it must be 1 or more"),
        (["explain", "--run", "r", "--step", "0", "--text-length", "-5"], "--text-length is -5"),
        (["spikes", "r", "--first-step", "-3"], "--first-step is -3; it must be 0 or more"),
    ],
)
def test_numbers_that_cannot_be_used_are_refused(
    made: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    fault: str,
) -> None:
    monkeypatch.chdir(made)
    np.save("l.npy", np.arange(64, dtype=np.float32))
    assert main(command) == 2
    assert fault in capsys.readouterr().err


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("values", [(3e38, -3e38), (np.inf, -np.inf), (3e38, np.inf, np.nan)])
def test_the_largest_losses_are_shown_without_warnings(
    made: Path, tmp_path: Path, values: tuple[float, ...]
) -> None:
    folder = change(made, tmp_path / "run")
    np.resize(np.array(values, "<f4"), 40).tofile(folder / "row_losses.f32")
    run = open_run(folder)
    page = show_batches(Viewer(datasets=run.datasets, runs={"run": run}), Query({}))
    found = np.resize(np.array(values, np.float32), 4).astype(np.float64)
    found = found[np.isfinite(found)]
    assert page.values["mean"] == (pytest.approx(found.mean(), rel=1e-6) if len(found) else None)
    html = Templates(names={"viewer": Viewer(datasets=run.datasets)}).render(page, data="")
    assert "Batch of step 0" in html


def test_rows_and_steps_that_the_run_has_not_reached_have_no_loss(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(made / "r")
    for place in (["--row", "99999999999999999"], ["--step", "99999999999999999"], ["--row", "39"]):
        assert main(["explain", "--run", run, *place]) == 0
    said = capsys.readouterr().out
    assert said.count("loss 39.0000") == said.count(", loss ") == 1
    assert np.isnan(open_run(run).losses((1 << 62) - 2, (1 << 62) - 1)).all()
