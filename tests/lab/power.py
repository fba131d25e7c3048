"""Lose power after each call that changes the disk.

An undisturbed run is recorded. For each moment of it, `disk_model` says what may be on the disk if
power fails there; that is written into a folder, and the same command is run in it. It must end with
the right bytes. If the command had already reported success, they must be there before that.
"""

from __future__ import annotations

import random
import shutil
import time

from . import control
from .bench import Bench, Scenario
from .disk_model import MODES, Call, DiskModel, read_trace
from .scenarios import chosen
from .watcher import Watcher


def record_calls(bench: Bench, scenario: Scenario) -> list[Call]:
    """The calls of an undisturbed run that change the disk."""
    bench.expected(scenario)
    bench.reset(scenario)
    bench.trace.unlink(missing_ok=True)
    bench.control.arm(bench.folder(scenario), trace=bench.trace)
    ended = bench.run(scenario, armed=True, real_workers=False)
    assert ended.status == 0, ended.stderr
    return read_trace(bench.trace)


def run_case(
    bench: Bench, scenario: Scenario, calls: list[Call], cut: int, mode: str, seed: int
) -> str | None:
    """Lose power after `cut` calls; returns what is wrong."""
    bench.reset(scenario)
    folder = bench.folder(scenario)
    disk = DiskModel(folder)
    for call in calls[:cut]:
        disk.apply(call)
    shutil.rmtree(folder)
    folder.mkdir()
    disk.write_after_power_loss(folder, mode, random.Random(f"{seed} {cut} {mode}"))
    bench.restore_times(scenario)
    if cut == len(calls):
        return bench.check_success(scenario) or bench.resume(scenario)
    return bench.resume(scenario)


def run(deadline: float, seed: int, watcher: Watcher) -> None:
    """Lose power in one scenario after another."""
    if not control.prepare(watcher.say):
        return
    rng = random.Random(seed)
    scenarios = chosen()
    rng.shuffle(scenarios)
    with Bench(seed) as bench:
        for scenario in sorted(scenarios, key=lambda one: one.slow):
            calls = record_calls(bench, scenario)
            cases = [(cut, mode) for cut in range(len(calls) + 1) for mode in MODES]
            rng.shuffle(cases)
            share = max(20, 300 // len(scenarios) if not scenario.slow else 20)
            end = [(len(calls), mode) for mode in MODES]  # after success
            for cut, mode in end + cases[:share]:
                if time.monotonic() > deadline:
                    return
                wrong = run_case(bench, scenario, calls, cut, mode, bench.seed)
                if wrong:
                    wrong = f"{_describe_moment(calls, cut)}, {wrong}"
                fault = f"power:{cut}:{mode}"
                watcher.report("power loss", scenario.name, mode, fault, bench.seed, wrong)


def _describe_moment(calls: list[Call], cut: int) -> str:
    if not cut:
        return "at the start"
    return f"after {calls[cut - 1].kind} {calls[cut - 1].path.rpartition('/')[2]}"
