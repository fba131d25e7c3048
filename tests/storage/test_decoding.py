"""Untrusted JSON is decoded, or refused with the right reason."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIMITED = """
import resource
from pathlib import Path
from tokenmill.storage.decoding import load_json
text = b'["' + b"x" * (64 << 20) + b'"]'  # orjson reserves 12 times as much
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    load_json(text)
except MemoryError:
    print("no memory")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a limit on memory")
def test_a_lack_of_memory_is_not_called_invalid_json() -> None:
    ended = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("no memory\n", "")
