"""Training that is killed at any moment ends with the weights of training that is not, bit for bit."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from training import ONE_THREAD, command, make_data, results


@pytest.mark.parametrize(("backend", "kills", "steps"), [("torch", 5, 100), ("jax", 2, 60)])
def test_killed_training_ends_with_the_same_weights_and_losses(
    tmp_path: Path, backend: str, kills: int, steps: int
) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"needs {backend}")
    data = make_data(tmp_path)
    # Programs that JAX compiled once need not be compiled after every kill.
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }

    def train(name: str, kills: int) -> dict[str, Any]:
        arguments = command(data, tmp_path / name, "--backend", backend, "--max-steps", str(steps))
        program = Path(__file__).with_name("training.py")
        ended = subprocess.run(
            [sys.executable, program, str(kills), "forked", *map(str, arguments)],
            capture_output=True,
            text=True,
            env=ONE_THREAD | cache,
        )
        told: dict[str, Any] = json.loads(ended.stdout)
        assert told["status"] == 0, ended.stderr
        assert ended.stderr == ""
        return told

    train("undisturbed", 0)
    told = train("killed", kills)
    assert results(tmp_path / "killed") == results(tmp_path / "undisturbed"), told
