"""`export`, `import` and `reshard` from the command line, there and back."""

from __future__ import annotations

import pytest

import tokenmill
from tokenmill.cli import main


@pytest.fixture
def data(tmp_path):
    (tmp_path / "a.txt").write_text("One text.<|endoftext|>Another text.<|endoftext|>A third.")
    tokenmill.prepare(
        tmp_path / "a.txt", tmp_path / "data", tokenizer="gpt2", val_fraction=0, workers=1
    )
    return tmp_path / "data"


def told(capsys, *arguments, status=0):
    assert main([str(one) for one in arguments]) == status
    captured = capsys.readouterr()
    return captured.err if status else captured.out


def test_tokens_go_out_and_come_back(tmp_path, capsys, data):
    tokens = tokenmill.open(data)["train"]
    out = told(capsys, "export", data, "--to", "megatron", "--out", tmp_path / "m")
    assert "megatron, 2 files" in out
    assert f"train: {len(tokens)} tokens, 3 documents, compared with the source" in out
    again = told(capsys, "export", data, "--to", "megatron", "--out", tmp_path / "m")
    assert "2 files, 2 of them before" in again
    back = tmp_path / "back"
    out = told(capsys, "import", tmp_path / "m" / "train", "--tokenizer", "gpt2", "--out", back)
    assert f"{len(tokens)} tokens, 3 documents, 1 shard" in out
    assert "sound" in told(capsys, "verify", back)
    info = told(capsys, "info", back)
    assert "characters" not in info
    assert "imported" in info
    cut = tmp_path / "cut"
    out = told(capsys, "reshard", back, "--tokens-per-shard", "4", "--out", cut)
    assert f"{len(tokens)} tokens in {-(-len(tokens) // 4)} shards" in out
    assert "sound" in told(capsys, "verify", cut)
    assert tokenmill.open(cut)["train"].fingerprint == tokens.fingerprint


def test_what_cannot_be_is_told_without_a_traceback(tmp_path, capsys, data):
    assert "out" in told(capsys, "export", data, "--to", "npy", status=2)
    assert "parquet" in told(capsys, "export", data, "--to", "parquet", "--out", "x", status=2)
    err = told(capsys, "export", tmp_path / "a.txt", "--to", "npy", "--out", "x", status=1)
    assert "is text, not tokens. Tokenize it first: tokenmill prepare" in err
    assert "reshard" in told(capsys, "import", data, "--out", tmp_path / "x", status=2)
