"""The guides' training commands work from any folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tokenmill

SCRIPTS = Path(__file__).parents[2] / "scripts"
TINY = {"layers": 1, "heads": 1, "width": 16, "seq_len": 16, "batch_tokens": 64, "val_tokens": 64}
TINY |= {"max_steps": 3, "warmup_steps": 1, "sample_tokens": 0}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]


def run(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPTS / script, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "input.txt").write_text("".join(f"line {n}<|endoftext|>" for n in range(500)))
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    return tmp_path


def settings_of(folder: Path, name: str) -> dict:
    return json.loads((folder / "runs" / name / "config.json").read_text())


def test_train_in_memory(folder: Path) -> None:
    ended = run(
        folder,
        "train.py",
        *("--model_name", "my_model", "--input_file", "input.txt", "--tokenizer", "bytes"),
        *("--config_file", "tiny.json", "--max_iters", "2"),
    )
    assert ended.returncode == 0, ended.stderr
    assert settings_of(folder, "my_model")["max_steps"] == 2
    assert "input.txt: " in ended.stdout
    assert (folder / "runs/my_model/loss.svg").exists()


def test_train_on_shards_of_the_guides_own_script(folder: Path) -> None:
    for split, count in (("train", 3_000), ("val", 300)):
        (folder / "old" / split).mkdir(parents=True)
        ids = np.arange(count, dtype="<u4") % 50_257
        ids.tofile(folder / "old" / split / "shard_00000.bin")
    (folder / "old/dataset_metadata.json").write_text('{"total_tokens": 3300}')
    ended = run(folder, "train.py", "--model_name", "m", "--dataset_dir", "old", *FLAGS)
    assert ended.returncode == 0, ended.stderr
    assert "old: 3,000 tokens" in ended.stdout
    assert "validation loss" in ended.stdout


@pytest.mark.parametrize(
    "modes", [["--input_file", "input.txt", "--dataset_dir", "data"], []], ids=["both", "none"]
)
def test_one_mode_at_a_time(folder: Path, modes: list[str]) -> None:
    ended = run(folder, "train.py", "--model_name", "m", *modes)
    assert ended.returncode == 2
    assert "--input_file" in ended.stderr.splitlines()[-1]
    assert "--dataset_dir" in ended.stderr.splitlines()[-1]
    assert not (folder / "runs").exists()


def test_a_folder_without_shards_has_the_guides_error(folder: Path) -> None:
    ended = run(folder, "train.py", "--model_name", "m", "--dataset_dir", "data")
    assert ended.returncode == 1
    assert ended.stderr.startswith("No training shards found: data has no train/*.bin.")


def test_local_files_use_the_h100_settings_by_default(folder: Path) -> None:
    (folder / "training_data").mkdir()
    ids = np.arange(3_000, dtype=np.int32)
    np.save(folder / "training_data/owt_train_tokens.npy", ids)
    np.save(folder / "val.npy", ids[:500])
    ended = run(folder, "train_h100_optimized.py")
    assert ended.returncode == 1
    assert ended.stderr.startswith(
        "❌ Validation data file not found: training_data/owt_valid_tokens.npy\n"
    )
    ended = run(
        folder,
        "train_h100_optimized.py",
        *("--val_data_path", "val.npy", "--batch_size", "2", "--num_workers", "8"),
        *FLAGS,
    )
    assert ended.returncode == 0, ended.stderr
    made = settings_of(folder, "h100")
    assert (made["micro_batch"], made["seq_len"], made["dtype"], made["seed"]) == (
        2,
        16,
        "auto",
        42,
    )
    assert "validation loss" in ended.stdout
    (folder / "own.json").write_text('{"seq_len": 8, "batch_tokens": 64, "seed": 7}')
    own = [one for one in FLAGS if not one.startswith(("--seq", "--batch", "--seed", "--micro"))]
    words = ["--val_data_path", "val.npy", "--config", "own.json", "--model_name", "own"]
    ended = run(folder, "train_h100_optimized.py", *words, *own)
    assert ended.returncode == 0, ended.stderr
    made = settings_of(folder, "own")
    assert (made["micro_batch"], made["seq_len"], made["seed"]) == (None, 8, 7)
    ended = run(folder, "train_h100_optimized.py", "--train_data_path", "no.npy")
    assert ended.stderr.startswith("❌ Training data file not found: no.npy\n")


def test_jax_from_the_guides_configuration(folder: Path) -> None:
    (folder / "config.yaml").write_text(
        """
data_config:
  dataset_name: input.txt
  batch_size: 4
  tokenizer_name: 'bytes'
model_config: {maxlen: 16, layers: 1, heads: 1, width: 16}
train_config: {num_epochs: 0.05, val_tokens: 64, sample_tokens: 0}
"""
    )
    ended = run(folder, "train_jax.py", "--config", "config.yaml", "--name", "mine")
    assert ended.returncode == 0, ended.stderr
    assert "(jax)" in ended.stdout
    (prepared,) = [path for path in (folder / "input.txt.tokens").iterdir() if path.is_dir()]
    tokens = len(tokenmill.open(prepared)["train"])
    made = settings_of(folder, "mine")
    assert made["max_steps"] == -(-int((tokens - 1) // 16 * 0.05) // 4)
    assert (made["seq_len"], made["batch_tokens"]) == (16, 64)


def test_a_configuration_without_data_is_an_error(folder: Path) -> None:
    (folder / "config.yaml").write_text("layers: 2")
    ended = run(folder, "train_jax.py", "--config", "config.yaml")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "dataset_name" in ended.stderr
