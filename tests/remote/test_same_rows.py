"""The same rows from a local copy, the bucket, cold or warm, and compressed shards, through kills.

A job of several lives reads a run. In each life, it has another number of ranks and batch size, every
rank reads another copy of the dataset in a process of its own, and each is killed with SIGKILL after a
random number of steps. Every batch is compared with the plain local copy.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reader_process import digest, open_data
from test_remote_datasets import upload

import tokenmill
from tokenmill.storage.cache import SET_BYTES

READER = Path(__file__).with_name("reader_process.py")
LIMIT = SET_BYTES + (1 << 20)  # too small for the data
LIVES = 3
BLOCKS = {"order": "blocks", "block_rows": 64, "group_blocks": 4}
JOBS: dict[str, dict[str, Any]] = {
    "shuffled": {"order": "shuffled"},
    "shuffled, documents": {"order": "shuffled", "documents": True},
    "blocks": BLOCKS,
    "blocks, documents": {**BLOCKS, "documents": True},
    "sequential": {"order": "sequential"},
    "mixture": {"mixed": True, "order": "shuffled"},
    "mixture of blocks, documents": {"mixed": True, **BLOCKS, "documents": True},
}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 9 million tokens, plain and compressed."""
    folder = tmp_path_factory.mktemp("local")
    draw = np.random.default_rng(8)
    words = [word.tobytes() for word in draw.integers(97, 123, (3_000, 6), dtype=np.uint8)]
    texts = [
        b" ".join([words[n] for n in draw.integers(0, len(words), count)])
        for count in draw.integers(1, 3_000, 850)
    ]
    (folder / "texts.txt").write_bytes(b"<|endoftext|>".join(texts))
    options = {"tokenizer": "bytes", "val_fraction": 0.2, "tokens_per_shard": 700_001}
    tokenmill.prepare(folder / "texts.txt", folder / "plain", **options)
    tokenmill.prepare(folder / "texts.txt", folder / "packed", compress="zstd", **options)
    return folder


class Disk:
    """Watches folders of caches while jobs run; they must stay within their limits."""

    def __init__(self, limits: dict[Path, int]) -> None:
        self.limits, self.most = limits, dict.fromkeys(limits, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            for folder in self.limits:
                found = [path.stat() for path in folder.iterdir()] if folder.exists() else []
                taken = sum(512 * one.st_blocks for one in found)
                self.most[folder] = max(self.most[folder], taken)

    def check(self) -> None:
        """Stop watching. Refuses a cache that was too large, or is more than its three files."""
        self._stop.set()
        self._thread.join()
        for folder, limit in self.limits.items():
            assert self.most[folder] <= limit
            names = {path.name for path in folder.iterdir()} if folder.exists() else set()
            assert names <= {"claims", "index.bin", "pieces.bin"}


@pytest.fixture
def copies(local: Path, bucket: str, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Ways to open the same dataset. `cold` caches start empty and are too small."""
    ways: dict[str, dict[str, Any]] = {}
    for kind in ("plain", "packed"):
        address = upload(local / kind, f"{bucket}/{kind}")
        warm = {"cache_dir": str(tmp_path / f"warm-{kind}"), "cache_bytes": 5 * SET_BYTES}
        tokenmill.cache(address, **warm)
        cold = {"cache_dir": str(tmp_path / "cold"), "cache_bytes": LIMIT}
        ways |= {
            f"{kind}, local": {"path": str(local / kind)},
            f"{kind}, local, cached": {"path": str(local / kind), **cold},
            f"{kind}, bucket": {"path": address},
            f"{kind}, bucket, cold": {"path": address, **cold},
            f"{kind}, bucket, warm": {"path": address, **warm},
        }
    return ways


@pytest.fixture
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Empty folders for everything that a process might leave behind."""
    for name, variable in (("tmp", "TMPDIR"), ("home", "HOME"), ("user", "XDG_CACHE_HOME")):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    yield tmp_path
    assert os.listdir(tmp_path / "tmp") == os.listdir(tmp_path / "home") == []
    assert set(os.listdir(tmp_path / "user")) <= {"tokenmill"}  # the usual cache


def uses_shared_memory(process: int) -> bool:
    """Whether a process has anything in /dev/shm open; other programs may have files there."""
    folder = Path(f"/proc/{process}")
    if not folder.exists():
        return False
    used = [(folder / "maps").read_text()]
    for one in (folder / "fd").iterdir():
        with suppress(OSError):  # a thread may have closed it
            used.append(str(one.readlink()))
    return any("/dev/shm" in text for text in used)


def run_rank(job: dict[str, Any], steps: int) -> list[tuple[int, int, str]]:
    """Run a rank until it has read some batches, then kill it; returns what it printed."""
    found = []
    with subprocess.Popen(
        [sys.executable, str(READER), json.dumps(job)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            row, end, hashed = line.split()
            found.append((int(row), int(end), hashed))
            if len(found) >= steps:
                break
        is_sharing = process.poll() is None and uses_shared_memory(process.pid)
        process.kill()
    assert not is_sharing
    assert len(found) == steps, f"the reader of {job} ended by itself"
    return found


def run_life(jobs: list[dict[str, Any]], steps: list[int]) -> list[list[tuple[int, int, str]]]:
    """Run all ranks at the same time."""
    results: list[Any] = [None] * len(jobs)

    def work(rank: int) -> None:
        try:
            results[rank] = run_rank(jobs[rank], steps[rank])
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def test_every_copy_gives_the_same_rows_through_kills_and_other_numbers_of_ranks(
    local: Path, copies: dict[str, dict[str, Any]], surroundings: Path
) -> None:
    draw = random.Random(int(os.environ.get("TOKENMILL_SEED", "4")))
    limits = {surroundings / "cold": LIMIT, surroundings / "user" / "tokenmill": 17 << 30}
    limits |= {surroundings / f"warm-{kind}": 5 * SET_BYTES for kind in ("plain", "packed")}
    disk, kept = Disk(limits), sorted(path for path in local.rglob("*"))
    ways: list[str] = []
    compared = 0
    for name, settings in JOBS.items():
        own = {key: value for key, value in settings.items() if key != "mixed"}
        mixed = bool(settings.get("mixed"))
        row = 0
        for _ in range(LIVES):
            world, size = draw.randint(1, 3), draw.choice([3, 8, 17, 32])
            run = {**own, "seq_len": 512, "seed": 11, "world_size": world, "batch_size": size}
            # Each copy is read before one is read again.
            ways = ways if len(ways) >= world else [*draw.sample(list(copies), len(copies)), *ways]
            chosen = [ways.pop() for _ in range(world)]
            jobs = [
                {
                    "data": {**copies[way], "mixed": mixed},
                    "row": row,
                    "loader": {**run, "rank": rank},
                }
                for rank, way in enumerate(chosen)
            ]
            found = run_life(jobs, [draw.randint(2, 40) for _ in range(world)])
            for rank, (way, batches) in enumerate(zip(chosen, found, strict=True)):
                data = open_data(str(local / "plain"), mixed=mixed)
                oracle = tokenmill.Loader(data, **run, rank=rank)
                oracle.load_state_dict(oracle.state_dict() | {"row": row})
                for batch, (number, end, hashed) in zip(oracle, batches, strict=False):
                    assert (number, end) == (batch.row, batch.end), (name, way)
                    assert hashed == digest(batch), (name, way, number)
                    compared += 1
                oracle.close()
            row = min(batches[-1][1] for batches in found)
    assert compared > 300
    disk.check()
    assert disk.most[surroundings / "cold"] > LIMIT // 2
    assert sorted(path for path in local.rglob("*")) == kept
