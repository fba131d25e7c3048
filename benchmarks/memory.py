"""Peak memory of the whole process tree while preparing inputs of growing size.

python benchmarks/memory.py [--sizes 256 1000 4000] [--workers 2]     sizes in MB
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from corpus import make_corpus
from results import record


def process_tree(root: int) -> set[int]:
    """A process and all its descendants."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, IndexError):
                fields = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()
                parents[int(name)] = int(fields[1])
    tree = {root}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return tree


def tree_memory(root: int) -> int:
    """Resident bytes of a process and all its descendants."""
    pages = 0
    for pid in process_tree(root):
        with suppress(OSError, IndexError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def find_peak(
    words: Sequence[object], memory: Callable[[int], int] = tree_memory, every: float = 0.02
) -> float:
    """Peak memory in MB of one `tokenmill` command, sampled every `every` seconds."""
    command = [sys.executable, "-m", "tokenmill.cli", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory(process.pid))
        time.sleep(every)
    if process.returncode:
        raise SystemExit(f"this failed: {' '.join(command)}")
    return peak / 1e6


def measure(files: list[Path], out: Path, dedup: str, workers: int) -> float:
    """Peak memory in MB of one `tokenmill prepare`."""
    shutil.rmtree(out, ignore_errors=True)
    return find_peak(["prepare", *files, "--out", out, "--dedup", dedup, "--workers", workers])


def main() -> None:
    """Measure each size with each kind of deduplication."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1000, 4000], help="MB")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for size in args.sizes:
        with tempfile.TemporaryDirectory() as folder:
            files = make_corpus(Path(folder) / "text", size * 1_000_000)
            row: dict[str, Any] = {"input": f"{size} MB"}
            for dedup in ("documents", "lines"):
                peak = measure(files, Path(folder) / "out", dedup, args.workers)
                row[f"--dedup {dedup}"] = f"{peak:.0f} MB"
                print(row, flush=True)
            rows.append(row)
    record("memory", {"workers": args.workers}, rows)


if __name__ == "__main__":
    main()
