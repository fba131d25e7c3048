"""What a run that adds to a dataset inherits, and what it refuses; samples with filters and near duplicates."""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from preparing import make, make_in_workers, small
from test_append import read
from test_sampling import mixed

import tokenmill
from tokenmill.errors import UsageError
from tokenmill.inspect.where.where import where

END = "<|endoftext|>"
QUESTION = "which of these seven rivers flows past the old mill before it reaches the northern sea"


def write_alike(path: Path) -> list[str]:
    """Write documents of which many are equal or nearly equal to an earlier one. Returns the texts."""
    rng = random.Random(1)
    texts = []
    for _ in range(60):
        words = [f"word{rng.randrange(300)}" for _ in range(rng.randrange(5, 120))]
        texts.append(" ".join(words))
        if rng.random() < 0.5:
            words[rng.randrange(len(words))] += " changed" * (len(words) > 60)
            texts.append(" ".join(words))
    path.write_text(END.join(texts))
    return texts


def test_documents_that_are_not_sampled_decide_about_no_other(tmp_path: Path) -> None:
    """A sample equals a dataset of the sampled texts alone, also if all documents span parts."""
    texts = write_alike(tmp_path / "all.txt")
    chosen = [text for text in texts if mixed(text) < 0.6 * 2**64]
    (tmp_path / "chosen.txt").write_text(END.join(chosen))
    settings = {"dedup": "near", "filter": ["min_words=20"], "val_fraction": 0.2, "exclude": False}
    alone = make(tmp_path / "chosen.txt", tmp_path / "alone", **settings).manifest
    tiny = small(part=400, block=64, keys=20)
    settings["sample"] = 0.6
    sampled = make_in_workers(
        tmp_path / "all.txt", tmp_path / "sampled", limits=tiny, workers=2, **settings
    ).manifest
    assert read(tmp_path / "sampled") == read(tmp_path / "alone")
    dropped = dict(sampled.ledger["dropped"])
    assert dropped.pop("not sampled")["documents"] == len(texts) - len(chosen)
    assert dropped == alone.ledger["dropped"]
    assert {"filter min_words", "near duplicate"} <= dropped.keys()
    assert tokenmill.verify(tmp_path / "sampled") == []


def test_filters_and_evaluation_texts_are_those_of_the_dataset(tmp_path: Path) -> None:
    (tmp_path / "evaluation.jsonl").write_text(json.dumps({"text": QUESTION}))
    for number in (1, 2):
        texts = [f"short {number}", f"part {number}: {QUESTION}", f"{number} " + "plain words " * 9]
        (tmp_path / f"{number}.txt").write_text(END.join(texts))
    given = {"decontaminate": [tmp_path / "evaluation.jsonl"]}
    make(tmp_path / "1.txt", tmp_path / "data", filter="min_words=5", val_fraction=0, **given)
    with pytest.raises(UsageError, match="other evaluation texts"):
        make(tmp_path / "2.txt", tmp_path / "data", append=True)
    (tmp_path / "others.jsonl").write_text(json.dumps({"text": QUESTION.replace("old", "new")}))
    with pytest.raises(UsageError, match="other evaluation texts"):
        make(
            tmp_path / "2.txt",
            tmp_path / "data",
            append=True,
            decontaminate=[tmp_path / "others.jsonl"],
        )
    make(tmp_path / "1.txt", tmp_path / "plain", val_fraction=0)
    with pytest.raises(UsageError, match=r"without evaluation texts\. Omit `decontaminate`"):
        make(tmp_path / "2.txt", tmp_path / "plain", append=True, **given)
    report = make(tmp_path / "2.txt", tmp_path / "data", append=True, **given)
    assert report.added_documents == 1
    dropped = report.manifest.ledger["dropped"]
    assert {reason: entry["documents"] for reason, entry in dropped.items()} == {
        "contains evaluation text": 2,
        "filter min_words": 2,
    }
    assert report.manifest.ledger["counts"]["contaminated_documents"] == 2
    assert report.manifest.ledger["evaluation"]["texts"] == 1
    assert {path.name for path in (tmp_path / "data").glob("*_2.jsonl")} == {
        "sources_2.jsonl",
        "dropped_2.jsonl",
        "contaminated_2.jsonl",
    }
    assert tokenmill.verify(tmp_path / "data") == []
    for text, reason in (("short 2", "filter min_words"), (QUESTION, "contains evaluation text")):
        byte = (tmp_path / "2.txt").read_text().index(text)
        (absence,) = where(tmp_path / "data", f"{tmp_path / '2.txt'}:byte={byte}").absences
        assert absence.reason == reason


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dedup": "near"}, "made with `dedup='near'`.*into a new folder"),
        ({"keep_fields": "id"}, "made with `keep_fields='id'`.*into a new folder"),
    ],
)
def test_datasets_that_cannot_grow_are_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one", "id": 1}\n{"text": "two", "id": 2}\n')
    make(tmp_path / "a.jsonl", tmp_path / "data", **settings)
    before = (tmp_path / "data" / "dataset_metadata.json").read_bytes()
    with pytest.raises(UsageError, match=message):
        make(tmp_path / "a.jsonl", tmp_path / "data", append=True)
    assert (tmp_path / "data" / "dataset_metadata.json").read_bytes() == before


@pytest.mark.parametrize("settings", [{"dedup": "near"}, {"keep_fields": "id"}])
def test_a_dataset_does_not_change_its_settings_as_it_grows(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one", "id": 1}\n')
    make(tmp_path / "a.jsonl", tmp_path / "data", val_fraction=0)
    with pytest.raises(UsageError, match=f"other settings: {next(iter(settings))}"):
        make(tmp_path / "a.jsonl", tmp_path / "data", append=True, **settings)


def test_functions_that_only_a_manifest_names_are_not_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "own_filter_of_a_dataset.py"
    module.write_text("def keep(texts):\n    return [len(text) > 3 for text in texts]\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = "own_filter_of_a_dataset:keep"
    (tmp_path / "a.txt").write_text("long enough")
    (tmp_path / "b.txt").write_text(f"no{END}also long")
    make(tmp_path / "a.txt", tmp_path / "data", filter=name, val_fraction=0)
    with pytest.raises(UsageError, match=r"not called: give all filters.*own_filter"):
        make(tmp_path / "b.txt", tmp_path / "data", append=True)
    report = make(tmp_path / "b.txt", tmp_path / "data", append=True, filter=name)
    assert report.added_documents == 1
    module.write_text("def keep(texts):\n    return [True for text in texts]\n")
    importlib.reload(importlib.import_module(module.stem))
    with pytest.raises(UsageError, match="other code in the functions of `filter`"):
        make(tmp_path / "b.txt", tmp_path / "data", append=True, filter=name)


def test_standard_input_is_not_added(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    make(tmp_path / "a.txt", tmp_path / "data")
    before = (tmp_path / "data" / "dataset_metadata.json").read_bytes()
    with pytest.raises(UsageError, match="Standard input cannot be added"):
        tokenmill.prepare("-", tmp_path / "data", append=True, restart=True)
    assert (tmp_path / "data" / "dataset_metadata.json").read_bytes() == before
