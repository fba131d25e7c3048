"""Run cases in forked processes with limits, many cases per process.

A process runs a range of cases. It writes the number of the case that it works on into shared memory
and sends what failed through a pipe, so that after a signal the parent knows which case it was and
continues after it. Each case may use `MOST_SECONDS` of processor time and `MOST_BYTES` of memory
beyond what the process had. A fork takes some 10 ms, so cheap parsers run thousands of cases a second.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tokenmill.errors import TokenmillError

from .case import Case, Parser, WrongResultError, empty_folder

MOST_SECONDS = 5  # of processor time, for one case
MOST_BYTES = 1 << 30  # for one case
_MOST_IDLE = 15.0  # seconds that a case may wait without using the processor
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Failure:
    """A case that broke a rule. Failures with equal `cause` are counted as one."""

    parser: str
    seed: int
    case: int
    what: str
    cause: str

    @property
    def command(self) -> str:
        return f"python -m tests.lab.fuzz {self.parser} --seed {self.seed} --case {self.case}"


def make_folder() -> Path:
    """A temporary folder in memory, if there is one."""
    place = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="tokenmill-fuzz-", dir=place))


def make_case(parser: Parser, seed: int, number: int) -> Case:
    """The case with this number; no other case has an influence on it."""
    return parser.make(Random(f"{parser.name} {seed} {number}"))


class Batch:
    """The cases [first, last) in a forked process. `given` replaces the generated cases."""

    def __init__(
        self, parser: Parser, seed: int, first: int, last: int, given: list[Case] | None = None
    ) -> None:
        self.parser, self.seed, self.last, self.given = parser, seed, last, given
        self.failures: list[Failure] = []
        self.done = 0
        self.seconds = 0.0  # of processor time
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)
        self._cursor = ctypes.c_int64.from_buffer(self._shared)
        self._start(first)

    def _start(self, first: int) -> None:
        self._first = self._cursor.value = first
        self._seen, self._seen_at = (first, 0), time.monotonic()
        self._reader, writer = os.pipe()
        self._folder = make_folder()
        self._buffer = b""
        sys.stdout.flush()
        self._process = os.fork()
        if not self._process:
            os.close(self._reader)
            _work(self, writer, first)
        os.close(writer)

    @property
    def handle(self) -> int:
        """What `select` waits for."""
        return self._reader

    def read(self) -> bool:
        """Read what the process sent; returns whether all cases are finished."""
        block = os.read(self._reader, 1 << 16)
        self._buffer += block
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            case, what, cause = json.loads(line)
            self.failures.append(Failure(self.parser.name, self.seed, case, what, cause))
        return not block and self._end()

    def watch(self) -> None:
        """Kill a process that waits and does nothing."""
        state = self._cursor.value, _count_ticks(self._process)
        if state != self._seen:
            self._seen, self._seen_at = state, time.monotonic()
        elif time.monotonic() - self._seen_at > _MOST_IDLE:
            os.kill(self._process, signal.SIGKILL)

    def _end(self) -> bool:
        os.close(self._reader)
        _, status, used = os.wait4(self._process, 0)
        self.seconds += used.ru_utime + used.ru_stime
        shutil.rmtree(self._folder, ignore_errors=True)
        case = self._cursor.value
        self.done += min(case + 1, self.last) - self._first
        if status == 0:
            return True
        what = _explain_status(status, time.monotonic() - self._seen_at > _MOST_IDLE)
        self.failures.append(Failure(self.parser.name, self.seed, case, what, what))
        if case + 1 >= self.last:
            return True
        self._start(case + 1)
        return False

    def stop(self) -> None:
        """Kill the process; what it did is lost."""
        os.kill(self._process, signal.SIGKILL)
        os.close(self._reader)
        os.waitpid(self._process, 0)
        shutil.rmtree(self._folder, ignore_errors=True)


def run_batch(
    parser: Parser, seed: int, first: int, last: int, given: list[Case] | None = None
) -> Batch:
    """Run some cases to their end."""
    batch = Batch(parser, seed, first, last, given)
    while True:
        ready, _, _ = select.select([batch.handle], [], [], 0.5)
        batch.watch()
        if ready and batch.read():
            return batch


def _explain_status(status: int, waited: bool) -> str:
    if not os.WIFSIGNALED(status):
        return f"the process ended with status {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    if waited:
        return f"nothing happened for {_MOST_IDLE:.0f} s"
    if number == signal.SIGXCPU:
        return f"it took over {MOST_SECONDS} s of processor time"
    return f"the process was ended by {signal.Signals(number).name}"


def _work(batch: Batch, writer: int, first: int) -> None:
    """The forked process."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # end with the parent
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        gc.collect()
        gc.freeze()
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.CDLL(None).mallopt(-8, 1)  # each arena of a thread would reserve 64 MB
        limit = _used_bytes() + MOST_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        folder = batch._folder / "case"
        for case in range(first, batch.last):
            batch._cursor.value = case
            if found := run_case(batch.parser, batch.seed, case, folder, batch.given):
                resource.setrlimit(
                    resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                )
                os.write(writer, json.dumps([case, *found]).encode() + b"\n")
                resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        status = 0
    finally:
        os._exit(status)


def run_case(
    parser: Parser, seed: int, number: int, folder: Path, given: list[Case] | None
) -> tuple[str, str] | None:
    """Run one case in this process: None, or what went wrong and its cause in short."""
    try:
        case = given[number] if given is not None else make_case(parser, seed, number)
        empty_folder(folder)
        soft = int(time.process_time()) + MOST_SECONDS + 1
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
        parser.check(case, folder)
    except TokenmillError as error:
        return _describe(error) if case.facts.get("intact") else None
    except BaseException as error:  # a panic of Rust is not an Exception
        return _describe(error)
    finally:
        os.chdir("/")
    return None


def _describe(error: BaseException) -> tuple[str, str]:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/tokenmill/" in frame.filename] or frames
    kind = type(error).__name__
    shown = [
        f"    {_shorten(frame.filename)}:{frame.lineno} in {frame.name}" for frame in frames[-3:]
    ]
    text = str(error).partition("\n")[0][:200].encode("utf-8", "replace").decode()
    last = own[-1]
    cause = f"{kind} in {_shorten(last.filename)}:{last.name}"
    if isinstance(error, WrongResultError):
        cause = text.partition(":")[0][:60]
    return "\n".join([f"{kind}: {text}", *shown]), cause


def _shorten(name: str) -> str:
    for mark in ("/src/tokenmill/", "/site-packages/", "/tests/"):
        if mark in name:
            return (
                mark[1:].removeprefix("src/").removeprefix("site-packages/")
                + (name.rpartition(mark)[2])
            )
    return name


def _count_ticks(process: int) -> int:
    """The processor time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _used_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def in_child(function: Any, *arguments: Any) -> Any:
    """The JSON result of a function that starts threads, which this process must not have."""
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        try:
            os.close(reader)
            with os.fdopen(writer, "w") as file:
                json.dump(function(*arguments), file)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as file:
        answer = file.read()
    os.waitpid(process, 0)
    return json.loads(answer)


def iterate_batches(batches: list[Batch]) -> Iterator[Batch]:
    """Wait for some batches; yields each as it ends."""
    while batches:
        ready, _, _ = select.select([batch.handle for batch in batches], [], [], 0.5)
        for batch in list(batches):
            batch.watch()
            if batch.handle in ready and batch.read():
                batches.remove(batch)
                yield batch
