"""estimate.py: what it foretells is near what comes to pass, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from in_process import in_process

import tokenmill
from tokenmill.preparation.estimate import estimate
from tokenmill.preparation.prepare import Mill


@pytest.mark.parametrize("dedup", ["documents", "lines"])
def test_an_estimate_is_near_what_is_made_of_uniform_text(tmp_path: Path, dedup: str) -> None:
    rows = [json.dumps({"text": f"Row {n}: some words that make a document."}) for n in range(9000)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    (tmp_path / "bad.txt.gz").write_bytes(b"no gzip")
    inputs = [tmp_path / "a.jsonl", tmp_path / "bad.txt.gz"]
    out = tmp_path / "out"
    options = {"tokenizer": "bytes", "workers": 1, "dedup": dedup}
    with in_process(part=50_000, block=20_000):
        told = estimate(Mill(inputs, out, **options))
        assert not out.exists()
        made = tokenmill.prepare(inputs, out, skip_bad_files=True, **options)
    assert told.files == 2
    assert told.parts == made.parts
    assert told.documents == pytest.approx(9000, rel=0.1)
    assert told.tokens == pytest.approx(made.manifest.ledger["tokens"], rel=0.1)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    assert told.disk == pytest.approx(size, rel=0.1)
    assert told.seconds > 0
    assert told.memory > 0


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.txt.gz").write_bytes(b"no gzip")
    told = estimate(Mill(tmp_path / "bad.txt.gz", tmp_path / "out", tokenizer="bytes", workers=1))
    assert "bad.txt.gz" in told.faults[0]
    assert told.tokens == 0


def test_every_file_that_a_run_would_refuse_is_named_not_only_those_sampled(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(50):
        (folder / f"{number:02}.txt").write_text("some words")
    (folder / "17.txt").write_text("wide", encoding="utf-16")
    (folder / "33.json").write_text('[\n{"text": "a"}\n]')
    (folder / "35.parquet").write_bytes(b"no footer")
    options = {"tokenizer": "bytes", "workers": 1, "skip_bad_files": True}
    told = estimate(Mill(folder, tmp_path / "out", **options))
    with in_process():
        made = tokenmill.prepare(folder, tmp_path / "out", **options)
    refused = [entry["source"] for entry in made.manifest.ledger["set_aside"]]
    assert len(refused) == 3
    assert [fault.partition(": ")[0] for fault in told.faults] == refused


def test_empty_files_are_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    told = estimate(Mill(tmp_path / "a.txt", tmp_path / "out", tokenizer="bytes", workers=1))
    assert (told.bytes, told.tokens) == (0, 0)
