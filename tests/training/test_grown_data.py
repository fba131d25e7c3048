"""A run whose dataset grows continues with its own rows, and ends as if the dataset had not grown."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import tokenmill
from tokenmill.inspect.run_opening import open_run

SETTINGS = {
    "config": "tiny",
    "layers": 1,
    "heads": 2,
    "width": 16,
    "seq_len": 32,
    "batch_tokens": 128,
    "decay_fraction": 0,
    "checkpoint_every": 4,
    "val_every": 5,
    "val_tokens": 320,
    "sample_tokens": 0,
    "name": "run",
}


def write_text(path: Path, seed: int, count: int) -> Path:
    rng = random.Random(seed)
    texts = [" ".join(f"{rng.getrandbits(20):x}" for _ in range(30)) for _ in range(count)]
    path.write_text("<|endoftext|>".join(texts))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_text(tmp_path / "more.txt", 2, 60)
    text = write_text(tmp_path / "a.txt", 1, 100)
    tokenmill.prepare(text, tmp_path / "data", tokenizer="bytes", val_fraction=0.2, workers=1)
    shutil.copytree(tmp_path / "data", tmp_path / "alone")
    return tmp_path / "data"


def grow(data: Path) -> None:
    tokenmill.prepare(data.parent / "more.txt", data, append=True, workers=1)


def read_losses(runs: Path) -> bytes:
    return (runs / "run" / "row_losses.f32").read_bytes()


def read_val_losses(runs: Path) -> list[float]:
    lines = (runs / "run" / "metrics.jsonl").read_text().splitlines()
    return [line["val_loss"] for line in map(json.loads, lines) if "val_loss" in line]


def test_a_run_resumes_with_its_rows_after_its_dataset_has_grown(data: Path) -> None:
    folder = data.parent
    tokenmill.train(folder / "alone", runs=folder / "whole", max_steps=16, **SETTINGS)
    tokenmill.train(data, runs=folder / "runs", max_steps=8, **SETTINGS)
    grow(data)
    tokenmill.train(data, runs=folder / "runs", max_steps=16, **SETTINGS)
    assert read_losses(folder / "runs") == read_losses(folder / "whole")
    assert len(read_losses(folder / "runs")) == 4 * 16 * 4
    assert read_val_losses(folder / "runs")[-1] == read_val_losses(folder / "whole")[-1]
    view = open_run(folder / "runs" / "run")
    assert len(view.datasets[""]["train"]) == len(tokenmill.open(folder / "alone")["train"])
    # A new run, and one that starts over, read the grown dataset.
    tokenmill.train(data, runs=folder / "runs", max_steps=2, restart=True, **SETTINGS)
    rows = json.loads((folder / "runs" / "run" / "data.json").read_text())["rows"]
    newest = tokenmill.open(data)["train"]
    assert rows["sources"][""]["tokens"] == len(newest)
    assert rows["sources"][""]["generation"] == 2
    assert len(open_run(folder / "runs" / "run").datasets[""]["train"]) == len(newest)


def test_a_mixture_resumes_with_the_generation_of_each_dataset(data: Path) -> None:
    folder = data.parent
    other = folder / "other"
    text = write_text(folder / "b.txt", 3, 50)
    tokenmill.prepare(text, other, tokenizer="bytes", val_fraction=0.2, workers=1)

    def train(first: Path, runs: str, steps: int) -> None:
        paths = [f"a={first}:0.5", f"b={other}:0.5"]
        tokenmill.train(paths, runs=folder / runs, max_steps=steps, **SETTINGS)

    train(folder / "alone", "whole", 12)
    grow(data)
    write_text(folder / "more.txt", 4, 60)
    train(data, "mixed", 4)  # on generation 2
    train(folder / "alone", "runs", 4)
    shutil.rmtree(folder / "alone")
    shutil.copytree(data, folder / "alone")
    grow(data)
    train(folder / "alone", "runs", 12)
    assert read_losses(folder / "runs") == read_losses(folder / "whole")
    train(data, "mixed", 8)
    rows = json.loads((folder / "mixed" / "run" / "data.json").read_text())["rows"]
    assert rows["sources"]["a"]["generation"] == 2
    assert tokenmill.open(data)["train"].generation == 3
    losses = np.frombuffer(read_losses(folder / "mixed"), "<f4")
    assert len(losses) == 4 * 8
    assert np.isfinite(losses).all()


def test_a_run_that_holds_out_tokens_resumes_on_its_generation(tmp_path: Path) -> None:
    write_text(tmp_path / "more.txt", 2, 60)
    text = write_text(tmp_path / "a.txt", 1, 100)
    data = tmp_path / "data"
    tokenmill.prepare(text, data, tokenizer="bytes", val_fraction=0, workers=1)
    shutil.copytree(data, tmp_path / "alone")
    settings = {**SETTINGS, "val_fraction": 0.1}
    tokenmill.train(tmp_path / "alone", runs=tmp_path / "whole", max_steps=8, **settings)
    tokenmill.train(data, runs=tmp_path / "runs", max_steps=4, **settings)
    grow(data)
    tokenmill.train(data, runs=tmp_path / "runs", max_steps=8, **settings)
    assert read_losses(tmp_path / "runs") == read_losses(tmp_path / "whole")
    assert open_run(tmp_path / "runs" / "run").val_fraction == 0.1
