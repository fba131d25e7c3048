"""Settings that must be in place before any test imports a framework."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

# Builders of datasets and of other programs' files, and servers, which tests in several folders import.
sys.path += [str(Path(__file__).parent / name) for name in ("store", "formats", "remote")]

# Some virtual machines report AMX and trap its instructions, so PyTorch's products in bfloat16 would end
# the process. This is an upper limit: processors without AVX-512 are not affected.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in one line that there was no browser, because pytest -q hides why tests are skipped."""
    reasons = [str(one.longrepr[2]) for one in terminalreporter.stats.get("skipped", ())]
    missing = [reason for reason in reasons if "no browser" in reason]
    if missing:
        terminalreporter.write_line(
            f"{len(missing)} tests skipped: {missing[0].partition(': ')[2]}"
        )
