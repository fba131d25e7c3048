"""What a run needs to know of time and of the user: how long things take, and whether to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Clock", "Stop"]


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
        now = time.perf_counter()
        seconds = max(1e-9, now - self._began - self._aside)
        share = self._waited / seconds
        self._began, self._waited, self._aside = now, 0.0, 0.0
        return seconds, share


class Stop:
    """Turns Ctrl-C and SIGTERM into a wish: `asked`, for the loop to look at between two steps.

    The wish is told of, because a step may take long. With `impatient`, a second Ctrl-C stops at
    once. Not so among several ranks, where launchers send every signal on that the terminal has sent
    already.
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
            again = " Ctrl-C again stops at once, without it." if self._impatient else ""
            self._tell(f"Stopping once this step is done, with a checkpoint.{again}")
