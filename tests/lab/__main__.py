"""Run the laboratory, or reproduce one case.

    python -m tests.lab                                          every part, for LAB_MINUTES
    python -m tests.lab faults power                             these parts
    python -m tests.lab SCENARIO --fault write:17:EIO --seed 3   one case

Each core runs one part at a time, in a process of its own, with a fresh seed. Progress is printed
every ten seconds, and at the end the table of docs/reliability.md is written.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from types import ModuleType

from . import results, watcher

_SLICE = 180.0  # seconds that a part gets before the next one
_GRACE = 300.0  # seconds after which a part that does not end is killed
_SHOW = 10.0  # seconds between two lines of progress


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    parser.add_argument("what", nargs="*", help="parts, or one scenario with --fault")
    parser.add_argument("--fault", help="the fault of one case to reproduce")
    parser.add_argument("--seed", type=int, help="by default a fresh one for each part")
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("LAB_MINUTES", 60)))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--first", action="store_true", help="stop at the first failure")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fault:
        from . import buckets, clusters, reproduce

        if arguments.what[0] == clusters.SCENARIO:
            return clusters.run_one(arguments.fault, arguments.seed or 0)
        if arguments.what[0] in buckets.COMMANDS:
            return buckets.run_one(arguments.what[0], arguments.fault)
        return reproduce.run_one(arguments.what[0], arguments.fault, arguments.seed or 0)
    if arguments.one:
        return _run_part(arguments)
    return Laboratory(arguments).run()


def find_parts() -> Iterator[str]:
    """The names of the modules of this package that have a function `run`."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.startswith(("_", "test_")):
            continue
        if hasattr(_import_part(module.name), "run"):
            yield module.name


def _import_part(name: str) -> ModuleType:
    return importlib.import_module(f"{__package__}.{name}")


def _run_part(arguments: argparse.Namespace) -> int:
    watching = watcher.to_stdout(first=arguments.first)
    deadline = time.monotonic() + arguments.minutes * 60
    _import_part(arguments.what[0]).run(deadline, arguments.seed, watching)
    watching.flush()
    return 0


class Laboratory:
    """Runs parts side by side until the time is over."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        names, seconds = arguments.what or list(find_parts()), arguments.minutes * 60
        self._names = cycle(names)
        self._deadline = time.monotonic() + seconds
        self._jobs, self._seed, self._first = arguments.jobs, arguments.seed, arguments.first
        self._slice = min(_SLICE, max(1.0, seconds * self._jobs / len(names)))
        self._messages: queue.Queue[tuple[str, dict[str, object]]] = queue.Queue()
        self._lock = threading.Lock()
        self._cases: Counter[str] = Counter()
        self._doing: dict[str, object] = {}
        self._failures = 0

    def run(self) -> int:
        """Run all parts in turn; returns 1 if a case failed."""
        threads = [threading.Thread(target=self._work) for _ in range(self._jobs)]
        for thread in threads:
            thread.start()
        shown = time.monotonic()
        while any(thread.is_alive() for thread in threads) or not self._messages.empty():
            with suppress(queue.Empty):
                self._take(*self._messages.get(timeout=1.0))
                self._messages.task_done()
            if time.monotonic() - shown > _SHOW:
                self._show()
                shown = time.monotonic()
        self._show()
        if "LAB_RESULTS" not in os.environ:  # which are not those of the page
            results.write_between("lab", results.make_table(results.read()))
        return 1 if self._failures else 0

    def _work(self) -> None:
        while (left := self._deadline - time.monotonic()) > 1 and not self._is_over():
            with self._lock:
                name = next(self._names)
            seed = secrets.randbelow(1 << 31) if self._seed is None else self._seed
            self._run_slice(name, seed, min(left, self._slice))

    def _run_slice(self, name: str, seed: int, seconds: float) -> None:
        command = [sys.executable, "-m", "tests.lab", name, "--one"]
        command += ["--seed", str(seed), "--minutes", str(seconds / 60)]
        command += ["--first"] if self._first else []
        process = subprocess.Popen(command, cwd=results.ROOT, stdout=subprocess.PIPE, text=True)
        timer = threading.Timer(seconds + _GRACE, process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            try:
                self._messages.put((name, json.loads(line)))
            except ValueError:
                self._messages.put((name, {"say": line.rstrip()}))
        timer.cancel()
        if process.wait():
            reason = f"the part ended with status {process.returncode}"
            self._messages.put((name, {"command": " ".join(command[1:]), "reason": reason}))

    def _is_over(self) -> bool:
        """Whether the first failure was enough."""
        self._messages.join()
        return self._first and self._failures > 0

    def _take(self, name: str, message: dict[str, object]) -> None:
        if "say" in message:
            print(f"{name}: {message['say']}", flush=True)
        elif "command" in message:
            self._failures += 1
            print(f"FAILED {message['reason']}\n  python {_shown(message)}", flush=True)
        else:
            self._cases[name] += int(str(message["cases"]))
            self._doing[name] = message["what"] or self._doing.get(name, "")

    def _show(self) -> None:
        left = max(0.0, self._deadline - time.monotonic())
        total = sum(self._cases.values())
        print(
            f"{left / 60:5.1f} min left  {total:,} cases, {self._failures:,} failures  "
            + "  ".join(f"{name} {count:,}" for name, count in sorted(self._cases.items())),
            flush=True,
        )


def _shown(message: dict[str, object]) -> str:
    return str(message["command"]).removeprefix("python ")


if __name__ == "__main__":
    sys.exit(main())
