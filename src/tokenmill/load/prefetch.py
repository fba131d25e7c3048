"""Work done ahead in a thread.

Guarantees: results come in order; an exception comes in its turn, to whoever asks; no more than
`depth` groups are made ahead; closing, dropping the object and the end of the program all end the
thread. Costs: a few µs a group.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

__all__ = ["Prefetch"]

T = TypeVar("T")
_STOP = object()


class Prefetch(Generic[T]):
    """The items of an iterator of groups, made ahead by a thread."""

    def __init__(self, groups: Iterator[list[T]], depth: int) -> None:
        self._ready: SimpleQueue[Any] = SimpleQueue()
        self._room: SimpleQueue[Any] = SimpleQueue()
        for _ in range(depth):
            self._room.put(None)
        self._group: list[T] = []
        self._over: BaseException | None = None
        self._process = os.getpid()
        # The thread does not refer to this object, which therefore ends when nobody else does.
        self._thread = threading.Thread(
            target=_work, args=(groups, self._ready, self._room), name="tokenmill", daemon=True
        )
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread is of this process: a fork does not inherit it."""
        return self._process == os.getpid()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self._group:
            if self._over is not None:
                raise self._over
            got = self._ready.get()
            if isinstance(got, BaseException):
                self._over = got
                raise got
            self._group = got
            self._group.reverse()
            self._room.put(None)
        return self._group.pop()

    def close(self) -> None:
        """End the thread, and wait until it has ended."""
        self._group, self._over = [], StopIteration()
        self._room.put(_STOP)
        if self.is_alive and self._thread is not threading.current_thread():
            self._thread.join()

    def __del__(self) -> None:
        self._room.put(_STOP)


def _work(groups: Iterator[list[Any]], ready: SimpleQueue[Any], room: SimpleQueue[Any]) -> None:
    try:
        while room.get() is not _STOP:
            ready.put(next(groups))
    except BaseException as error:  # StopIteration among them: whoever asks shall meet it
        ready.put(error)
