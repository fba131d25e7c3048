"""Runs of `prepare` without worker processes, so that constants can be made tiny for many parts,
pieces and cuts in small inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tokenmill.preparation import clean, pack, plan, repeats, sift
from tokenmill.preparation import prepare as run
from tokenmill.preparation.worker import Rest, Worker
from tokenmill.sources import read as sources
from tokenmill.sources import records
from tokenmill.sources.read import BadFileError


class InProcessEngine:
    """What LocalEngine does, one task after another, the last one first."""

    def __init__(self, mill: run.Mill) -> None:
        self._worker = Worker(mill.tokenizer, 1 << 40, lambda numbers: None)

    def __enter__(self) -> InProcessEngine:
        return self

    def __exit__(self, *_: object) -> None: ...

    def rest(self) -> None:
        self._worker.do(Rest())

    def run(self, tasks: Any, progress: Any) -> Iterator[tuple[int, Any]]:
        for number, task in reversed(list(enumerate(tasks))):
            try:
                result = self._worker.do(task)
            except BadFileError as error:
                result = error
            progress((0, 0, 0, 0))
            yield number, result


@contextmanager
def in_process(
    *, part: int = 16 << 20, block: int = 4 << 20, keys: int = 1 << 16
) -> Iterator[None]:
    """Run in this process, with parts, blocks and sorts of the given sizes."""
    with (
        patch.object(run.Mill, "engine", lambda mill: InProcessEngine(mill)),
        patch.object(plan, "PART_BYTES", part),
        patch.object(records, "BLOCK", block),
        patch.object(sources, "BLOCK", block),
        patch.object(sources, "_ROWS", 3 if block < 1000 else 256),
        patch.object(repeats, "_LEAST_KEYS", keys),
        patch.object(repeats, "_SORT_BYTES", 64 if keys >= 1 << 16 else 1 << 60),
        patch.object(sift, "_READ", 64 * 7 if block < 1000 else 4 << 20),
        patch.object(pack, "_COPY", 11 if block < 1000 else 1 << 20),
        patch.object(clean, "_PIECE", 64 if block < 1000 else 1 << 19),
    ):
        yield
