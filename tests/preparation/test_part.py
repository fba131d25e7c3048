"""part.py: many files in one part, some of them bad."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import tokenmill
from tokenmill.errors import InputError
from tokenmill.preparation.part import PartReader, PartTask
from tokenmill.preparation.plan import make_plan


def make_files(folder: Path, count: int) -> list[str]:
    """Compressed files of two documents each; every third is cut short. Returns the good texts."""
    good = []
    for number in range(count):
        texts = [f"text {number}", f"more {number}"]
        data = gzip.compress("<|endoftext|>".join(texts).encode())
        bad = number % 3 == 0
        (folder / f"{number:04}.txt.gz").write_bytes(data[:-9] if bad else data)
        good += [] if bad else texts
    return good


def test_bad_files_of_a_part_are_skipped_in_one_pass(tmp_path: Path) -> None:
    good = make_files(tmp_path, 30)
    plan = make_plan(tmp_path, tmp_path / "out", tokenizer="bytes")
    (part,) = plan.parts
    skipped: dict[int, str] = {}
    reader = PartReader(PartTask.of(plan, part, tmp_path), skipped)
    texts = [text.decode() for part_chunk in reader for text in part_chunk.chunk.texts]
    assert texts == good
    assert sorted(skipped) == list(range(0, 30, 3))
    assert all("cut short" in reason for reason in skipped.values())
    assert len(reader.lines) == 20


def test_bad_files_among_small_ones_are_all_named_or_skipped(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    good = make_files(folder, 12)
    with pytest.raises(InputError, match=r"4 files could not be read(.|\n)*0009\.txt\.gz"):
        tokenmill.prepare(folder, out, tokenizer="bytes", val_fraction=0)
    report = tokenmill.prepare(folder, out, tokenizer="bytes", val_fraction=0, skip_bad_files=True)
    assert len(report.manifest.ledger["set_aside"]) == 4
    train = tokenmill.open(out)["train"]
    found = [
        bytes(train[one.start : one.start + one.length - 1].tolist()).decode()
        for one in train.documents
    ]
    assert found == good
    assert [Path(one.source.path).name for one in train.documents][:2] == ["0001.txt.gz"] * 2
