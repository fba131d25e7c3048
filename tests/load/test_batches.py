"""The process keeps the memory of freed batches."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from tokenmill.load.batches import keep_freed_memory

def fill_and_free():
    arrays = [np.ones(3 << 20, np.uint8) for _ in range(10)]

keep_freed_memory()
fill_and_free()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    fill_and_free()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults * resource.getpagesize() // (30 << 20))
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc returns such memory to the system"
)
def test_freed_memory_is_kept():
    command = [sys.executable, "-c", PROGRAM]
    result = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    assert int(result) == 0  # how often all memory was new: 5 times if glibc does not keep it
