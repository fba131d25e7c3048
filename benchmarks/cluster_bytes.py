"""Prepare one dataset in many ways and compare every byte: buckets, a cluster, and what is killed.

Each case must make the dataset of local files and worker processes, with both kinds of deduplication:

    bucket to bucket, worker processes
    three nodes of Ray: one is killed without grace, later the calling process, then it resumes
    bucket to bucket on the nodes that are left

The bucket is in a real S3 server. Names of input files differ between a folder and a bucket, so the
folder's names replace them before the comparison; nothing else does. Takes about three minutes.

    python benchmarks/cluster_bytes.py [--size 96]     MB
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corpus import make_corpus
from results import record

from cluster import DEDUPS, start_cluster
from tokenmill.storage.addresses import is_address
from tokenmill.storage.object_path import as_path

sys.path.append(str(Path(__file__).parent.parent / "tests" / "remote"))
from servers import KEY, SECRET, serve_s3

BUCKET = "s3://tests"
INPUT = f"{BUCKET}/text"
SHARD = 2_000_000  # tokens
PATIENCE = 600.0  # seconds
NODES = 3
# A node is killed when all nodes are busy, and the calling process when shards are written.
NODE_DIES = ".work/segments/*.tokens.*.tmp"
DRIVER_DIES = "train/shard_*"
_LOST = re.compile(r"Ran (\d+) tasks? again")


def command(source: object, out: object, dedup: str, *flags: object) -> list[str]:
    """The command of one case."""
    words = ["prepare", source, "--out", out, "--dedup", dedup, "--tokens-per-shard", SHARD, *flags]
    return [sys.executable, "-m", "tokenmill.cli", *map(str, words)]


def run(words: Sequence[str]) -> int:
    """Run a command to its end; returns the tasks that were lost."""
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if ended.returncode:
        raise SystemExit(f"this failed: {' '.join(words)}\n{ended.stderr}")
    return count_lost(ended.stderr)


def count_lost(said: str) -> int:
    """The lost tasks in the output of a command."""
    return sum(map(int, _LOST.findall(said)))


def run_and_kill(words: Sequence[str], out: Path, cluster: Any) -> int:
    """Run a command, kill a node and then the command itself, and run the command again."""
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for(out, NODE_DIES, NODES, process)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    wait_for(out, DRIVER_DIES, 1, process)
    process.send_signal(signal.SIGKILL)
    _, said = process.communicate()
    if (out / "dataset_metadata.json").exists():
        raise SystemExit("the run had ended before it was killed; use a larger --size")
    return count_lost(said) + run(words)


def wait_for(out: Path, pattern: str, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until a run has written some files."""
    end = time.monotonic() + PATIENCE
    while len(list(out.glob(pattern))) < count:
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"no {pattern} was written: {process.communicate()[1]}")
        time.sleep(0.005)


def read_all(dataset: str | Path, names: Mapping[str, str]) -> dict[str, bytes]:
    """All files of a dataset. In its texts, other names of input files replace `names`.

    The checksums of the list of input files and of the manifest depend on the names.
    """
    root = as_path(dataset)
    found = {}
    for path in root.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            if path.suffix in (".json", ".jsonl"):
                for theirs, ours in names.items():
                    data = data.replace(theirs.encode(), ours.encode())
            if names and path.name == "dataset_metadata.json":
                manifest = json.loads(data)
                del manifest["sources"]["xxh3_128"], manifest["xxh3_128"]
                data = json.dumps(manifest).encode()
            found[path.relative_to(root).as_posix()] = data
    return found


def compare(root: Path, dedup: str) -> list[dict[str, Any]]:
    """Make the dataset in every way; one row for each case."""
    text, work, rows = root / "text", root / "work", []
    run(command(text, root / dedup, dedup))

    def compare_with(case: str, dataset: str | Path, lost: int) -> None:
        names = {INPUT: str(text)} if is_address(dataset) else {}
        expected, found = read_all(root / dedup, names), read_all(dataset, names)
        differing = {name for name in {*found, *expected} if found.get(name) != expected.get(name)}
        row = {
            "--dedup": dedup,
            "case": case,
            "files": len(found),
            "bytes": f"DIFFERENT: {min(differing)}" if differing else "same",
            "tasks lost": lost,
        }
        rows.append(row)
        print(row, flush=True)

    out = f"{BUCKET}/local-{dedup}"
    lost = run(command(INPUT, out, dedup, "--work", work))
    compare_with("bucket to bucket, worker processes", out, lost)
    with start_cluster(NODES) as cluster:
        ray = ["--engine", "ray", "--ray-address", cluster.address]
        folder = root / f"ray-{dedup}"
        lost = run_and_kill(command(text, folder, dedup, *ray), folder, cluster)
        compare_with("Ray, a node and the calling process killed", folder, lost)
        out = f"{BUCKET}/ray-{dedup}"
        lost = run(command(INPUT, out, dedup, "--work", work, *ray))
        compare_with("Ray, bucket to bucket", out, lost)
    shutil.rmtree(folder)
    return rows


def main() -> None:
    """Compare all cases, and record the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", type=int, default=96, help="MB of text")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = make_corpus(root / "text", args.size * 1_000_000)
        (root / "s3").mkdir()
        with serve_s3(root / "s3") as (server, _):
            os.environ.update(
                AWS_ACCESS_KEY_ID=KEY,
                AWS_SECRET_ACCESS_KEY=SECRET,
                AWS_ENDPOINT_URL=server,
                AWS_REGION="us-east-1",
            )
            for path in files:
                as_path(f"{INPUT}/{path.name}").write_bytes(path.read_bytes())
            rows = [row for dedup in DEDUPS for row in compare(root, dedup)]
        record("cluster-bytes", {"text": f"{args.size} MB", "nodes": NODES}, rows)
    if any(row["bytes"] != "same" for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
