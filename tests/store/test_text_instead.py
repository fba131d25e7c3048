"""Text instead of tokens: the first line of the error says so, with the command to type."""

from __future__ import annotations

import gzip
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from foreign import write_raw

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import DatasetError

TEXT = "To be, or not to be: that is the question.\n"


def make_folder(path):
    (path / "a" / "b").mkdir(parents=True)
    (path / "a" / "b" / "speech").write_text(TEXT)


def make_mixed_folder(path):
    path.mkdir()
    (path / "picture.png").write_bytes(bytes(range(256)))
    (path / "a.jsonl").write_text('{"text": "To be"}\n')


def make_compressed_folder(path):
    path.mkdir()
    (path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "To be"}'))


def make_parquet(path):
    pq.write_table(pa.table({"text": [TEXT], "n": [1]}), path)


KINDS = {
    "texts": make_folder,
    "my texts": make_mixed_folder,
    "gz": make_compressed_folder,
    "input.txt": lambda path: path.write_text(TEXT),
    "umlaut.txt": lambda path: path.write_text("ä" * 5000),
    "lines.jsonl": lambda path: path.write_text('{"text": "To be"}\n'),
    "script.py": lambda path: path.write_text("print('to be')\n"),
    "table.parquet": make_parquet,
}


@pytest.mark.parametrize("name", KINDS)
def test_the_error_for_text_has_a_command_that_works(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    KINDS[name](tmp_path / name)
    for use in (tokenmill.open, tokenmill.verify):
        with pytest.raises(DatasetError) as caught:
            use(name)
        first = str(caught.value).splitlines()[0]
        assert first.startswith(f"{name} is ")
        assert " text, not tokens. " in first
    command = shlex.split(first.partition("first: ")[2])
    assert command[:2] == ["tokenmill", "prepare"]
    assert main([*command[1:], "--tokenizer", "bytes", "--workers", "1"]) == 0
    assert len(tokenmill.open(command[-1])) > 0


@pytest.mark.parametrize("command", ["info", "peek", "verify", "train", "export"])
def test_commands_print_the_same_error(tmp_path, capsys, command):
    make_folder(tmp_path / "texts")
    arguments = {
        "train": ["train", "--data", str(tmp_path / "texts"), "--name", "x"],
        "export": ["export", str(tmp_path / "texts"), "--to", "npy", "--out", str(tmp_path / "o")],
    }
    if command == "train":
        pytest.importorskip("torch")
    assert main(arguments.get(command, [command, str(tmp_path / "texts")])) == 1
    complaint = " ".join(capsys.readouterr().err.split())
    assert "is a folder of text, not tokens. Tokenize it first: tokenmill prepare" in complaint


def test_token_files_are_not_called_text(tmp_path):
    write_raw(tmp_path / "raw" / "x.bin", [0x6F54] * 20)  # which is ASCII
    (tmp_path / "raw" / "README.md").write_text(TEXT)
    (tmp_path / "ids.parquet").parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"ids": [[1, 2]]}), tmp_path / "ids.parquet")
    (tmp_path / "damaged.npy").write_text(TEXT)
    (tmp_path / "image").write_bytes(np.arange(1000, dtype=np.uint16).tobytes())
    (tmp_path / "nothing").mkdir()
    for name in ("raw", "raw/x.bin", "ids.parquet", "damaged.npy", "image", "nothing"):
        with pytest.raises(DatasetError, match="is not token data in a known format"):
            tokenmill.open(tmp_path / name)


def test_another_folder_is_suggested_if_the_text_is_in_the_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path / "data" / "corpus")
    with pytest.raises(DatasetError, match="--out data/corpus_tokens"):
        tokenmill.open("data/corpus")


def test_errors_for_a_folder_of_datasets_and_a_misspelt_name_name_the_dataset(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input.txt").write_text(TEXT)
    tokenmill.prepare("input.txt", "data/corpus", tokenizer="bytes", workers=1)
    with pytest.raises(DatasetError, match=r"Open one of them: data/corpus$"):
        tokenmill.open("data")
    with pytest.raises(
        DatasetError, match=r"data/corpu does not exist. Did you mean data/corpus\?"
    ):
        tokenmill.open("data/corpu")
