"""Lists of excluded documents in a bucket: for datasets there, and for local ones."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_remote_outputs import list_files

import tokenmill
from tokenmill.errors import FolderError, UsageError
from tokenmill.preparation.edit_exclusions import add_exclusions
from tokenmill.preparation.exclusion import Exclusion, find_list, read_exclusions
from tokenmill.preparation.folder import PreparationFolder
from tokenmill.preparation.plan import make_plan
from tokenmill.storage.object_path import as_path

OPTIONS = {"tokenizer": "bytes", "val_fraction": 0.2, "tokens_per_shard": 900, "workers": 1}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "a.jsonl"
    lines = [json.dumps({"text": f"Text {n} " + "word " * (n % 40)}) for n in range(100)]
    path.write_text("\n".join(lines))
    return path


def test_a_dataset_in_a_bucket_has_its_list_beside_it(
    texts: Path, bucket: str, tmp_path: Path
) -> None:
    tokenmill.prepare(texts, tmp_path / "data", **OPTIONS)
    tokenmill.prepare(texts, f"{bucket}/data", **OPTIONS)
    made = tokenmill.exclude(f"{bucket}/data", search="Text 7")
    assert str(made.path) == f"{bucket}/data.exclude.jsonl"
    local = tokenmill.exclude(tmp_path / "data", search="Text 7")
    assert local.added == made.added == 11
    assert made.path.read_bytes() == local.path.read_bytes()
    tokenmill.exclude(f"{bucket}/data", "a.jsonl:1")
    gone = tokenmill.exclude(f"{bucket}/data", undo=[entry.key for entry in made][-1])
    assert gone.removed == 1
    tokenmill.reshard(tmp_path / "data", tmp_path / "clean")
    tokenmill.reshard(f"{bucket}/data", f"{bucket}/clean")
    assert list_files(f"{bucket}/clean") == list_files(tmp_path / "clean")
    # Inputs, output and list in the bucket.
    as_path(f"{bucket}/in/a.jsonl").write_bytes(texts.read_bytes())
    as_path(f"{bucket}/in/b.exclude.jsonl").write_bytes(b'{"text": "not an input"}')
    listed = find_list(f"{bucket}/data")
    theirs = tokenmill.prepare(f"{bucket}/in", f"{bucket}/next", exclude=listed, **OPTIONS)
    mine = tokenmill.prepare(texts, tmp_path / "next", exclude=listed, **OPTIONS)
    assert mine.manifest.settings == theirs.manifest.settings
    assert mine.manifest.splits == theirs.manifest.splits
    assert mine.manifest.ledger == theirs.manifest.ledger
    assert mine.manifest.ledger["dropped"]["excluded"]["documents"] == 11


def test_changes_at_the_same_time_lose_no_entry(bucket: str) -> None:
    path = as_path(f"{bucket}/list.jsonl")

    def add(name: int) -> None:
        for number in range(5):
            add_exclusions(path, [Exclusion(key=f"{name:016x}{number:016x}")])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert len(read_exclusions(path)) == 20


def test_an_unfinished_run_in_a_bucket_keeps_its_list(
    texts: Path, bucket: str, tmp_path: Path
) -> None:
    """There is no lock in a bucket, so another list could mix the shards of two runs."""
    listed = tmp_path / "list"
    listed.write_text('{"key": "' + "0" * 32 + '"}')
    out = as_path(f"{bucket}/out")
    plan = make_plan(texts, out, exclude=False, **OPTIONS)
    with PreparationFolder(out, restart=False, work=tmp_path / "work") as folder:
        folder.remember_plan(plan)
    with pytest.raises(FolderError, match="exclude was None, is"):
        tokenmill.prepare(texts, out, exclude=listed, **OPTIONS)
    assert tokenmill.prepare(texts, out, exclude=listed, restart=True, **OPTIONS).parts == 1


def test_a_web_server_cannot_be_written_to(
    texts: Path, bucket: str, website: str, tmp_path: Path
) -> None:
    tokenmill.prepare(texts, f"{bucket}/data", **OPTIONS)
    with pytest.raises(UsageError, match="`out=FILE`"):
        tokenmill.exclude(f"{website}/data", "a.jsonl:1")
    listed = tmp_path / "list"
    assert tokenmill.exclude(f"{website}/data", "a.jsonl:1", out=listed).added == 1
    made = tokenmill.reshard(f"{website}/data", tmp_path / "out", exclude=listed)
    assert made.ledger["dropped"]["excluded"]["documents"] == 1
