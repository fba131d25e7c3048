"""Compute statistics in the background, one dataset at a time, while pages show the progress.

The work runs in its own process, so that pages stay fast and its memory is freed at the end. The
result is kept beside the dataset, so the next viewer shows it at once. The process ends with the
server, even if the server is killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import TokenmillError
from tokenmill.inspect.stats.kept_statistics import read_kept
from tokenmill.inspect.stats.result import Statistics
from tokenmill.progress import Unit
from tokenmill.wording import duration

if TYPE_CHECKING:
    from tokenmill.preparation.engine import Worker

_DELAY = 0.3  # seconds until work begins, so that the page that asks for it is sent first
_ADVICE = "Close other programs, and start the viewer again."


class _StoppedError(Exception):
    """The viewer ends."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a computation. `share` is None if unknown. `state` is "working" or "failed"."""

    state: str
    share: float | None
    words: str


@dataclass(frozen=True)
class _Task:
    """Compute and keep the statistics of a dataset."""

    dataset: Dataset

    def run(self, worker: Worker) -> None:
        with suppress(OSError):
            os.nice(10)  # pages have priority
        from tokenmill.inspect.stats.stats import stats

        stats(self.dataset, watcher=_Reporter(worker))


class _Reporter:
    """Reports progress to the server as increments: of stages, of the total and of what is done."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._total, self._done = worker, 0, 0

    def begin(self, stage: str, total: int, done: int = 0, unit: Unit = "bytes") -> None:
        del stage, unit
        self._worker.report(1, total - self._total, done - self._done)
        self._total, self._done = total, done

    def advance(self, amount: int, tokens: int = 0, documents: int = 0, dropped: int = 0) -> None:
        del tokens, documents, dropped
        self._worker.report(0, 0, amount)
        self._done += amount

    def note(self, text: str) -> None:
        del text


class StatisticsWork:
    """Returns the statistics of datasets, and computes those that are missing.

    Use it in a `with` statement: leaving it ends the work.
    """

    def __init__(self, datasets: Mapping[str, Dataset]) -> None:
        self._datasets = datasets
        self._found: dict[str, Statistics] = {}
        self._failed: dict[str, str] = {}
        self._waiting: list[str] = []
        self._sums = [0, 0, 0]
        self._since = 0.0
        self._lock = Lock()
        self._stop = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> StatisticsWork:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def get(self, name: str, *, start: bool = True) -> Statistics | Progress:
        """Return the statistics of a dataset, or the progress of their computation. Never waits."""
        with self._lock:
            if name in self._found:
                return self._found[name]
            if name in self._failed:
                return Progress(state="failed", share=None, words=self._failed[name])
            is_known = name in self._waiting
        if not is_known:
            kept = read_kept(self._datasets[name], None)
            with self._lock:
                if kept is not None:
                    self._found[name] = kept
                    return kept
                if start and name not in self._waiting:
                    self._waiting.append(name)
                    self._start()
        return self._describe(name)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._run, name="statistics", daemon=True)
            self._thread.start()

    def _describe(self, name: str) -> Progress:
        with self._lock:
            stage, total, done = self._sums
            if not self._waiting or self._waiting[0] != name or not total:
                return Progress(state="working", share=None, words="Waiting")
            share = min(1.0, done / total)
            words = f"Step {stage}, {share:.0%}"
            spent = time.monotonic() - self._since
            if done and spent > 1:
                words += f", {duration(spent * (total - done) / done)} left"
            return Progress(state="working", share=share, words=words)

    def _run(self) -> None:
        self._stop.wait(_DELAY)
        while not self._stop.is_set():
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                name = self._waiting[0]
                self._sums = [0, 0, 0]
            problem = ""
            try:
                self._compute(self._datasets[name])
            except _StoppedError:
                return
            except TokenmillError as error:
                problem = str(error)
            except Exception as error:  # whatever failed, the page must show it
                problem = f"{type(error).__name__}: {error}"
            found = None if problem else read_kept(self._datasets[name], None)
            with self._lock:
                self._waiting.remove(name)
                if found is None:
                    self._failed[name] = problem or "The result could not be kept on disk."
                else:
                    self._found[name] = found

    def _compute(self, dataset: Dataset) -> None:
        from tokenmill.preparation.engine import LocalEngine

        with LocalEngine(1, None, _ADVICE) as engine:
            for _ in engine.run([_Task(dataset)], self._advance):
                pass

    def _advance(self, *amounts: Any) -> None:
        if self._stop.is_set():
            raise _StoppedError
        with self._lock:
            if amounts and amounts[0]:
                self._since = time.monotonic()
            self._sums = [one + more for one, more in zip(self._sums, amounts, strict=False)]
