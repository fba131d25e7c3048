"""Check that any number of workers, and ten kills at random moments, give the same bytes.

    python benchmarks/sameness.py [--size 256] [--kills 10] [--dedup documents]     size in MB

Prepares one corpus with 1, 2 and 3 workers, and once more while SIGKILL repeatedly kills the whole
process tree. Then `diff -r` compares all results with the first.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from corpus import make_corpus


def command(files: list[Path], out: Path, workers: int, dedup: str) -> list[str]:
    """The command that prepares the files."""
    words = [sys.executable, "-m", "tokenmill.cli", "prepare", *map(str, files), "--out", str(out)]
    return [*words, "--workers", str(workers), "--dedup", dedup]


def kill_and_resume(words: list[str], out: Path, kills: int, seconds: float) -> int:
    """Run the command, killing its process tree at random moments; returns how often it died.

    If the run finishes before it was killed that often, it starts over and its kills do not count.
    """
    died = 0
    while True:
        process = subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL)
        try:
            # Early kills leave much to do, so that kills hit all stages.
            wait = None if died == kills else random.uniform(0.1, 0.4) * seconds
            if process.wait(timeout=wait) != 0:
                raise SystemExit("prepare failed")
            if died == kills:
                return died
            shutil.rmtree(out)
            died = 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            died += 1


def main() -> None:
    """Prepare in different ways and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", type=int, default=256, help="MB of text")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--dedup", default="documents")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = make_corpus(folder / "text", args.size * 1_000_000)
        seconds = 0.0
        for workers in (1, 2, 3):
            started = time.perf_counter()
            words = command(files, folder / f"workers_{workers}", workers, args.dedup)
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - started
            print(f"{workers} workers: {seconds:.1f} s", flush=True)
        out = folder / "killed"
        words = command(files, out, 2, args.dedup)
        died = kill_and_resume(words, out, args.kills, seconds / 2)
        print(f"killed {died} times", flush=True)
        for other in ("workers_2", "workers_3", "killed"):
            subprocess.run(["diff", "-r", folder / "workers_1", folder / other], check=True)
            print(f"diff -r workers_1 {other}: no difference", flush=True)


if __name__ == "__main__":
    main()
