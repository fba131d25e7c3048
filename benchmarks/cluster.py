"""Compare `prepare` on a Ray cluster with worker processes: speed, scaling and memory.

All nodes of the cluster are on this machine, with one CPU each. The engines take turns on the same
text; the result is the median of the rounds. A run includes starting its workers, or connecting to
the cluster. Processor time is that of all processes, those of Ray included; it depends less on what
else the machine does. Memory is the peak of the resident memory of the calling process and of the largest
worker, sampled; a worker of Ray is larger by what Ray itself takes.

`benchmarks/cluster_bytes.py` compares the bytes of more cases. This takes about nine minutes.

    python benchmarks/cluster.py [--size 256] [--rounds 3] [--sizes 128 512]     sizes in MB
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus import make_corpus
from memory import process_tree
from results import record

STORE = 100 << 20  # bytes of Ray's object store on each node
DEDUPS = ("documents", "lines")
CORES = (1, 2)


@dataclass(frozen=True)
class Measured:
    """One run: seconds, processor time of all processes, MB of the calling process and of the
    largest worker, and a hash of the dataset."""

    seconds: float
    cpu: float
    driver: float
    worker: float
    digest: str


@contextmanager
def start_cluster(nodes: int) -> Iterator[Any]:
    """A cluster of Ray on this machine: a head without CPUs, and nodes with one CPU each."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ.update(
            RAY_TMPDIR=folder,  # the names of sockets must be short
            RAY_USAGE_STATS_ENABLED="0",
            RAY_worker_niceness="0",  # like local workers; 15 by default
            RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # listen on 127.0.0.1
        )
        from ray.cluster_utils import Cluster

        options: dict[str, Any] = {"object_store_memory": STORE, "node_ip_address": "127.0.0.1"}
        head = {"num_cpus": 0, "include_dashboard": False}
        cluster: Any = Cluster(initialize_head=True, head_node_args={**options, **head})
        for _ in range(nodes):
            cluster.add_node(num_cpus=1, wait=False, **options)
        cluster.wait_for_nodes()
        try:
            yield cluster
        finally:
            cluster.shutdown()


def measure(files: list[Path], out: Path, dedup: str, flags: list[str]) -> Measured:
    """Run `tokenmill prepare` once."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "tokenmill.cli", "prepare", *map(str, files)]
    before, started = _processor_times(), time.perf_counter()
    process = subprocess.Popen(
        [*command, "--out", str(out), "--dedup", dedup, *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    driver = worker = 0
    after: dict[int, float] = {}
    while process.poll() is None:
        after |= _processor_times()
        driver = max(driver, _resident(process.pid))
        worker = max([worker, *map(_resident, _find_workers(process.pid))])
        time.sleep(0.05)
    seconds = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"this failed: {' '.join(command)} {' '.join(flags)}")
    cpu = sum(spent - before.get(number, 0.0) for number, spent in after.items())
    return Measured(seconds, cpu, driver / 1e6, worker / 1e6, _digest(out))


def _processor_times() -> dict[int, float]:
    """The processor seconds of this benchmark's other processes so far."""
    times = {}
    for process in process_tree(os.getpid()) - {os.getpid()}:
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            times[process] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return times


def _resident(process: int) -> int:
    with suppress(OSError, IndexError):
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def _find_workers(driver: int) -> list[int]:
    """The worker processes of a run: its children, and those that run tasks of Ray."""
    found = process_tree(driver) - {driver}
    for process in process_tree(os.getpid()):
        with suppress(OSError):
            if Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::"):
                found.add(process)
    return list(found)


def _digest(folder: Path) -> str:
    """A hash of all files of a dataset and their names."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def compare_speed(files: list[Path], small: Path, out: Path, rounds: int) -> list[dict[str, Any]]:
    """Both engines with one and two CPUs, and what a run costs that has almost nothing to do.

    Refuses results that differ.
    """
    size = sum(path.stat().st_size for path in files) / 1e6
    work = [("almost none", [small], "documents"), *((dedup, files, dedup) for dedup in DEDUPS)]
    found: dict[tuple[str, str, int], list[Measured]] = {}
    for cores in CORES:
        with start_cluster(cores) as cluster:
            ray = ["--engine", "ray", "--ray-address", cluster.address]
            for number in range(rounds):
                for engine, flags in (("local", ["--workers", str(cores)]), ("ray", ray)):
                    for name, texts, dedup in work:
                        run = measure(texts, out, dedup, flags)
                        found.setdefault((name, engine, cores), []).append(run)
                        print(
                            f"{cores} CPUs, round {number + 1} of {rounds}, {engine}, {name}: "
                            f"{run.seconds:.1f} s, processor time {run.cpu:.1f} s",
                            flush=True,
                        )
    for name, _, _ in work:
        digests = {run.digest for key, runs in found.items() if key[0] == name for run in runs}
        if len(digests) != 1:
            raise SystemExit(f"the engines made different datasets: {name}")
    seconds = {key: statistics.median(run.seconds for run in runs) for key, runs in found.items()}
    return [
        {
            "work": name if name == "almost none" else f"{size:.0f} MB, `--dedup {name}`",
            "engine": engine,
            "CPUs": cores,
            "seconds": f"{seconds[name, engine, cores]:.1f}",
            "more than local": f"{seconds[name, engine, cores] - seconds[name, 'local', cores]:+.1f} s",
            "scaling": f"{seconds[name, engine, 1] / seconds[name, engine, cores]:.2f}",
            "processor time": f"{statistics.median(run.cpu for run in runs):.1f} s",
        }
        for (name, engine, cores), runs in sorted(found.items())
    ]


def compare_memory(sizes: list[int], root: Path) -> list[dict[str, Any]]:
    """The memory of both engines for inputs of several sizes."""
    rows = []
    with start_cluster(2) as cluster:
        ray = ["--engine", "ray", "--ray-address", cluster.address]
        for size in sizes:
            files = make_corpus(root / f"text{size}", size * 1_000_000)
            for engine, flags in (("local", ["--workers", "2"]), ("ray", ray)):
                runs = []
                for dedup in DEDUPS:
                    print(f"memory, {size} MB, {engine}, {dedup}", flush=True)
                    runs.append(measure(files, root / "out", dedup, flags))
                row: dict[str, Any] = {"input": f"{size} MB", "engine": engine}
                for dedup, run in zip(DEDUPS, runs, strict=True):
                    row[f"calling process, {dedup}"] = f"{run.driver:.0f} MB"
                    row[f"largest worker, {dedup}"] = f"{run.worker:.0f} MB"
                rows.append(row)
                print(row, flush=True)
    return rows


def main() -> None:
    """Measure speed, then memory, and record the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", type=int, default=256, help="MB of text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 512], help="MB")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = make_corpus(root / "text", args.size * 1_000_000)
        conditions = {"text": f"{args.size} MB", "rounds": args.rounds}
        (root / "small.txt").write_text("A text.")
        rows = compare_speed(files, root / "small.txt", root / "out", args.rounds)
        record("cluster", conditions, rows)
        record("cluster-memory", {"workers": 2}, compare_memory(args.sizes, root))


if __name__ == "__main__":
    main()
