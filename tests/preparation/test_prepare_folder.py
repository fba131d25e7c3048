"""The output folder of `prepare`: finished, foreign, busy, or left by another run."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive import (
    encode_bytes,
    make_expected,
)
from preparing import assert_same_files, files_in, make, make_mixed, small, write_documents

from tokenmill.dataset.verify import verify
from tokenmill.errors import FolderError, InputError


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "text.txt")


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        name: ((folder / name).stat().st_mtime_ns, (folder / name).read_bytes())
        for name in files_in(folder)
        if name != ".work/lock"
    }


def test_a_finished_folder_is_not_touched(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    first = make(text, out)
    before = snapshot(out)
    again = make(text, out)
    assert again.was_finished
    assert not first.was_finished
    assert again.manifest == first.manifest
    # How the work is done, and what to do about files that are not bad, change no byte.
    assert make(text, out, workers=2, memory=1 << 30, skip_bad_files=True).was_finished
    assert snapshot(out) == before
    assert not (out / ".work").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"val_fraction": 0.5}, "val_fraction was 0.01, is 0.5"),
        ({"eot": "none"}, "eot was 'after', is 'none'"),
        ({"dedup": "none"}, "dedup was 'documents', is 'none'"),
        ({"tokens_per_shard": 7}, "tokens_per_shard was 100000000, is 7"),
        ({"tokenizer": "gpt2"}, "tokenizer was"),
        ({"source": "other.txt"}, "the input was"),
        ({"grown": True}, "text.txt"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_another_dataset_is_refused_with_the_differences(
    tmp_path: Path, text: Path, change: dict[str, Any], named: str, finished: bool
) -> None:
    out = tmp_path / "out"
    (tmp_path / "other.txt").write_text("Another text altogether.")
    source: Any = text
    if not finished:
        (tmp_path / "bad.txt.gz").write_bytes(b"no gzip")
        source = [text, tmp_path / "bad.txt.gz"]
        with pytest.raises(InputError):
            make(source, out)
    else:
        make(source, out)
    before = snapshot(out)
    change = dict(change)
    if "source" in change:
        source = tmp_path / change.pop("source")
    if change.pop("grown", None):
        with text.open("a") as file:
            file.write("more")
    with pytest.raises(FolderError, match=named) as caught:
        make(source, out, **change)
    assert "`restart=True`" in str(caught.value)
    assert snapshot(out) == before
    if finished:
        assert not (out / ".work").exists()
        make(source, out, restart=True, **change)
        make(source, tmp_path / "fresh", **change)
        assert_same_files(out, tmp_path / "fresh")


def test_a_restart_starts_over_and_keeps_files_of_the_user(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    make(text, out, tokens_per_shard=100)
    (out / "notes.txt").write_text("mine")
    before = (out / "train" / "shard_00000.bin").stat().st_ino
    report = make(text, out, tokens_per_shard=1000, restart=True)
    assert not report.was_finished
    assert (out / "train" / "shard_00000.bin").stat().st_ino != before
    assert (out / "notes.txt").read_text() == "mine"
    assert len(report.manifest.splits["train"].shards) == 2


def test_a_folder_with_other_files_is_refused_and_unchanged(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    (out / "sub").mkdir(parents=True)
    (out / "thesis.tex").write_text("mine")
    for options in ({}, {"restart": True}):
        with pytest.raises(FolderError, match=r"thesis\.tex"):
            make(text, out, **options)
        assert files_in(out) == ["thesis.tex"]
        assert sorted(os.listdir(out)) == ["sub", "thesis.tex"]
    with pytest.raises(FolderError, match="is a file"):
        make(text, text)


def test_a_second_run_is_refused_while_one_holds_the_folder(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    (out / ".work").mkdir(parents=True)
    with (out / ".work" / "lock").open("w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        for restart in (False, True):
            with pytest.raises(FolderError, match=r"Another run.*process 4711"):
                make(text, out, restart=restart)
        lock.seek(0)
        lock.write("²³²³")  # digits that are not ASCII
        lock.flush()
        with pytest.raises(FolderError, match=r"Another run is working in [^(]*$"):
            make(text, out)
    make(text, out)
    assert verify(out) == []


@pytest.mark.parametrize("dedup", ["documents", "lines"])
def test_a_run_resumed_after_repairing_a_file_equals_a_clean_run(
    tmp_path: Path, dedup: str
) -> None:
    paths = make_mixed(tmp_path / "in")
    sound = (tmp_path / "in" / "c.jsonl.gz").read_bytes()
    limits = small(part=30_000)
    options: dict[str, Any] = {"dedup": dedup, "tokens_per_shard": 50_000, "limits": limits}
    make(tmp_path / "in", tmp_path / "clean", **options)
    (tmp_path / "in" / "c.jsonl.gz").write_bytes(sound[: len(sound) // 2])
    with pytest.raises(InputError, match=r"1 file could not be read.*\n.*c\.jsonl\.gz.*short"):
        make(tmp_path / "in", tmp_path / "out", **options)
    assert not (tmp_path / "out" / "dataset_metadata.json").exists()
    shutil.copytree(tmp_path / "out", tmp_path / "skipped")
    skipped = make(tmp_path / "in", tmp_path / "skipped", skip_bad_files=True, **options)
    (tmp_path / "in" / "c.jsonl.gz").write_bytes(sound)
    report = make(tmp_path / "in", tmp_path / "out", **options)
    assert_same_files(tmp_path / "clean", tmp_path / "out")
    if dedup == "documents":
        assert report.parts_done_before == report.parts - 1
        assert skipped.parts_done_before == skipped.parts - 1
    listed = skipped.manifest.ledger["set_aside"]
    assert [entry["source"] for entry in listed] == [str(tmp_path / "in" / "c.jsonl.gz")]
    assert "cut short" in listed[0]["reason"]
    left = [path for path in paths if path.name != "c.jsonl.gz"]
    expected = make_expected(left, encode=encode_bytes, eot_id=256, dedup=dedup)
    for split in ("train", "val"):
        found = np.concatenate(
            [
                np.fromfile(tmp_path / "skipped" / shard.path, "<u2")
                for shard in skipped.manifest.splits[split].shards
            ]
            or [np.zeros(0, "<u2")]
        )
        assert found.tolist() == expected.tokens[split]
    assert verify(tmp_path / "skipped") == []
