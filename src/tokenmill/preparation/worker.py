"""One worker process: receives tasks over a pipe, does them, sends back what came of them.

It holds one tokenizer, built when first needed, and gives its memory back whenever the process
grows beyond its budget. It ends when the pipe does, so that nothing outlives a killed run.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tokenmill.errors import TokenmillError
from tokenmill.preparation.bundle import is_sound
from tokenmill.preparation.grind import grind, scan_lines
from tokenmill.preparation.pack import ShardJob, pack_shard
from tokenmill.preparation.part import Job
from tokenmill.tokenizers import Tokenizer

_TELL = 0.1  # seconds between two messages about progress
_LEAST_GROWTH = 24 << 20  # a rebuild must free at least this much to be worth it


@dataclass(frozen=True)
class Grind:
    """Make a part's segment."""

    job: Job


@dataclass(frozen=True)
class Scan:
    """Make the keys of a part's lines."""

    job: Job


@dataclass(frozen=True)
class Check:
    """Find out whether a bundle of an earlier run is sound."""

    folder: Path
    name: str


@dataclass(frozen=True)
class Pack:
    """Make a shard."""

    job: ShardJob


@dataclass(frozen=True)
class Rest:
    """Give back memory; other work follows."""


Task = Grind | Scan | Check | Pack | Rest


@dataclass(frozen=True)
class Done:
    """What came of a task."""

    result: Any


@dataclass(frozen=True)
class Crash:
    """An unexpected exception, as text."""

    told: str
    trace: str


class Worker:
    """Does tasks, one at a time, in whatever process it is made."""

    def __init__(
        self, tokenizer: Tokenizer, budget: int, tell: Callable[[tuple[int, ...]], None]
    ) -> None:
        self._tokenizer = tokenizer
        self._budget = budget
        self._limit = self._watch()
        self._tell = tell
        self._progress = [0, 0, 0, 0]
        self._told = 0.0

    def do(self, task: Task) -> Any:
        """Do one task; returns its receipt, or whatever else the task is there to find out."""
        if isinstance(task, Grind):
            result: Any = grind(task.job, self._tokenizer, self._advance)
        elif isinstance(task, Scan):
            result = scan_lines(task.job, self._advance)
        elif isinstance(task, Check):
            result = is_sound(task.folder, task.name)
        elif isinstance(task, Rest):
            self._forget()
            result = None
        else:
            result = pack_shard(task.job, lambda tokens: self._advance(tokens, 0, 0, 0))
        self._flush()
        return result

    def _advance(self, amount: int, tokens: int, documents: int, dropped: int) -> None:
        for i, number in enumerate((amount, tokens, documents, dropped)):
            self._progress[i] += number
        if time.monotonic() - self._told > _TELL:
            self._flush()
        if memory_in_use() > self._limit:
            self._forget()

    def _forget(self) -> None:
        self._tokenizer.forget()
        _trim_memory()
        self._limit = self._watch()

    def _watch(self) -> int:
        """The size at which to forget. A tokenizer's table of words doubles when it is full, and
        for a moment the old one and the new one are there together: as much again as all words
        take, as measured on text whose words never repeat."""
        now = memory_in_use()
        # If little was freed, to forget again soon would cost time and free nothing.
        return now + max(_LEAST_GROWTH, (self._budget - now) // 2)

    def _flush(self) -> None:
        if any(self._progress):
            self._tell(tuple(self._progress))
            self._progress = [0, 0, 0, 0]
        self._told = time.monotonic()


def memory_in_use() -> int:
    """The memory that this process has in use, in bytes; 0 where that cannot be told."""
    try:
        with Path("/proc/self/statm").open("rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _end_with_parent() -> None:
    """Have the system end this process when the parent ends, in the midst of whatever it does.

    Without that, it would notice only when it has something to say (where there is no `prctl`).
    """
    set_death_signal = 1
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _trim_memory() -> None:
    """Give what was freed back to the system (glibc keeps it otherwise)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


def main(descriptor: int) -> None:
    """Serve the pipe until it closes."""
    _end_with_parent()
    pipe: Connection[Any, Any] = Connection(descriptor)
    try:
        tokenizer, budget = pipe.recv()
        worker = Worker(tokenizer, budget, pipe.send)
        while True:
            task = pipe.recv()
            try:
                answer: Any = Done(worker.do(task))
            except BrokenPipeError:
                raise
            except (TokenmillError, OSError) as error:
                answer = error
            except Exception as error:  # told to the parent, which stops the run
                answer = Crash(f"{type(error).__name__}: {error}", traceback.format_exc())
            pipe.send(answer)
    except (EOFError, OSError):
        os._exit(1)  # the parent is gone
