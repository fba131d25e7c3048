"""engine.py: any picklable task runs in worker processes, and failures are reported by cause."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

import pytest

from tokenmill.errors import InputError, WorkError
from tokenmill.preparation.engine import LocalEngine, Worker


@dataclass(frozen=True)
class Multiply:
    number: int

    def run(self, worker: Worker) -> tuple[int, int]:
        worker.report(1, self.number)
        return self.number * worker.workspace["factor"], os.getpid()


@dataclass(frozen=True)
class SetFactor:
    factor: int

    def run(self, worker: Worker) -> None:
        worker.workspace["factor"] = self.factor


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


def test_a_task_for_every_worker_reaches_all_of_them() -> None:
    with LocalEngine(2, {"factor": 3}) as engine:
        engine.run_everywhere(SetFactor(5))
        results = list(engine.run([Multiply(1)] * 8, lambda *_: None))
    assert {result for _, (result, _) in results} == {5}


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("input", InputError, "bad.txt"),
        ("bug", WorkError, "(?s)bug in tokenmill.*ValueError: surprise"),
        ("kill", WorkError, "(?s)signal 9.*memory ran out.*Use half.*resumes"),
        ("abort", WorkError, "(?s)signal 6.*memory runs out.*Use half.*resumes"),
        ("memory", WorkError, "(?s)ran out of memory.*Use half.*resumes"),
    ],
)
def test_a_failed_task_ends_the_run_with_its_cause(
    how: str, error: type[Exception], message: str
) -> None:
    with LocalEngine(1, None, "Use half.") as engine, pytest.raises(error, match=message):
        list(engine.run([Fail(how)], lambda *_: None))
