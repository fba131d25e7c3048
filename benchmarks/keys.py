"""Find one of 100 million documents by its key: the time and memory to make the index, then to use it.

The tables of documents are real, with random keys: 4.8 GB. The tokens are sparse files. The index is
made by the first `tokenmill where DATA KEY`. Later ones are measured as whole processes, with the
index in the page cache and after it was dropped from there. `scan` reads all tables with NumPy, as a
script would. Needs 9 GB of disk.

    python benchmarks/keys.py [--documents 100000000]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from memory import find_peak
from results import record

PER_SHARD = 200_000  # documents
LENGTH = 500  # tokens of a document
QUERIES = 5


def make_dataset(folder: Path, documents: int) -> None:
    """Make a dataset like one of `prepare`, with random keys and sparse tokens."""
    import tokenmill
    from tokenmill.storage.files import write_file
    from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest, Split
    from tokenmill.store.tables import Shard, ShardTable

    text = folder.with_suffix(".txt")
    text.write_text("To be, or not to be.")
    tokenmill.prepare(text, folder, tokenizer="bytes", val_fraction=0)
    manifest = Manifest.read(folder)
    for path in (folder / "train").iterdir():
        path.unlink()
    pick = np.random.default_rng(1)
    made = []
    for number, start in enumerate(range(0, documents, PER_SHARD)):
        count = min(PER_SHARD, documents - start)
        table = np.empty(count, DOCUMENT_DTYPE)
        table["key"] = pick.integers(0, 1 << 64, (count, 2), np.uint64)
        table["first"] = np.arange(count) * LENGTH
        table["length"], table["source"] = LENGTH, 0
        table["offset"] = np.arange(start, start + count)
        name = f"train/shard_{number:05}"
        np.save(folder / f"{name}.docs.npy", table)
        with (folder / f"{name}.bin").open("wb") as file:
            file.truncate(count * LENGTH * 2)
        made.append(
            Shard(
                path=f"{name}.bin",
                tokens=count * LENGTH,
                documents=count,
                xxh3_128=f"{number:032x}",
                documents_path=f"{name}.docs.npy",
                documents_xxh3_128=f"{number:032x}",
            )
        )
    changed = replace(manifest, splits={"train": Split(shards=ShardTable.of(made))})
    write_file(folder / "dataset_metadata.json", changed.to_json())
    os.sync()  # so that writing the files is not measured


def list_tables(folder: Path) -> list[Path]:
    return sorted((folder / "train").glob("*.docs.npy"))


def choose_keys(folder: Path) -> Iterator[str]:
    """Yield some keys of documents all over the dataset."""
    tables = list_tables(folder)
    for number in range(QUERIES):
        table = np.load(tables[number * (len(tables) - 1) // (QUERIES - 1)], mmap_mode="r")
        high, low = table["key"][number * 7 % len(table)].tolist()
        yield f"{high:016x}{low:016x}"


def scan(folder: Path, key: str) -> float:
    """Find a key as a script would: load all tables and compare. Returns the seconds."""
    started = time.perf_counter()
    high, low = np.uint64(int(key[:16], 16)), np.uint64(int(key[16:], 16))
    found = 0
    for path in list_tables(folder):
        keys = np.load(path)["key"]
        found += int(np.count_nonzero((keys[:, 0] == high) & (keys[:, 1] == low)))
    assert found == 1
    return time.perf_counter() - started


def forget(folder: Path) -> None:
    """Drop the files of a folder from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(*words: object) -> tuple[float, float]:
    """Seconds of one `tokenmill` command in a new process, and seconds of CPU time."""
    command = [sys.executable, "-m", "tokenmill.cli", *map(str, words)]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    spent, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def describe(times: Iterable[tuple[float, float]]) -> str:
    """The shortest and the longest of some runs, and the least CPU time."""
    spent, busy = zip(*times, strict=True)
    return f"{min(spent):.2f} to {max(spent):.2f} s ({min(busy):.2f} s of CPU time)"


def look_up(folder: Path, keys: list[str]) -> float:
    """Milliseconds of one lookup in an open dataset, on average."""
    import tokenmill
    from tokenmill.inspect.where.keys import find_key

    dataset = tokenmill.open(folder)
    started = time.perf_counter()
    for key in keys:
        assert [document.key for document in find_key(dataset, key)] == [key]
    return (time.perf_counter() - started) / len(keys) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--documents", type=int, default=100_000_000)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def add(what: str, result: str) -> None:
        rows.append({"what": what, "": result})
        print(rows[-1], flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "data"
        make_dataset(folder, args.documents)
        keys = list(choose_keys(folder))
        scanned = scan(folder, keys[0])
        started = time.perf_counter()
        peak = find_peak(["where", folder, keys[0]])
        built = time.perf_counter() - started
        size = sum(path.stat().st_size for path in (folder / ".tokenmill").rglob("index.*"))
        warm = [run("where", folder, key) for key in keys]
        cold = []
        for key in keys:
            forget(folder)
            cold.append(run("where", folder, key))
        places = [
            run("where", folder, f"data.txt:byte={number * args.documents // 7}")
            for number in range(QUERIES)
        ]
        startup = [run("--version") for _ in range(QUERIES)]
        tables = sum(path.stat().st_size for path in list_tables(folder))
        add("documents", f"{args.documents:,}")
        add("document tables", f"{tables / 1e9:.1f} GB")
        add("first query, which makes the index", f"{built:.0f} s")
        add("peak memory of the first query, all processes", f"{peak:.0f} MB")
        add("index", f"{size / 1e9:.2f} GB")
        add("query in a new process", describe(warm))
        add("the same, nothing in the page cache", describe(cold))
        add("query by the place in a file", describe(places))
        add("start-up alone (`tokenmill --version`), part of each query", describe(startup))
        add("lookup of a key in an open dataset", f"{look_up(folder, keys):.1f} ms")
        add("NumPy over all tables, in the page cache", f"{scanned:.1f} s")
    record("keys", {"documents": args.documents}, rows)


if __name__ == "__main__":
    main()
