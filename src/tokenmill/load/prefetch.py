"""Work done ahead by a thread, and by whoever would have to wait for it.

The work is cut into jobs, each of which gives some results. The thread does one job after another;
who asks for a result that is not there does the next job rather than wait, so that both are busy
where the thread alone is too slow.

Guarantees: results come in the order of the jobs; an exception comes in its turn, to whoever asks;
no more than `depth` jobs are begun ahead; closing, dropping the object and the end of the program
all end the thread, after the current job or where that job calls `leave_if_stopped`. Costs: two threads that wake each other, some 10 µs a job, so jobs should be
large.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, finalize

T = TypeVar("T")
_LAST_WAIT = 10.0  # seconds, for a thread that waits for a disk
_here = threading.local()  # `work` is what this thread was started for


class _StoppedError(Exception):
    """The results of this job are no longer wanted."""


def leave_if_stopped() -> None:
    """End the current job here if nobody wants its results; long jobs call this now and then.

    Does nothing in threads that `Prefetch` did not start.
    """
    work: _Work[object] | None = getattr(_here, "work", None)
    if work is not None and work.is_stopped:
        raise _StoppedError


class _Job(Generic[T]):
    """A job that was begun: what has come of it, once it is done."""

    def __init__(self) -> None:
        self.results: deque[T] = deque()
        self.error: BaseException | None = None
        self.is_done = False

    def do(self, work: Iterable[T]) -> None:
        try:
            self.results.extend(work)
        except BaseException as error:  # whoever asks shall meet it
            self.error = error
        self.is_done = True


class _Work(Generic[T]):
    """The jobs in their order, and those of them that were begun."""

    def __init__(self, jobs: Iterable[Iterable[T]], depth: int) -> None:
        self.changed = threading.Condition()  # which a garbage collection may enter once more
        self.taking = threading.Lock()  # held before `changed`, by whoever takes the next job
        self.process = os.getpid()
        self.jobs, self.depth = iter(jobs), depth
        self.begun: deque[_Job[T]] = deque()
        self.are_all_begun = self.is_stopped = False

    def begin(self) -> tuple[_Job[T], Iterable[T]] | None:
        """The next job, if there is one and room for it."""
        with self.taking:
            if self.are_all_begun or len(self.begun) >= self.depth:
                return None
            job = _Job[T]()
            try:
                work = next(self.jobs)  # which may take long, so `changed` is free for others
            except BaseException as error:
                self.are_all_begun = job.is_done = True
                job.error, work = error, ()
            self.begun.append(job)
            return job, work

    def run(self) -> None:
        """What the thread does."""
        _here.work = self
        while not self.is_stopped and not self.are_all_begun:
            taken = self.begin()
            if taken is not None:
                taken[0].do(taken[1])
            with self.changed:
                self.changed.notify_all()
                while len(self.begun) >= self.depth and not self.is_stopped:
                    self.changed.wait()

    def stop(self) -> None:
        if self.process != os.getpid():  # a fork, in which nobody would give the lock back
            return
        with self.changed:
            self.is_stopped = True
            self.changed.notify_all()


_threads: WeakKeyDictionary[threading.Thread, _Work[object]] = WeakKeyDictionary()


class Prefetch(Generic[T]):
    """The results of jobs, made ahead by a thread; jobs are begun one at a time, and done by any.

    >>> list(Prefetch([[1, 2], [3]], depth=1))
    [1, 2, 3]
    """

    def __init__(self, jobs: Iterable[Iterable[T]], depth: int) -> None:
        self._work = _Work(jobs, depth)
        # The thread does not refer to this object, which therefore ends when nobody else does.
        self._thread = threading.Thread(target=self._work.run, name="tokenmill", daemon=True)
        _threads[self._thread] = self._work  # type: ignore[assignment]
        # Not __del__: at exit, the module's names may be gone before the object is.
        finalize(self, self._work.stop)
        self._thread.start()

    @property
    def is_of_this_process(self) -> bool:
        """Whether the thread can be here: a fork does not inherit it."""
        return self._work.process == os.getpid()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        work = self._work
        while True:
            with work.changed:
                if work.begun and work.begun[0].is_done:
                    first = work.begun[0]
                    result = first.results.popleft() if first.results else None
                    if not first.results and first.error is None:
                        work.begun.popleft()
                        work.changed.notify_all()
                    if result is not None:
                        return result
                    if first.error is not None:
                        raise first.error  # it stays, for whoever asks again
                    continue
            if (taken := work.begin()) is not None:
                taken[0].do(taken[1])
                if isinstance(taken[0].error, KeyboardInterrupt):
                    raise taken[0].error  # now: its turn may be long to come
                continue
            with work.changed:
                if not work.begun[0].is_done:
                    work.changed.wait()

    def close(self) -> None:
        """End the thread, and wait until it has ended, unless a job takes very long."""
        self._work.stop()
        if self.is_of_this_process and self._thread.is_alive():  # Ctrl-C may have come before it
            self._thread.join(_LAST_WAIT)


@atexit.register
def _end_threads() -> None:
    """End all threads before the interpreter does, which would tear them out of native code."""
    threads = list(_threads.items())
    for _, work in threads:
        work.stop()
    for thread, _ in threads:
        if thread.is_alive():
            thread.join(_LAST_WAIT)
