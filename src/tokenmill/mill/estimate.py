"""What a run would cost, measured on a sample of its input.

A few chunks, spread over the input, are read, cleaned and tokenized; the rest follows from their
averages. Of every file, the head is looked at, so that what a run would refuse is known before.
Nothing is written.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokenmill.mill.faults import find_fault
from tokenmill.mill.find import PassedOver
from tokenmill.mill.run import Mill
from tokenmill.mill.sources import BadFileError
from tokenmill.mill.texts import prepare_chunk
from tokenmill.tokenizers import encode_terminated

__all__ = ["Estimate", "estimate"]

_SAMPLES = 8
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
    sampled: int  # bytes
    faults: tuple[str, ...]  # files that cannot be read or used, and why


def estimate(mill: Mill) -> Estimate:
    """Measure a sample of what a mill would read."""
    parts = mill.plan.parts
    read = tokens = documents = 0
    spent = 0.0
    faults = {
        source.path: fault
        for source in mill.plan.sources
        if (fault := find_fault(source, mill.settings.text_field))
    }
    chosen = sorted({len(parts) * i // _SAMPLES for i in range(_SAMPLES)})
    for i in chosen:
        job = mill.job(parts[i], Path())
        piece = parts[i].pieces[0]
        started = time.perf_counter()
        try:
            for chunk in job.read(piece):
                prepared = prepare_chunk(chunk, job.settings, job.sources[piece.source])
                ids, _ = encode_terminated(mill.tokenizer, prepared.texts)
                read += max(1, chunk.read)
                tokens += len(ids)
                documents += len(prepared.texts)
                break
        except BadFileError as error:
            faults.setdefault(error.source, error.reason)
        spent += time.perf_counter() - started
    size = mill.plan.size
    share = size / read if read else 0.0
    passes = 2 if mill.settings.dedup == "lines" else 1
    tokens_in_all, documents_in_all = int(tokens * share), int(documents * share)
    stored = tokens_in_all * np.dtype(mill.dtype).itemsize + 48 * documents_in_all
    return Estimate(
        files=len(mill.plan.sources),
        passed_over=mill.plan.passed_over,
        parts=len(parts),
        bytes=size,
        tokens=tokens_in_all,
        documents=documents_in_all,
        disk=stored,
        disk_while_working=stored + 24 * documents_in_all + (size // 2 if passes == 2 else 0),
        memory=mill.memory + _MAIN_PROCESS,
        seconds=passes * spent * share / min(mill.workers, max(1, len(parts))),
        workers=mill.workers,
        sampled=read,
        faults=tuple(f"{path}: {fault}" for path, fault in faults.items()),
    )
