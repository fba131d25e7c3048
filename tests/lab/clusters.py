"""`prepare` on a Ray cluster whose worker processes, nodes and driver are killed at random moments.

The cluster has two nodes on this machine. A run whose worker or node is lost must succeed; a run whose
driver is lost is resumed, on the cluster or without it. The bytes are those of one machine. Without
Ray, this part is skipped. `make test` has such cases in `tests/cluster`.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from . import results
from .bench import Contents, difference, read_folder, shorten
from .scenarios import make_texts
from .watcher import Watcher

SCENARIO = "cluster-prepare"
HOWS = ("worker", "driver", "workers", "driver and worker", "node")
_PATIENCE = 200.0  # seconds
_SECONDS = 6.0  # in which most kills happen, from the start of the work on
# With small parts, so that there are many tasks.
_PROGRAM = """
import sys
from tests.lab.scenarios import use_small_parts
use_small_parts()
from tokenmill.cli import main
sys.exit(main(sys.argv[1:]))
"""
_FLAGS = "--tokenizer bytes --val-fraction 0.2 --tokens-per-shard 3000 --dedup".split()


class Yard:
    """A cluster, and a folder with texts."""

    def __init__(self, root: Path) -> None:
        self.root, self.cluster = root, _start_cluster(root)
        make_texts(None, root)  # type: ignore[arg-type]
        self.expected = {dedup: self._expect(dedup) for dedup in ("documents", "lines")}

    def _expect(self, dedup: str) -> Contents:
        process = self.start(f"expected-{dedup}", dedup, is_local=True)
        _, said = process.communicate(timeout=_PATIENCE)
        assert process.returncode == 0, said
        return _read(self.root / f"expected-{dedup}")

    def start(self, out: str, dedup: str, *, is_local: bool) -> subprocess.Popen[str]:
        """Start `prepare` with worker processes, or on the cluster."""
        from test_ray_engine import SETTINGS

        where = ("--workers", "1") if is_local else ("--ray-address", self.cluster.address)
        flags = ("--engine", "local" if is_local else "ray", *where, "--out", out)
        paths = (str(results.ROOT), os.environ.get("PYTHONPATH", ""))
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, "prepare", "texts", *_FLAGS, dedup, *flags],
            cwd=self.root,
            env={**os.environ, **SETTINGS, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run_case(self, how: str, seed: int) -> str | None:
        """Kill something during a run; returns what is wrong afterwards."""
        rng = random.Random(f"{seed} {how}")
        dedup = rng.choice(("documents", "lines"))
        out = self.root / "out"
        shutil.rmtree(out, ignore_errors=True)
        process = self.start("out", dedup, is_local=False)
        _wait_for(out / ".work" / "plan.json", process)
        time.sleep(rng.uniform(0, _SECONDS))
        for _ in range(3 if how == "workers" else 1):
            if "worker" in how:
                self._kill_worker(rng)
            if "driver" in how:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            if how == "node":
                self.cluster.kill_node()
            time.sleep(rng.uniform(0, 0.5))
        said = _finish(process)
        if process.returncode == -signal.SIGKILL and "driver" in how:
            process = self.start("out", dedup, is_local=rng.random() < 0.5)
            said = _finish(process)
        if how == "node":  # one is left
            self.cluster.shutdown()
            self.cluster = _start_cluster(self.root)
        if process.returncode:
            return f"status {process.returncode}: {shorten(said)}"
        return difference(self.expected[dedup], _read(out))

    def _kill_worker(self, rng: random.Random) -> None:
        """Kill a worker process of a node, if there is one."""
        if workers := _find_workers(self.cluster._process.pid):
            with suppress(ProcessLookupError):
                os.kill(rng.choice(workers), signal.SIGKILL)


def _start_cluster(root: Path) -> Any:
    from test_ray_engine import Cluster

    return Cluster(str(root / "r"))  # short: the names of sockets are in it


def _read(folder: Path) -> Contents:
    return read_folder(folder, lambda _, data: data)


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + _PATIENCE
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)


def _finish(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=_PATIENCE)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "the command hangs"


def _find_workers(cluster: int) -> list[int]:
    """The worker processes of Ray among the descendants of a process.

    A node ends with its agents, which have names of their own.
    """
    parents: dict[int, int] = {}
    workers = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            about = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(about[1])
            if (folder / "cmdline").read_bytes().startswith((b"ray::IDLE", b"ray::_run")):
                workers.append(int(folder.name))
    return [pid for pid in workers if cluster in _list_ancestors(pid, parents)]


def _list_ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid := parents.get(pid, 0):
        yield pid


@contextmanager
def open_yard() -> Iterator[Yard]:
    """A cluster and a folder, until the end."""
    place = str(results.ROOT / "tests" / "cluster")
    if place not in sys.path:
        sys.path.append(place)
    with tempfile.TemporaryDirectory(prefix="l", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yard = Yard(Path(folder))
        try:
            yield yard
        finally:
            yard.cluster.shutdown()


def run(deadline: float, seed: int, watcher: Watcher) -> None:
    """Kill runs on a cluster, in each way in turn."""
    if importlib.util.find_spec("ray") is None or not sys.platform.startswith("linux"):
        watcher.say("skipped: needs Linux and Ray")
        return
    rng = random.Random(seed)
    with open_yard() as yard:
        while True:
            for how in HOWS:
                if time.monotonic() > deadline:
                    return
                number = rng.randrange(1 << 31)
                wrong = yard.run_case(how, number)
                fault = f"cluster:{how.replace(' ', '-')}"
                watcher.report("kills", SCENARIO, how, fault, number, wrong)


def run_one(fault: str, seed: int) -> int:
    """Run one case, `cluster:worker`; returns 1 if it fails."""
    with open_yard() as yard:
        wrong = yard.run_case(fault.partition(":")[2].replace("-", " "), seed)
    print(wrong or "as expected")
    return 1 if wrong else 0
