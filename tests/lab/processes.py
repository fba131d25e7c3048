"""Run a function in a fork with a session of its own, and say how it ended."""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 60.0  # seconds after which a command counts as hanging


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended. The status is that of `subprocess`; None is a command that hangs."""

    status: int | None
    stdout: str
    stderr: str

    @property
    def is_clean_error(self) -> bool:
        """Whether it stopped with an error that tokenmill raises on purpose."""
        return (
            self.status == 1
            and "tokenmill: " in self.stderr
            and "Traceback" not in self.stderr
            and "bug in tokenmill" not in self.stderr
        )


@dataclass(kw_only=True)
class Limits:
    """Limits of a process: bytes of address space, and open files."""

    memory: int | None = None
    files: int | None = None

    def set(self) -> None:
        """Set them for this process and all that it starts."""
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if self.files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.files, self.files))
        if self.memory is not None:
            resource.setrlimit(resource.RLIMIT_AS, (self.memory, self.memory))


class Process:
    """A command that runs in a fork, with a session of its own."""

    def __init__(self, run: Callable[[], int], folder: Path, output: Path) -> None:
        self.output = output
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _be_command(run, folder, output)
        self._pidfd = os.pidfd_open(self.pid)
        self.status: int | None = None
        self._reaped = False

    def signal(self, number: int) -> None:
        """Send a signal to all its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def stop(self) -> None:
        """Stop all its processes with SIGSTOP; returns when the first one has stopped.

        Linux gives a SIGSTOP that arrives during a fork to the child as well, but not a SIGCONT that
        arrives during the same fork. Without the wait, a new worker could stay stopped forever.
        """
        with suppress(ProcessLookupError):  # it has not started its session yet
            os.killpg(self.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def is_running(self, seconds: float = 0.0) -> bool:
        """Whether it still runs after so many seconds."""
        return not self._reaped and not select.select([self._pidfd], [], [], max(0.0, seconds))[0]

    def wait(self, patience: float = PATIENCE) -> Ended:
        """Wait for its end; a command that does not end is killed."""
        hangs = self.is_running(patience)
        self.signal(signal.SIGKILL)
        if not self._reaped:
            _, status = os.waitpid(self.pid, 0)
            self.status = None if hangs else os.waitstatus_to_exitcode(status)
            os.close(self._pidfd)
            self._reaped = True
            _wait_for_group(self.pid)
        return Ended(
            status=self.status,
            stdout=self.output.with_suffix(".out").read_text(errors="replace"),
            stderr=self.output.with_suffix(".err").read_text(errors="replace"),
        )


def _wait_for_group(group: int) -> None:
    """Wait until the killed processes of a group have ended: until then, they hold their locks."""
    deadline = time.monotonic() + PATIENCE
    while _is_group_alive(group) and time.monotonic() < deadline:
        time.sleep(0.001)


def _is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    for folder in Path("/proc").glob("[0-9]*"):  # zombies count for killpg
        with suppress(OSError):
            state, _, found = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(found) == group and state != "Z":
                return True
    return False


def _be_command(run: Callable[[], int], folder: Path, output: Path) -> None:
    """The forked process: never returns."""
    status = 99
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, suffix in ((1, ".out"), (2, ".err")):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            os.dup2(os.open(output.with_suffix(suffix), flags, 0o600), number)
        status = run()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        with suppress(BaseException):
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            sys.stderr.flush()
    finally:
        os._exit(status)
