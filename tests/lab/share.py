"""The share of the laboratory that `make test` runs: a few cases of each scenario, with a fixed seed.

python -m tests.lab.share faults
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

from . import concurrency, control, faults, kills, memory, power
from .bench import Bench, Scenario
from .control import Fault
from .disk_model import MODES
from .scenarios import SCENARIOS

SEED = 1
Case = tuple[str, str | None]  # what was done, and what is wrong


def share_faults(bench: Bench, scenario: Scenario, rng: random.Random) -> Iterator[Case]:
    """Some calls of different operations, each with a random fault."""
    counts = bench.counts(scenario)
    operations = [name for name in faults.FAULTS if counts[name]]
    for operation in rng.sample(operations, min(4, len(operations))):
        number, what = rng.randint(1, counts[operation]), rng.choice(faults.FAULTS[operation])
        fault = Fault(operation, number, what)
        yield str(fault), faults.run_case(bench, scenario, fault)[1]


def share_power(bench: Bench, scenario: Scenario, rng: random.Random) -> Iterator[Case]:
    """The end of the run, and some moments in it."""
    calls = power.record_calls(bench, scenario)
    for cut in (len(calls), *rng.sample(range(len(calls)), min(3, len(calls)))):
        mode = rng.choice([*MODES])
        yield f"power:{cut}:{mode}", power.run_case(bench, scenario, calls, cut, mode, SEED)


def share_kills(bench: Bench, scenario: Scenario, rng: random.Random) -> Iterator[Case]:
    """Each way to kill."""
    for how in kills.HOWS:
        yield f"kills:{how.replace(' ', '-')}", kills.run_case(bench, scenario, how, SEED)[1]


def share_memory(bench: Bench, scenario: Scenario, rng: random.Random) -> Iterator[Case]:
    """Some allocations."""
    count = memory.count_allocations(bench, scenario)
    for number in rng.sample(range(1, count + 1), min(3, count)):
        fault = Fault("malloc", number, rng.choice(("ENOMEM", "ENOMEM+")))
        yield str(fault), memory.run_case(bench, scenario, fault)[1]


def share_concurrency(bench: Bench, scenario: Scenario, rng: random.Random) -> Iterator[Case]:
    """Two of the conditions."""
    for condition in rng.sample([*concurrency.CONDITIONS], 2):
        wrong = concurrency.run_case(bench, scenario, condition, SEED)
        yield f"condition:{condition}", wrong


PARTS: dict[str, Callable[[Bench, Scenario, random.Random], Iterator[Case]]] = {
    "faults": share_faults,
    "power": share_power,
    "kills": share_kills,
    "memory": share_memory,
    "concurrency": share_concurrency,
}


def _forget_to_sync() -> None:
    import os

    os.fsync = lambda _: None


def _write_in_place() -> None:
    from tokenmill.storage import files

    files.temporary_path = lambda path: path


def _sync_files_only() -> None:
    from tokenmill.storage import files

    files.sync_folder = lambda _: None


# Defects that are planted on purpose, and the part that must find each.
DEFECTS: dict[str, tuple[str, Callable[[], None]]] = {
    "no file or folder is synced": ("power", _forget_to_sync),
    "folders are not synced": ("power", _sync_files_only),
    "files are written in place": ("kills", _write_in_place),
}


def main(part: str, defect: str | None = None) -> int:
    """Run the share of a part; with a planted defect, until it is found. Returns 1 if a case failed."""
    control.restart_preloaded()
    failed = 0
    with Bench(SEED, real_workers=False) as bench:
        for scenario in SCENARIOS.values():
            if scenario.slow:
                continue
            bench.expected(scenario)
            if defect:
                scenario = replace(scenario, set_up=DEFECTS[defect][1])
            for fault, wrong in PARTS[part](
                bench, scenario, random.Random(f"{SEED} {part} {scenario.name}")
            ):
                if wrong:
                    failed += 1
                    command = faults.describe(scenario, fault, SEED)
                    print(f"FAILED {scenario.name} {fault}: {wrong}\n  {command}", flush=True)
                    if defect:
                        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
