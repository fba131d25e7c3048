"""Meshes of four devices in one or two processes have the rows of a single device."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tokenmill

IDS = np.random.default_rng(0).integers(0, 60_000, 5_003).astype(np.uint16)
PROGRAM = Path(__file__).with_name("mesh_program.py")
SETTINGS = {"batch_size": 8, "seq_len": 16, "seed": 3}


def run(path, processes):
    """The output of each process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = f"--xla_force_host_platform_device_count={4 // processes}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    started = [
        subprocess.Popen(
            [sys.executable, PROGRAM, path, str(process), str(processes), str(port)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(processes)
    ]
    result = []
    for process in started:
        out, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
        result.append(json.loads(out.splitlines()[-1]))
    return result


@pytest.mark.parametrize("processes", [1, 2])
def test_all_devices_together_hold_the_rows_of_one(tmp_path, processes):
    np.save(tmp_path / "ids.npy", IDS)
    loader = tokenmill.Loader(tokenmill.open(tmp_path / "ids.npy")["train"], **SETTINGS)
    expected = [loader.batch_at(step) for step in (1, 1, 1_000)]
    result = run(tmp_path / "ids.npy", processes)
    assert len(result[0]) == 8
    for name in result[0]:
        for step, batch in enumerate(expected):
            for part, whole in enumerate((batch.inputs, batch.targets)):
                held = np.zeros(whole.shape, bool)
                for process in result:
                    for row, token, values in process[name]["steps"][step][part]:
                        place = np.s_[row : row + len(values), token : token + len(values[0])]
                        assert np.array_equal(whole[place], values), name
                        held[place] = True
                assert held.all(), name


def test_a_process_reads_no_more_than_its_devices_need(tmp_path):
    np.save(tmp_path / "ids.npy", IDS)
    for process in run(tmp_path / "ids.npy", 2):
        read = {name: result["read"] for name, result in process.items()}
        assert read["rows over all devices"] == read["rows over one axis"] == 4
        assert read["the same everywhere"] == read["tokens alone"] == 8
