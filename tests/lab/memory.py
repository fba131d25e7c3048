"""Let memory run out in every scenario.

Every allocation of 8 kB or more fails once, and from one on all of them fail. Also, each command runs
in a fresh interpreter under a falling RLIMIT_AS. It must end with the right bytes, or with an error that
says that memory ran out; then the same command must end with the right bytes.
"""

from __future__ import annotations

import linecache
import random
import re
import signal
import time

from . import control
from .bench import Bench, Scenario, shorten
from .control import Fault
from .processes import Ended, Limits
from .scenarios import chosen
from .watcher import Watcher

_LARGEST = {False: 1 << 20, True: 6 << 20}  # kB; frameworks map a lot
_SMALLEST = 60 << 10  # kB; Python itself needs about 40 MB
_FRAGILE = ("orjson", "gigatoken")
_RUST_ABORTS = re.compile(r"memory allocation of \d+ bytes failed")
_LAST_CALL = re.compile(r'\(most recent call first\):\n  File "(.+)", line (\d+)')
_ONCE, _FROM_NOW = Fault("malloc", 0, "ENOMEM"), Fault("malloc", 0, "ENOMEM+")


def run_limited(bench: Bench, scenario: Scenario, kilobytes: int) -> str | None:
    """Run a scenario in this much address space; returns what is wrong."""
    bench.expected(scenario)
    bench.reset(scenario)
    limits = Limits(memory=kilobytes << 10)
    return judge_memory(bench, scenario, bench.run(scenario, limits=limits, fresh=True))


def run_case(
    bench: Bench, scenario: Scenario, fault: Fault, *, alone: bool = False
) -> tuple[bool, str | None]:
    """Let one allocation fail; returns whether there was such a one, and what is wrong.

    If `alone`, allocations of programs that the command starts do not count.
    """
    bench.expected(scenario)
    bench.reset(scenario)
    bench.control.arm(bench.folder(scenario), fault)
    ended = bench.run(scenario, armed=True, alone=alone, real_workers=False)
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
    if crashed_in_library(ended):
        return bench.resume(scenario)
    if not ended.is_clean_error:
        return f"status {ended.status} without a clear error: {shorten(ended.stderr)}"
    if "memory" not in ended.stderr.lower():
        return f"the error does not say that memory ran out: {shorten(ended.stderr)}"
    return bench.resume(scenario)


def crashed_in_library(ended: Ended) -> bool:
    """Whether a library ended the process, as orjson, gigatoken and tantivy do if memory runs out.

    orjson 3.13 uses a dictionary or a buffer that it did not get (SIGSEGV). gigatoken and tantivy are
    written in Rust, which aborts with a message, in tantivy's own threads too.
    """
    if ended.status not in (-signal.SIGSEGV, -signal.SIGABRT):
        return False
    if ended.status == -signal.SIGABRT and _RUST_ABORTS.search(ended.stderr):
        return True
    found = _LAST_CALL.search(ended.stderr)
    line = linecache.getline(found[1], int(found[2])) if found else ""
    return any(f"{name}." in line for name in _FRAGILE) or (
        found is not None and any(f"/{name}/" in found[1] for name in _FRAGILE)
    )


def run(deadline: float, seed: int, watcher: Watcher) -> None:
    """Let the memory of one scenario after another fall, by random steps, to nothing."""
    if not control.prepare(watcher.say):
        return
    rng = random.Random(seed)
    scenarios = sorted(chosen(), key=lambda scenario: (scenario.slow, rng.random()))
    with Bench(seed) as bench:
        for scenario in scenarios:
            if time.monotonic() > deadline:
                return
            ways = {
                count_allocations(bench, scenario, alone=alone): alone for alone in (False, True)
            }
            for count, alone in ways.items():
                for kind in (_ONCE, _FROM_NOW):
                    fail_allocations(bench, scenario, kind, count, deadline, watcher, alone=alone)
            lower_limit(bench, scenario, rng, deadline, watcher)


def count_allocations(bench: Bench, scenario: Scenario, *, alone: bool = False) -> int:
    """The number of large allocations of an undisturbed run."""
    bench.expected(scenario)
    bench.reset(scenario)
    bench.control.arm(bench.folder(scenario), _ONCE)
    bench.run(scenario, armed=True, alone=alone, real_workers=False)
    return bench.control.counts["malloc"]


def fail_allocations(
    bench: Bench,
    scenario: Scenario,
    kind: Fault,
    count: int,
    deadline: float,
    watcher: Watcher,
    *,
    alone: bool,
) -> None:
    """Let each of `count` large allocations fail; if there are many, only some of them."""
    most = 20 if scenario.slow else 200
    for number in random.Random(bench.seed).sample(range(1, count + 1), min(count, most)):
        if time.monotonic() > deadline:
            return
        fault = kind.at(number)
        happened, wrong = run_case(bench, scenario, fault, alone=alone)
        shown = f"alone:{fault}" if alone else fault
        if happened:
            watcher.report("memory", scenario.name, kind.name, shown, bench.seed, wrong)


def lower_limit(
    bench: Bench, scenario: Scenario, rng: random.Random, deadline: float, watcher: Watcher
) -> None:
    """Run a scenario in less and less address space."""
    kilobytes = _LARGEST[scenario.slow]
    while kilobytes > _SMALLEST and time.monotonic() < deadline:
        wrong = run_limited(bench, scenario, kilobytes)
        fault = f"memory:{kilobytes}"
        watcher.report("memory", scenario.name, "RLIMIT_AS", fault, bench.seed, wrong)
        kilobytes = int(kilobytes * rng.uniform(0.6, 0.9))
