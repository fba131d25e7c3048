"""Trains while the data vanish, are damaged, or the disk fills; prints one JSON line a run.

    python failing_training.py DATA SCRATCH [MOUNT_POINT]

With a mount point, for the disk, it must run in a mount namespace of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch._dynamo  # noqa: F401  which the first optimiser imports
from runs import contents, wait_until

from training import PATIENCE, Forked, command

STEPS = ("--max-steps", "150")


def tell(what: str, process: Forked, complaints: Path, folder: Path) -> None:
    """Wait for the end of a run, and print how it ended."""
    status = process.wait()
    told = {"what": what, "status": status, "told": complaints.read_text()}
    print(json.dumps(told | {"made": sorted(contents(folder))}), flush=True)


def overwrite(path: Path, content: bytes) -> None:
    """Write over a file, which is never shorter meanwhile."""
    with path.open("r+b") as file:
        file.write(content)


def spoil(data: Path, scratch: Path) -> None:
    """Let something happen to the data in the middle of a run, then mend it and go on."""
    shard = next(data.glob("train/*.bin"))
    sound = shard.read_bytes()
    away = data.with_name("away")

    spoilings: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "vanished": (lambda: data.rename(away), lambda: away.rename(data)),
        "cut": (lambda: os.truncate(shard, 4096), lambda: shard.write_bytes(sound)),
        "damaged": (
            lambda: overwrite(shard, b"\xff" * len(sound)),
            lambda: overwrite(shard, sound),
        ),
    }
    for name, (damage, mend) in spoilings.items():
        runs = scratch / name
        arguments = list(map(str, command(data, runs, *STEPS)))
        complaints = scratch / f"{name}.txt"
        process = Forked(arguments, complaints)
        metrics = runs / "m" / "metrics.jsonl"
        assert wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, PATIENCE)  # noqa: B023
        damage()
        tell(name, process, complaints, runs)
        mend()
        tell(f"{name}, mended", Forked(arguments, complaints), complaints, runs)


def fill(data: Path, scratch: Path, disk: Path) -> None:
    """Train on a disk that is full at one moment after another."""

    def mount(size: int, *options: str) -> None:
        flags = ",".join([f"size={size}", "huge=never", *options])
        subprocess.run(["mount", "-t", "tmpfs", "-o", flags, "none", disk], check=True)

    page = os.sysconf("SC_PAGE_SIZE")
    arguments = list(map(str, command(data, disk / "runs", *STEPS)))
    complaints = scratch / "full.txt"
    mount(page)
    one = 30 * page  # more than a checkpoint takes, and less than two
    for what, size in (("begin", page), ("lines", 6 * page), ("first", one), ("third", 3 * one)):
        mount(size, "remount")
        tell(what, Forked(arguments, complaints), complaints, disk)
    mount(64 << 20, "remount")
    tell("end", Forked(arguments, complaints), complaints, disk)
    shutil.copytree(disk / "runs", scratch / "full")


def main(data: Path, scratch: Path, disk: Path | None = None) -> None:
    """First a run to which nothing happens."""
    arguments = list(map(str, command(data, scratch / "undisturbed", *STEPS)))
    assert Forked(arguments).wait() == 0
    spoil(data, scratch)
    if disk is not None:
        fill(data, scratch, disk)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
