"""`prepare --language`: documents in other languages are dropped, and languages are counted."""

from __future__ import annotations

import json
from pathlib import Path

import py3langid
import pytest
from preparing import assert_same_files, make, make_in_workers, small

from tokenmill.errors import UsageError
from tokenmill.preparation.language_judge import take_sample

TEXTS = {
    "en": "The weather was fine, and so the whole family went down to the river to swim and to eat.",
    "de": "Das Wetter war schön, und so ging die ganze Familie zum Fluss, um zu schwimmen und zu essen.",
    "fr": "Il faisait beau, et toute la famille est allée à la rivière pour nager et pour manger.",
    "ru": "Погода была хорошая, и вся семья пошла к реке, чтобы поплавать и поесть.",
    "ja": "天気が良かったので、家族みんなで川へ泳ぎに行き、そこで昼ご飯を食べました。",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    documents = [
        f"{text} {number}. " * (number % 5 + 1) for number in range(40) for text in TEXTS.values()
    ]
    documents.append(f"{TEXTS['fr']}\n" * 300)
    path = tmp_path / "in.txt"
    path.write_text("<|endoftext|>".join(documents))
    return path


def test_languages(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    make(source, out, limits=small(part=4000, block=900), language="en,de")
    make_in_workers(source, tmp_path / "other", language=["en", "de"], workers=2)
    manifest = json.loads((out / "dataset_metadata.json").read_bytes())
    ledger = manifest["ledger"]
    assert ledger["dropped"]["language"]["documents"] == 121
    assert ledger["counts"] == {f"language {name}": 41 if name == "fr" else 40 for name in TEXTS}
    assert manifest["settings"]["language"] == ["en", "de"]
    assert manifest["settings"]["language_library"] == f"py3langid {py3langid.__version__}"
    assert_same_files(out, tmp_path / "other")
    listed = [json.loads(line) for line in (out / "dropped.jsonl").read_text().splitlines()]
    assert {one["value"] for one in listed} == {"fr", "ru", "ja"}


def test_any_language_is_only_counted(tmp_path: Path, source: Path) -> None:
    report = make(source, tmp_path / "out", language="any")
    assert report.manifest.ledger["dropped"] == {}
    assert sum(report.manifest.ledger["counts"].values()) == 201


def test_unknown_languages_are_refused(tmp_path: Path, source: Path) -> None:
    with pytest.raises(UsageError, match=r"'elvish'; it must be any or a code .* en, "):
        make(source, tmp_path / "out", language="en,elvish")


def test_samples_have_whole_characters() -> None:
    text = "日本語é" * 500
    sample = take_sample(text.encode())
    assert len(sample) < 800
    assert all(piece in text for piece in sample.decode().split("\n"))
    assert take_sample(b"short") == b"short"
