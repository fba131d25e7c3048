"""engine.py: any picklable task runs in worker processes, and failures are reported by cause."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tokenmill.errors import InputError, UsageError, WorkError
from tokenmill.preparation.engine import LocalEngine, Worker
from tokenmill.preparation.prepare import prepare


@dataclass(frozen=True)
class Multiply:
    number: int

    def run(self, worker: Worker) -> tuple[int, int]:
        worker.report(1, self.number)
        return self.number * worker.workspace["factor"], os.getpid()


@dataclass(frozen=True)
class Fail:
    how: str

    def run(self, worker: Worker) -> Any:
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "abort":
            os.kill(os.getpid(), signal.SIGABRT)
        if self.how == "memory":
            raise MemoryError
        if self.how == "disk":
            raise OSError(errno.ENOSPC, "No space left on device", "tokens.bin")
        raise InputError("bad.txt") if self.how == "input" else ValueError("surprise")


def test_tasks_run_in_other_processes_and_progress_adds_up() -> None:
    amounts: list[tuple[int, ...]] = []
    with LocalEngine(2, {"factor": 3}) as engine:
        tasks = [Multiply(number) for number in range(20)]
        results = dict(engine.run(tasks, lambda *more: amounts.append(more)))
    assert [results[number][0] for number in range(20)] == [3 * number for number in range(20)]
    processes = {process for _, process in results.values()}
    assert os.getpid() not in processes
    assert len(processes) <= 2
    assert [sum(column) for column in zip(*amounts, strict=True)] == [20, sum(range(20))]


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("input", InputError, "bad.txt"),
        ("bug", WorkError, "(?s)bug in tokenmill.*ValueError: surprise"),
        ("kill", WorkError, "(?s)signal 9.*memory ran out.*Use half.*resumes"),
        ("abort", WorkError, "(?s)signal 6.*memory ran out.*Use half.*resumes"),
        ("memory", WorkError, "(?s)ran out of memory.*Use half.*resumes"),
        ("disk", WorkError, r"The disk is full \(tokens.bin\)"),
    ],
)
def test_a_failed_task_ends_the_run_with_its_cause(
    how: str, error: type[Exception], message: str
) -> None:
    with LocalEngine(1, None, "Use half.") as engine, pytest.raises(error, match=message):
        list(engine.run([Fail(how)], lambda *_: None))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "spark"}, "`engine` is 'spark'; it must be one of local, ray"),
        ({"ray_address": "127.0.0.1:6379"}, "`ray_address` is for `engine='ray'` only"),
    ],
)
def test_an_unknown_engine_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "a.txt").write_text("a text")
    with pytest.raises(UsageError, match=re.escape(message)):
        prepare(tmp_path / "a.txt", tmp_path / "out", tokenizer="bytes", **options)
    assert not (tmp_path / "out").exists()


def test_ray_is_imported_only_for_its_engine(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text")
    code = (
        "import sys, tokenmill; tokenmill.prepare('a.txt', 'out', tokenizer='bytes', workers=1); "
        "sys.exit('ray' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)
