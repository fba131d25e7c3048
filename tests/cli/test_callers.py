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
    result = python("script.py", cwd=folder)
    assert (result.returncode, result.stdout, result.stderr) == (0, "once\n8\n", "")


def test_code_from_an_argument_and_from_standard_input(folder: Path) -> None:
    result = python("-c", f"import tokenmill; {CALL}", cwd=folder)
    assert (result.returncode, result.stderr) == (0, "")
    shutil.rmtree(folder / "data")
    result = python("-", cwd=folder, input=f"import tokenmill\n{CALL}\n")
    assert (result.returncode, result.stderr) == (0, "")


def test_thread(folder: Path) -> None:
    """Only the main thread can handle signals, so nothing may depend on them."""
    result = python(
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
    assert result.stderr == ""
    assert result.stdout.startswith("8\n")
    assert "8 tokens of 2 documents" in result.stdout


def test_a_run_restores_the_signal_handlers(folder: Path) -> None:
    result = python(
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
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("how", ["command", "script elsewhere"])
def test_a_folder_with_modules_named_like_libraries(folder: Path, how: str) -> None:
    for name in NAMESAKES:
        (folder / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    if how == "command":
        result = run("prepare", "x.txt", "--out", "data", *QUICK, cwd=folder)
    else:
        other = folder / "elsewhere"
        other.mkdir()
        (other / "script.py").write_text(f"import tokenmill\n{CALL}\n")
        result = python("elsewhere/script.py", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "wrong module" not in result.stdout + result.stderr


def test_relative_paths_work_after_a_change_of_folder(folder: Path) -> None:
    """Workers start in the current folder of their parent, not in its first one."""
    result = python(
        "-c", f"import os, tokenmill; os.chdir({str(folder)!r}); {CALL}", cwd=folder.parent
    )
    assert (result.returncode, result.stderr) == (0, "")
