"""A set of keys, sorted, that may be larger than the memory.

A key is the 128-bit hash of a document, as two numbers: its high and its low half. The set is sorted
by the low half first. Partitions of keys are made from the leading bits of the low half (see
`key_files.py`), so the keys of a partition are a range of the set.

Keys that come in any order are sorted in runs of `RUN` keys. If there are several runs, they are
merged into a file without a name, which the system removes when the process ends. Memory holds a few
runs at most, however many keys there are: some 300 MB. A file of 100 million keys has 1.6 GB.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.preparation.key_files import KeyLayout, Keys
from tokenmill.storage.files import AtomicFile, create_unnamed

RUN = 1 << 21  # keys that are sorted at once
_SAMPLE = 1 << 16  # of a run, every key of this number is a border when runs are merged
_BORDERS = 16  # that are merged at once
_COPY = 1 << 18  # keys that are hashed or copied at once
_KEY_BYTES = 16


class SortedKeys:
    """Different keys, sorted by their low half. `keys` has the shape (n, 2): high and low half.

    >>> keys = np.array([[5, 9], [6, 2], [5, 9], [4, 9]], np.uint64)
    >>> SortedKeys.of([keys]).keys.tolist()
    [[6, 2], [4, 9], [5, 9]]
    """

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    @classmethod
    def of(cls, tables: Iterable[Keys], run: int = RUN) -> SortedKeys:
        """Sort the keys of some tables, and keep one of equal keys. At most `run` are sorted at once."""
        runs = _sort_runs(tables, run)
        first, second = next(runs, np.empty((0, 2), np.uint64)), next(runs, None)
        if second is None:
            return cls(first)
        return cls(_merge(first, second, runs))

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def checksum(self) -> str:
        """The xxh3-128 of the keys. It depends only on which keys are in the set."""
        digest = xxhash.xxh3_128()
        for some in self.read():
            digest.update(some.data)
        return digest.hexdigest()

    def read(self) -> Iterator[Keys]:
        """Yield the keys in order, some at a time."""
        for start in range(0, len(self), _COPY):
            yield np.ascontiguousarray(self.keys[start : start + _COPY], "<u8")

    def write(self, path: Path) -> None:
        """Write the keys to a file: 16 bytes each, without a header."""
        with AtomicFile(path) as file:
            for some in self.read():
                file.write(some)
            file.finish()

    def find(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return which of some keys are in the set."""
        order = keys[:, 1].argsort()  # neighbours are found in the same pages of a file
        found = np.empty(len(keys), np.bool_)
        found[order] = find_keys(keys[order], self.keys)
        return found

    def divide(self, layout: KeyLayout) -> list[int]:
        """Return where the keys of each partition start, and where those of the last one end."""
        bits = layout.partitions.bit_length() - 1
        borders = [number << (64 - bits) for number in range(layout.partitions)]
        starts = self.keys[:, 1].searchsorted(np.array(borders, np.uint64))
        return [*starts.tolist(), len(self)]


def find_keys(keys: Keys, among: Keys) -> npt.NDArray[np.bool_]:
    """Return which of some keys are among others, which are sorted as in `SortedKeys`."""
    low, high = among[:, 1], among[:, 0]
    wanted = np.ascontiguousarray(keys[:, 1])
    first, last = low.searchsorted(wanted, "left"), low.searchsorted(wanted, "right")
    found = np.zeros(len(keys), np.bool_)
    some = np.flatnonzero(first < last)
    found[some] = high[first[some]] == keys[some, 0]
    # Keys that differ in their high half only: there are some only if somebody made them.
    for number in some[last[some] - first[some] > 1].tolist():
        inside = high[first[number] : last[number]]
        place = int(inside.searchsorted(keys[number, 0]))
        found[number] = place < len(inside) and inside[place] == keys[number, 0]
    return found


def _sort_runs(tables: Iterable[Keys], run: int) -> Iterator[Keys]:
    held: list[Keys] = []
    count = 0
    for table in tables:
        while len(table):
            held.append(table[: run - count])
            table = table[run - count :]
            count += len(held[-1])
            if count == run:
                yield _sort(np.concatenate(held))
                held, count = [], 0
    if held:
        yield _sort(np.concatenate(held))


def _sort(keys: Keys) -> Keys:
    """Return the different keys among some, sorted."""
    order = np.lexsort((keys[:, 0], keys[:, 1]))
    keys = keys[order]
    fresh = np.ones(len(keys), np.bool_)
    fresh[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    return keys[fresh]


def _merge(first: Keys, second: Keys, more: Iterator[Keys]) -> Keys:
    """Merge sorted runs on disk, range by range. Returns a map of a file without a name."""
    folder = Path(tempfile.gettempdir())
    with create_unnamed(folder) as spill, create_unnamed(folder) as made:
        counts = []
        for run in chain((first, second), more):
            spill.write(run.data)
            counts.append(len(run))
        spill.flush()
        whole = np.memmap(spill, np.uint64, "r").reshape(-1, 2)
        ends = np.cumsum([0, *counts]).tolist()
        runs = [whole[start:end] for start, end in pairwise(ends)]
        samples = np.concatenate([run[_SAMPLE::_SAMPLE] for run in runs])
        borders = _sort(samples)[::_BORDERS].tolist() if len(samples) else []
        before, total = [0] * len(runs), 0
        for border in [*borders, None]:
            after = [len(run) if border is None else _place(run, *border) for run in runs]
            parts = zip(runs, before, after, strict=True)
            merged = _sort(np.concatenate([run[low:high] for run, low, high in parts]))
            made.write(merged.data)
            before, total = after, total + len(merged)
        made.flush()
        return np.memmap(made, np.uint64, "r", shape=(total, 2))


def _place(run: Keys, high: int, low: int) -> int:
    """Return how many keys of a sorted run are before a key."""
    first, last = (int(run[:, 1].searchsorted(np.uint64(low), side)) for side in ("left", "right"))
    return first + int(run[first:last, 0].searchsorted(np.uint64(high)))
