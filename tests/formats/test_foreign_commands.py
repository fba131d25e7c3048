"""`info`, `peek` and `verify` on tokens in other formats."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest
from dataset_builder import build
from foreign import mds_files, write_files, write_llmc, write_llmc_folder, write_raw

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import UsageError
from tokenmill.inspect.peek import peek
from tokenmill.tokenizers import load_tokenizer


@pytest.fixture
def hello():
    """Two short documents as GPT-2's ids, the end of text before each."""
    ids, _ = load_tokenizer("gpt2").encode_batch([b"Hello there, world."])
    return [50256, *ids.tolist(), 50256, *ids.tolist()]


def run(capsys, *arguments, status=0):
    assert main([str(one) for one in arguments]) == status
    return capsys.readouterr().out


def test_info_shows_the_recognised_format(tmp_path, capsys, hello):
    write_llmc_folder(tmp_path / "shards", [hello, hello])
    out = run(capsys, "info", tmp_path / "shards")
    for part in ("24 tokens\n", "llmc", "gpt2, vocabulary of 50,257", "50256 before", "uint16"):
        assert part in out.replace(f"{2 * len(hello)} tokens", "24 tokens")
    assert "Sources" not in out
    body = json.loads(run(capsys, "info", tmp_path / "shards", "--json"))
    assert [one["name"] for one in body["splits"]] == ["train", "val"]
    assert body["documents"] is None
    write_raw(tmp_path / "x.bin", hello, "<u4")
    out = run(capsys, "info", tmp_path / "x.bin", "--dtype", "uint32")
    assert f"tokenmill verify {tmp_path}/x.bin --dtype uint32" in out
    assert "unknown" in out
    assert main(["info", str(tmp_path / "x.bin")]) == 1
    complaint = capsys.readouterr().err
    assert "dtype" in complaint
    assert "format" in complaint


def test_peek_decodes_and_suggests_the_next_command(tmp_path, capsys, hello):
    write_llmc_folder(tmp_path / "shards", [hello, hello])
    out = run(capsys, "peek", tmp_path / "shards", "--length", len(hello) // 2)
    assert "\n<|endoftext|>Hello there, world.\n" in out
    following = out.partition("The next tokens:")[2].splitlines()[0].strip()
    out = run(capsys, *shlex.split(following)[1:])
    assert out.count("Hello there, world.") == 1
    assert "The next tokens" not in out
    write_raw(tmp_path / "x.bin", hello)
    assert main(["peek", str(tmp_path / "x.bin"), "--dtype", "uint16"]) == 1
    assert "--tokenizer" in capsys.readouterr().err
    out = run(capsys, "peek", tmp_path / "x.bin", "--dtype", "uint16", "--tokenizer", "gpt2")
    assert out.count("Hello there, world.") == 2


def test_info_suggests_a_command_that_works(tmp_path, capsys, hello):
    np.save(tmp_path / "x.npy", np.array(hello))
    write_llmc_folder(tmp_path / "shards", [hello])
    write_raw(tmp_path / "x.bin", hello)
    build(tmp_path / "data")
    for name, options in (
        ("x.npy", []),
        ("shards", []),
        ("x.bin", ["--dtype", "u2"]),
        ("data", []),
    ):
        out = run(capsys, "info", tmp_path / name, *options)
        command = shlex.split(out.partition("Next:")[2].splitlines()[0])
        assert ("NAME" in command) == (name in ("x.npy", "x.bin"))
        run(capsys, *["gpt2" if word == "NAME" else word for word in command[1:]])


def test_commands_read_the_named_column(tmp_path, capsys, hello):
    more = [("b", "ndarray:uint16", None, bytes([4, 1, 9, 0]))]
    files = mds_files([[hello, hello]], more=more)
    for name in files:
        files[name] = files[name].replace(b'"tokens"', b'"my ids"')
    write_files(tmp_path, files)
    for command in ("info", "peek", "verify"):
        assert main([command, str(tmp_path)]) == 1
        assert "--column" in capsys.readouterr().err
    out = run(capsys, "info", tmp_path, "--column", "my ids")
    assert "2 documents" in out
    for line in out.splitlines()[-2:]:
        command = [
            "gpt2" if word == "NAME" else word
            for word in shlex.split(line.partition("tokenmill ")[2])
        ]
        assert command[-2:] == ["--column", "my ids"] or command[-2:] == ["--tokenizer", "gpt2"]
        out = run(capsys, *command)
    assert f"2 documents, {4 * len(hello)} bytes" in out
    out = run(capsys, "peek", tmp_path, "--column", "my ids", "--tokenizer", "gpt2", "--length", 2)
    again = shlex.split(out.partition("The whole document:")[2].splitlines()[0])
    assert run(capsys, *again[1:])
    assert "sound: 1 shards, 2 tokens" in run(capsys, "verify", tmp_path, "--column", "b")


def test_only_the_right_tokenizer_is_suggested(tmp_path, capsys):
    write_llmc(tmp_path / "x.bin", [128000, 1], magic=20240801, version=7, dtype="<u4")
    assert main(["peek", str(tmp_path / "x.bin")]) == 1
    complaint = capsys.readouterr().err
    assert "--tokenizer" in complaint
    assert "gpt2" not in complaint


def test_peek_reads_a_single_shard(tmp_path, capsys):
    build(tmp_path, shard_tokens=30)
    out = run(capsys, "peek", tmp_path / "train" / "shard_00000.bin")
    assert "Hello, world!" in out
    out = run(capsys, "info", tmp_path / "train" / "shard_00000.bin")
    assert "bytes, vocabulary of 257" in out


def test_peek_counts_tokens_without_a_document_table(tmp_path, hello):
    np.save(tmp_path / "x.npy", np.array(hello))
    dataset = tokenmill.open(tmp_path / "x.npy", tokenizer="gpt2")
    found = peek(dataset, token=-2, length=9)
    assert (found.start, list(found.ids)) == (len(hello) - 2, hello[-2:])
    assert found.document is None
    with pytest.raises(UsageError, match="no document table"):
        peek(dataset, document=0)


def test_verify_exits_1_for_ids_beyond_the_vocabulary(tmp_path, capsys, hello):
    np.save(tmp_path / "x.npy", np.array(hello))
    out = run(capsys, "verify", tmp_path / "x.npy")
    assert "note: the vocabulary size is unknown" in out
    assert f"sound: 1 shards, {len(hello)} tokens" in out
    out = run(capsys, "verify", tmp_path / "x.npy", "--vocab-size", "50256", status=1)
    assert "has the id 50256 at token 0" in out
