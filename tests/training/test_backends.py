"""Opening a backend: the environment that PyTorch is imported with, and unknown names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import os
from contextlib import ExitStack
from tokenmill.training.backends import has_accelerator
has_accelerator("torch", None, ExitStack())
print(os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "3000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, "None"),
    ],
)
def test_openmp_threads_spin_briefly_unless_you_set_it(
    given: dict[str, str], expected: str
) -> None:
    pytest.importorskip("torch")
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    ended = subprocess.run(
        [sys.executable, "-c", CODE],
        env=environment | given,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == expected
