"""What lists of excluded documents cost: reading them, leaving documents out, and adding to them.

    python benchmarks/exclude.py [--keys 5000000] [--documents 200000]

Each row runs in a process of its own. Ratios compare with the same work without a list.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import results

PROGRAM = """
import json, resource, sys, time
from pathlib import Path
import tokenmill
from tokenmill.preparation.edit_exclusions import add_exclusions
from tokenmill.preparation.exclusion import Exclusion, read_exclusions
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.perf_counter()
{code}
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps([seconds, peak / 1000]))
"""


def measure(code: str) -> tuple[float, float]:
    """Seconds, and megabytes of memory beyond those of the imports."""
    command = [sys.executable, "-c", PROGRAM.format(code=code)]
    run = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    seconds, peak = json.loads(run.stdout.splitlines()[-1])
    return seconds, peak


def write_list(path: Path, count: int) -> None:
    chance = np.random.default_rng(1)
    with path.open("w") as file:
        for start in range(0, count, 100_000):
            size = min(100_000, count - start)
            keys = chance.integers(0, 2**64, (size, 2), np.uint64).tolist()
            file.writelines(f'{{"key":"{high:016x}{low:016x}"}}\n' for high, low in keys)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--documents", type=int, default=200_000)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        listed, text = folder / "list", folder / "texts.jsonl"
        write_list(listed, arguments.keys)
        with text.open("w") as file:
            for number in range(arguments.documents):
                file.write(json.dumps({"text": f"Document {number} has some words. " * 12}) + "\n")

        def add(what: str, code: str, without: float | None = None) -> float:
            seconds, peak = measure(code)
            ratio = "" if without is None else f"{seconds / without:.2f}"
            rows.append(
                {"what": what, "seconds": round(seconds, 1), "MB": round(peak), "ratio": ratio}
            )
            time.sleep(1)
            return seconds

        keys = f"{arguments.keys:,} keys"
        options = 'tokenizer="bytes", workers=2, val_fraction=0.01'
        add(f"read a list of {keys}", f"read_exclusions({str(listed)!r})")
        prepare = f"tokenmill.prepare({str(text)!r}, {{}}, {options}"
        plain = add("prepare", prepare.format(repr(str(folder / "a"))) + ")")
        more = f", exclude={str(listed)!r})"
        add("prepare with the list", prepare.format(repr(str(folder / "b"))) + more, plain)
        reshard = f"tokenmill.reshard({str(folder / 'a')!r}, {{}}, tokens_per_shard=10**7"
        plain = add("reshard", reshard.format(repr(str(folder / "c"))) + ")")
        documents = f"tokenmill.open({str(folder / 'a')!r})['train'].documents"
        entries = f"[Exclusion(key=one.key) for one in {documents} if one.number % 10 == 0]"
        add(
            "add a tenth of the documents to the list",
            f"add_exclusions(Path({str(listed)!r}), {entries})",
        )
        add("reshard without them", reshard.format(repr(str(folder / "d"))) + more, plain)
    results.record("exclude", vars(arguments), rows)


if __name__ == "__main__":
    main()
