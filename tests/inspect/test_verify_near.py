"""`verify --near`: near duplicates in finished datasets, next to sets of words and all pairs."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tokenmill
from tokenmill.cli import main
from tokenmill.inspect.near import find_near_duplicates


def shingles(text: str) -> set[tuple[str, ...]]:
    words = text.lower().replace(".", " ").split()
    return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}


def write(path: Path, longest: int = 300) -> Path:
    chance = random.Random(5)
    texts = []
    for number in range(150):
        size = longest if number == 21 else chance.choice([2, 9, 60, 300])
        words = [f"{chance.choice('aeiouäß')}{chance.randrange(900)}" for _ in range(size)]
        texts.append(" ".join(words).capitalize())
        if number % 2:
            words[len(words) // 2 : len(words) // 2 + 1] = ["New", "words"]
            texts.append(" ".join(words))
    path.write_text("<|endoftext|>".join(texts))
    return path


def is_similar(one: set[Any], other: set[Any], threshold: float) -> bool:
    few, many = sorted((one, other), key=len)
    if not few or len(few) < threshold * len(many):
        return False
    shared = len(few & many)
    return shared >= threshold * (len(few) + len(many) - shared)


def expect(data: Path, threshold: float) -> Counter[tuple[str, str]]:
    sets: list[tuple[str, set[tuple[str, ...]]]] = []
    found: Counter[tuple[str, str]] = Counter()
    dataset = tokenmill.open(data)
    for split, tokens in dataset.items():
        for document in tokens.documents or ():
            ids = tokens[document.start : document.start + document.length]
            text = dataset.tokenizer.decode(ids[ids != dataset.eot_id])
            one = shingles(text)
            found.update(
                {(split, name) for name, other in sets if is_similar(one, other, threshold)}
            )
            sets.append((split, one))
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"tokenizer": "gpt2"},
        {"tokenizer": "bytes", "eot": "before", "tokens_per_shard": 5000},
        {"tokenizer": "bytes", "compress": "zstd"},
    ],
)
def test_counts_documents_that_resemble_others(tmp_path: Path, options: dict[str, Any]) -> None:
    # With one id per byte, the longest document is decoded in pieces.
    source = write(tmp_path / "a.txt", longest=60_000 if "compress" in options else 300)
    data = tmp_path / "data"
    tokenmill.prepare(source, data, dedup="none", val_fraction=0.3, workers=1, **options)
    found = find_near_duplicates(data)
    expected = expect(data, 0.8)
    assert {(one.split, one.other): one.documents for one in found.splits} == expected
    assert expected["val", "train"] > 5
    for one in found.splits:
        assert {(pair.split, pair.other_split) for pair in one.examples} == {(one.split, one.other)}
        assert all(pair.similarity >= 0.8 for pair in one.examples)
    assert found.compared < found.documents


def test_nothing_remains_after_near_deduplication(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, data = write(tmp_path / "a.txt"), tmp_path / "data"
    tokenmill.prepare(source, data, tokenizer="bytes", dedup="near", val_fraction=0.3, workers=1)
    assert not find_near_duplicates(data).splits
    assert main(["verify", str(data), "--near"]) == 0
    assert "near duplicates: none; " in capsys.readouterr().out
    assert main(["verify", str(data), "--near", "--near-threshold", "0.3"]) == 0


def test_documents_of_other_formats_are_found_by_their_end_of_text_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, data = write(tmp_path / "a.txt"), tmp_path / "data"
    tokenmill.prepare(source, data, dedup="none", val_fraction=0.3, workers=1)
    assert main(["verify", str(data), "--near"]) == 0
    shown = capsys.readouterr().out
    documents = expect(data, 0.8)["val", "train"]
    assert f"{documents} of val resemble a document of train, such as:" in shown
    tokenmill.export(data, tmp_path / "other", to="llmc")
    same = find_near_duplicates(tmp_path / "other", tokenizer="gpt2").splits
    assert {(one.split, one.other): one.documents for one in same} == expect(data, 0.8)


def test_where_names_the_document_that_a_near_duplicate_resembles(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(100)]
    (tmp_path / "a.txt").write_text(" ".join([*words, "one"]) + "\n" + " ".join([*words, "two"]))
    data = tmp_path / "data"
    options: dict[str, Any] = {"tokenizer": "bytes", "documents": "line", "val_fraction": 0}
    tokenmill.prepare(tmp_path / "a.txt", data, dedup="near", workers=1, **options)
    (kept,) = tokenmill.open(data)["train"].documents or ()
    source = tmp_path / "a.txt"
    (found,) = tokenmill.where(data, f"{source}:2").absences
    assert found.twins[0].document.key == kept.key
    place = source.read_text().index("\n") + 1
    source.unlink()  # now only the list of removed documents knows
    (listed,) = tokenmill.where(data, f"{source}:byte={place}").absences
    for absence in (found, listed):
        assert absence.reason == "near duplicate"
        assert f"the key {kept.key}; their similarity is 0.980" in absence.detail
