"""A killed training process with busy DataLoader workers leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

TRAINING = """
import sys
from torch.utils.data import DataLoader
import tokenmill
from tokenmill.torch import TokenBatches

tokens = tokenmill.open(sys.argv[1])["train"]
batches = TokenBatches(tokens, batch_size=8, seq_len=64, seed=1)
for number, (inputs, _) in enumerate(DataLoader(batches, batch_size=None, num_workers=2)):
    print(number, int(inputs.sum()), flush=True)
"""


def start(path):
    return subprocess.Popen(
        [sys.executable, "-c", TRAINING, path], stdout=subprocess.PIPE, text=True, process_group=0
    )


def members(group):
    """The processes of a group that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_killed_training_process_leaves_nothing_and_the_next_one_starts(tmp_path):
    path = tmp_path / "ids.npy"
    np.save(path, np.random.default_rng(0).integers(0, 60_000, 100_000).astype(np.uint16))
    result = []
    for batches in (3, 40):
        shared = set(os.listdir("/dev/shm"))
        process = start(path)
        result.append([process.stdout.readline() for _ in range(batches)])
        family = members(process.pid)
        assert len(family) == 3
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        deadline = time.monotonic() + 60  # workers look for their parent every few seconds
        while members(process.pid):
            assert time.monotonic() < deadline, "workers outlive the process"
            time.sleep(0.1)
        new = set(os.listdir("/dev/shm")) - shared
        # PyTorch has the number of the process in the names.
        assert not {name for name in new if any(str(number) in name for number in family)}
        assert [entry.name for entry in tmp_path.iterdir()] == ["ids.npy"]
    assert result[1][:3] == result[0]
