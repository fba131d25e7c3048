"""Where tasks are done: in worker processes on this machine.

Workers are started as fresh interpreters rather than by `multiprocessing`, so that `prepare` can
be called from a notebook, from a script without a main guard, and from a process with threads.
Tasks are handed out one by one; what comes back is yielded in the order in which it comes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from tokenmill.errors import TokenmillError, WorkError
from tokenmill.preparation.worker import Crash, Done, Rest, Task
from tokenmill.sources.read import BadFileError
from tokenmill.storage.disk import disk_error
from tokenmill.tokenizers import Tokenizer

_SERVE = "import sys; from tokenmill.preparation.worker import main; main(int(sys.argv[1]))"

Outcome = tuple[int, Any]  # the number of a task, and its result or its BadFileError


class LocalEngine:
    """Worker processes on this machine, for one stretch of work."""

    def __init__(self, workers: int) -> None:
        self._workers: dict[Connection[Any, Any], subprocess.Popen[bytes]] = {}
        path = os.pathsep.join(entry for entry in sys.path if entry)
        # Workers inherit this: to end them at Ctrl-C, or when a batch system ends the whole group,
        # is left to this process, which does so in order.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            for _ in range(workers):
                ours, theirs = Pipe()
                process = subprocess.Popen(
                    # -P: a file in the working folder must not stand in for a library's module
                    [sys.executable, "-P", "-c", _SERVE, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": path},
                )
                theirs.close()
                self._workers[ours] = process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, process in self._workers.items():
            process.kill()
            pipe.close()
        for process in self._workers.values():
            process.wait()

    def set_up(self, tokenizer: Tokenizer, budget: int) -> None:
        """Give each worker its tokenizer and its share of the memory, in bytes."""
        for pipe in self._workers:
            self._send(pipe, (tokenizer, budget))

    def rest(self) -> None:
        """Have all workers give back what memory they can."""
        for pipe in self._workers:
            self._send(pipe, Rest())
        for pipe in self._workers:
            self._receive(pipe)

    def run(
        self, tasks: Iterable[Task], progress: Callable[[tuple[int, ...]], None]
    ) -> Iterator[Outcome]:
        """Do all tasks; yields each one's number with its result, or with its BadFileError.

        Anything else that goes wrong ends the run with an exception.
        """
        waiting = enumerate(tasks)
        busy: dict[Connection[Any, Any], int] = {}

        def hand_out(pipe: Connection[Any, Any]) -> None:
            number, task = next(waiting, (None, None))
            if number is not None:
                busy[pipe] = number
                self._send(pipe, task)

        for pipe in self._workers:
            hand_out(pipe)
        while busy:
            for ready in wait(list(busy)):
                pipe = cast("Connection[Any, Any]", ready)
                message = self._receive(pipe)
                if isinstance(message, tuple):
                    progress(message)
                    continue
                number = busy.pop(pipe)
                hand_out(pipe)
                if isinstance(message, Done):
                    yield number, message.result
                elif isinstance(message, BadFileError):
                    yield number, message
                else:
                    raise _foreseen(message)

    def _send(self, pipe: Connection[Any, Any], message: Any) -> None:
        try:
            pipe.send(message)
        except OSError:
            raise self._death(pipe) from None

    def _receive(self, pipe: Connection[Any, Any]) -> Any:
        try:
            return pipe.recv()
        except (EOFError, OSError):  # also in the midst of a message
            raise self._death(pipe) from None

    def _death(self, pipe: Connection[Any, Any]) -> WorkError:
        status = self._workers[pipe].wait()
        if status == -9:
            return WorkError(
                "A worker was killed (signal 9), most likely because memory ran out.\n"
                "Run it again with fewer `workers`; it resumes where it stopped."
            )
        return WorkError(
            f"A worker ended unexpectedly (status {status}).\n"
            "Run the same command again; it resumes where it stopped."
        )


def _foreseen(message: Any) -> TokenmillError:
    """What a worker met, as an exception for the user."""
    if isinstance(message, TokenmillError):
        return message
    if isinstance(message, OSError):
        return disk_error(message)
    assert isinstance(message, Crash)
    return WorkError(
        f"A worker failed unexpectedly; this is a bug in tokenmill.\n"
        f"{message.told}\n{message.trace}"
    )


def available_cores() -> int:
    """The cores that this process may use: its affinity, and its container's share.

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
