"""Start and resume training on 15 trillion tokens in 150,000 shards, and on 10 million tokens.

The shards are sparse files, as in `huge.py`. A tiny model takes two steps, then two more in a new process
that resumes from the checkpoint; importing PyTorch takes most of the time. Disk: about 100 MB of names.

    python benchmarks/huge_training.py [--shards 150000]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from huge import SHARD, make_prepared
from results import record

SMALL = (
    "--layers 2 --heads 2 --width 32 --seq-len 256 --batch-tokens 2048 --log-every 1 --name m "
    "--decay-fraction 0"
).split()


def measure(data: Path, runs: Path, steps: int, again: int = 3) -> float:
    """The least CPU seconds of a process that trains up to a step."""
    worked = []
    for number in range(again):
        command = [sys.executable, "-m", "tokenmill.cli", "train", "--data", str(data), *SMALL]
        command += ["--runs", str(runs / str(number)), "--max-steps", str(steps)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        worked.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(worked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shards", type=int, default=150_000)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for shards, tokens in ((2, 5_000_000), (args.shards, SHARD)):
            folder = Path(temporary) / f"data_{shards}"
            make_prepared(folder, shards, tokens)
            os.sync()  # so that writing the files is not measured
            runs = Path(temporary) / f"runs_{shards}"
            rows.append(
                {
                    "what": f"{shards * tokens / 1e6:,.0f} M tokens, {shards:,} shards",
                    "start and 2 steps (s)": round(measure(folder, runs, 2), 1),
                    "resume and 2 steps (s)": round(measure(folder, runs, 4), 1),
                }
            )
            print(rows[-1], flush=True)
    record("huge_training", {}, rows)


if __name__ == "__main__":
    main()
