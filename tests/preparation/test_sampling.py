"""Samples: chosen by the text alone, a small one part of a large one, and counted in the ledger."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import xxhash
from preparing import make, make_in_workers, small
from test_append import read

import tokenmill
from tokenmill.errors import UsageError
from tokenmill.inspect.where.where import where

END = "<|endoftext|>"


def write_texts(path: Path, count: int = 3000, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    texts = [f"Document {n} " + "with some words " * rng.randrange(9) for n in range(count)]
    texts = [text.strip() for text in texts]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(END.join([*texts, *texts[: count // 10]]))
    return texts


def mixed(text: str) -> int:
    """The hash that decides, written down again with Python's integers."""
    mask = 2**64 - 1
    x = (xxhash.xxh3_128_intdigest(text.encode()) >> 64) ^ int.from_bytes(b"samples\0", "big")
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & mask
    return x ^ x >> 31


def texts_in(folder: Path) -> dict[str, list[str]]:
    return {split: [text for text, _ in found] for split, found in read(folder).items()}


def test_a_sample_is_part_of_a_larger_one_and_of_the_whole(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "a.txt")
    found = {}
    for share in (0.01, 0.1, 0.5, 1.0):
        report = make(tmp_path / "a.txt", tmp_path / str(share), sample=share, val_fraction=0.2)
        found[share] = texts_in(tmp_path / str(share))
        expected = {text for text in texts if mixed(text) < share * 2**64}
        assert set(found[share]["train"] + found[share]["val"]) == expected
        assert abs(len(expected) - share * 3000) < 4 * (share * 3000) ** 0.5 + 1
        ledger = report.manifest.ledger
        copies = sum(text in expected for text in texts[:300])
        lost = ledger["dropped"].get("not sampled", {"documents": 0})["documents"]
        assert lost == 3300 - len(expected) - copies
        assert ledger["dropped"].get("duplicate", {"documents": 0})["documents"] == copies
        assert ("sample" in report.manifest.settings) == (share < 1)
    for less, more in ((0.01, 0.1), (0.1, 0.5), (0.5, 1.0)):
        for split in ("train", "val"):
            places = [found[more][split].index(text) for text in found[less][split]]
            assert places == sorted(places)


@pytest.mark.parametrize("dedup", ["documents", "none"])
def test_documents_that_span_chunks_and_parts_are_sampled_alike(tmp_path: Path, dedup: str) -> None:
    write_texts(tmp_path / "a.txt", 90)
    settings = {"sample": 0.3, "val_fraction": 0.2, "dedup": dedup, "exclude": False}
    make(tmp_path / "a.txt", tmp_path / "whole", **settings)
    report = make_in_workers(
        tmp_path / "a.txt",
        tmp_path / "cut",
        limits=small(part=100, block=16),
        workers=2,
        **settings,
    )
    whole = tokenmill.open(tmp_path / "whole").manifest
    assert read(tmp_path / "cut") == read(tmp_path / "whole")
    assert report.manifest.ledger == whole.ledger
    assert report.parts > 30
    assert tokenmill.verify(tmp_path / "cut") == []


@pytest.mark.parametrize("block", [16, 4 << 20])
def test_weights_are_shares_of_the_files_that_match(tmp_path: Path, block: int) -> None:
    """A document that is also in a file with a larger weight stays, from that file."""
    web = write_texts(tmp_path / "web" / "a.txt", 60)
    books = write_texts(tmp_path / "books" / "b.txt", 80)
    limits = small(part=200, block=block) if block == 16 else small()
    make(
        [tmp_path / "web", tmp_path / "books"],
        tmp_path / "out",
        sample=0.8,
        weight=["web/*=0.25", "*.txt=0.5"],
        val_fraction=0,
        limits=limits,
    )
    expected = [(text, 0) for text in web if mixed(text) < 0.2 * 2**64]
    there = {text for text, _ in expected}
    assert there
    expected += [(text, 1) for text in books if mixed(text) < 0.4 * 2**64 and text not in there]
    assert read(tmp_path / "out")["train"] == expected


def test_a_weight_of_zero_leaves_out_a_file(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.txt", 30)
    texts = write_texts(tmp_path / "b.txt", 30, seed=1)
    make(
        [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "out", weight="a.txt=0", val_fraction=0
    )
    assert read(tmp_path / "out")["train"] == [(text, 1) for text in texts]


def test_a_grown_sample_equals_a_larger_sample(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.txt", 500)
    make(tmp_path / "a.txt", tmp_path / "out", sample=0.1)
    make(tmp_path / "a.txt", tmp_path / "out", append=True, sample=0.4)
    make(tmp_path / "a.txt", tmp_path / "once", sample=0.4)
    grown, once = texts_in(tmp_path / "out"), texts_in(tmp_path / "once")
    assert {split: sorted(texts) for split, texts in grown.items()} == {
        split: sorted(texts) for split, texts in once.items()
    }
    assert tokenmill.open(tmp_path / "out").manifest.settings["sample"] == 0.4
    assert make(tmp_path / "a.txt", tmp_path / "out", append=True).added_documents == 0


def test_where_explains_a_document_that_is_not_in_the_sample(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "a.txt", 50)
    make(tmp_path / "a.txt", tmp_path / "out", weight=["a.txt=0.5"])
    place = 0
    for text in texts:
        found = where(tmp_path / "out", f"{tmp_path / 'a.txt'}:byte={place}")
        reasons = [absence.reason for absence in found.absences]
        assert reasons == ([] if mixed(text) < 2**63 else ["not sampled"])
        place += len(text) + len(END)


def test_samples_that_cannot_be_taken_are_refused(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.txt", 5)
    for settings, message in (
        ({"sample": 0}, "above 0, and at most 1"),
        ({"sample": 1.5}, "above 0, and at most 1"),
        ({"weight": ["a.txt=2"]}, "give the mixture weights"),
        ({"weight": ["a.txt"]}, "PATTERN=SHARE"),
        ({"weight": ["a.txt=nan"]}, "PATTERN=SHARE"),
        ({"weight": ["b.txt=0.5"]}, "matches no input file"),
        ({"sample": 0.5, "dedup": "lines"}, "cannot be combined with `dedup='lines'`"),
    ):
        with pytest.raises(UsageError, match=message):
            make(tmp_path / "a.txt", tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_an_unfinished_sample_is_resumed_only_with_the_same_shares(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "some words"}\n')
    (tmp_path / "b.txt.gz").write_bytes(b"\x1f\x8b broken")
    files = [tmp_path / "a.jsonl", tmp_path / "b.txt.gz"]
    with pytest.raises(tokenmill.TokenmillError, match="could not be read"):
        make(files, tmp_path / "out", weight=["a.jsonl=0.9"])
    with pytest.raises(tokenmill.TokenmillError, match=r"weight was \['a.jsonl=0.9'\], is"):
        make(files, tmp_path / "out", weight=["a.jsonl=0.8"])
    plan = json.loads((tmp_path / "out" / ".work" / "plan.json").read_text())
    assert plan["settings"]["weight"] == ["a.jsonl=0.9"]
