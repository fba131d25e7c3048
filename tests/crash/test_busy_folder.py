"""Two runs into one folder: one works, the other is refused, and neither is harmed."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from runs import contents, make_corpus, run, start, wait_until


def test_second_run_into_a_folder_is_refused_and_the_first_unharmed(tmp_path: Path) -> None:
    corpus, out = make_corpus(tmp_path / "texts", plain=1 << 20), tmp_path / "out"
    settings = ("--tokenizer", "bytes", "--workers", "2")
    first = start("prepare", corpus, "--out", out, *settings)
    assert wait_until((out / ".work" / "plan.json").exists)
    for more in ((), ("--restart",)):
        os.kill(first.pid, signal.SIGSTOP)  # a slow one
        second = run("prepare", corpus, "--out", out, *settings, *more)
        os.kill(first.pid, signal.SIGCONT)
        assert second.returncode == 1
        assert f"Another run is working in {out} (process {first.pid})" in second.stderr
        assert second.stderr.count("\n") == 1
    first.communicate(timeout=60)
    assert first.returncode == 0
    again = tmp_path / "again"
    assert run("prepare", corpus, "--out", again, *settings).returncode == 0
    assert contents(out) == contents(again)


def test_refused_run_leaves_a_finished_dataset_as_it_was(tmp_path: Path) -> None:
    text, out = tmp_path / "x.txt", tmp_path / "out"
    text.write_text("one")
    settings = ("--tokenizer", "bytes", "--workers", "1")
    assert run("prepare", text, "--out", out, *settings).returncode == 0
    made = contents(out)
    other = run("prepare", text, "--out", out, *settings, "--eot", "before")
    assert other.returncode == 1
    assert f"{out} holds a finished dataset that was made differently" in other.stderr
    assert "eot was 'after', is 'before'" in other.stderr
    assert contents(out) == made


@pytest.mark.parametrize("where", ["file/out", "file"])
def test_folder_that_cannot_be_created_is_an_error_without_a_traceback(
    tmp_path: Path, where: str
) -> None:
    text = tmp_path / "file"
    text.write_text("one")
    said = run("prepare", text, "--out", tmp_path / where, "--tokenizer", "bytes")
    assert said.returncode == 1
    assert str(tmp_path / where) in said.stderr
    assert "Traceback" not in said.stderr


def test_folder_without_permission_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    said = run(
        "prepare", __file__, "--out", "/proc/out", "--tokenizer", "bytes", cwd=os.fspath(tmp_path)
    )
    assert said.returncode == 1
    assert "/proc/out" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_finished_dataset_with_a_missing_shard_is_refused(tmp_path: Path) -> None:
    text, out = tmp_path / "x.txt", tmp_path / "out"
    text.write_text("one")
    command = ("prepare", text, "--out", out, "--tokenizer", "bytes", "--workers", "1")
    assert run(*command).returncode == 0
    made = contents(out)
    (out / "train" / "shard_00000.bin").write_bytes(b"o")
    said = run(*command)
    assert said.returncode == 1
    assert "train/shard_00000.bin is missing or cut short" in said.stderr
    assert not (out / ".work").exists()
    assert run(*command, "--restart").returncode == 0
    assert contents(out) == made


def test_damaged_work_files_are_refused_by_name(tmp_path: Path) -> None:
    text, out = tmp_path / "x.txt", tmp_path / "out"
    text.write_text("one")
    command = ("prepare", text, "--out", out, "--tokenizer", "bytes", "--workers", "1")
    for nonsense in ("", "{}"):
        (out / ".work").mkdir(parents=True)
        (out / ".work" / "plan.json").write_text(nonsense)
        said = run(*command)
        assert said.returncode == 1
        assert "plan.json" in said.stderr
        assert "Traceback" not in said.stderr
        assert run(*command, "--restart").returncode == 0
        shutil.rmtree(out)


def test_each_of_many_simultaneous_runs_succeeds_or_is_refused(tmp_path: Path) -> None:
    text, out = tmp_path / "x.txt", tmp_path / "out"
    text.write_text("one")
    command = ("prepare", text, "--out", out, "--tokenizer", "bytes", "--workers", "1")
    processes = [start(*command) for _ in range(6)]
    said = [process.communicate(timeout=60)[1] for process in processes]
    statuses = [process.returncode for process in processes]
    assert 0 in statuses
    for status, words in zip(statuses, said, strict=True):
        assert status == 0 or (status == 1 and "Another run is working in" in words), words
    assert run(*command).returncode == 0
    assert not (out / ".work").exists()
