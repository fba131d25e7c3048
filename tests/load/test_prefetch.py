"""Jobs run ahead: in order, once, at most `depth` of them, and they stop when no longer needed."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.load.prefetch import Prefetch, leave_if_stopped


class Jobs:
    """Jobs that give their numbers, some of them late, and record the threads that run them."""

    def __init__(self, sizes: list[int], pauses: list[int], fails_at: int | None = None) -> None:
        self.sizes, self.pauses, self.fails_at = sizes, pauses, fails_at
        self.started = self.taken = self.furthest = 0
        self.threads: set[str] = set()

    def __iter__(self) -> Iterator[Iterator[int]]:
        first = 0
        for number, size in enumerate(self.sizes):
            self.started = number + 1
            self.furthest = max(self.furthest, first - self.taken)
            yield self._do(number, first, size)
            first += size

    def _do(self, number: int, first: int, size: int) -> Iterator[int]:
        self.threads.add(threading.current_thread().name)
        time.sleep(self.pauses[number % len(self.pauses)] / 10_000)
        if number == self.fails_at:
            raise OSError(f"job {number}")
        yield from range(first, first + size)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 3), max_size=30),
    pauses=st.lists(st.integers(0, 8), min_size=1, max_size=5),
    waits=st.lists(st.integers(0, 8), min_size=1, max_size=5),
    depth=st.integers(1, 5),
    failure=st.none() | st.integers(0, 30),
    is_slow=st.booleans(),
)
def test_results_and_errors_come_in_order(
    sizes: list[int],
    pauses: list[int],
    waits: list[int],
    depth: int,
    failure: int | None,
    is_slow: bool,
) -> None:
    jobs = Jobs(sizes, pauses, failure)
    ahead = Prefetch(jobs, depth, is_slow=is_slow)
    fails = failure is not None and failure < len(sizes)
    there = sum(sizes[:failure] if fails else sizes)
    for number in range(there):
        assert next(ahead) == number
        jobs.taken = number + 1
        time.sleep(waits[number % len(waits)] / 10_000)
    for _ in range(2):  # a second call gets the same answer
        with pytest.raises(OSError if fails else StopIteration):
            next(ahead)
    # A job starts only if fewer than `depth` earlier ones still have results.
    assert jobs.furthest <= depth * max(sizes, default=0)
    ahead.close()
    assert not any(thread.is_alive() for thread in ahead._threads)


def test_two_slow_jobs_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=30)  # breaks if one of them runs alone

    def wait() -> Iterator[int]:
        both.wait()
        yield 1

    assert list(Prefetch([wait(), wait()], depth=2, is_slow=True)) == [1, 1]


def test_a_caller_that_would_wait_runs_jobs() -> None:
    jobs = Jobs([1] * 40, [50])
    ahead = Prefetch(jobs, depth=4)
    assert list(ahead) == list(range(40))
    assert jobs.threads == {"tokenmill", threading.current_thread().name}


def test_a_caller_that_runs_a_job_can_be_interrupted() -> None:
    go, ready = threading.Event(), threading.Event()

    def wait() -> Iterator[int]:
        ready.set()
        go.wait(60)
        yield 0

    def interrupt() -> Iterator[int]:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
        yield 1

    def jobs() -> Iterator[Iterator[int]]:
        yield wait()
        ready.wait(60)
        yield interrupt()

    ahead = Prefetch(jobs(), depth=2)
    ready.wait(60)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            next(ahead)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not go.is_set()
    go.set()
    ahead.close()


def test_at_most_depth_jobs_are_started_ahead() -> None:
    jobs = Jobs([2] * 40, [0])
    ahead = Prefetch(jobs, depth=3)
    deadline = time.monotonic() + 10
    while jobs.started < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert jobs.started == 3
    assert [next(ahead) for _ in range(6)] == list(range(6))
    ahead.close()
    started = jobs.started
    time.sleep(0.05)
    assert jobs.started == started


def test_dropping_the_object_stops_its_thread() -> None:
    ahead = Prefetch(Jobs([1] * 1_000, [1]), depth=2)
    next(ahead)
    (thread,), dropped = ahead._threads, weakref.ref(ahead)
    del ahead
    gc.collect()
    assert dropped() is None
    thread.join(10)
    assert not thread.is_alive()


def test_closing_does_not_wait_for_the_rest_of_a_long_job() -> None:
    began = threading.Event()

    def read() -> Iterator[int]:
        for _ in range(3_000):  # half a minute
            leave_if_stopped()
            began.set()
            time.sleep(0.01)
        yield 1

    ahead = Prefetch([read()], depth=1)
    assert began.wait(30)
    started = time.monotonic()
    ahead.close()
    assert time.monotonic() - started < 5
    assert not ahead._threads[0].is_alive()
    leave_if_stopped()  # does nothing in other threads
