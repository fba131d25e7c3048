"""Kill commands with SIGKILL, at random calls and at random moments, several times each.

A case is a command that is killed up to three times and then run to its end. Every process of the
command is killed, or only the one that made the call: a worker, or the one that started the others.

In other cases, one of the files that a killed command left is damaged. The same command must make it
again, or refuse it by name.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from . import control
from .bench import Bench, Scenario, shorten
from .control import Fault
from .scenarios import chosen
from .watcher import Watcher

_KILLS = 3  # at most, of one command
HOWS = ("at a call", "one process", "at a moment", "and damaged")
_FINISHED = "dataset_metadata.json"  # a dataset that is finished is not made again


def run_case(bench: Bench, scenario: Scenario, how: str, seed: int) -> tuple[int, str | None]:
    """Kill a command some times; returns the number of kills, and what is wrong at the end."""
    rng = random.Random(f"{seed} {how}")
    if how == "and damaged":
        return _kill_and_damage(bench, scenario, rng)
    calls = bench.counts(scenario)["call"]
    bench.reset(scenario)
    kills = 0
    for _ in range(rng.randint(1, _KILLS)):
        what = {"at a call": "kill", "one process": "die"}.get(how)
        fault = Fault("call", rng.randint(1, calls), what) if what else None
        bench.control.arm(bench.folder(scenario), fault)
        process = bench.start(scenario, armed=True)
        if fault is None:
            process.is_running(rng.uniform(0, bench.seconds(scenario)))
            running = process.is_running()
            process.signal(signal.SIGKILL)
            ended = process.wait()
            killed = running and ended.status == -signal.SIGKILL
        else:
            ended = process.wait()
            killed = bench.control.fired > 0
        kills += killed
        if ended.status is None:
            return kills, "the command hangs"
        if "Traceback" in ended.stderr:
            return kills, f"a traceback: {ended.stderr[-500:]}"
    return kills, bench.resume(scenario)


def _kill_and_damage(
    bench: Bench, scenario: Scenario, rng: random.Random
) -> tuple[int, str | None]:
    """Kill a command, damage one of its files, and run it again."""
    calls = bench.counts(scenario)["call"]
    bench.reset(scenario)
    inputs = set(_list_files(bench.folder(scenario)))
    bench.control.arm(bench.folder(scenario), Fault("call", rng.randint(1, calls), "kill"))
    bench.run(scenario, armed=True)
    left = sorted(set(_list_files(bench.folder(scenario))) - inputs)
    if not bench.control.fired or any(name.endswith(_FINISHED) for name in left):
        return 0, None
    files = [name for name in left if not name.endswith("/lock")]
    if files:
        damage(bench.folder(scenario) / rng.choice(files), rng)
    ended = bench.run(scenario)
    if ended.status == 0:
        different = bench.compare(scenario)
        return 1, different and f"after damage, it ended as success, but {different}"
    if not ended.is_clean_error:
        return 1, f"after damage, status {ended.status}: {shorten(ended.stderr)}"
    return 1, None


def _list_files(folder: Path) -> list[str]:
    return [one.relative_to(folder).as_posix() for one in folder.rglob("*") if one.is_file()]


def damage(path: Path, rng: random.Random) -> None:
    """Change a bit, cut the end, fill a part with zeros, or remove a file."""
    data = bytearray(path.read_bytes())
    how = rng.choice(("bit", "bit", "cut", "zeros", "gone")) if data else "gone"
    if how == "gone":
        path.unlink()
        return
    place = rng.randrange(len(data))
    if how == "bit":
        data[place] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del data[place:]
    else:
        data[place : place + 512] = bytes(len(data[place : place + 512]))
    path.write_bytes(data)


def run(deadline: float, seed: int, watcher: Watcher) -> None:
    """Kill random scenarios."""
    if not control.prepare(watcher.say):
        return
    rng = random.Random(seed)
    fast = [scenario for scenario in chosen() if not scenario.slow]
    slow = [scenario for scenario in chosen() if scenario.slow]
    with Bench(seed) as bench:
        while time.monotonic() < deadline:
            scenario = rng.choice(slow if slow and (not fast or rng.random() < 0.01) else fast)
            for _ in range(30 if scenario in fast else 10):
                if time.monotonic() > deadline:
                    return
                how, number = rng.choice(HOWS), rng.randrange(1 << 31)
                kills, wrong = run_case(bench, scenario, how, number)
                fault = f"kills:{how.replace(' ', '-')}"
                watcher.report("kills", scenario.name, how, fault, number, wrong, cases=kills)
