"""Fail every system call of every scenario once, with every error that it can have.

The N-th call of one operation below the scenario's folder fails; N runs through all of them. Short
counts and EINTR must not be noticed. Other errors must end in a clear message and exit status 1, or
must not matter; then the same command must end with the bytes of an undisturbed run.
"""

from __future__ import annotations

import random
import time

from . import control, results
from .bench import Bench, Scenario, judge
from .control import Fault
from .scenarios import SCENARIOS, chosen
from .watcher import Watcher

FAULTS = {
    "open": ("EIO", "ENOSPC", "EINTR", "kill"),
    "write": ("ENOSPC", "ENOSPC+", "EIO", "EINTR", "short", "kill", "tear"),
    "pwrite": ("ENOSPC", "EIO", "EINTR", "short", "kill"),
    "fsync": ("EIO", "ENOSPC", "EINTR", "kill"),
    "rename": ("EIO", "ENOSPC", "kill"),
    "mkdir": ("EIO", "ENOSPC", "kill"),
    "unlink": ("EIO", "kill"),
    "ftruncate": ("EIO", "ENOSPC", "EINTR", "kill"),
    "mmap": ("ENOMEM", "EIO", "kill"),
    "link": ("EIO", "ENOSPC", "kill"),
    "read": ("EIO", "EINTR", "short"),
}
KINDS = [Fault(operation, 0, what) for operation, all in FAULTS.items() for what in all]


def run_case(bench: Bench, scenario: Scenario, fault: Fault) -> tuple[bool, str | None]:
    """Run one case; returns whether the fault happened, and what is wrong."""
    bench.expected(scenario)
    bench.reset(scenario)
    bench.control.arm(bench.folder(scenario), fault)
    ended = bench.run(scenario, armed=True)
    if not bench.control.fired:
        return False, None
    return True, judge(bench, scenario, fault, ended)


def run_again(bench: Bench, scenario: Scenario, fault: Fault) -> tuple[bool, str | None]:
    """Let a fault happen when a finished command runs again; returns the same as `run_case`.

    The first run may have failed to flush a folder, so the second must flush it.
    """
    bench.expected(scenario)
    bench.reset(scenario)
    bench.run(scenario)
    bench.control.arm(bench.folder(scenario), fault)
    ended = bench.run(scenario, armed=True)
    if not bench.control.fired:
        return False, f"a finished command that runs again has no call {fault}"
    return True, judge(bench, scenario, fault, ended)


def sweep(bench: Bench, scenario: Scenario, kind: Fault, end: float, watcher: Watcher) -> None:
    """Let every call fail once, from where the last sweep ran out of time."""
    count = bench.counts(scenario)[kind.operation]
    number = results.find_sweep(scenario.name, kind.name)[1]
    cases = failures = 0
    while number < count and time.monotonic() < end:
        number += 1
        fault = kind.at(number)
        happened, wrong = run_case(bench, scenario, fault)
        if not happened:  # workers that run side by side may make fewer calls
            continue
        cases += 1
        watcher.advance(f"{scenario.name} {fault}")
        if wrong:
            failures += 1
            watcher.fail(describe(scenario, fault, bench.seed), f"{scenario.name} {fault}: {wrong}")
    if cases:
        how = "kills" if kind.what in ("kill", "tear", "die") else "faults"
        results.record(how, scenario.name, kind.name, cases, failures, bench.seed)
    results.record_sweep(scenario.name, kind.name, count, number)


def describe(scenario: Scenario, fault: object, seed: int) -> str:
    """The command that reproduces a case."""
    return f"python -m tests.lab {scenario.name} --fault {fault} --seed {seed}"


def run(deadline: float, seed: int, watcher: Watcher) -> None:
    """Sweep the scenarios and faults that were swept least."""
    if not control.prepare(watcher.say):
        return
    rng = random.Random(seed)
    swept = {
        scenario.name: {kind: results.find_sweep(scenario.name, kind.name)[0] for kind in kinds}
        for scenario in chosen()
        if (kinds := kinds_for(scenario))
    }
    order = sorted(swept, key=lambda name: (min(swept[name].values()), rng.random()))
    with Bench(seed) as bench:
        for name in order:
            for kind in sorted(swept[name], key=lambda kind: (swept[name][kind], rng.random())):
                if time.monotonic() > deadline:
                    return
                sweep(bench, SCENARIOS[name], kind, deadline, watcher)


def kinds_for(scenario: Scenario) -> list[Fault]:
    """The faults of a scenario; slow ones open and read files with fewer kinds of errors."""
    few = ("open EIO", "open kill", "read EIO")
    often = ("open", "read")
    return [
        kind
        for kind in KINDS
        if not scenario.slow or kind.operation not in often or kind.name in few
    ]
