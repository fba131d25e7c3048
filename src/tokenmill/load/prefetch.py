"""Work done ahead in a thread.

Guarantees: results come in order; an exception comes in its turn, to whoever asks; no more than
`depth` results are made ahead; closing, dropping the object and the end of the program all end the
thread. Costs: two threads that wake each other, some 10 µs a result, so results should be large.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["Prefetch"]

T = TypeVar("T")
_STOP = object()
_LAST_WAIT = 10.0  # seconds, at the end of the program, for a thread that waits for a disk
_threads: WeakKeyDictionary[threading.Thread, SimpleQueue[Any]] = WeakKeyDictionary()


class Prefetch(Generic[T]):
    """The results of an iterator, made ahead by a thread."""

    def __init__(self, results: Iterator[T], depth: int) -> None:
        self._ready: SimpleQueue[Any] = SimpleQueue()
        self._room: SimpleQueue[Any] = SimpleQueue()
        for _ in range(depth):
            self._room.put(None)
        self._process = os.getpid()
        # The thread does not refer to this object, which therefore ends when nobody else does.
        self._thread = threading.Thread(
            target=_work, args=(results, self._ready, self._room), name="tokenmill", daemon=True
        )
        _threads[self._thread] = self._room
        self._thread.start()

    @property
    def is_of_this_process(self) -> bool:
        """Whether the thread can be here: a fork does not inherit it."""
        return self._process == os.getpid()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        result = self._ready.get()
        if isinstance(result, BaseException):
            self._ready.put(result)  # for whoever asks again
            raise result
        self._room.put(None)
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the thread, and wait until it has ended."""
        self._room.put(_STOP)
        if self.is_of_this_process:
            self._thread.join()

    def __del__(self) -> None:
        self._room.put(_STOP)


def _work(results: Iterator[Any], ready: SimpleQueue[Any], room: SimpleQueue[Any]) -> None:
    try:
        while room.get() is not _STOP:
            ready.put(next(results))
    except BaseException as error:  # StopIteration among them: whoever asks shall meet it
        ready.put(error)


@atexit.register
def _end_threads() -> None:
    """End all threads before the interpreter does, which would tear them out of native code."""
    threads = list(_threads.items())
    for _, room in threads:
        room.put(_STOP)
    for thread, _ in threads:
        thread.join(_LAST_WAIT)
