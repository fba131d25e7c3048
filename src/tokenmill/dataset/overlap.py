"""Find documents that are in two splits at once.

A validation text that is also trained on makes the validation loss a lie. Texts are compared by
their 128-bit keys. Memory is bounded: keys of the smaller splits are held `HELD` at a time, sorted,
and the tables of the larger splits stream past them. That is one more reading of the larger
splits' tables for each `HELD` documents in the smaller ones; with a validation split of a usual
size, a single one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.problems import Problems
from tokenmill.storage.reading import DamagedFileError, open_inside
from tokenmill.store.documents import read_table_header
from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest, Split

HELD = 2 << 20  # keys of 16 bytes: 32 MB, and about as much again twice while they are sorted
RECORDS = 1 << 16  # read at once: 3 MB
CURE = "Run the same tokenmill prepare command with --restart, which puts equal texts in one split."

Keys = npt.NDArray[np.uint64]  # two rows: the upper and the lower halves


def check_overlap(folder: Path, manifest: Manifest, problems: Problems) -> None:
    """Add a problem for each table of a split with documents that a smaller split has too."""
    by_size = sorted(manifest.splits, key=lambda name: manifest.splits[name].documents)
    for place, small in enumerate(by_size):
        larger = by_size[place + 1 :]
        if not larger:
            return
        for held in _batches(folder, manifest.splits[small]):
            ordered = held[:, np.lexsort((held[1], held[0]))]
            for large in larger:
                _compare(folder, manifest.splits[large], ordered, small, problems)


def _compare(folder: Path, split: Split, held: Keys, small: str, problems: Problems) -> None:
    file, count, example = "", 0, ""

    def report() -> None:
        if count:
            problems.add(
                file,
                f"has {count:,} documents that are in split {small!r} as well, such as the one "
                f"with the key {example}",
                CURE,
            )

    for path, keys in _stream(folder, split):
        if path != file:
            report()
            file, count = path, 0
        found = keys[:, _among(held, keys)]
        if found.size and not count:
            example = f"{found[0, 0]:016x}{found[1, 0]:016x}"
        count += found.shape[1]
    report()


def _batches(folder: Path, split: Split) -> Iterator[Keys]:
    """A split's keys, at most HELD at a time."""
    pieces: list[Keys] = []
    size = 0
    for _, keys in _stream(folder, split):
        pieces.append(keys)
        size += keys.shape[1]
        if size + RECORDS > HELD:
            yield np.concatenate(pieces, axis=1)
            pieces, size = [], 0
    if pieces:
        yield np.concatenate(pieces, axis=1)


def _stream(folder: Path, split: Split) -> Iterator[tuple[str, Keys]]:
    """The keys of a split, with the table they are in. Tables known to be unreadable are left out."""
    for shard in split.shards:
        try:
            with open_inside(folder, shard.documents_path) as file:
                file.seek(read_table_header(file, shard.documents_path, shard.documents))
                while data := file.read(RECORDS * DOCUMENT_DTYPE.itemsize):
                    records: npt.NDArray[Any] = np.frombuffer(
                        data, DOCUMENT_DTYPE, len(data) // DOCUMENT_DTYPE.itemsize
                    )
                    yield shard.documents_path, np.ascontiguousarray(records["key"].T)
        except (DamagedFileError, OSError):
            continue


def _among(held: Keys, keys: Keys) -> npt.NDArray[np.bool_]:
    """Which of `keys` are in `held`, which is sorted.

    >>> held = np.array([[1, 1, 2], [5, 7, 0]], np.uint64)
    >>> _among(held, np.array([[1, 1, 2, 3], [7, 6, 0, 0]], np.uint64)).tolist()
    [True, False, True, False]
    """
    result = np.zeros(keys.shape[1], np.bool_)
    start = np.searchsorted(held[0], keys[0])
    (maybe,) = np.nonzero(held[0, np.minimum(start, held.shape[1] - 1)] == keys[0])
    # A second binary search, on the lower halves within equal upper ones: NumPy has no search for
    # pairs, and upper halves may all be equal in a dataset that is made to keep us busy.
    upper, lower, low = keys[0, maybe], keys[1, maybe], start[maybe]
    high = end = np.searchsorted(held[0], upper, side="right")
    while (unsure := low < high).any():
        middle = np.where(unsure, (low + high) // 2, 0)
        below = held[1, middle] < lower
        low = np.where(unsure & below, middle + 1, low)
        high = np.where(unsure & ~below, middle, high)
    result[maybe] = (low < end) & (held[1, np.minimum(low, held.shape[1] - 1)] == lower)
    return result
