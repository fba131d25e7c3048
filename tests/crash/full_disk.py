"""Prepares a dataset on a small disk of its own that is full in every stage, one after another.

    python full_disk.py TEXT MOUNT_POINT SCRATCH

Run it in a mount namespace of its own. It prints one JSON line a run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from runs import contents, kill_all, run, start, temporaries, wait_until

PAGE = os.sysconf("SC_PAGE_SIZE")


def main(text: Path, disk: Path, scratch: Path) -> None:
    plenty = 64 << 20
    out = disk / "out"
    command = ("prepare", text, "--out", out, "--tokenizer", "bytes", "--workers", "2")
    command += ("--val-fraction", "0.2")

    def mount(size: int, *options: str) -> None:
        flags = ",".join([f"size={size}", "huge=never", *options])
        subprocess.run(["mount", "-t", "tmpfs", "-o", flags, "none", disk], check=True)

    def used() -> int:
        stat = os.statvfs(disk)
        return (stat.f_blocks - stat.f_bfree) * stat.f_frsize

    def attempt(stage: str, size: int) -> None:
        mount(size, "remount")
        ended = run(*command)
        made = sorted(contents(out)) if out.exists() else []
        print(
            json.dumps(
                {
                    "stage": stage,
                    "status": ended.returncode,
                    "said": ended.stderr,
                    "made": made,
                    "temporaries": temporaries(disk),
                }
            ),
            flush=True,
        )

    mount(plenty)
    assert run(*command).returncode == 0
    shutil.copytree(out, scratch / "undisturbed")
    shards = sum(-(-path.stat().st_size // PAGE) * PAGE for path in out.glob("*/shard_*"))
    shutil.rmtree(out)
    attempt("begin", PAGE)
    attempt("grind", 1 << 20)
    mount(plenty, "remount")
    process = start(*command)
    assert wait_until((out / "train").exists)
    kill_all(process)
    shutil.rmtree(out / "train", ignore_errors=True)
    shutil.rmtree(out / "val", ignore_errors=True)
    sifted = used()
    for name in ("fates", "marks"):
        shutil.rmtree(out / ".work" / name)
    attempt("sift", used() + 2 * PAGE)
    attempt("pack", sifted + 300_000)
    attempt("complete", sifted + shards + 300_000)
    attempt("end", plenty)
    shutil.copytree(out, scratch / "result")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
