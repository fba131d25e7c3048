"""Open 15 trillion tokens in 150,000 shards, and resume a run over them at row ten billion.

The shards are sparse files: all sizes are real, and all tokens are 0. Compares a prepared dataset and
a folder of llm.c shards with data of 10 million tokens. Each step runs three times, in its own
process; the table has the shortest and the longest time, and the highest peak of memory. Needs about
100 MB of disk for file names.

    python benchmarks/huge.py [--shards 150000]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from results import record

SHARD = 100_000_000  # tokens
ROW = 10**10


def make_prepared(folder: Path, shards: int, tokens: int) -> None:
    """Make a dataset like one of `prepare`, but with shards of zeros."""
    import tokenmill
    from tokenmill.storage.files import write_file
    from tokenmill.store.manifest import Manifest, Split
    from tokenmill.store.tables import Shard, ShardTable

    text = folder.with_suffix(".txt")
    text.write_text("To be, or not to be.")
    tokenmill.prepare(text, folder, val_fraction=0)
    manifest = Manifest.read(folder)
    (folder / "train").mkdir(exist_ok=True)
    table = next((folder / "train").glob("*.docs.npy")).read_bytes()
    for path in (folder / "train").iterdir():
        path.unlink()
    made = []
    for number in range(shards):
        name = f"train/shard_{number:06}"
        with (folder / f"{name}.bin").open("wb") as file:
            file.truncate(tokens * 2)
        (folder / f"{name}.docs.npy").write_bytes(table)
        made.append(
            Shard(
                path=f"{name}.bin",
                tokens=tokens,
                documents=1,
                xxh3_128="0" * 32,
                documents_path=f"{name}.docs.npy",
                documents_xxh3_128="0" * 32,
            )
        )
    changed = dataclasses.replace(manifest, splits={"train": Split(shards=ShardTable.of(made))})
    write_file(folder / "dataset_metadata.json", changed.to_json())


def make_llmc(folder: Path, shards: int, tokens: int) -> None:
    """Shards with llm.c's header."""
    folder.mkdir()
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, tokens
    for number in range(shards):
        with (folder / f"edu_fineweb_train_{number:06}.bin").open("wb") as file:
            file.write(header.tobytes())
            file.truncate(1024 + tokens * 2)


def run(path: str, row: int) -> dict[str, Any]:
    """Open the data and read the batch at a row, in this process, after loading a state."""
    import tokenmill

    started = time.perf_counter()
    data = tokenmill.open(path)
    opened = time.perf_counter()
    loader = tokenmill.Loader(data["train"], batch_size=32, seq_len=1024, seed=1)
    if row:
        loader.load_state_dict({**loader.state_dict(), "row": row})
    next(loader)
    ended = time.perf_counter()
    loader.close()
    # Not ru_maxrss, which includes the memory of the parent process.
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    return {"open": opened - started, "batch": ended - opened, "peak": peak}


def _measure(folder: Path, row: int) -> dict[str, float]:
    """Measure in a fresh process; only the page cache is shared with earlier ones."""
    command = [sys.executable, __file__, "--run", str(folder), str(row)]
    result: dict[str, float] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    )
    return result


def _span(times: Iterable[float]) -> str:
    ordered = sorted(times)
    return f"{ordered[0]:.2f} to {ordered[-1]:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shards", type=int, default=150_000)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(args.run[0], int(args.run[1]))))
        return
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for kind, make in (("prepared", make_prepared), ("llm.c", make_llmc)):
            for shards, tokens in ((2, 5_000_000), (args.shards, SHARD)):
                folder = Path(temporary) / f"{kind}_{shards}"
                make(folder, shards, tokens)
                os.sync()  # so that writing the files is not measured
                first, later = ([_measure(folder, row) for _ in range(3)] for row in (0, ROW))
                rows.append(
                    {
                        "what": f"{kind}, {shards * tokens / 1e6:,.0f} M tokens, {shards:,} shards",
                        "open (s)": _span(one["open"] for one in first + later),
                        "first batch (s)": _span(one["batch"] for one in first),
                        "resume at row 10¹⁰ (s)": _span(one["batch"] for one in later),
                        "peak memory (MB)": round(max(one["peak"] for one in first + later)),
                    }
                )
                print(rows[-1], flush=True)
    record("huge", {}, rows)


if __name__ == "__main__":
    main()
