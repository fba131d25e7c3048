"""`prepare` on documents longer than parts and blocks: ids and keys are those of the whole."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from naive import (
    check_dataset,
    encode_bytes,
    key_of,
    make_expected,
)
from preparing import assert_same_files, make, make_in_workers, python_sources, small

from tokenmill.tokenizers import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return load_tokenizer("gpt2")


GIANT = 10_000_000


def make_giants(folder: Path) -> dict[str, str]:
    """Documents longer than several parts and blocks, in which cuts must be found in many ways."""
    chance = random.Random(5)
    folder.mkdir()
    prose = " ".join("".join(python_sources(600_000)).split())
    words = prose.split(" ")
    chance.shuffle(words)
    lines = [" ".join(words[i : i + 12]) for i in range(0, len(words), 12)]
    letters = [chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(200_000)]
    dense = ["".join(letters[i : i + 40]) for i in range(0, len(letters), 40)]

    def fill(pieces: Sequence[str], between: str) -> str:
        block = between.join(pieces) + between
        return block * (GIANT // len(block.encode()) + 1)

    giants = {
        "a-newlines.txt": fill(lines, "\n"),
        "b-spaces.txt": fill(words, " "),
        "c-returns.txt": fill(lines, "\r\n"),
        "d-dense.txt": fill(dense, "\n"),
        "e-numbers-first.txt": "1234567890\n" * 500_000 + fill(lines, "\n"),
    }
    for name, text in giants.items():
        (folder / name).write_bytes(text.encode())
    return giants


def test_giant_documents_have_the_ids_of_the_whole(tmp_path: Path, gpt2: Tokenizer) -> None:
    giants = make_giants(tmp_path / "in")
    shutil.copy(tmp_path / "in" / "a-newlines.txt", tmp_path / "in" / "f-again.txt")
    row = json.dumps({"text": giants["b-spaces.txt"]})
    (tmp_path / "in" / "g-again.jsonl").write_text(f'{{"text": "small"}}\n{row}\n')
    giants["g-again.jsonl"] = "small"
    for workers in (1, 3):
        report = make_in_workers(
            tmp_path / "in",
            tmp_path / f"out{workers}",
            limits=small(part=3 << 20),
            tokenizer=gpt2,
            workers=workers,
            normalize=False,
            val_fraction=0,
        )
        assert report.parts > 20
    assert_same_files(tmp_path / "out1", tmp_path / "out3")
    dropped = report.manifest.ledger["dropped"]
    # The giant on Windows lines and the numbers come once; two came twice.
    assert dropped["duplicate"]["documents"] == 2
    table = np.load(tmp_path / "out1" / "train" / "shard_00000.docs.npy")
    tokens = np.fromfile(tmp_path / "out1" / "train" / "shard_00000.bin", "<u2")
    assert len(table) == len(giants)
    for record, text in zip(table, giants.values(), strict=True):
        data = text.encode()
        assert tuple(record["key"].tolist()) == key_of(data)
        whole, _ = gpt2.encode_batch([data])
        start, length = int(record["first"]), int(record["length"])
        assert tokens[start + length - 1] == 50256
        assert np.array_equal(tokens[start : start + length - 1], whole)


def test_cleaned_giants_equal_the_whole_text(tmp_path: Path) -> None:
    chance = random.Random(9)
    pieces = [
        "word",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\n \n\n",
        "\t",
        "e\u0301",
        "\ufeff",
        "क\u0958",
        "日本",
        "1.",
    ]
    text = "".join(chance.choices(pieces, k=1_000_000)) + " the end"
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(text.encode() * 2)
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    report = make_in_workers(
        paths, tmp_path / "out", limits=small(part=1 << 20), workers=2, val_fraction=0
    )
    assert report.parts > 8
    expected = make_expected(paths, encode=encode_bytes, eot_id=256, val_fraction=0)
    assert expected.dropped["duplicate"][0] == 1
    check_dataset(tmp_path / "out", expected, paths, 100_000_000)


def test_ids_across_cuts_where_a_pattern_takes_punctuation_and_newlines_together(
    tmp_path: Path,
) -> None:
    # U+0958 becomes a letter and a mark; cl100k's pattern joins the mark with the newline.
    tokenizer = load_cl100k(tmp_path)
    assert tokenizer.cuttable
    text = ("क\u0958\n" * 50 + "word\n" + "\u0958\r\n" * 30 + "ends\n") * 20
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    limits = small(part=500, block=64)
    make(path, tmp_path / "out", limits=limits, tokenizer=tokenizer, val_fraction=0)
    expected = make_expected(
        [path],
        encode=lambda data: tokenizer.encode_batch([data])[0].tolist(),
        eot_id=tokenizer.eot_id,
        val_fraction=0,
    )
    check_dataset(tmp_path / "out", expected, [path], 100_000_000)


def load_cl100k(folder: Path) -> Tokenizer:
    """A tokenizer with cl100k's pattern in which a mark and a newline are one token."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {value: chr(value) for value in visible}
    for value in range(256):
        letters.setdefault(value, chr(256 + len(letters) - len(visible)))
    vocabulary = {letters[value]: value for value in range(256)}
    mark = "".join(letters[byte] for byte in "\u093c".encode())
    merges = [f"{mark[0]} {mark[1]}", f"{mark[:2]} {mark[2]}", f"{mark} {letters[10]}"]
    for number, merge in enumerate(merges):
        vocabulary[merge.replace(" ", "")] = 256 + number
    end = {"id": 259, "content": "<|endoftext|>", "special": True, "single_word": False}
    end |= {"lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    document = {
        "version": "1.0",
        "added_tokens": [end],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, byte_level | {"use_regex": False}],
        },
        "post_processor": None,
        "decoder": byte_level | {"use_regex": False},
        "model": {"type": "BPE", "vocab": vocabulary | {"<|endoftext|>": 259}, "merges": merges},
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document))
    return load_tokenizer(path)
