"""`export`, `import` and `reshard` on the command line: a round trip."""

from __future__ import annotations

import pytest

import tokenmill
from tokenmill.cli import main
from tokenmill.formats import WRITABLE


@pytest.fixture
def data(tmp_path):
    (tmp_path / "a.txt").write_text("One text.<|endoftext|>Another text.<|endoftext|>A third.")
    tokenmill.prepare(
        tmp_path / "a.txt", tmp_path / "data", tokenizer="gpt2", val_fraction=0, workers=1
    )
    return tmp_path / "data"


def output(capsys, *arguments, status=0):
    assert main([str(one) for one in arguments]) == status
    captured = capsys.readouterr()
    return captured.err if status else captured.out


def test_exported_tokens_can_be_imported_again(tmp_path, capsys, data):
    tokens = tokenmill.open(data)["train"]
    out = output(capsys, "export", data, "--to", "megatron", "--out", tmp_path / "m")
    assert "megatron, 2 files" in out
    assert out.endswith(f"Next:  tokenmill info {tmp_path / 'm'}\n")
    assert f"{len(tokens)} tokens of 3 documents" in output(capsys, "info", tmp_path / "m")
    assert f"train: {len(tokens)} tokens, 3 documents, compared with the source" in out
    again = output(capsys, "export", data, "--to", "megatron", "--out", tmp_path / "m")
    assert "2 files, 2 of them from an earlier run" in again
    back = tmp_path / "back"
    out = output(capsys, "import", tmp_path / "m" / "train", "--tokenizer", "gpt2", "--out", back)
    assert f"{len(tokens)} tokens, 3 documents, 1 shard" in out
    assert "sound" in output(capsys, "verify", back)
    info = output(capsys, "info", back)
    assert "characters" not in info
    assert "imported" in info
    cut = tmp_path / "cut"
    out = output(capsys, "reshard", back, "--tokens-per-shard", "4", "--out", cut)
    assert f"{len(tokens)} tokens in {-(-len(tokens) // 4)} shards" in out
    assert f"Next:  tokenmill verify {cut}\n" in out
    assert "sound" in output(capsys, "verify", cut)
    assert tokenmill.open(cut)["train"].fingerprint == tokens.fingerprint


def test_help_lists_every_format_that_can_be_written(capsys):
    shown = output(capsys, "export", "--help")
    assert all(name in shown for name in WRITABLE)


def test_wrong_requests_give_no_traceback(tmp_path, capsys, data):
    assert "out" in output(capsys, "export", data, "--to", "npy", status=2)
    assert "parquet" in output(capsys, "export", data, "--to", "parquet", "--out", "x", status=2)
    err = output(capsys, "export", tmp_path / "a.txt", "--to", "npy", "--out", "x", status=1)
    assert "is text, not tokens. Tokenize it first: tokenmill prepare" in err
    assert "reshard" in output(capsys, "import", data, "--out", tmp_path / "x", status=2)
