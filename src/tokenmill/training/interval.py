"""What a run needs to know of time and of the user: how long things take, and whether to stop."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenmill.training.backend import Backend

_SILENCE = 10.0  # seconds without output after which a run prints a line


class Clock:
    """Where the time of an interval goes: into steps, waiting for data, or other things.

    >>> clock = Clock()
    >>> with clock.waiting():
    ...     time.sleep(0.01)
    >>> seconds, share = clock.lap()
    >>> seconds >= 0.01, 0.5 < share <= 1
    (True, True)
    """

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._waited = self._aside = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time in which the next rows are waited for."""
        began = time.perf_counter()
        yield
        self._waited += time.perf_counter() - began

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Time that does not count, such as for validation."""
        began = time.perf_counter()
        yield
        self._aside += time.perf_counter() - began

    def lap(self) -> tuple[float, float]:
        """The seconds of steps since the last lap, and the share of them waited for data."""
        found = self.peek()
        self._began, self._waited, self._aside = time.perf_counter(), 0.0, 0.0
        return found

    def peek(self) -> tuple[float, float]:
        """The same, in the middle of a lap."""
        seconds = max(1e-9, time.perf_counter() - self._began - self._aside)
        return seconds, self._waited / seconds


class Pulse:
    """Decides when a run has to print a line, and times its first micro-batches.

    The loss of the first step is due immediately; after that, a line is due after 10 seconds of
    silence.
    """

    def __init__(self, *, compiles: bool) -> None:
        self._shown = -math.inf
        self._compiles = compiles
        self._began: float | None = None
        self._is_warm = self._is_timed = False

    def is_due(self) -> bool:
        """Whether nothing was printed for too long."""
        return time.monotonic() - self._shown >= _SILENCE

    def restart(self) -> None:
        """Something was printed."""
        self._shown = time.monotonic()

    def time_first(self, backend: Backend) -> float | None:
        """Called before each micro-batch; returns once the seconds that a micro-batch takes.

        The first one also starts threads, allocates memory and compiles, which can take ten times as
        long as the rest. So the second is timed, unless the first was too slow to wait for another
        and compiled nothing.
        """
        if self._is_timed:
            return None
        backend.wait()
        now = time.perf_counter()
        began, self._began = self._began, now
        if began is None:
            return None
        if not self._is_warm and (self._compiles or now - began < _SILENCE):
            self._is_warm = True
            return None
        self._is_timed = True
        return now - began


class Stop:
    """Turns Ctrl-C and SIGTERM into a flag: `asked`, which the loop checks between micro-batches.

    Prints a notice, since a micro-batch can take seconds. With `impatient`, a second Ctrl-C stops
    immediately. With several ranks it does not: launchers forward signals that the terminal has
    already sent.
    """

    def __init__(self, *, impatient: bool, tell: Callable[[str], None]) -> None:
        self.asked = False
        self._tell = tell
        self._impatient = impatient
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: FrameType | None) -> None:
        if self.asked and self._impatient and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.asked:
            self.asked = True
            again = " Ctrl-C again stops now, without a checkpoint." if self._impatient else ""
            self._tell(f"Stopping after this micro-batch.{again}")
