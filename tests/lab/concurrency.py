"""Two commands at once, readers during a rewrite, pauses, slow disks, few files, clocks that jump.

In each case a command runs under one of these conditions. It must end with the right bytes; of two
commands in one folder, one may be refused, and at least one must succeed.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

from . import control
from .bench import Bench, Scenario, shorten
from .control import Fault
from .processes import Ended, Limits, Process
from .scenarios import chosen
from .watcher import Watcher

_CHANGED = "has changed since this run began"
_REFUSED = (
    "Another run is working",
    "is working in",
    "Waiting for another process",
    _CHANGED,
)


def two_writers(bench: Bench, scenario: Scenario, rng: random.Random) -> str | None:
    """Two or three of the same command, started at almost the same time; one may be killed."""
    processes = []
    for _ in range(rng.randint(2, 3)):
        processes.append(bench.start(scenario, real_workers=False))
        time.sleep(rng.uniform(0, bench.seconds(scenario) / 2))
    if rng.random() < 0.3:
        processes[0].signal(signal.SIGKILL)
    ended = [process.wait() for process in processes]
    for one in ended:
        if one.status not in (0, 1, -signal.SIGKILL):
            return f"status {one.status}: {shorten(one.stderr)}"
        if one.status == 1 and not (one.is_clean_error and _is_refused(one)):
            return f"it was not refused in words: {shorten(one.stderr)}"
    if all(one.status for one in ended):
        return bench.resume(scenario)
    return bench.compare(scenario)


def _is_refused(ended: Ended) -> bool:
    return any(words in ended.stderr for words in _REFUSED)


def readers(bench: Bench, scenario: Scenario, rng: random.Random) -> str | None:
    """Readers open and read the output while it is made: all of it, or a clear error."""
    process = bench.start(scenario, real_workers=False)
    bad = []
    while process.is_running():
        bad += _read_once(bench, scenario)
        time.sleep(rng.uniform(0, 0.02))
    ended = process.wait()
    if bad:
        return f"a reader failed: {bad[0]}"
    return _must_succeed(bench, scenario, ended)


def _read_once(bench: Bench, scenario: Scenario) -> list[str]:
    """Read every output in a fork; returns what went wrong."""

    def read() -> int:
        import tokenmill
        from tokenmill.errors import TokenmillError

        for name in ("data", "out"):
            try:
                for tokens in tokenmill.open(name).values():
                    tokens[:]
            except TokenmillError:
                pass
        return 0

    reader = Process(read, bench.folder(scenario), bench.root / "reader")
    ended = reader.wait()
    return [] if ended.status == 0 else [f"status {ended.status}, {shorten(ended.stderr)}"]


def pauses(bench: Bench, scenario: Scenario, rng: random.Random) -> str | None:
    """SIGSTOP and SIGCONT at random moments; another run starts in between."""
    process = bench.start(scenario, real_workers=False)
    for _ in range(rng.randint(1, 4)):
        process.is_running(rng.uniform(0, bench.seconds(scenario) / 3))
        process.stop()
        if rng.random() < 0.3 and scenario.arguments[0] != "download":  # which waits for the other
            other = bench.run(scenario, real_workers=False)
            if other.status and not (other.is_clean_error and _is_refused(other)):
                process.signal(signal.SIGKILL)
                process.wait()
                return f"another run was not refused in words: {shorten(other.stderr)}"
        process.signal(signal.SIGCONT)
    ended = process.wait()
    if ended.is_clean_error and _is_refused(ended):  # it stopped before it had taken the lock
        return bench.compare(scenario)
    return _must_succeed(bench, scenario, ended)


def overtaken(bench: Bench, scenario: Scenario, rng: random.Random) -> str | None:
    """A run stops at a call, often before it takes its lock, and another run does all the work."""
    if scenario.arguments[0] == "download":  # which waits for the other
        return None
    calls = bench.counts(scenario)["call"]
    return run_overtaken(bench, scenario, rng.randint(1, rng.choice((min(40, calls), calls))))


def run_overtaken(bench: Bench, scenario: Scenario, number: int) -> str | None:
    """Stop a run at one of its calls until another run has ended; returns what is wrong.

    The other run succeeds or is refused, and so does the one that stopped. A negative number counts
    the calls from the last one.
    """
    if number < 0:
        number += bench.counts(scenario)["call"] + 1
    bench.reset(scenario)
    bench.control.arm(bench.folder(scenario), Fault("call", number, "stop"))
    process = bench.start(scenario, armed=True, real_workers=False)
    while not bench.control.fired and process.is_running(0.001):
        pass
    other = bench.run(scenario, real_workers=False)
    process.signal(signal.SIGCONT)
    ended = process.wait()
    for one in (other, ended):
        if one.status and not (one.is_clean_error and _is_refused(one)):
            return f"status {one.status}: {shorten(one.stderr)}"
    if other.status and ended.status:
        return "both runs were refused"
    if _CHANGED in ended.stderr:  # the error says to run the same command again
        return bench.resume(scenario)
    return bench.compare(scenario)


def few_files(bench: Bench, scenario: Scenario, rng: random.Random) -> str | None:
    """20 open files at most, or a few more; the error may say how to allow more."""
    ended = bench.run(scenario, limits=Limits(files=rng.choice((20, 24, 32))), real_workers=False)
    if ended.is_clean_error and "ulimit -n" in ended.stderr:
        return bench.resume(scenario)
    return _must_succeed(bench, scenario, ended)


def slow_storage(bench: Bench, scenario: Scenario, rng: random.Random) -> str | None:
    """Every call takes some milliseconds, or one of them hangs for a second."""
    calls = bench.counts(scenario)["call"]
    slow = Fault("call", 0, f"{rng.randint(1, 3)}ms")
    hanging = Fault("call", rng.randint(1, calls), "1000ms")
    bench.control.arm(bench.folder(scenario), rng.choice((slow, hanging)))
    return _must_succeed(bench, scenario, bench.run(scenario, armed=True, real_workers=False))


def clock_jumps(bench: Bench, scenario: Scenario, rng: random.Random) -> str | None:
    """The clock jumps by minutes or years, forward or back, before or during the run."""
    seconds = rng.choice((1, -1)) * rng.choice((60, 86_400, 10 * 365 * 86_400))
    bench.control.arm(bench.folder(scenario), shift=(seconds, rng.randint(0, 50)))
    return _must_succeed(bench, scenario, bench.run(scenario, armed=True, real_workers=False))


def _must_succeed(bench: Bench, scenario: Scenario, ended: Ended) -> str | None:
    if ended.status is None:
        return "the command hangs"
    if ended.status != 0:
        return f"status {ended.status} instead of success: {shorten(ended.stderr)}"
    return bench.compare(scenario)


CONDITIONS: dict[str, Callable[[Bench, Scenario, random.Random], str | None]] = {
    "two-writers": two_writers,
    "readers": readers,
    "pauses": pauses,
    "overtaken": overtaken,
    "few-files": few_files,
    "slow-storage": slow_storage,
    "clock-jumps": clock_jumps,
}


def run_case(bench: Bench, scenario: Scenario, condition: str, seed: int) -> str | None:
    """Run a scenario under a condition; returns what is wrong."""
    bench.expected(scenario)
    bench.reset(scenario)
    return CONDITIONS[condition](bench, scenario, random.Random(f"{seed} {condition}"))


def run(deadline: float, seed: int, watcher: Watcher) -> None:
    """Run scenarios under conditions, both at random."""
    if not control.prepare(watcher.say):
        return
    rng = random.Random(seed)
    scenarios = sorted(chosen(), key=lambda scenario: (scenario.slow, rng.random()))
    with Bench(seed) as bench:
        for scenario in scenarios:
            for condition in CONDITIONS:
                for _ in range(1 if scenario.slow else 3):
                    if time.monotonic() > deadline:
                        return
                    number = rng.randrange(1 << 31)
                    wrong = run_case(bench, scenario, condition, number)
                    fault = f"condition:{condition}"
                    watcher.report("conditions", scenario.name, condition, fault, number, wrong)
