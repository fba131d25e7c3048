"""`scripts/test_local_data.py` on the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "test_local_data.py"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], cwd=folder, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "training_data").mkdir()
    ids = np.arange(50_000, dtype=np.int32)
    np.save(tmp_path / "training_data/owt_train_tokens.npy", ids)
    np.save(tmp_path / "training_data/owt_valid_tokens.npy", ids[5_000:9_001])
    return tmp_path


def test_it_prints_statistics_and_reads_batches(folder: Path) -> None:
    result = run(folder, "--num_workers", "1", "--batches", "3", "--max_length", "100")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "tokens:     50,000 of int32" in result.stdout
    assert "sequences:  499 of 100 tokens" in result.stdout
    assert "vocabulary: ids from 5,000 to 9,000" in result.stdout
    assert "Training: batches of 32 x 100, 16 per epoch, " in result.stdout
    assert "Validation: batches of 32 x 100, 2 per epoch, " in result.stdout
    assert result.stdout.count(" tokens/s") == 2


def test_missing_and_damaged_files_are_all_named_with_status_1(folder: Path) -> None:
    damaged = folder / "training_data/owt_valid_tokens.npy"
    damaged.write_bytes(damaged.read_bytes()[:-2])
    result = run(folder, "--train_data_path", "a.npy")
    assert result.returncode == 1
    assert result.stdout == ""
    missing, cut = result.stderr.splitlines()
    assert missing.startswith("Training data file not found: a.npy.")
    assert missing.endswith("tokenmill pretokenize a.txt")
    assert cut.startswith("owt_valid_tokens.npy has 16,130 bytes")


@pytest.mark.parametrize(
    "setting",
    [
        "max_length 0",
        "batch_size -1",
        "num_workers -1",
        "prefetch_factor 0",
        "batches 0",
        "dtype x",
    ],
)
def test_invalid_settings_have_status_2(folder: Path, setting: str) -> None:
    name, value = setting.split()
    result = run(folder, f"--{name}", value)
    assert result.returncode == 2
    assert name in result.stderr
    assert value in result.stderr
    assert "Traceback" not in result.stderr


def test_ids_without_a_header_are_read_with_a_dtype(folder: Path) -> None:
    np.arange(5_000, dtype="<i4").tofile(folder / "raw.npy")
    paths = "--train_data_path", "raw.npy", "--val_data_path", "raw.npy"
    result = run(folder, *paths, "--num_workers", "0", "--max_length", "100")
    assert result.returncode == 1
    assert "--dtype" in result.stderr
    result = run(folder, *paths, "--num_workers", "0", "--max_length", "100", "--dtype", "int32")
    assert result.returncode == 0, result.stderr
    assert "ids from 0 to 4,999" in result.stdout


def test_more_ranks_than_sequences_have_no_batches(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "40")
    result = run(folder, "--num_workers", "0", "--max_length", "2000")
    assert result.returncode == 0, result.stderr
    assert "Training: no batches, because there are fewer sequences than ranks" in result.stdout
