"""Run jobs ahead in a thread. The caller helps instead of waiting.

Each job yields some results. The thread runs one job after another. If the next result is not ready,
the caller runs the next job itself. So both are busy if the thread alone is too slow. With
`is_slow`, for jobs that wait for a network, the caller waits. A second thread then helps with the first
jobs, which are the ones that come late.

Guarantees: results and exceptions come in the order of the jobs. At most `depth` jobs are started
ahead. The threads end when the `Prefetch` object is closed or dropped, or when the program ends.
A thread first finishes its current job, unless that job calls `leave_if_stopped`.

Costs: about 10 µs per job, because the two threads wake each other, so jobs should be large.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary, finalize

T = TypeVar("T")
LAST_WAIT = 10.0  # seconds to wait for a thread to end, which a disk may delay
_HELPED = 4  # jobs that a second thread runs
_this_thread = threading.local()  # `work` has the jobs that this thread runs


class _StoppedError(Exception):
    """The results of this job are no longer needed."""


def leave_if_stopped() -> None:
    """End the current job if its results are no longer needed; long jobs call this repeatedly.

    Does nothing in threads that `Prefetch` did not start.
    """
    work: _Work[object] | None = getattr(_this_thread, "work", None)
    if work is not None and work.is_stopped:
        raise _StoppedError


class _Job(Generic[T]):
    """A job that was started, and its results once it is done."""

    def __init__(self) -> None:
        self.results: deque[T] = deque()
        self.error: BaseException | None = None
        self.is_done = False

    def run(self, work: Iterable[T]) -> None:
        try:
            self.results.extend(work)
        except BaseException as error:  # raised again in `Prefetch.__next__`
            self.error = error
        self.is_done = True


class _Work(Generic[T]):
    """All jobs in order, and the jobs that were started."""

    def __init__(self, jobs: Iterable[Iterable[T]], depth: int) -> None:
        # Reentrant, because a garbage collection may call `stop` while this thread holds it.
        self.changed = threading.Condition()
        self.starting = (
            threading.Lock()
        )  # held while the next job starts, acquired before `changed`
        self.process = os.getpid()
        self.jobs, self.depth = iter(jobs), depth
        self.started: deque[_Job[T]] = deque()
        self.are_all_started = self.is_stopped = False

    def start_next(self) -> tuple[_Job[T], Iterable[T]] | None:
        """Start the next job; return it, and the iterable that yields its results.

        Return None if no job is left or `depth` jobs are ahead already.
        """
        with self.starting:
            if self.are_all_started or len(self.started) >= self.depth:
                return None
            job = _Job[T]()
            try:
                work = next(self.jobs)  # may take long, so `changed` is not held
            except BaseException as error:
                self.are_all_started = job.is_done = True
                job.error, work = error, ()
            self.started.append(job)
            return job, work

    def run(self, *, is_helper: bool = False) -> None:
        """Run jobs until all are started or the work is stopped. Each thread runs this function.

        A helper runs only a few jobs. If it ran all the time, it would read rows of blocks that are
        still being fetched: with a cache of 40% of the data, that made loading a tenth slower.
        """
        _this_thread.work, left = self, _HELPED if is_helper else -1
        while not self.is_stopped and not self.are_all_started:
            if (started := self.start_next()) is not None:
                started[0].run(started[1])
                left -= 1
            with self.changed:
                self.changed.notify_all()
                while len(self.started) >= self.depth and not self.is_stopped and left:
                    self.changed.wait()
            if not left:
                return

    def stop(self) -> None:
        if self.process != os.getpid():  # in a fork, the thread that holds the lock does not exist
            return
        with self.changed:
            self.is_stopped = True
            self.changed.notify_all()


class Stoppable(Protocol):
    """The work of a thread, which can be stopped."""

    def stop(self) -> None:
        """Ask the thread to end."""


_threads: WeakKeyDictionary[threading.Thread, Stoppable] = WeakKeyDictionary()


def register_thread(thread: threading.Thread, work: Stoppable) -> None:
    """Make sure that a thread is stopped when the interpreter exits.

    Otherwise the thread could crash in native code at that time.
    """
    _threads[thread] = work


class Prefetch(Generic[T]):
    """Yields the results of jobs that threads run ahead. Jobs start one at a time.

    >>> list(Prefetch([[1, 2], [3]], depth=1))
    [1, 2, 3]
    """

    def __init__(self, jobs: Iterable[Iterable[T]], depth: int, *, is_slow: bool = False) -> None:
        self._work, self._helps = _Work(jobs, depth), not is_slow
        # The threads do not refer to this object, so it is freed when nothing else does.
        runs = [self._work.run] + [partial(self._work.run, is_helper=True)] * is_slow
        self._threads = [
            threading.Thread(target=run, name="tokenmill", daemon=True) for run in runs
        ]
        # Not __del__: at exit, the names of this module may be gone before the object is.
        finalize(self, self._work.stop)
        for thread in self._threads:
            register_thread(thread, self._work)
            thread.start()

    @property
    def is_of_this_process(self) -> bool:
        """Whether the threads run in this process: a forked process does not inherit threads."""
        return self._work.process == os.getpid()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        work = self._work
        while True:
            with work.changed:
                if work.started and work.started[0].is_done:
                    first = work.started[0]
                    result = first.results.popleft() if first.results else None
                    if not first.results and first.error is None:
                        work.started.popleft()
                        work.changed.notify_all()
                    if result is not None:
                        return result
                    if first.error is not None:
                        raise first.error  # it stays first, so the next call raises it too
                    continue
            if self._helps and (started := work.start_next()) is not None:
                started[0].run(started[1])
                if isinstance(started[0].error, KeyboardInterrupt):
                    raise started[0].error  # raised now, not after the jobs before it
                continue
            with work.changed:
                if not (work.started and work.started[0].is_done):
                    work.changed.wait()

    def close(self) -> None:
        """Stop the threads and wait until they end; give up waiting if a job takes very long."""
        self._work.stop()
        for thread in self._threads if self.is_of_this_process else ():
            if thread.is_alive():  # Ctrl-C may come before it starts
                thread.join(LAST_WAIT)


@atexit.register
def _end_threads() -> None:
    threads = list(_threads.items())
    for _, work in threads:
        work.stop()
    for thread, _ in threads:
        if thread.is_alive():
            thread.join(LAST_WAIT)
