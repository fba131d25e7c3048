"""Run tasks in worker processes, yield their results, and report their progress.

A task is a small picklable value with a method `run`. Tasks are idempotent and exchange data
through files, so an engine may run them in any order, anywhere. `LocalEngine` runs them in worker
processes on this machine; `RayEngine` in `ray_engine.py` runs them on a cluster. Worker processes
are started as fresh interpreters rather than by `multiprocessing`, so that `prepare` can be called
from a notebook, from a script without a main guard, and from a process with threads. Starting a
worker takes about 0.3 s.

A worker exits when its pipe closes, so nothing outlives a killed run.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias, cast

from tokenmill.errors import TokenmillError, WorkError, lacks_memory
from tokenmill.storage.disk import disk_error

_SERVE = "import sys; from tokenmill.preparation.engine import serve; serve(int(sys.argv[1]))"
_REPORT_SECONDS = 0.1  # between two progress messages of a worker

WorkerPipe: TypeAlias = "Connection[Any, Any]"
Progress = Callable[..., None]  # receives the amounts that tasks report, like `Watcher.advance`


class Task(Protocol):
    """A unit of work that can be sent to a worker."""

    def run(self, worker: Worker) -> Any:
        """Do the work, and return a small picklable result."""


class Engine(Protocol):
    """Runs tasks. Each worker has a copy of the workspace: the tokenizer and a memory limit."""

    def run(self, tasks: Sequence[Task], progress: Progress) -> Iterator[tuple[int, Any]]:
        """Run all tasks. As each task finishes, yield its index and its result.

        An exception in a task ends the run and is raised here.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class Worker:
    """The environment of a task: the workspace, and a way to report progress."""

    def __init__(self, workspace: Any, send: Progress) -> None:
        self.workspace = workspace
        self._send = send
        self._amounts: list[int] = []
        self._sent = 0.0

    def run(self, task: Task) -> Any:
        """Run one task to its end."""
        result = task.run(self)
        self._flush()
        return result

    def report(self, *amounts: int) -> None:
        """Report progress since the last report. Sends at most ten messages per second.

        `amounts` are the arguments of `Watcher.advance`, such as bytes, tokens and documents.
        """
        if len(self._amounts) < len(amounts):
            self._amounts += [0] * (len(amounts) - len(self._amounts))
        for i, amount in enumerate(amounts):
            self._amounts[i] += amount
        if time.monotonic() - self._sent > _REPORT_SECONDS:
            self._flush()

    def _flush(self) -> None:
        if any(self._amounts):
            self._send(*self._amounts)
            self._amounts = []
        self._sent = time.monotonic()


@dataclass(frozen=True)
class _Advanced:
    amounts: tuple[int, ...]


@dataclass(frozen=True)
class _Finished:
    result: Any


@dataclass(frozen=True)
class _OutOfMemory:
    """The task needed more memory than the system gives to the process."""


@dataclass(frozen=True)
class _Crashed:
    """An unexpected exception, as text, because it may not be picklable."""

    summary: str
    trace: str


