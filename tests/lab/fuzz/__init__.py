"""Fuzzing: mutated files for every parser of foreign bytes.

    python -m tests.lab.fuzz                                  every parser, some cases each
    python -m tests.lab.fuzz manifest --seed 7 --case 1234    one case
    python -m tests.lab.fuzz manifest --seed 7 --case 1234 --save

A case may be read or refused with a TokenmillError. It fails with any other exception, a signal, more
than 5 s of processor time or 1 GB of memory, or if data with a checksum gives other ids than the sound
files. `found/` keeps the input of everything that was ever found, which the tests read again.
"""

from __future__ import annotations

import os
from typing import Any


def limit_threads() -> None:
    """Let libraries that are imported later use one thread: processes are forked, and their memory is
    limited."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # others reserve memory that they do not use


def run(deadline: float, seed: int, watcher: Any) -> None:
    """Run cases of all parsers, or of those that LAB_PARSERS names, separated by commas.

    `deadline` is a value of `time.monotonic()`.
    """
    limit_threads()
    from .. import results
    from .campaign import Campaign

    names = os.environ.get("LAB_PARSERS")
    campaign = Campaign(seed, names.split(",") if names else None)
    for batch, fresh in campaign.until(deadline):
        name = batch.parser.name
        results.record("fuzzing", name, "mutated files", batch.done, len(batch.failures), seed)
        watcher.advance(f"fuzzing {name}", batch.done)
        for failure in fresh:
            watcher.fail(failure.command, failure.what)
