"""What a part of the laboratory reports while it works.

A part runs in a process of its own and reports in JSON lines, which `tests.lab` adds up and shows.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TextIO

from . import results

_SECONDS = 1.0  # between two reports of progress


def describe(scenario: str, fault: object, seed: int) -> str:
    """The command that reproduces a case."""
    return f"python -m tests.lab {scenario} --fault {fault} --seed {seed}"


class Watcher:
    """Counts the cases of one part, and prints what failed with the command that reproduces it.

    If `first`, the first failure ends the program.
    """

    def __init__(self, stream: TextIO | None = None, *, first: bool = False) -> None:
        self.cases = 0
        self._first = first
        self.failures: list[tuple[str, str]] = []
        self._stream = stream
        self._unsent = 0
        self._sent = time.monotonic()

    def report(
        self,
        kind: str,
        scenario: str,
        name: str,
        fault: object,
        seed: int,
        wrong: str | None,
        *,
        cases: int = 1,
    ) -> None:
        """Add a case to the results; if something is wrong with it, report that.

        `kind` and `name` are those of `results.record`. `fault` and `seed` reproduce the case.
        """
        self.advance(f"{scenario} {fault}", cases)
        results.record(kind, scenario, name, cases, int(wrong is not None), seed)
        if wrong:
            self.fail(describe(scenario, fault, seed), f"{scenario} {fault}: {wrong}")

    def advance(self, what: str, cases: int = 1) -> None:
        """Count finished cases. `what` says what they were: the scenario and the fault."""
        self.cases += cases
        self._unsent += cases
        if time.monotonic() - self._sent > _SECONDS:
            self.flush(what)

    def fail(self, command: str, reason: str) -> None:
        """Report a failed case: the command that reproduces it, and what went wrong."""
        self.failures.append((command, reason))
        self._send({"command": command, "reason": reason})
        if self._first:
            self.flush()
            sys.exit()

    def say(self, text: str) -> None:
        """Print a line."""
        self._send({"say": text})

    def flush(self, what: str = "") -> None:
        """Send the progress so far."""
        self._send({"cases": self._unsent, "what": what})
        self._unsent = 0
        self._sent = time.monotonic()

    def _send(self, message: dict[str, object]) -> None:
        if self._stream is not None:
            print(json.dumps(message), file=self._stream, flush=True)


def to_stdout(*, first: bool) -> Watcher:
    """The watcher of a part that `tests.lab` started."""
    return Watcher(sys.stdout, first=first)
