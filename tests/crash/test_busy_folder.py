"""Two runs into one folder: one works, the other is refused, and neither is harmed."""

from __future__ import annotations

import os
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
def test_folder_that_cannot_be_made_is_told_without_a_traceback(tmp_path: Path, where: str) -> None:
    text = tmp_path / "file"
    text.write_text("one")
    told = run("prepare", text, "--out", tmp_path / where, "--tokenizer", "bytes")
    assert told.returncode == 1
    assert str(tmp_path / where) in told.stderr
    assert "Traceback" not in told.stderr


def test_folder_without_permission_is_told_without_a_traceback(tmp_path: Path) -> None:
    told = run(
        "prepare", __file__, "--out", "/proc/out", "--tokenizer", "bytes", cwd=os.fspath(tmp_path)
    )
    assert told.returncode == 1
    assert "/proc/out" in told.stderr
    assert "Traceback" not in told.stderr
