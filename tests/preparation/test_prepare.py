"""`prepare` from files to files, against a slow and obvious implementation."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
import zstandard
from inputs import make_inputs
from naive import (
    END,
    check_dataset,
    encode_bytes,
    encode_gpt2,
    make_expected,
)
from preparing import assert_same_files, make, make_in_workers, make_mixed, small, write_documents

from tokenmill.dataset.verify import verify
from tokenmill.errors import InputError, UsageError
from tokenmill.tokenizers import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return load_tokenizer("gpt2")


@pytest.fixture
def no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk is most of the time that tiny shards take."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "text.txt")


SEPARATORS = {"auto": END, "file": None, "line": b"\n", "blank-line": b"", "##": b"##", "aa": b"aa"}


@pytest.mark.parametrize("seed", range(40))
def test_random_inputs_match_the_naive_implementation(
    tmp_path: Path, seed: int, gpt2: Tokenizer, no_flush: None
) -> None:
    chance = random.Random(seed)
    dedup = chance.choice(["documents", "lines", "none"])
    # Half a line is never removed. Blocks are longer than any line here, so no line is cut.
    paths = make_inputs(tmp_path, chance, short_lines=dedup == "lines")
    block = chance.choice([300, 1000] if dedup == "lines" else [8, 16, 50, 300])
    documents = chance.choice(list(SEPARATORS))
    settings: dict[str, Any] = {
        "normalize": chance.random() < 0.7,
        "dedup": dedup,
        "val_fraction": chance.choice([0, 0.3, 0.9]),
        "eot": chance.choice(["after", "before", "none"]),
        "on_bad_text": chance.choice(["repair", "drop"]),
        "min_line": chance.choice([1, 3, 10, 20]),
    }
    if dedup == "lines":
        # The lines of a dropped document in fragments count as seen, and there are many here.
        settings["on_bad_text"] = "repair"
    tokens_per_shard = chance.choice([7, 50, 200, 10**6])
    by_bytes = chance.random() < 0.6
    expected = make_expected(
        paths,
        encode=encode_bytes if by_bytes else encode_gpt2,
        eot_id=256 if by_bytes else 50256,
        separator=SEPARATORS[documents],
        **settings,
    )
    limits = small(
        part=chance.choice([16, 40, 100, 1000]), block=block, keys=chance.choice([3, 20, None])
    )
    options = {"documents": documents, "tokens_per_shard": tokens_per_shard, **settings}
    tokenizer = "bytes" if by_bytes else gpt2
    if not any(expected.documents.values()):
        with pytest.raises(InputError, match="No document was kept"):
            make(paths, tmp_path / "out", limits=limits, tokenizer=tokenizer, **options)
        return
    make(paths, tmp_path / "out", limits=limits, tokenizer=tokenizer, **options)
    check_dataset(tmp_path / "out", expected, paths, tokens_per_shard)
    assert verify(tmp_path / "out") == []


def test_any_number_of_workers_lists_bad_documents_in_the_same_order(tmp_path: Path) -> None:
    for name in "abc":
        texts = (f"caf\xe9 {name}{n}\nand more" for n in range(400))
        text = "<|endoftext|>".join(texts)
        (tmp_path / f"{name}.txt").write_text(text, encoding="latin-1")
    for workers in (1, 3):
        limits = small(part=2_000)
        make_in_workers(
            tmp_path / "*.txt", tmp_path / f"out{workers}", workers=workers, limits=limits
        )
    assert_same_files(tmp_path / "out1", tmp_path / "out3")
    listed = (tmp_path / "out1" / "repaired.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in listed] == list(range(1, 401)) * 3


def test_a_zstd_window_counts_against_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    parameters = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path.write_bytes(packer.compress(b"some words") + packer.flush())
    with pytest.raises(InputError, match=r"a\.txt\.zst was compressed with a window") as refused:
        make(path, tmp_path / "out", skip_bad_files=True)
    (memory,) = re.findall(r"`memory=(\d+)`", str(refused.value))
    report = make(path, tmp_path / "out", skip_bad_files=True, memory=int(memory))
    assert report.manifest.ledger["documents_kept"] == 1


@pytest.mark.parametrize("dedup", ["documents", "lines"])
def test_any_number_of_workers_writes_the_same_bytes(tmp_path: Path, dedup: str) -> None:
    paths = make_mixed(tmp_path / "in")
    settings: dict[str, Any] = {"dedup": dedup, "val_fraction": 0.2}
    for workers in (1, 2, 3):
        report = make_in_workers(
            tmp_path / "in",
            tmp_path / f"out{workers}",
            tokenizer="gpt2",
            limits=small(part=20_000),
            workers=workers,
            tokens_per_shard=30_000,
            **settings,
        )
        assert report.parts > 15
        assert not report.was_finished
    assert_same_files(tmp_path / "out1", tmp_path / "out2")
    assert_same_files(tmp_path / "out1", tmp_path / "out3")
    expected = make_expected(paths, encode=encode_gpt2, eot_id=50256, **settings)
    expected.dropped["not a JSON object"] = expected.dropped.pop("odd")
    manifest = check_dataset(tmp_path / "out1", expected, paths, 30_000)
    assert manifest["dtype"] == "uint16"
    assert len(manifest["splits"]["train"]["shards"]) > 2
    assert verify(tmp_path / "out1") == []
    assert not (tmp_path / "out1" / ".work").exists()


def test_a_run_that_keeps_nothing_reports_what_was_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "x"}\n{"body": "y"}\n')
    with pytest.raises(InputError, match="No document was kept out of 2") as caught:
        make(path, tmp_path / "out")
    assert "no field 'text': 2" in str(caught.value)
    assert "line 1" in str(caught.value)
    assert "`text_field=NAME`" in str(caught.value)
    assert not (tmp_path / "out" / "dataset_metadata.json").exists()
    assert make(path, tmp_path / "other", text_field="body").manifest.splits["train"].documents == 2
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "blank.txt").write_bytes(b" \n\n ")
    with pytest.raises(InputError, match="empty: 2") as caught:
        make([tmp_path / "empty.txt", tmp_path / "blank.txt"], tmp_path / "out3")
    assert "text_field" not in str(caught.value)


def test_invalid_arguments_are_named_before_any_work(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    for options, message in [
        ({"workers": 0}, "`workers` is 0"),
        ({"memory": 1000}, "`memory` is 1,000 bytes"),
        ({"tokens_per_shard": 1e6}, "`tokens_per_shard` is 1000000.0"),
        ({"tokens_per_shard": "100"}, "`tokens_per_shard` is '100'"),
        ({"tokens_per_shard": 0}, "`tokens_per_shard` is 0"),
        ({"min_line": 2.5}, "`min_line` is 2.5"),
        ({"val_fraction": "0.1"}, "`val_fraction` is '0.1'"),
        ({"val_fraction": 1}, "`val_fraction` is 1"),
        ({"val_fraction": float("nan")}, "`val_fraction` is nan"),
        ({"normalize": "no"}, "`normalize` is 'no'"),
        ({"documents": None}, "`documents` is None"),
        ({"documents": ""}, "`documents` is empty"),
        ({"dedup": True}, "`dedup` is True"),
        ({"eot": "sometimes"}, "`eot` is 'sometimes'"),
    ]:
        with pytest.raises(UsageError, match=message):
            make(text, out, **options)
    with pytest.raises(InputError, match="No input"):
        make([], out)
    with pytest.raises(InputError, match=r"Did you mean .*text\.txt"):
        make(tmp_path / "texts.txt", out)
    assert not out.exists()


def test_an_output_folder_inside_the_input_folder_is_not_read(tmp_path: Path, text: Path) -> None:
    first = make(tmp_path, tmp_path / "out")
    assert len(first.manifest.sources) == 1
    assert make(tmp_path, tmp_path / "out").was_finished


LONG_LINE = " ".join(f"number {n}" for n in range(60))
WITHIN_A_PART = {
    "NUL bytes": (b"some words, one NUL\0and more" + END + b"words", {"normalize": False}),
    "a long document after many short ones": (
        END.join([*(b"document %d" % n for n in range(12)), LONG_LINE.encode(), b"the end"]),
        {},
    ),
    "a line longer than a block": (
        f"{LONG_LINE}\nthis line comes twice in it\nother\nthis line comes twice in it".encode(),
        {"dedup": "lines"},
    ),
}


@pytest.mark.parametrize("case", WITHIN_A_PART)
def test_one_file_matches_the_naive_implementation(tmp_path: Path, case: str) -> None:
    data, settings = WITHIN_A_PART[case]
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    settings = {"val_fraction": 0, **settings}
    limits = small(part=16_000 if "dedup" in settings else 400, block=100)
    make(path, tmp_path / "out", limits=limits, tokens_per_shard=10_000, **settings)
    expected = make_expected([path], encode=encode_bytes, eot_id=256, **settings)
    check_dataset(tmp_path / "out", expected, [path], 10_000)
