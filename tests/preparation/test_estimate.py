"""estimate.py: estimates are close to the result of a run, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from preparing import make, small

from tokenmill.preparation.estimate import estimate
from tokenmill.preparation.plan import make_plan


@pytest.mark.parametrize("dedup", ["documents", "lines"])
def test_an_estimate_is_near_what_is_made_of_uniform_text(tmp_path: Path, dedup: str) -> None:
    rows = [json.dumps({"text": f"Row {n}: some words that make a document."}) for n in range(9000)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    (tmp_path / "bad.txt.gz").write_bytes(b"no gzip")
    inputs = [tmp_path / "a.jsonl", tmp_path / "bad.txt.gz"]
    out = tmp_path / "out"
    limits = small(part=50_000, block=20_000)
    options = {"tokenizer": "bytes", "workers": 1, "dedup": dedup, "limits": limits}
    estimated = estimate(make_plan(inputs, out, **options))
    assert not out.exists()
    made = make(inputs, out, skip_bad_files=True, **options)
    assert estimated.files == 2
    assert estimated.parts == made.parts
    assert estimated.documents == pytest.approx(9000, rel=0.1)
    assert estimated.tokens == pytest.approx(made.manifest.ledger["tokens"], rel=0.1)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    assert estimated.disk == pytest.approx(size, rel=0.1)
    assert estimated.seconds > 0
    assert estimated.memory > 0


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.txt.gz").write_bytes(b"no gzip")
    estimated = estimate(
        make_plan(tmp_path / "bad.txt.gz", tmp_path / "out", tokenizer="bytes", workers=1)
    )
    assert "bad.txt.gz" in estimated.faults[0]
    assert estimated.tokens == 0


def test_every_file_that_a_run_would_refuse_is_named_not_only_those_sampled(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(50):
        (folder / f"{number:02}.txt").write_text("some words")
    (folder / "17.txt").write_text("wide", encoding="utf-16")
    (folder / "33.json").write_text('[\n{"text": "a"}\n]')
    (folder / "35.parquet").write_bytes(b"no footer")
    options = {"tokenizer": "bytes", "workers": 1, "skip_bad_files": True}
    estimated = estimate(make_plan(folder, tmp_path / "out", **options))
    made = make(folder, tmp_path / "out", **options)
    refused = [entry["source"] for entry in made.manifest.ledger["set_aside"]]
    assert len(refused) == 3
    assert [fault.partition(": ")[0] for fault in estimated.faults] == refused


def test_empty_files_are_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    estimated = estimate(
        make_plan(tmp_path / "a.txt", tmp_path / "out", tokenizer="bytes", workers=1)
    )
    assert (estimated.bytes, estimated.tokens) == (0, 0)