class LocalEngine:
    """Runs tasks in worker processes on this machine.

    Each worker gets a copy of `workspace`. Errors about memory include `advice` on how to use less.
    """

    def __init__(self, workers: int, workspace: Any, advice: str = "") -> None:
        self._advice = advice or "Run the command again with fewer `workers`."
        self._workers: dict[WorkerPipe, subprocess.Popen[bytes]] = {}
        path = os.pathsep.join(entry for entry in sys.path if entry)
        # Workers inherit this mask. So Ctrl-C, or a signal of a batch system to the whole process
        # group, reaches only this process, which then ends the workers itself.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            for _ in range(workers):
                ours, theirs = Pipe()
                process = subprocess.Popen(
                    # -P: a file in the working folder must not replace a library's module
                    [sys.executable, "-P", "-c", _SERVE, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": path},
                )
                theirs.close()
                self._workers[ours] = process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for pipe in self._workers:
            self._send(pipe, workspace)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, process in self._workers.items():
            process.kill()
            pipe.close()
        for process in self._workers.values():
            process.wait()

    def run(self, tasks: Sequence[Task], progress: Progress) -> Iterator[tuple[int, Any]]:
        """Run all tasks. As each task finishes, yield its index and its result."""
        waiting = enumerate(tasks)
        busy: dict[WorkerPipe, int] = {}

        def hand_out(pipe: WorkerPipe) -> None:
            number, task = next(waiting, (None, None))
            if number is not None:
                busy[pipe] = number
                self._send(pipe, task)

        for pipe in self._workers:
            hand_out(pipe)
        while busy:
            for ready in wait(list(busy)):
                pipe = cast("WorkerPipe", ready)
                message = self._receive(pipe)
                if isinstance(message, _Advanced):
                    progress(*message.amounts)
                    continue
                number = busy.pop(pipe)
                hand_out(pipe)
                yield number, result_of(message, self._advice)

    def _send(self, pipe: WorkerPipe, message: Any) -> None:
        try:
            pipe.send(message)
        except OSError:
            raise self._explain_end(pipe) from None

    def _receive(self, pipe: WorkerPipe) -> Any:
        try:
            return pipe.recv()
        except (EOFError, OSError):  # the pipe may close in the middle of a message
            raise self._explain_end(pipe) from None

    def _explain_end(self, pipe: WorkerPipe) -> WorkError:
        status = self._workers[pipe].wait()
        if status == -signal.SIGKILL:
            why = "A worker was killed (signal 9), most likely because memory ran out."
            return out_of_memory(why, self._advice)
        if status == -signal.SIGABRT:
            why = "A worker aborted (signal 6), most likely because memory ran out."
            return out_of_memory(why, self._advice)
        return WorkError(
            f"A worker ended unexpectedly (status {status}).\n"
            "Run the same command again; it resumes where it stopped."
        )


def result_of(answer: Any, advice: str) -> Any:
    """Return the result of a task. If the task failed, raise its exception."""
    if isinstance(answer, _Finished):
        return answer.result
    if isinstance(answer, _OutOfMemory):
        raise out_of_memory("A worker ran out of memory.", advice)
    if isinstance(answer, TokenmillError):
        raise answer
    if isinstance(answer, OSError):
        raise disk_error(answer)
    assert isinstance(answer, _Crashed)
    raise WorkError(
        f"A worker failed unexpectedly; this is a bug in tokenmill.\n"
        f"{answer.summary}\n{answer.trace}"
    )


def out_of_memory(what: str, advice: str) -> WorkError:
    """Return the error for a worker that had too little memory."""
    return WorkError(f"{what}\n{advice} The run resumes where it stopped.")


def run_task(worker: Worker, task: Task) -> Any:
    """Run a task, and return its result or its error in a form that another process can receive."""
    try:
        return _Finished(worker.run(task))
    except BrokenPipeError:
        raise
    except TokenmillError as error:
        return error
    except Exception as error:  # the calling process reports it and stops the run
        if lacks_memory(error):
            return _OutOfMemory()
        if isinstance(error, OSError):
            return error
        return _Crashed(f"{type(error).__name__}: {error}", traceback.format_exc())


def serve(descriptor: int) -> None:
    """Run the tasks that arrive over a pipe until the pipe closes. This is a worker's main function."""
    _end_with_parent()
    pipe: WorkerPipe = Connection(descriptor)
    try:
        worker = Worker(pipe.recv(), lambda *amounts: pipe.send(_Advanced(amounts)))
        while True:
            pipe.send(run_task(worker, pipe.recv()))
    except (EOFError, OSError):
        os._exit(1)  # the parent is gone
    except MemoryError:  # while a message was received
        with suppress(Exception):
            pipe.send(_OutOfMemory())
            pipe.recv_bytes()  # keeps the pipe open, in case the parent is sending a task
        os._exit(1)


def _end_with_parent() -> None:
    """Have the kernel end this process together with its parent.

    Without `prctl`, the worker notices only at its next message that the parent is gone.
    """
    set_death_signal = 1
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def available_cores() -> int:
    """Return how many cores this process may use, given its CPU affinity and its container's quota.

    >>> available_cores() >= 1
    True
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores
