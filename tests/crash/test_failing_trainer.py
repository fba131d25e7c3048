"""Lost or damaged data and a full disk stop a run with a clear error, and nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_full_disk import OWN_MOUNTS, _can_mount

from training import ONE_THREAD, make_data, results

pytest.importorskip("torch")
PROGRAM = Path(__file__).with_name("failing_training.py")


CAN_MOUNT = _can_mount()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def entries(scratch: Path) -> dict[str, dict[str, Any]]:
    """The program's output for each run."""
    command = [sys.executable, PROGRAM, make_data(scratch), scratch]
    if CAN_MOUNT:
        (scratch / "disk").mkdir()
        command = [*OWN_MOUNTS, *command, scratch / "disk"]
    ended = subprocess.run(command, capture_output=True, text=True, env=ONE_THREAD)
    assert ended.returncode == 0, ended.stderr
    return {entry["what"]: entry for entry in map(json.loads, ended.stdout.splitlines())}


def test_lost_or_damaged_data_stops_a_run_that_resumes_later(
    entries: dict[str, dict[str, Any]], scratch: Path
) -> None:
    reasons = {
        "vanished": "/shard_00000.bin is missing from",  # of train or val
        "cut": "train/shard_00000.bin is",
        "damaged": "of the run contains the id 65535",
    }
    for what, reason in reasons.items():
        entry = entries[what]
        assert entry["status"] == 1, entry
        assert reason in entry["stderr"]
        assert "the checkpoint of step" in entry["stderr"]
        assert "the same command resumes" in entry["stderr"]
        assert "Traceback" not in entry["stderr"]
        assert entries[f"{what}; restored"]["status"] == 0
        assert results(scratch / what) == results(scratch / "uninterrupted")


@pytest.mark.skipif(not CAN_MOUNT, reason="no file system can be mounted here")
def test_a_full_disk_stops_a_run_that_resumes_later(
    entries: dict[str, dict[str, Any]], scratch: Path
) -> None:
    for what in ("begin", "lines", "first", "third"):
        entry = entries[what]
        assert entry["status"] == 1, entry
        assert "tokenmill: The disk is full" in entry["stderr"], (what, entry)
        assert "run the same command again" in entry["stderr"]
        assert "Traceback" not in entry["stderr"]
        assert not [name for name in entry["made"] if ".tmp" in name]
    assert not [name for name in entries["first"]["made"] if "step_" in name]
    assert "the checkpoint of step" in entries["third"]["stderr"]
    assert [name for name in entries["third"]["made"] if "step_" in name]
    assert entries["end"]["status"] == 0
    assert results(scratch / "full") == results(scratch / "uninterrupted")
