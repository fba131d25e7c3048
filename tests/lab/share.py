"""The share of the laboratory that `make test` runs: a few cases of each scenario, with a fixed seed.

python -m tests.lab.share faults
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

from . import buckets, concurrency, control, faults, kills, memory, power
from .bench import Bench, Scenario
from .control import Fault
from .disk_model import MODES
from .scenarios import SCENARIOS
from .watcher import describe

SEED = 1
Case = tuple[str, int, str | None]  # what was done with which seed, and what is wrong


def share_faults(bench: Bench, scenario: Scenario, rng: random.Random) -> Iterator[Case]:
    """Some calls of different operations, each with a random fault."""
    counts = bench.counts(scenario)
    operations = [name for name in faults.FAULTS if counts[name]]
    for operation in rng.sample(operations, min(4, len(operations))):
        number, what = rng.randint(1, counts[operation]), rng.choice(faults.FAULTS[operation])
        fault = Fault(operation, number, what)
        yield str(fault), SEED, faults.run_case(bench, scenario, fault)[1]


def share_power(bench: Bench, scenario: Scenario, rng: random.Random) -> Iterator[Case]:
    """The end of the run, and some moments in it."""
    calls = power.record_calls(bench, scenario)
    for cut in (len(calls), *rng.sample(range(len(calls)), min(3, len(calls)))):
        mode, seed = rng.choice([*MODES]), rng.randrange(1 << 31)
        wrong = power.run_case(bench, scenario, calls, cut, mode, seed)
        yield f"power:{cut}:{mode}", seed, wrong


def share_kills(bench: Bench, scenario: Scenario, rng: random.Random) -> Iterator[Case]:
    """Each way to kill."""
    for how in kills.HOWS:
        seed = rng.randrange(1 << 31)
        wrong = kills.run_case(bench, scenario, how, seed)[1]
        yield f"kills:{how.replace(' ', '-')}", seed, wrong


def share_memory(bench: Bench, scenario: Scenario, rng: random.Random) -> Iterator[Case]:
    """Some allocations."""
    count = memory.count_allocations(bench, scenario)
    for number in rng.sample(range(1, count + 1), min(3, count)):
        fault = Fault("malloc", number, rng.choice(("ENOMEM", "ENOMEM+")))
        yield str(fault), SEED, memory.run_case(bench, scenario, fault)[1]


def share_concurrency(bench: Bench, scenario: Scenario, rng: random.Random) -> Iterator[Case]:
    """Two of the conditions."""
    for condition in rng.sample([*concurrency.CONDITIONS], 2):
        seed = rng.randrange(1 << 31)
        wrong = concurrency.run_case(bench, scenario, condition, seed)
        yield f"condition:{condition}", seed, wrong


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


def _trust_finished_work() -> None:
    from tokenmill.convert import shard_writer
    from tokenmill.preparation import pack, segment

    pack.is_intact = shard_writer.is_intact = lambda *_: True
    segment.CheckBundle.run = lambda *_: True  # type: ignore[method-assign]


def _take_no_lock() -> None:
    from tokenmill.storage.lock import FileLock

    FileLock.acquire = lambda _: True  # type: ignore[method-assign]


# Defects that are planted on purpose: the part that must find each, and a scenario that shows it.
DEFECTS: dict[str, tuple[str, str, Callable[[], None]]] = {
    "no file or folder is synced": ("power", "prepare", _forget_to_sync),
    "folders are not synced": ("power", "export-llmc", _sync_files_only),
    "files are written in place": ("kills", "pretokenize", _write_in_place),
    "finished work is not checked": ("kills", "reshard", _trust_finished_work),
    "no lock is taken": ("concurrency", "prepare", _take_no_lock),
}
_ROUNDS = 50  # in which a planted defect must be found


# Cases that failed once, as `python -m tests.lab` takes them.
FOUND = (
    ("import", "link:1:kill"),  # only a temporary file in .work: "holds other files"
    ("reshard", "write:1:tear"),
    ("prepare", "read:31:short"),  # tokens were lost after a short read; the run ended as a bug
    ("prepare-all", "ftruncate:2:EINTR"),
    ("tokenizer-train", "rename:1:kill"),  # its temporary file stayed forever
    ("tokenizer-train", "write:1:ENOSPC"),  # a traceback
    ("prepare-lines", "open:84:ENOSPC"),  # a traceback in the closing summary
    ("export-npy", "fsync:2:EIO"),  # a failed fsync of a folder ended as success
    ("export-mds", "malloc:72:ENOMEM"),  # no memory was reported as a damaged file
    ("prepare", "malloc:268:ENOMEM+"),  # no memory left to word the message
    ("prepare-all", "memory:160122"),  # a library that cannot be mapped was called a bug
    ("prepare-all", "malloc:107:ENOMEM"),  # a folder that cannot be listed was called a device
    ("tokenizer-train", "malloc:157:ENOMEM"),  # "training failed: SyntaxError"
    # A folder that could not be flushed was never flushed, once its files were complete.
    ("import", "again:fsync:2:EIO"),
    ("pretokenize", "again:fsync:1:EIO"),
    ("download", "again:fsync:2:EIO"),
    ("prepare", "power:end:lost"),  # the folder of a finished dataset could vanish
    # A run that was about to finish lost its work folder to another one: "No such file".
    ("import", "overtaken:-10"),
    ("pretokenize", "overtaken:6"),  # before it took the lock
)


def run_found() -> int:
    """Run the cases that failed once; returns the number of failures."""
    from . import reproduce

    failures = 0
    with Bench(SEED, real_workers=False) as bench:
        for name, fault in FOUND:
            wrong = reproduce.run_fault(bench, SCENARIOS[name], fault, SEED)[1]
            if wrong:
                failures += 1
                print(f"FAILED {name} {fault}: {wrong}", flush=True)
    return failures


def run_share(part: str) -> int:
    """Run the share of a part; returns the number of failures."""
    failures = 0
    with Bench(SEED, real_workers=False) as bench:
        for scenario in SCENARIOS.values():
            if scenario.slow:
                continue
            rng = random.Random(f"{SEED} {part} {scenario.name}")
            for fault, seed, wrong in PARTS[part](bench, scenario, rng):
                if wrong:
                    failures += 1
                    command = describe(scenario.name, fault, seed)
                    print(f"FAILED {scenario.name} {fault}: {wrong}\n  {command}", flush=True)
    return failures


def find_defect(name: str) -> str | None:
    """Run a part with a planted defect until it finds it; returns what it found."""
    part, scenario_name, plant = DEFECTS[name]
    scenario = SCENARIOS[scenario_name]
    rng = random.Random(SEED)
    with Bench(SEED, real_workers=False) as bench:
        bench.expected(scenario)
        defective = replace(scenario, set_up=plant)
        for _ in range(_ROUNDS):
            for fault, _, wrong in PARTS[part](bench, defective, rng):
                if wrong:
                    return f"{fault}: {wrong}"
    return None


def main(part: str, defect: str | None = None) -> int:
    """Run the share of a part; with a planted defect, until it is found. Returns 1 if a case failed."""
    if part == "buckets":
        return 1 if buckets.run_share(SEED) else 0
    control.restart_preloaded()
    if defect is None:
        return 1 if (run_found() if part == "found" else run_share(part)) else 0
    found = find_defect(defect)
    print(f"FAILED {found}" if found else "not found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
