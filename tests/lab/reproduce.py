"""Run one case again, as a failure names it, and print everything about it."""

from __future__ import annotations

from . import concurrency, control, faults, kills, memory, power, ranks
from .bench import Bench, Scenario
from .control import Fault
from .scenarios import SCENARIOS


def run_one(name: str, text: str, seed: int) -> int:
    """Run one case; returns 1 if it fails."""
    if not control.prepare(print):
        return 0
    scenario = SCENARIOS[name]
    with Bench(seed) as bench:
        happened, wrong = run_fault(bench, scenario, text, seed)
        for path in sorted(bench.root.glob("output*")):
            print(f"--- {path.name}\n{path.read_text()}", end="")
        print(f"place: {bench.control.place or 'none'}")
    print("not reached" if not happened else wrong or "as expected")
    return 1 if wrong else 0


def run_fault(bench: Bench, scenario: Scenario, text: str, seed: int) -> tuple[bool, str | None]:
    """Run one case; returns whether the fault happened, and what is wrong."""
    kind, _, rest = text.partition(":")
    if kind == "power":
        cut, mode = rest.split(":")
        calls = power.record_calls(bench, scenario)
        last = len(calls) if cut == "end" else int(cut)
        return True, power.run_case(bench, scenario, calls, last, mode, seed)
    if kind == "memory":
        return True, memory.run_limited(bench, scenario, int(rest))
    if kind == "malloc":
        return memory.run_case(bench, scenario, Fault.parse(text))
    if kind == "alone":
        return memory.run_case(bench, scenario, Fault.parse(rest), alone=True)
    if kind == "condition":
        return True, concurrency.run_case(bench, scenario, rest, seed)
    if kind == "overtaken":
        return True, concurrency.run_overtaken(bench, scenario, int(rest))
    if kind == "kills":
        return True, kills.run_case(bench, scenario, rest.replace("-", " "), seed)[1]
    if kind == "ranks":
        return True, ranks.run_case(bench, scenario, rest, seed, ranks.expect(bench, scenario))
    if kind == "again":
        return faults.run_again(bench, scenario, Fault.parse(rest))
    return faults.run_case(bench, scenario, Fault.parse(text))
