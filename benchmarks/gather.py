"""Compare `Tokens.gather` with its limit: a casting copy of the same number of contiguous ids.

The same rows are also read from their files, with `Tokens.unmapped`.
"""

from __future__ import annotations

import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from time import process_time

import numpy as np

from tokenmill.store.shards import FileShards
from tokenmill.store.tokens import Tokens

TOKENS, LENGTH = 50_000_000, 1025


def make(folder: Path, shards: int) -> Tokens:
    """Make this many tokens, in files of raw ids."""
    folder.mkdir()
    parts = np.array_split(np.random.default_rng(0).integers(0, 50257, TOKENS, np.uint16), shards)
    names = [f"{number}.bin" for number in range(shards)]
    for name, part in zip(names, parts, strict=True):
        part.tofile(folder / name)
    counts = np.array([len(part) for part in parts], np.int64)
    return Tokens(
        FileShards(
            folder=folder,
            names=names,
            dtype=np.dtype("<u2"),
            counts=counts,
            offsets=counts * 0,
            sizes=counts * 2,
        ),
        "train",
    )


def microseconds(work: Callable[[], object], times: int) -> float:
    """The best of nine, because other work on the machine only adds time."""
    work()
    return min(timeit.repeat(work, number=times, repeat=9, timer=process_time)) / times * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for shards in (1, 5, 100):
            tokens = make(Path(folder) / str(shards), shards)
            for rows in (32, 512, 4096):
                starts = np.random.default_rng(1).integers(0, TOKENS - LENGTH, rows)
                out = np.empty((rows, LENGTH), np.int64)
                ids = np.zeros((rows, LENGTH), np.uint16)
                times = max(5, 100_000 // rows)
                limit = microseconds(lambda: np.copyto(out, ids), times)  # noqa: B023
                took = microseconds(lambda: tokens.gather(starts, LENGTH, out=out), times)  # noqa: B023
                files = tokens.unmapped()
                read = microseconds(lambda: files.gather(starts, LENGTH, out=out), times // 10)  # noqa: B023
                print(
                    f"{shards:3} shards, {rows:4} rows: gather {took:8.1f} µs, "
                    f"cast copy {limit:8.1f} µs, {took / limit:.2f} times; "
                    f"unmapped {read:8.1f} µs, {read / limit:.2f} times",
                    flush=True,
                )


if __name__ == "__main__":
    main()
