"""Run one case again, as a failure names it, and print everything about it."""

from __future__ import annotations

from . import control, faults
from .bench import Bench
from .control import Fault
from .scenarios import SCENARIOS


def run_one(name: str, text: str, seed: int) -> int:
    """Run one case; returns 1 if it fails."""
    if control.build_library() is None:
        print("skipped: needs Linux and a C compiler")
        return 0
    control.restart_preloaded()
    scenario = SCENARIOS[name]
    with Bench(seed) as bench:
        happened, wrong = faults.run_case(bench, scenario, Fault.parse(text))
        for path in sorted(bench.root.glob("output*")):
            print(f"--- {path.name}\n{path.read_text()}", end="")
        print(f"place: {bench.control.place or 'none'}")
    print("not reached" if not happened else wrong or "as expected")
    return 1 if wrong else 0
