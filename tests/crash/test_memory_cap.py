"""Memory stays under the cap that the user sets, also for text that no cache can hold."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from runs import kill_all, members, start

CAP = 700_000_000


def make_new_words(path: Path, size: int) -> None:
    """Text in which hardly a word occurs twice."""
    rng = np.random.default_rng(5)
    letters = rng.integers(97, 123, size, np.uint8)
    letters[9::10] = 32
    letters[99::100] = 10
    path.write_bytes(letters.tobytes())


def proportional_memory(process: int) -> int:
    """What a process has in memory; pages that several share are divided among them."""
    try:
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    return int(rollup.partition("\nPss:")[2].split()[0]) << 10


def test_words_that_never_repeat_do_not_fill_the_memory(tmp_path: Path) -> None:
    text = tmp_path / "x.txt"
    make_new_words(text, 64_000_000)
    process = start(
        *("prepare", text, "--out", tmp_path / "data", "--workers", "2", "--memory", str(CAP))
    )
    peak = 0
    began = time.monotonic()
    while process.poll() is None:
        peak = max(peak, sum(map(proportional_memory, members(process.pid))))
        time.sleep(0.05)
        if time.monotonic() - began > 90:
            kill_all(process)
    _, told = process.communicate()
    assert process.returncode == 0, told
    assert (tmp_path / "data" / "train" / "shard_00000.bin").stat().st_size > 30_000_000
    assert peak < CAP
