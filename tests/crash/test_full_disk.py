"""A full disk, in every stage: a clear error, no half-written files, and the same command resumes."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from runs import contents, run

HERE = Path(__file__).parent
OWN_MOUNTS = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
BAD_LINES = 8_000


def _can_mount() -> bool:
    try:
        probe = [*OWN_MOUNTS, "mount", "-t", "tmpfs", "none", "/mnt"]
        return subprocess.run(probe, capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many small documents, so that every stage has something to write, and some repeated."""
    path = tmp_path_factory.mktemp("records") / "x.jsonl"
    with path.open("w") as file:
        for i in range(30_000):
            file.write(json.dumps({"text": f"document {i % 15_000} of a small corpus"}) + "\n")
        for i in range(BAD_LINES):
            file.write(f"no JSON, but a line to be rejected ({i})\n")
    return path


@pytest.mark.skipif(not _can_mount(), reason="no file system can be mounted here")
def test_full_disk_in_every_stage_is_reported_and_the_run_resumes(
    records: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        [*OWN_MOUNTS, sys.executable, HERE / "full_disk.py", records, disk, tmp_path],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert made.returncode == 0, made.stderr
    attempts = {entry["stage"]: entry for entry in map(json.loads, made.stdout.splitlines())}
    end = attempts.pop("end")
    for stage, entry in attempts.items():
        assert entry["status"] == 1, (stage, entry)
        assert "tokenmill: The disk is full" in entry["said"], (stage, entry["said"])
        assert "run the same command again" in entry["said"]
        assert "Traceback" not in entry["said"]
        assert entry["temporaries"] == [], stage
        assert "dataset_metadata.json" not in entry["made"]
    assert not any(name.endswith(".marks") for name in attempts["grind"]["made"])
    assert any(name.endswith(".keys") for name in attempts["sift"]["made"])
    assert not any(name.endswith(".fates") for name in attempts["sift"]["made"])
    assert "train/" not in attempts["sift"]["made"]
    assert "train/" in attempts["pack"]["made"]
    assert "train/shard_00000.bin" not in attempts["pack"]["made"]
    assert "train/shard_00000.bin" in attempts["complete"]["made"]
    assert end["status"] == 0
    assert contents(tmp_path / "result") == contents(tmp_path / "undisturbed")


def test_limit_on_file_size_is_reported_and_the_run_resumes(records: Path, tmp_path: Path) -> None:
    command = ("prepare", records, "--tokenizer", "bytes", "--workers", "1", "--out")

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))

    ended = run(*command, tmp_path / "out", preexec_fn=limited)
    assert ended.returncode == 1
    assert ended.stderr.startswith("tokenmill: Writing failed")
    assert "File too large" in ended.stderr
    assert run(*command, tmp_path / "out").returncode == 0
    assert run(*command, tmp_path / "other").returncode == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "other")
