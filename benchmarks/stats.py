"""Compare the pass over tokens of `tokenmill stats` with `np.bincount` alone, and measure its memory.

The tokens are random ids of GPT-2's vocabulary, most of them frequent, in documents of 400 tokens on
average and 20 sources. `np.bincount` counts the same ids in memory, in blocks of the same size. Every
figure is the best of three, in one process. Memory is the peak of a process that computes all
statistics.

    python benchmarks/stats.py [--tokens 200000000]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from results import record

SOURCES, LENGTH, VOCABULARY = 20, 400, 50_257


def make(folder: Path, tokens: int) -> None:
    """Make a dataset with a manifest and document tables, as `prepare` does, but of random ids."""
    import tokenmill
    from tokenmill.storage.files import write_file
    from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest, Split
    from tokenmill.store.tables import Shard, ShardTable, Source, SourceTable

    text = folder.with_suffix(".txt")
    text.write_text("To be, or not to be.")
    tokenmill.prepare(text, folder, val_fraction=0)
    manifest = Manifest.read(folder)
    for path in (folder / "train").iterdir():
        path.unlink()
    rng = np.random.default_rng(1)
    shards, size = [], 50_000_000
    for number in range(-(-tokens // size)):
        count = min(size, tokens - number * size)
        ids = (rng.zipf(1.2, count) % (VOCABULARY - 1)).astype("<u2")
        starts = np.unique(rng.integers(1, count, count // LENGTH))
        starts = np.append(0, starts)
        ids[starts[1:] - 1], ids[-1] = VOCABULARY - 1, VOCABULARY - 1
        table = np.zeros(len(starts), DOCUMENT_DTYPE)
        table["first"], table["length"] = starts, np.diff(np.append(starts, count))
        table["key"] = rng.integers(1, 1 << 62, (len(starts), 2))
        place = number * size + starts
        table["source"] = place * SOURCES // tokens
        name = f"train/shard_{number:05}"
        (folder / f"{name}.bin").write_bytes(ids.tobytes())
        np.save(folder / f"{name}.docs.npy", table)
        shards.append(
            Shard(
                path=f"{name}.bin",
                tokens=count,
                documents=len(table),
                xxh3_128="0" * 32,
                documents_path=f"{name}.docs.npy",
                documents_xxh3_128="0" * 32,
            )
        )
    sources = SourceTable.of(
        Source(path=f"file_{n}.txt", bytes=1, unit="byte") for n in range(SOURCES)
    )
    splits = {"train": Split(shards=ShardTable.of(shards))}
    changed = dataclasses.replace(manifest, splits=splits, sources=sources)
    write_file(folder / "sources.jsonl", sources.encode())
    write_file(folder / "dataset_metadata.json", changed.to_json())


def best(call: Callable[[], Any]) -> float:
    """Return the shortest of three durations."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def measure(folder: Path) -> dict[str, float]:
    """Measure the rates of both passes, in tokens per second."""
    import tokenmill
    from tokenmill.inspect.stats.documents import make_columns
    from tokenmill.inspect.stats.tokens import COUNTED, IdCounter, count_tokens
    from tokenmill.training.validation import bytes_per_token

    data = tokenmill.open(folder)
    tokens, manifest = data["train"], data.manifest
    assert manifest is not None
    ids = tokens[:]
    lengths = bytes_per_token(data.tokenizer, VOCABULARY)

    def bare() -> None:
        counts = np.zeros(VOCABULARY, np.int64)
        for start in range(0, len(ids), COUNTED):
            counts += np.bincount(ids[start : start + COUNTED], minlength=VOCABULARY)

    def with_sources() -> None:
        counter = IdCounter(VOCABULARY, "data")
        columns = make_columns(manifest.sources, 2)
        count_tokens(tokens, counter, None, lengths, columns, len(tokens), lambda _: None)

    def counts_only() -> None:
        counter = IdCounter(VOCABULARY, "data")
        count_tokens(tokens, counter, None, None, None, len(tokens), lambda _: None)

    return {
        "np.bincount in memory": len(ids) / best(bare),
        "ids": len(ids) / best(counts_only),
        "ids, and bytes of each source": len(ids) / best(with_sources),
    }


def run(folder: str) -> dict[str, float]:
    """Compute all statistics in this process; return the time and the peak of memory."""
    import tokenmill

    tokenmill.open(folder).tokenizer.encode(b"text")
    started = time.perf_counter()
    tokenmill.stats(folder, fresh=True)
    spent = time.perf_counter() - started
    status = Path("/proc/self/status").read_text()
    return {"spent": spent, "peak": int(status.partition("VmHWM:")[2].split()[0]) / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tokens", type=int, default=200_000_000)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(args.run)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        rows = []
        folder = Path(temporary) / "data"
        make(folder, args.tokens)
        found = measure(folder)
        bare = found["np.bincount in memory"]
        rows = [
            {"pass": name, "M tokens/s": round(rate / 1e6), "of np.bincount": f"{rate / bare:.2f}"}
            for name, rate in found.items()
        ]
        record("stats", {"tokens": args.tokens}, rows)
        memory = []
        for tokens in (args.tokens // 8, args.tokens):
            folder = Path(temporary) / f"data_{tokens}"
            make(folder, tokens)
            command = [sys.executable, __file__, "--run", str(folder)]
            result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            memory.append(
                {
                    "all statistics of": f"{tokens / 1e6:,.0f} M tokens",
                    "seconds": round(result["spent"], 1),
                    "peak memory (MB)": round(result["peak"]),
                }
            )
        record("stats-memory", {}, memory)


if __name__ == "__main__":
    main()
