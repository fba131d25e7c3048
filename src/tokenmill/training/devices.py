"""What is known of devices whatever the framework: how fast they can be, and what a process holds."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path

# Of one device, dense bfloat16, as the makers give them; the first name that fits counts.
_PEAK_FLOPS = {
    "B200": 2.25e15,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "L4": 121e12,
    "A10": 125e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
}


def find_peak_flops(name: str) -> float | None:
    """The operations a second of a device in bfloat16, where its name is known.

    >>> find_peak_flops("NVIDIA H100 80GB HBM3")
    989000000000000.0
    """
    return next((peak for known, peak in _PEAK_FLOPS.items() if known in name), None)


def find_process_memory() -> int:
    """The most bytes that this process has held at once.

    >>> find_process_memory() > 1_000_000
    True
    """
    # What Linux says of a process counts that of the one it was forked from, but for this.
    with suppress(OSError, StopIteration):
        told = Path("/proc/self/status").read_text()
        return next(
            int(line.split()[1]) * 1024 for line in told.splitlines() if line.startswith("VmHWM")
        )
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
