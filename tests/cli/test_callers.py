"""`tokenmill.prepare` works wherever it is called from: scripts, threads, odd folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from shell import QUICK, python, run

CALL = 'tokenmill.prepare("x.txt", "data", tokenizer="bytes", workers=2, val_fraction=0)'
NAMESAKES = ["random", "inspect", "token", "tokenize", "types", "json", "numpy", "queue", "select"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "x.txt").write_text("one<|endoftext|>two")
    return tmp_path


def test_script_without_a_main_guard(folder: Path) -> None:
    (folder / "script.py").write_text(
        f"import tokenmill\nprint('once')\nprint({CALL}.manifest.splits['train'].tokens)\n"
    )
    told = python("script.py", cwd=folder)
    assert (told.returncode, told.stdout, told.stderr) == (0, "once\n8\n", "")


def test_code_from_the_command_line_and_from_standard_input(folder: Path) -> None:
    told = python("-c", f"import tokenmill; {CALL}", cwd=folder)
    assert (told.returncode, told.stderr) == (0, "")
    shutil.rmtree(folder / "data")
    told = python("-", cwd=folder, input=f"import tokenmill\n{CALL}\n")
    assert (told.returncode, told.stderr) == (0, "")


def test_thread(folder: Path) -> None:
    """Signals can be handled in the main thread only, so nothing may depend on that."""
    told = python(
        "-c",
        f"import threading, tokenmill\n"
        f"done = []\n"
        f"thread = threading.Thread(target=lambda: done.append({CALL}))\n"
        f"thread.start(); thread.join()\n"
        f"print(done[0].manifest.splits['train'].tokens)\n"
        f"from tokenmill.cli import main\n"
        f"thread = threading.Thread(target=lambda: main(['info', 'data']))\n"
        f"thread.start(); thread.join()\n",
        cwd=folder,
    )
    assert told.stderr == ""
    assert told.stdout.startswith("8\n")
    assert "8 tokens of 2 documents" in told.stdout


def test_signals_are_handled_as_before_after_a_run(folder: Path) -> None:
    told = python(
        "-c",
        f"import signal, tokenmill\n"
        f"from tokenmill.cli import main\n"
        f"before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)\n"
        f"{CALL}\n"
        f"main(['info', 'data'])\n"
        f"assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))\n"
        f"assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])\n",
        cwd=folder,
    )
    assert (told.returncode, told.stderr) == (0, "")


@pytest.mark.parametrize("how", ["command", "script elsewhere"])
def test_folder_with_namesakes_of_libraries(folder: Path, how: str) -> None:
    for name in NAMESAKES:
        (folder / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    if how == "command":
        told = run("prepare", "x.txt", "--out", "data", *QUICK, cwd=folder)
    else:
        other = folder / "elsewhere"
        other.mkdir()
        (other / "script.py").write_text(f"import tokenmill\n{CALL}\n")
        told = python("elsewhere/script.py", cwd=folder)
    assert told.returncode == 0, told.stderr
    assert "wrong module" not in told.stdout + told.stderr


def test_folder_that_was_left_while_relative_paths_were_given(folder: Path) -> None:
    """Workers begin in the working folder of their parent, whatever it was at its start."""
    told = python(
        "-c", f"import os, tokenmill; os.chdir({str(folder)!r}); {CALL}", cwd=folder.parent
    )
    assert (told.returncode, told.stderr) == (0, "")
