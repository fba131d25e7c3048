"""estimate.py: estimates are close to the result of a run, and nothing is written."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from preparing import make, small

import tokenmill
from tokenmill.preparation.estimate import estimate
from tokenmill.preparation.plan import make_plan


@pytest.mark.parametrize("dedup", ["documents", "lines"])
def test_an_estimate_of_uniform_text_is_close(tmp_path: Path, dedup: str) -> None:
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


def test_every_file_that_a_run_would_refuse_is_named_even_if_not_sampled(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(50):
        (folder / f"{number:02}.txt").write_text("some words")
    (folder / "17.tar").write_text("no archive")
    (folder / "33.json").write_text('[\n{"text": "a"},\n{"text": "b"},\n')
    (folder / "35.parquet").write_bytes(b"no footer")
    options = {"tokenizer": "bytes", "workers": 1, "skip_bad_files": True}
    estimated = estimate(make_plan(folder, tmp_path / "out", **options))
    made = make(folder, tmp_path / "out", **options)
    refused = [entry["source"] for entry in made.manifest.ledger["set_aside"]]
    assert len(refused) == 3
    assert [fault.partition(": ")[0] for fault in estimated.faults] == refused


def test_empty_files_are_estimated_as_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    estimated = estimate(
        make_plan(tmp_path / "a.txt", tmp_path / "out", tokenizer="bytes", workers=1)
    )
    assert (estimated.bytes, estimated.tokens) == (0, 0)


WORDS = [
    f"{a}{b}" for a in ("th", "wh", "st", "qu", "br") for b in ("is", "at", "ere", "ing", "ost")
]


class Writer:
    """Makes text that never repeats, in several styles, always the same for a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def prose(self, size: int) -> str:
        words = self.random.choices(WORDS, k=size // 6)
        return " ".join(words) + f" {self.random.random()}"

    def code(self, size: int) -> str:
        lines = [
            f"    x_{self.random.randrange(10**6)} = {{'{self.random.choice(WORDS)}': {n}}}"
            for n in range(size // 32)
        ]
        return "\n".join(lines) + f"\n# {self.random.random()}\n"

    def numbers(self, size: int) -> str:
        return " ".join(str(self.random.getrandbits(60)) for _ in range(size // 19))

    def rows(self, texts: list[str]) -> bytes:
        return "\n".join(
            json.dumps({"id": n, "text": text}) for n, text in enumerate(texts)
        ).encode()


def books_and_scripts(folder: Path, write: Writer) -> None:
    for n in range(3):
        (folder / f"book{n}.txt").write_text(write.prose(3_000_000 + 10 * n))
    for n in range(900):
        (folder / f"s{n:04}.py").write_text(write.code(write.random.randrange(100, 6000)))
    texts = [write.numbers(write.random.randrange(50, 300)) for _ in range(9000)]
    (folder / "n.jsonl.gz").write_bytes(gzip.compress(write.rows(texts)))


def many_kinds(folder: Path, write: Writer) -> None:
    texts = [write.prose(write.random.randrange(20, 5000)) for _ in range(1500)]
    (folder / "a.jsonl.zst").write_bytes(zstandard.compress(write.rows(texts)))
    same = ["word " * 2000 + str(n) for n in range(600)]  # shrinks to nothing
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(write.rows(same)))
    (folder / "c.jsonl").write_bytes(write.rows([write.numbers(400) for _ in range(4000)]))
    (folder / "d.txt.bz2").write_bytes(bz2.compress(write.prose(900_000).encode()))
    documents = "<|endoftext|>".join(write.prose(300) for _ in range(3000))
    (folder / "e.txt.xz").write_bytes(lzma.compress(documents.encode(), preset=0))
    (folder / "f.txt").write_text("<|endoftext|>".join(write.code(700) for _ in range(2500)))
    short, long = [write.prose(40) for _ in range(5000)], [write.code(9000) for _ in range(150)]
    table = pa.table({"text": short + long, "id": list(range(5150))})
    pq.write_table(table, folder / "g.parquet", row_group_size=500)
    for n in range(400):
        (folder / f"h{n:03}.txt.gz").write_bytes(gzip.compress(write.prose(800).encode()))


def one_large_among_many_small(folder: Path, write: Writer) -> None:
    for n in range(2000):
        (folder / f"{n:04}.md").write_text(write.prose(60))
    (folder / "large.jsonl").write_bytes(write.rows([write.code(3000) for _ in range(2500)]))
    (folder / "empty.txt").write_bytes(b"")


@pytest.mark.parametrize("make", [books_and_scripts, many_kinds, one_large_among_many_small])
def test_an_estimate_of_a_mixed_folder_is_within_a_tenth(tmp_path: Path, make) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    make(folder, Writer(5))
    estimated = estimate(make_plan(folder, tmp_path / "out"))
    made = tokenmill.prepare(folder, tmp_path / "out").manifest.ledger
    assert estimated.documents == pytest.approx(made["documents_kept"], rel=0.1)
    assert estimated.tokens == pytest.approx(made["tokens"], rel=0.1)
    assert not estimated.faults
