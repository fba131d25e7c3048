"""Ask the pages of `tokenmill view` from a real server process, over 100 million documents.

The dataset is generated: 100 shards of 100 million tokens, whose document tables are real and whose
tokens are one file of random ids under many names. 1,000 sources, in order. The server runs in a
process of its own, and computes statistics in another one meanwhile. Times are from sending a request
to the last byte of the answer, on a new connection: of the first request, and the median and the
longest of the repeated ones. Memory is the highest of the server process; "of files" is what of it is
pages of mapped files, which the system can take back. Needs 5 GB of disk for 100 million documents.

    python benchmarks/view.py [--documents 100000000] [--folder DIR]
"""

from __future__ import annotations

import argparse
import dataclasses
import http.client
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from results import record

SHARD_DOCUMENTS = 1_000_000
LENGTH = 100  # tokens of a document, on average
SOURCES = 1000
REQUESTS = 40


def make(folder: Path, documents: int) -> None:
    """Make a dataset of `documents` documents like one of `prepare`."""
    import tokenmill
    from tokenmill.storage.files import write_file
    from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest, Split
    from tokenmill.store.tables import Shard, ShardTable, Source, SourceTable

    text = folder.with_suffix(".txt")
    text.write_text("To be, or not to be.")
    tokenmill.prepare(text, folder, tokenizer="gpt2", val_fraction=0)
    manifest = Manifest.read(folder)
    for path in (folder / "train").iterdir():
        path.unlink()
    count = max(1, documents // SHARD_DOCUMENTS)
    each = documents // count
    tokens = each * LENGTH
    generator = np.random.default_rng(1)
    ids = np.minimum(generator.zipf(1.2, tokens), 50_256).astype("<u2")
    first = folder / "train/shard_00000.bin"
    shards = []
    for number in range(count):
        name = f"train/shard_{number:05}"
        if number == 0:
            ids.tofile(first)
        else:
            os.link(first, folder / f"{name}.bin")
        # On average a little shorter, so that all fit; the last document gets the rest.
        lengths = generator.geometric(1.01 / LENGTH, each - 1)
        records = np.zeros(each, DOCUMENT_DTYPE)
        records["key"] = generator.integers(0, 1 << 63, (each, 2), dtype=np.uint64)
        records["first"][1:] = np.cumsum(lengths)
        records["length"] = np.diff(np.append(records["first"], np.uint64(tokens)))
        records["source"] = (np.arange(each) + number * each) * SOURCES // (each * count)
        records["offset"] = np.arange(each) * 400
        np.save(folder / f"{name}.docs.npy", records)
        shards.append(
            Shard(
                path=f"{name}.bin",
                tokens=tokens,
                documents=each,
                xxh3_128=f"{number:032x}",
                documents_path=f"{name}.docs.npy",
                documents_xxh3_128="0" * 32,
            )
        )
    sources = SourceTable.of(
        Source(path=f"corpus/part_{number:04}.jsonl", bytes=1 << 30, unit="byte")
        for number in range(SOURCES)
    )
    write_file(folder / sources.path, bytes(sources.encode()))
    changed = dataclasses.replace(
        manifest, splits={"train": Split(shards=ShardTable.of(shards))}, sources=sources
    )
    write_file(folder / "dataset_metadata.json", changed.to_json())


class Client:
    """A plain HTTP client that has the cookie of the server."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url)
        _, answer, _ = self._ask(f"/?{self.address.query}", {})
        self._cookie = str(answer["set-cookie"]).partition(";")[0]

    def _ask(self, path: str, headers: dict[str, str]) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection(str(self.address.netloc), timeout=60)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, answer.headers, data

    def time(self, path: str) -> float:
        """Return the seconds that a page takes."""
        started = time.perf_counter()
        status, _, data = self._ask(path, {"Cookie": self._cookie})
        spent = time.perf_counter() - started
        assert status == 200, (path, status, data[:300])
        return spent


def read_memory(process: int) -> tuple[int, int, int]:
    """Return the highest memory of a process, and what is its own and of files now, in MB."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines()
    )
    megabytes = [int(fields[key].split()[0]) // 1000 for key in ("VmHWM", "RssAnon", "RssFile")]
    return megabytes[0], megabytes[1], megabytes[2]


def measure(folder: Path, documents: int) -> list[dict[str, Any]]:
    """Start a server, and time its pages."""
    generator = random.Random(2)
    command = [sys.executable, "-m", "tokenmill.cli", "view", str(folder), "--no-browser"]
    started = time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    rows: list[dict[str, Any]] = []
    try:
        url = server.stdout.readline().strip()
        ready = time.perf_counter() - started
        client = Client(url)
        pages: list[tuple[str, Callable[[], str]]] = [
            ("overview", lambda: "/"),
            (
                "list of documents, anywhere",
                lambda: f"/documents?first={generator.randrange(documents)}",
            ),
            ("one document, anywhere", lambda: f"/document/{generator.randrange(documents)}"),
            (
                "documents of one source",
                lambda: f"/documents?source=part_{generator.randrange(SOURCES):04}.jsonl",
            ),
            (
                "documents of at least 600 tokens, from anywhere",
                lambda: f"/documents?least=600&first={generator.randrange(documents)}",
            ),
            (
                "documents of 10^9 tokens (none), from anywhere",
                lambda: f"/documents?least=1000000000&first={generator.randrange(documents)}",
            ),
            ("search, until the time limit", lambda: f"/search?q=xyzzy{generator.randrange(9999)}"),
        ]
        for what, make_path in pages:
            first = client.time(make_path())
            times = [client.time(make_path()) for _ in range(REQUESTS)]
            rows.append(
                {
                    "what": what,
                    "first (ms)": round(1000 * first),
                    "median (ms)": round(1000 * statistics.median(times)),
                    "longest (ms)": round(1000 * max(times)),
                    "memory (MB)": read_memory(server.pid)[0],
                }
            )
            if what == "overview":
                rows.insert(0, _describe_start(ready + first, rows[-1]["memory (MB)"]))
            print(rows[-1], read_memory(server.pid), flush=True)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)
    return rows


def _describe_start(seconds: float, memory: int) -> dict[str, Any]:
    return {
        "what": "from the command to the first overview",
        "first (ms)": round(1000 * seconds),
        "median (ms)": "",
        "longest (ms)": "",
        "memory (MB)": memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--documents", type=int, default=100_000_000)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)) / f"documents_{args.documents}"
        if not (folder / "dataset_metadata.json").exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            make(folder, args.documents)
            os.sync()
        record("view", {"documents": args.documents}, measure(folder, args.documents))


if __name__ == "__main__":
    main()
