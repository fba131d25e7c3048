"""Share the time among all parsers, and report each cause of failures once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

from .case import Parser
from .forks import Batch, Failure, iterate_batches, make_folder
from .parsers import load_parsers

_BATCH_SECONDS = 2.0
_FIRST_CASES, _MOST_CASES = 20, 5_000


def prepare_all(names: list[str] | None = None) -> dict[str, Parser]:
    """The parsers, with their sound files made."""
    parsers = load_parsers(names)
    for parser in parsers.values():
        folder = make_folder()
        try:
            parser.prepare(folder)
        finally:
            shutil.rmtree(folder)
    return parsers


class Campaign:
    """Many cases of many parsers. Each parser gets the same time, in batches of about 2 s."""

    def __init__(self, seed: int, names: list[str] | None = None, jobs: int = 1) -> None:
        self.seed, self._jobs = seed, jobs
        self._parsers = prepare_all(names)
        self._next = dict.fromkeys(self._parsers, 0)
        self.seconds = dict.fromkeys(self._parsers, 0.0)
        self._rates = dict.fromkeys(self._parsers, _FIRST_CASES / _BATCH_SECONDS)
        self.cases = dict.fromkeys(self._parsers, 0)
        self.failures: dict[tuple[str, str], list[Failure]] = {}

    def until(self, deadline: float) -> Iterator[tuple[Batch, list[Failure]]]:
        """Run batches; yields each with the failures whose cause is new."""

        def more(name: str) -> int:
            return _MOST_CASES if time.monotonic() < deadline else 0

        yield from self._run(more)

    def count(self, cases: int) -> Iterator[tuple[Batch, list[Failure]]]:
        """Run this many cases of each parser."""
        yield from self._run(lambda name: cases - self._next[name])

    def _run(self, more) -> Iterator[tuple[Batch, list[Failure]]]:  # type: ignore[no-untyped-def]
        running: list[Batch] = []
        while True:
            while len(running) < self._jobs and (batch := self._begin(more)):
                running.append(batch)
            if not running:
                return
            batch = next(iterate_batches(running))
            self._finish(batch)
            yield batch, self._find_fresh(batch)

    def _begin(self, more) -> Batch | None:  # type: ignore[no-untyped-def]
        left = {name: count for name in self._parsers if (count := more(name)) > 0}
        if not left:
            return None
        name = min(left, key=lambda one: self.seconds[one])
        size = int(self._rates[name] * _BATCH_SECONDS)
        size = min(max(size, _FIRST_CASES), _MOST_CASES, left[name])
        first = self._next[name]
        self._next[name] += size
        self.seconds[name] += _BATCH_SECONDS  # until it is known
        return Batch(self._parsers[name], self.seed, first, first + size)

    def _finish(self, batch: Batch) -> None:
        name = batch.parser.name
        self.seconds[name] += batch.seconds - _BATCH_SECONDS
        self._rates[name] = batch.done / max(batch.seconds, 0.01)
        self.cases[name] += batch.done

    def _find_fresh(self, batch: Batch) -> list[Failure]:
        fresh = []
        for failure in batch.failures:
            key = failure.parser, failure.cause
            if key not in self.failures:
                fresh.append(failure)
            self.failures.setdefault(key, []).append(failure)
        return fresh
