"""`spikes` on a dataset in a real S3 server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from test_remote_datasets import run, upload

import tokenmill


def make(tmp_path: Path) -> Path:
    """A dataset and a file of losses, in which one of the documents has high losses."""
    lines = [f"line {number} of a file" for number in range(200)]
    lines[120] = "#" * 100
    (tmp_path / "a.txt").write_text("\n".join(lines))
    tokenmill.prepare(
        tmp_path / "a.txt",
        tmp_path / "data",
        tokenizer="bytes",
        documents="line",
        val_fraction=0,
        tokens_per_shard=500,
    )
    tokens = tokenmill.open(tmp_path / "data")["train"]
    loader = tokenmill.Loader(tokens, batch_size=1, seq_len=16)
    losses = np.random.default_rng(1).normal(3, 0.1, 800)
    for row in range(len(losses)):
        losses[row] += 4 * np.mean(loader.batch_from(row).targets == ord("#"))
    np.save(tmp_path / "losses.npy", losses)
    return tmp_path / "data"


def test_remote_data_gives_the_suspects_of_local_data(tmp_path: Path, bucket: str) -> None:
    local = make(tmp_path)
    remote = upload(local, f"{bucket}/data")
    reports = [
        tokenmill.spikes(
            losses=tmp_path / "losses.npy", per="row", data=data, seq_len=16, batch_size=4
        )
        for data in (local, remote)
    ]
    assert reports[0].suspects[0].text == "#" * 80
    assert reports[0].suspects == reports[1].suspects
    assert reports[0].rows == reports[1].rows
    assert reports[1].groups.rows < reports[0].groups.rows
    same = replace(reports[1], groups=reports[0].groups, paths=reports[0].paths)
    assert same == reports[0]


def test_the_command_prints_no_secrets(tmp_path: Path, bucket: str, website: str) -> None:
    upload(make(tmp_path), f"{bucket}/data")
    address = f"{website}/data".replace("//", "//name:password@") + "?signature=abc"
    given = ["--losses", str(tmp_path / "losses.npy"), "--per", "row", "--seq-len", "16"]
    for data in (address, f"web={address}:0.5"):
        for extra in ((), ("--json",)):
            said = run("spikes", *given, "--batch-size", "4", "--data", data, *extra)
            assert said.returncode == 0, said.stderr
            assert "password" not in said.stdout + said.stderr
            assert "abc" not in said.stdout
