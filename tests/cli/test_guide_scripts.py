"""The scripts of the guides work with the commands of the guides, from any folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from shell import SCRIPTS, python

TEXTS = {
    "a.txt": "a line of the first text\na line that both have, word for word\n",
    "b b.txt": "a line that both have, word for word\nthe last line of all\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def settings_of(folder: Path) -> dict:
    return json.loads((folder / "dataset_metadata.json").read_text())


def test_prepare_dataset_has_the_defaults_of_the_guide(folder: Path) -> None:
    result = python(
        SCRIPTS / "prepare_dataset.py", "--input_files", *TEXTS, "--out_dir", "d", cwd=folder
    )
    assert result.returncode == 0, result.stderr
    made = settings_of(folder / "d")
    settings = made["settings"]
    assert settings["tokens_per_shard"] == 10_000_000
    assert settings["dedup"] == "lines"
    assert settings["val_fraction"] == 0.1
    assert settings["normalize"] is True
    assert made["tokenizer"]["name"] == "gpt2"
    assert made["ledger"]["duplicate_lines"] == 1
    sources = (folder / "d" / made["sources"]["path"]).read_text().splitlines()
    assert [json.loads(line)["path"] for line in sources] == list(TEXTS)


def test_prepare_dataset_takes_the_flags_of_the_guide(folder: Path) -> None:
    result = python(
        *(SCRIPTS / "prepare_dataset.py", "--input_files", *TEXTS, "--out_dir", "d"),
        *("--tokenization", "gpt2", "--tokens_per_shard", "9", "--no_normalize", "--no_dedup"),
        cwd=folder,
    )
    assert result.returncode == 0, result.stderr
    made = settings_of(folder / "d")
    settings = made["settings"]
    assert (settings["tokens_per_shard"], settings["dedup"]) == (9, "none")
    assert settings["normalize"] is False
    shards = [shard for split in made["splits"].values() for shard in split["shards"]]
    assert len(shards) > 2
    assert max(shard["tokens"] for shard in shards) == 9


@pytest.mark.parametrize("arguments", [[], ["--out_dir", "d"], ["--input_files", "a.txt"]])
def test_wrong_usage_of_prepare_dataset_has_status_2(folder: Path, arguments: list[str]) -> None:
    result = python(SCRIPTS / "prepare_dataset.py", *arguments, cwd=folder)
    assert result.returncode == 2
    assert "usage: prepare_dataset.py" in result.stderr


def test_prepare_dataset_without_its_input_has_status_1(folder: Path) -> None:
    result = python(
        SCRIPTS / "prepare_dataset.py", "--input_files", "no.txt", "--out_dir", "d", cwd=folder
    )
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "no.txt" in result.stderr


def test_pretokenize_dataset_writes_next_to_the_text(folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    result = python(SCRIPTS / "pretokenize_dataset.py", folder / "a.txt", cwd=elsewhere)
    assert result.returncode == 0, result.stderr
    tokens = np.load(folder / "a.npy", mmap_mode="r")
    assert tokens.dtype == np.uint16
    assert tokens[-1] == 50256
    assert list(elsewhere.iterdir()) == []
