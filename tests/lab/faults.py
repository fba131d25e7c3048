"""Fail every system call of every scenario once, with every error that it can have.

The N-th call of one operation below the scenario's folder fails; N runs through all of them. A first
sweep fails every call once, with its errors in turn; the sweeps after it take one error each. Short
counts and EINTR must not be noticed. Other errors must end in a clear message and exit status 1, or
must not matter; then the same command must end with the bytes of an undisturbed run.
"""

from __future__ import annotations

import random
import time
from collections import Counter

from . import control, results
from .bench import Bench, Scenario, judge
from .control import Fault
from .scenarios import chosen
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
EACH = "each"  # the first sweep
_ERRORS = {
    operation: [what for what in all if what in ("EIO", "ENOSPC", "ENOMEM")]
    for operation, all in FAULTS.items()
}
_TRIES = 3  # workers that run side by side make calls in any order, and sometimes fewer


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
    results.record_code(scenario.name, bench.modules(scenario))
    number = results.find_sweep(scenario.name, kind.name, results.read())[1]
    cases: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    while number < count and time.monotonic() < end:
        number += 1
        fault = choose_fault(kind, number)
        for _ in range(_TRIES):
            happened, wrong = run_case(bench, scenario, fault)
            if happened:
                break
        else:
            continue
        cases[fault.what] += 1
        watcher.advance(f"{scenario.name} {fault}")
        if wrong:
            failures[fault.what] += 1
            watcher.fail(describe(scenario, fault, bench.seed), f"{scenario.name} {fault}: {wrong}")
    for what in cases:
        how = "kills" if what in ("kill", "tear", "die") else "faults"
        name = f"{kind.operation} {what}"
        results.record(how, scenario.name, name, cases[what], failures[what], bench.seed)
    results.record_sweep(scenario.name, kind.name, count, number, cases.total())


def choose_fault(kind: Fault, number: int) -> Fault:
    """The fault of a sweep at one call; the first sweep takes the errors of the operation in turn.

    >>> [choose_fault(Fault("write", 0, EACH), number).what for number in (1, 2, 3)]
    ['EIO', 'ENOSPC', 'EIO']
    """
    if kind.what != EACH:
        return kind.at(number)
    errors = _ERRORS[kind.operation]
    return Fault(kind.operation, number, errors[number % len(errors)])


def describe(scenario: Scenario, fault: object, seed: int) -> str:
    """The command that reproduces a case."""
    return f"python -m tests.lab {scenario.name} --fault {fault} --seed {seed}"


def run(deadline: float, seed: int, watcher: Watcher) -> None:
    """Sweep the scenarios and faults that were swept least; the first sweeps of all come first."""
    if not control.prepare(watcher.say):
        return
    rng = random.Random(seed)
    results.forget_changed()
    done = results.read()
    sweeps = [
        (scenario, kind, (results.find_sweep(scenario.name, kind.name, done)[0], kind.what != EACH))
        for scenario in rng.sample(chosen(), len(chosen()))
        for kind in kinds_for(scenario)
    ]
    with Bench(seed) as bench:
        for scenario, kind, _ in sorted(sweeps, key=lambda sweep: sweep[2]):
            if time.monotonic() > deadline:
                return
            sweep(bench, scenario, kind, deadline, watcher)


def kinds_for(scenario: Scenario) -> list[Fault]:
    """The sweeps of a scenario; slow ones open and read files with fewer kinds of errors."""
    few = ("open EIO", "open kill", "read EIO")
    often = ("open", "read")
    return [Fault(operation, 0, EACH) for operation in FAULTS] + [
        kind
        for kind in KINDS
        if not scenario.slow or kind.operation not in often or kind.name in few
    ]
