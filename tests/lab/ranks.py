"""Ranks that start seconds or minutes apart, by hand or by torchrun on two nodes.

Two processes train together over gloo. If the second starts while the first still waits, the run must
end with the bytes of ranks that start together. If it starts too late, each rank must end with an error
that names the wait; then the same command must end with the right bytes.
"""

from __future__ import annotations

import importlib.util
import os
import random
import socket
import sys
import time

from . import control
from .bench import Bench, Contents, Scenario, difference, shorten
from .processes import Process
from .scenarios import SCENARIOS, chosen
from .watcher import Watcher

SCENARIO = "train-torch"
HOWS = ("in-time", "too-late", "torchrun")
_LONGEST = 120.0  # seconds between two starts; the default patience of ranks is 600
_PATIENCE = 180.0  # seconds that a rank may take, besides its delay
_SAID = ("for the other ranks", "lost the connection to another rank")


def run_case(
    bench: Bench, scenario: Scenario, how: str, seed: int, expected: Contents
) -> str | None:
    """Start two ranks apart; returns what is wrong."""
    rng = random.Random(f"{seed} {how}")
    late = rng.randrange(2)
    delay = rng.uniform(0, _LONGEST if rng.random() < 0.1 else 5.0)
    bench.reset(scenario)
    if how == "too-late":
        delay = 0.0
        for rank in (1 - late, late):
            ended = start(bench, scenario, rank, find_port(), "--rank-timeout", "2").wait()
            if not ended.is_clean_error or not any(said in ended.stderr for said in _SAID):
                return f"rank {rank} alone: status {ended.status}, {shorten(ended.stderr)}"
    wrong = run_both(bench, scenario, late, delay, torchrun=how == "torchrun")
    return wrong or difference(expected, bench.found(scenario))


def run_both(
    bench: Bench, scenario: Scenario, late: int, delay: float, *, torchrun: bool = False
) -> str | None:
    """Run both ranks, of which `late` starts `delay` seconds after the other."""
    port = find_port()
    ranks = {1 - late: start(bench, scenario, 1 - late, port, torchrun=torchrun)}
    time.sleep(delay)
    ranks[late] = start(bench, scenario, late, port, torchrun=torchrun)
    ended = {rank: process.wait(_PATIENCE) for rank, process in ranks.items()}
    failed = [
        f"rank {rank}: status {one.status}, {shorten(one.stderr)}"
        for rank, one in ended.items()
        if one.status != 0
    ]
    return "; ".join(failed) or None


def start(
    bench: Bench, scenario: Scenario, rank: int, port: int, *flags: str, torchrun: bool = False
) -> Process:
    """Start one of two ranks."""
    arguments = (*scenario.arguments, *flags)
    nodes = f"--nnodes 2 --node-rank {rank} --nproc-per-node 1"
    nodes += f" --master-addr 127.0.0.1 --master-port {port}"

    def run() -> int:
        from tokenmill.cli import main

        control.attach(None)
        scenario.set_up()
        if torchrun:
            launch = ["-m", "torch.distributed.run", *nodes.split(), "-m", "tokenmill.cli"]
            os.execv(sys.executable, [sys.executable, *launch, *arguments])
        ranks = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in ranks.items()}
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        return main(arguments)

    return Process(run, bench.folder(scenario), bench.root / f"rank{rank}")


def find_port() -> int:
    """A free port of this machine."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def expect(bench: Bench, scenario: Scenario) -> Contents:
    """Every file after a run whose ranks start together."""
    bench.expected(scenario)  # of one process; imports what the ranks import
    bench.reset(scenario)
    wrong = run_both(bench, scenario, 1, 0.0)
    assert wrong is None, wrong
    return bench.found(scenario)


def run(deadline: float, seed: int, watcher: Watcher) -> None:
    """Start ranks apart, in each way in turn."""
    scenario = SCENARIOS.get(SCENARIO)
    if importlib.util.find_spec("torch") is None or scenario not in chosen():
        watcher.say("skipped: needs PyTorch")
        return
    assert scenario is not None
    if not control.prepare(watcher.say):
        return
    rng = random.Random(seed)
    with Bench(seed) as bench:
        expected = expect(bench, scenario)
        while time.monotonic() < deadline:
            for how in HOWS:
                number = rng.randrange(1 << 31)
                wrong = run_case(bench, scenario, how, number, expected)
                name = f"ranks {how}"
                watcher.report("conditions", scenario.name, name, f"ranks:{how}", number, wrong)
                if time.monotonic() > deadline:
                    return
