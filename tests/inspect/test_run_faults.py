"""Runs whose data is gone or whose files are unusual: what is asked gets an answer or a clear error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import DatasetError
from tokenmill.inspect.run_view import open_run
from tokenmill.load.loader import Loader
from tokenmill.training.run_folder import Record
from tokenmill.training.run_reading import DataOrigin, RunPhase, write_run_data


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
    write_run_data(
        folder / "r", DataOrigin.of([str(folder / "c")]), loader.rows.identity, phase
    )
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
        assert main(command) == 1
        said = capsys.readouterr().err
        assert f"The data of the run {run} is missing: " in said
        assert "\x1b" not in said
        flag = "DATA" if name == "where" else "--data"
        assert said.rstrip().endswith(f"does not exist. Give its new place with {flag}."), said
    here = ["--data", str(made / "c")]
    assert main([*commands["explain"], *here]) == 0
    with pytest.raises(DatasetError, match="gone does not exist. Make a dataset"):
        open_run(run, data=tmp_path / "gone")
    text = change(made, tmp_path / "text", origin={"data": [], "input_file": "/gone/a.txt"})
    shutil.copy(made / "c/tokenizer_state.json", text)
    with pytest.raises(DatasetError, match=r"missing: /gone/a\.txt does not exist\. .*put it back"):
        open_run(text)


def test_rows_and_steps_that_the_run_has_not_reached_have_no_loss(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(made / "r")
    for place in (["--row", "99999999999999999"], ["--step", "99999999999999999"], ["--row", "39"]):
        assert main(["explain", "--run", run, *place]) == 0
    said = capsys.readouterr().out
    assert said.count("loss 39.0000") == said.count(", loss ") == 1
    assert np.isnan(open_run(run).losses((1 << 62) - 2, (1 << 62) - 1)).all()
