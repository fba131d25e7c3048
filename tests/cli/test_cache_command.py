"""`tokenmill cache` fills the cache ahead of a job, and `info` shows what is there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from shell import run

import tokenmill
from tokenmill.errors import DatasetError, UsageError
from tokenmill.storage.cache import PIECE, SET_BYTES, find_limit

IDS = np.random.default_rng(1).integers(0, 50_000, 6_000_000).astype(np.uint16)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """12 MB in two splits."""
    folder = tmp_path / "data"
    folder.mkdir()
    IDS[:5_000_000].tofile(folder / "train.bin")
    IDS[5_000_000:].tofile(folder / "val.bin")
    return folder


def options(tmp_path: Path) -> tuple[str, ...]:
    return ("--dtype", "uint16", "--format", "raw", "--cache-dir", str(tmp_path / "cache"))


def test_everything_is_cached_and_a_job_needs_no_files(data: Path, tmp_path: Path) -> None:
    done = run("cache", data, "--bytes", "50MB", *options(tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"{data}: 12.0 MB of 12.0 MB are in the cache" in done.stdout
    assert re.search(r"Fetched 12.0 MB in .+/s\.", done.stdout)
    assert re.search(r"train +10.0 MB +10.0 MB\n", done.stdout)
    assert f"Next:  tokenmill info {data} --dtype uint16 --format raw --cache-dir" in done.stdout
    line = next(line for line in done.stdout.splitlines() if "tokenmill.open" in line)
    opened = eval(line.partition("in Python: ")[2], {"tokenmill": tokenmill})
    tokens = opened["train"]
    assert (tokens[:10] == IDS[:10]).all()
    shutil.rmtree(data)
    assert (tokens[:] == IDS[:5_000_000]).all()


def test_the_same_command_fetches_nothing_again(data: Path, tmp_path: Path) -> None:
    first = run("cache", data, "--bytes", "50MB", "--split", "val", *options(tmp_path))
    assert "2.0 MB of 2.0 MB are in the cache" in first.stdout
    assert "train" not in first.stdout
    second = run("cache", data, *options(tmp_path))
    assert "skipping 2.0 MB of 12.0 MB, done by an earlier run" in second.stderr
    assert "Fetched 10.0 MB" in second.stdout
    third = run("cache", data, *options(tmp_path))
    assert "Nothing was left to fetch." in third.stdout


def test_a_cache_that_is_too_small_is_filled_and_the_cure_works(data: Path, tmp_path: Path) -> None:
    small = run("cache", data, "--bytes", str(SET_BYTES), *options(tmp_path))
    assert small.returncode == 0
    assert "The data take 12.0 MB, but the cache holds only 8.4 MB. Caching the first 7.5 MB" in (
        small.stderr
    )
    assert re.search(r"train +10.0 MB +7.[3-6] MB\n", small.stdout)
    assert re.search(r"val +2.0 MB +0 bytes\n", small.stdout)
    files = (tmp_path / "cache").iterdir()
    assert sum(path.stat().st_size for path in files) <= SET_BYTES
    cure = re.search(r"pass --bytes (\d+)\.", small.stderr)
    assert cure is not None, small.stderr
    large = run("cache", data, "--bytes", cure[1], *options(tmp_path))
    assert "The data take" not in large.stderr
    # Copies that belong to another set of the larger cache may first push out a few pieces.
    assert float(re.search(r": ([0-9.]+) MB of 12.0 MB are", large.stdout)[1]) > 10


def test_a_killed_command_resumes(data: Path, tmp_path: Path) -> None:
    for number in range(20):
        shutil.copy(data / "train.bin", data / f"train_{number:02}.bin")
    arguments = ("cache", data, "--bytes", "500MB", *options(tmp_path))
    command = [sys.executable, "-m", "tokenmill.cli", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pieces = tmp_path / "cache" / "pieces.bin"
    while process.poll() is None and not (
        pieces.exists() and pieces.stat().st_blocks * 512 > 20_000_000
    ):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = run(*arguments)
    assert done.returncode == 0
    skipped = re.search(r"skipping ([0-9.]+) MB of 212.0 MB", done.stderr)
    assert skipped is not None
    assert float(skipped[1]) > 15
    assert "212.0 MB of 212.0 MB are in the cache" in done.stdout
    assert sorted(os.listdir(tmp_path / "cache")) == ["claims", "index.bin", "pieces.bin"]


def test_info_shows_what_is_cached_and_keeps_the_limit(data: Path, tmp_path: Path) -> None:
    assert "In the cache" not in run("info", data, *options(tmp_path)).stdout  # there is none
    assert not (tmp_path / "cache").exists()
    tokenmill.cache(data, cache_dir=tmp_path / "cache", cache_bytes=60_000_000, split="val",
                    dtype="uint16", format="raw")  # fmt: skip
    limit = find_limit(tmp_path / "cache")
    assert limit == 60_000_000 // SET_BYTES * SET_BYTES
    shown = run("info", data, *options(tmp_path)).stdout
    assert f"In the cache {tmp_path / 'cache'}, which holds 58.7 MB" in shown
    assert re.search(r"train +0 bytes +0%\n", shown)
    assert re.search(r"val +2.0 MB +100%\n", shown)
    found = json.loads(run("info", data, "--json", *options(tmp_path)).stdout)["cache"]
    assert found["limit"] == limit == find_limit(tmp_path / "cache")
    assert found["splits"][1] == {"name": "val", "bytes": 2_000_000, "cached": 2_000_000}


def test_relative_and_absolute_paths_name_the_same_pieces(data: Path, tmp_path: Path) -> None:
    run("cache", "data", *options(tmp_path), cwd=tmp_path)
    again = run("cache", data, *options(tmp_path))
    assert "Nothing was left to fetch." in again.stdout


def test_compressed_shards_are_cached_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words of a text\n" * 100_000)
    tokenmill.prepare(
        tmp_path / "a.txt", tmp_path / "own", tokenizer="bytes", val_fraction=0, compress="zstd",
        tokens_per_shard=500_000,
    )  # fmt: skip
    report = tokenmill.cache(tmp_path / "own", cache_dir=tmp_path / "cache", cache_bytes=10**7)
    sizes = sum(path.stat().st_size for path in (tmp_path / "own" / "train").glob("*.zst"))
    assert report.bytes == report.cached == report.fetched == sizes
    cached = tokenmill.open(tmp_path / "own", cache_dir=tmp_path / "cache")["train"]
    expected = tokenmill.open(tmp_path / "own")["train"][:]
    cached[0], [cached[n] for n in range(0, len(cached), 500_000)]  # finds the files
    shutil.rmtree(tmp_path / "own" / "train")
    assert np.array_equal(cached[:], expected)


def test_what_cannot_be_cached_and_wrong_numbers_are_refused(data: Path, tmp_path: Path) -> None:
    known = {"dtype": "uint16", "format": "raw", "cache_dir": tmp_path / "cache"}
    with pytest.raises(UsageError, match="a cache needs at least"):
        tokenmill.cache(data, cache_bytes=PIECE, **known)
    with pytest.raises(UsageError, match="a cache needs at least"):
        tokenmill.cache(data, cache_bytes=0, **known)
    with pytest.raises(DatasetError, match="has no split 'test'"):
        tokenmill.cache(data, split="test", **known)
    wrong = run("cache", data, "--bytes", "much", *options(tmp_path))
    assert wrong.returncode == 2
    assert "'much' is not a size. Write a size such as 2GB" in wrong.stderr
