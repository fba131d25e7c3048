"""Resharding gives, byte for byte, what preparing with that shard size gives."""

from __future__ import annotations

import json
import signal

import pytest
from dataset_builder import build, edit_manifest
from test_export import contents, run_killed

import tokenmill
from tokenmill.errors import DatasetError, FolderError, UsageError


def prepare(folder, tokens_per_shard):
    texts = folder / "texts.jsonl"
    if not texts.exists():
        lines = [json.dumps({"text": f"Text {n}. " * (n % 7 + 1)}) for n in range(60)]
        text = "\n".join([*lines, "no json", '{"text": "caf\xe9"}']) + "\n"
        texts.write_text(text, encoding="latin-1")  # the last record is not UTF-8
    out = folder / f"prepared{tokens_per_shard}"
    tokenmill.prepare(
        texts,
        out,
        tokenizer="bytes",
        tokens_per_shard=tokens_per_shard,
        val_fraction=0.3,
        workers=1,
    )
    return out


def test_resharding_equals_preparing_with_that_length(tmp_path):
    wanted = {size: contents(prepare(tmp_path, size)) for size in (7, 100, 333, 10**6)}
    assert {"rejected.jsonl", "repaired.jsonl"} <= wanted[7].keys()
    for source in (7, 333, 10**6):
        for size in wanted:
            out = tmp_path / f"out{source}-{size}"
            tokenmill.reshard(tmp_path / f"prepared{source}", out, tokens_per_shard=size)
            assert contents(out) == wanted[size]


def test_a_killed_reshard_resumes_to_the_same_bytes(tmp_path):
    source = prepare(tmp_path, 100)
    wanted = contents(prepare(tmp_path, 333))
    for after in (1, 1000):
        out = tmp_path / f"out{after}"
        killed = run_killed("reshard", "reshard", source, out, after, "tokens_per_shard=333")
        assert killed.returncode == -signal.SIGKILL
        with pytest.raises(DatasetError, match="not finished"):
            tokenmill.open(out)
        tokenmill.reshard(source, out, tokens_per_shard=333)
        assert contents(out) == wanted


def test_data_that_cannot_be_resharded_is_refused(tmp_path):
    build(tmp_path / "a")
    build(tmp_path / "b", {"train": ["other"]})
    tokenmill.reshard(tmp_path / "a", tmp_path / "out", tokens_per_shard=5)
    made = tokenmill.reshard(tmp_path / "a", tmp_path / "out", tokens_per_shard=5)
    assert made == tokenmill.open(tmp_path / "out").manifest
    with pytest.raises(FolderError, match="another finished dataset"):
        tokenmill.reshard(tmp_path / "a", tmp_path / "out", tokens_per_shard=6)
    with pytest.raises(FolderError, match="another finished dataset"):
        tokenmill.reshard(tmp_path / "b", tmp_path / "out", tokens_per_shard=5)
    same = json.loads((tmp_path / "a" / "dataset_metadata.json").read_bytes())
    edit_manifest(tmp_path / "b", lambda body: body.update({**same, "splits": body["splits"]}))
    with pytest.raises(FolderError, match="another finished dataset"):
        tokenmill.reshard(tmp_path / "b", tmp_path / "out", tokens_per_shard=5)
    with pytest.raises(UsageError, match="positive"):
        tokenmill.reshard(tmp_path / "a", tmp_path / "new", tokens_per_shard=0)
    with pytest.raises(UsageError, match="tokenmill import"):
        tokenmill.reshard(
            tmp_path / "a" / "train" / "shard_00000.bin", tmp_path / "new", tokens_per_shard=5
        )
    table = tmp_path / "a" / "train" / "shard_00000.docs.npy"
    table.write_bytes(table.read_bytes()[:-1] + b"\x01")
    with pytest.raises(DatasetError, match="does not match its checksum"):
        tokenmill.reshard(tmp_path / "a", tmp_path / "new", tokens_per_shard=5)
