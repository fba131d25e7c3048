"""`tokenmill peek`: the text of a document and its origin."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))

from dataset_builder import TEXTS, build

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import DatasetError, UsageError
from tokenmill.inspect.peek import peek


@pytest.fixture
def folder(tmp_path):
    """A small sound dataset with several shards, and documents that span them."""
    build(tmp_path / "data")
    return tmp_path / "data"


def test_every_document_decodes_to_its_text(folder):
    dataset = tokenmill.open(folder)
    for split, texts in TEXTS.items():
        for number, text in enumerate(texts):
            found = peek(dataset, split=split, document=number)
            assert found.text == text + "<|endoftext|>"
            assert found.document.number == number
            assert found.start == found.document.start
            assert found.shard == f"{split}/shard_{found.start // 10:05d}.bin"
            assert found.shard_token == found.start % 10
            assert peek(dataset, split=split, document=number - len(texts)) == found


def test_a_token_is_shown_with_its_surroundings_in_the_document(folder):
    dataset = tokenmill.open(folder)
    tokens = dataset["train"]
    for token in range(len(tokens)):
        found = peek(dataset, token=token, length=6)
        assert found.start <= token < found.end
        assert found.document == tokens.documents.at(token)
        assert found.document.start <= found.start
        assert found.end <= found.document.start + found.document.length
        assert list(found.ids) == tokens[found.start : found.end].tolist()
    assert peek(dataset, token=-1).document.number == 4


def test_numbers_out_of_range_give_the_valid_range(folder):
    dataset = tokenmill.open(folder)
    with pytest.raises(UsageError, match="has no document 5: it has 5 documents, numbered 0 to 4"):
        peek(dataset, document=5)
    with pytest.raises(UsageError, match="has no token -69"):
        peek(dataset, token=-69)
    with pytest.raises(UsageError, match="not both"):
        peek(dataset, token=1, document=1)
    with pytest.raises(UsageError, match="1 or more"):
        peek(dataset, length=0)
    with pytest.raises(DatasetError, match="train, val"):
        peek(dataset, split="test")


def test_an_empty_split_is_an_error(tmp_path):
    build(tmp_path, {"train": []})
    with pytest.raises(DatasetError, match="no tokens in its split 'train'"):
        peek(tokenmill.open(tmp_path))


def test_an_impossible_id_points_to_verify(folder):
    np.full(10, 60_000, "<u2").tofile(folder / "train/shard_00000.bin")
    with pytest.raises(DatasetError, match="tokenmill verify"):
        peek(tokenmill.open(folder))


def test_the_command_shows_text_origin_and_the_next_command(folder, capsys):
    assert main(["peek", str(folder), "--document", "1", "--length", "12"]) == 0
    out = capsys.readouterr().out
    for part in (
        "document: 1 of 5 in split train",
        "source:   texts/a.txt, byte 15",
        "tokens:   22: 15 to 36 of the split; showing 15 to 26",
        "shard:    train/shard_00001.bin, from its token 5",
        "\n\nÜnïcödé",
        f"tokenmill peek {folder} --document 1 --length 22",
        f"tokenmill peek {folder} --document 2",
    ):
        assert part in out
    assert main(["peek", str(folder), "--split", "val", "--document", "-1"]) == 0
    out = capsys.readouterr().out
    assert "Also kept apart.<|endoftext|>" in out
    assert "last document" in out


def test_control_characters_are_escaped(tmp_path, capsys):
    build(tmp_path / "d", {"train": ["\x1b[31mred [bold]plain :smile:\u202e"]})
    for extra in ([], ["--ids"]):
        assert main(["peek", str(tmp_path / "d"), *extra]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert "\\x1b" in out
        assert extra or "[bold]plain :smile:" in out


def test_ids_are_shown_next_to_their_text(folder, capsys):
    assert main(["peek", str(folder), "--ids", "--length", "2"]) == 0
    assert "0      72  'H'\n1     101  'e'\n" in capsys.readouterr().out


def test_wrong_usage_has_status_2(folder, capsys):
    assert main(["peek", str(folder), "--document", "77"]) == 2
    assert main(["peek", str(folder), "--split", "nope"]) == 1
