"""Estimate what a run would take, from a sample of its input.

Text from all over the input is read, cleaned and tokenized (see `sample`), and the head of every
file is checked, to find files that a run would refuse. Both have a time limit, so this takes seconds
for any input. Nothing is written.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain

import numpy as np

from tokenmill.preparation.prepare import Mill
from tokenmill.preparation.sample import take_sample
from tokenmill.sources.faults import find_fault
from tokenmill.sources.find import PassedOver

_LOOKING = 4.0  # seconds for the heads of files
_MAIN_PROCESS = 150 << 20


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A plan, and what it is expected to take."""

    files: int
    passed_over: tuple[PassedOver, ...]
    parts: int
    bytes: int
    tokens: int
    documents: int
    disk: int  # what the dataset takes
    disk_while_working: int  # on top of that, until the run has finished
    memory: int
    seconds: float
    workers: int
    sampled: int  # bytes of text
    looked_at: int  # files whose first bytes were read
    faults: tuple[str, ...]  # files that cannot be read or used, and why


def estimate(mill: Mill) -> Estimate:
    """Measure a sample of what a mill would read."""
    parts, size = mill.plan.parts, mill.plan.size
    sample = take_sample(mill)
    faults, looked_at = _find_faults(mill)
    passes = 2 if mill.settings.dedup == "lines" else 1
    tokens, documents = sample.tokens, sample.documents
    stored = tokens * np.dtype(mill.dtype).itemsize + 48 * documents
    return Estimate(
        files=len(mill.plan.sources),
        passed_over=mill.plan.passed_over,
        parts=len(parts),
        bytes=size,
        tokens=tokens,
        documents=documents,
        disk=stored,
        disk_while_working=stored + 24 * documents + (size // 2 if passes == 2 else 0),
        memory=mill.memory + _MAIN_PROCESS,
        seconds=passes * sample.seconds / min(mill.workers, max(1, len(parts))),
        workers=mill.workers,
        sampled=sample.sampled,
        looked_at=looked_at,
        faults=tuple(f"{path}: {why}" for path, why in {**faults, **sample.faults}.items()),
    )


def _find_faults(mill: Mill) -> tuple[dict[str, str], int]:
    """The files that a run would refuse, and how many were checked before time ran out."""
    sources, started = mill.plan.sources, time.perf_counter()
    faults, looked_at = {}, 0
    # Every 97th file first, so that the files checked before time runs out are from everywhere.
    for number in chain.from_iterable(range(first, len(sources), 97) for first in range(97)):
        if fault := find_fault(sources[number], mill.settings.text_field):
            faults[number] = fault
        looked_at += 1
        if time.perf_counter() - started > _LOOKING:
            break
    return {sources[number].path: faults[number] for number in sorted(faults)}, looked_at
