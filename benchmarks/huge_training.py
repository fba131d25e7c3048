"""Starting to train on 15 trillion tokens in 150,000 shards, and going on, against 10 million tokens.

The shards are sparse files, as in `huge.py`. A tiny model, two steps, then two more in a process of
its own that goes on from the checkpoint. Disk: some 100 MB of names, none of it content.

    python benchmarks/huge_training.py [--shards 150000]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from huge import SHARD, make_prepared
from results import record

SMALL = (
    "--layers 2 --heads 2 --width 32 --seq-len 256 --batch-tokens 2048 --log-every 1 --name m "
    "--decay-fraction 0"
).split()


def measure(data: Path, runs: Path, steps: int, again: int = 3) -> tuple[float, float]:
    """The least seconds of a whole process that trains up to a step, and of the processor's time."""
    taken, worked = [], []
    for number in range(again):
        command = [sys.executable, "-m", "tokenmill.cli", "train", "--data", str(data), *SMALL]
        command += ["--runs", str(runs / str(number)), "--max-steps", str(steps)]
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        taken.append(time.perf_counter() - started)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        worked.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(taken), min(worked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shards", type=int, default=150_000)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for shards, tokens in ((2, 5_000_000), (args.shards, SHARD)):
            folder = Path(temporary) / f"data_{shards}"
            make_prepared(folder, shards, tokens)
            os.sync()  # what making the files left to do shall not be measured
            runs = Path(temporary) / f"runs_{shards}"
            first, later = measure(folder, runs, 2), measure(folder, runs, 4)
            rows.append(
                {
                    "what": f"{shards * tokens / 1e6:,.0f} M tokens, {shards:,} shards",
                    "start, 2 steps (s)": round(first[0], 2),
                    "of it working (s)": round(first[1], 2),
                    "go on, 2 steps (s)": round(later[0], 2),
                    "working (s)": round(later[1], 2),
                }
            )
            print(rows[-1], flush=True)
    record("huge_training", {}, rows)


if __name__ == "__main__":
    main()
