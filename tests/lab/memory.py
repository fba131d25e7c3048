"""Let memory run out in every scenario.

Every allocation of 8 kB or more fails once, and from one on all of them fail. Also, each command runs
in a fresh interpreter under a falling RLIMIT_AS. It must end with the right bytes, or with an error that
says that memory ran out; then the same command must end with the right bytes.
"""

from __future__ import annotations

import random
import signal
import time

from . import control, results
from .bench import Bench, Ended, Limits, Scenario, shorten
from .control import Fault
from .faults import describe
from .scenarios import chosen
from .watcher import Watcher

_LARGEST = {False: 1 << 20, True: 6 << 20}  # kB; frameworks map a lot
_SMALLEST = 60 << 10  # kB; Python itself needs about 40 MB
_ONCE, _FROM_NOW = Fault("malloc", 0, "ENOMEM"), Fault("malloc", 0, "ENOMEM+")


def run_limited(bench: Bench, scenario: Scenario, kilobytes: int) -> str | None:
    """Run a scenario in this much address space; returns what is wrong."""
    bench.expected(scenario)
    bench.reset(scenario)
    limits = Limits(memory=kilobytes << 10)
    return judge_memory(bench, scenario, bench.run(scenario, limits=limits, fresh=True))


def run_case(bench: Bench, scenario: Scenario, fault: Fault) -> tuple[bool, str | None]:
    """Let one allocation fail; returns whether there was such a one, and what is wrong."""
    bench.expected(scenario)
    bench.reset(scenario)
    bench.control.arm(bench.folder(scenario), fault)
    ended = bench.run(scenario, armed=True, real_workers=False)
    if not bench.control.fired:
        return False, None
    return True, judge_memory(bench, scenario, ended)


def judge_memory(bench: Bench, scenario: Scenario, ended: Ended) -> str | None:
    """What is wrong after memory ran out."""
    if ended.status is None:
        return "the command hangs"
    if ended.status == 0:
        return bench.check_success(scenario)
    if "OpenBLAS error" in ended.stderr:  # while NumPy is imported, it ends the process itself
        return bench.resume(scenario)
    # Without memory, Arrow's threads may crash while Python exits, after the message.
    crashed_late = ended.status == -signal.SIGSEGV and "tokenmill: Memory ran out" in ended.stderr
    if crashed_late and "Traceback" not in ended.stderr:
        return bench.resume(scenario)
    if not ended.is_clean_error:
        return f"status {ended.status} without a clear error: {shorten(ended.stderr)}"
    if "memory" not in ended.stderr.lower():
        return f"the error does not say that memory ran out: {shorten(ended.stderr)}"
    return bench.resume(scenario)


def run(deadline: float, seed: int, watcher: Watcher) -> None:
    """Let the memory of one scenario after another fall, by random steps, to nothing."""
    if not control.prepare(watcher.say):
        return
    rng = random.Random(seed)
    scenarios = sorted(chosen(), key=lambda scenario: (scenario.slow, rng.random()))
    with Bench(seed) as bench:
        for scenario in scenarios:
            for kind in (_ONCE, _FROM_NOW):
                fail_allocations(bench, scenario, kind, deadline, watcher)
            lower_limit(bench, scenario, rng, deadline, watcher)


def count_allocations(bench: Bench, scenario: Scenario) -> int:
    """The number of large allocations of an undisturbed run."""
    bench.expected(scenario)
    bench.reset(scenario)
    bench.control.arm(bench.folder(scenario), _ONCE)
    bench.run(scenario, armed=True, real_workers=False)
    return bench.control.counts["malloc"]


def fail_allocations(
    bench: Bench, scenario: Scenario, kind: Fault, deadline: float, watcher: Watcher
) -> None:
    """Let every large allocation fail, in steps if there are many."""
    count = count_allocations(bench, scenario)
    cases = failures = 0
    most = 20 if scenario.slow else 200
    for number in random.Random(bench.seed).sample(range(1, count + 1), min(count, most)):
        if time.monotonic() > deadline:
            break
        fault = kind.at(number)
        happened, wrong = run_case(bench, scenario, fault)
        cases += happened
        watcher.advance(f"{scenario.name} {fault}", int(happened))
        if wrong:
            failures += 1
            watcher.fail(describe(scenario, fault, bench.seed), f"{scenario.name} {fault}: {wrong}")
    if cases:
        results.record("memory", scenario.name, kind.name, cases, failures, bench.seed)


def lower_limit(
    bench: Bench, scenario: Scenario, rng: random.Random, deadline: float, watcher: Watcher
) -> None:
    """Run a scenario in less and less address space."""
    kilobytes = _LARGEST[scenario.slow]
    cases = failures = 0
    while kilobytes > _SMALLEST and time.monotonic() < deadline:
        wrong = run_limited(bench, scenario, kilobytes)
        cases += 1
        fault = f"memory:{kilobytes}"
        watcher.advance(f"{scenario.name} {fault}")
        if wrong:
            failures += 1
            watcher.fail(describe(scenario, fault, bench.seed), f"{scenario.name} {fault}: {wrong}")
        kilobytes = int(kilobytes * rng.uniform(0.6, 0.9))
    if cases:
        results.record("memory", scenario.name, "RLIMIT_AS", cases, failures, bench.seed)
