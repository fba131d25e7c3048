"""Key files and mark files, which tasks use to find equal keys in the whole input.

A key is the hash of a document or of a line. A mark says whether an equal key is earlier in the
input, or whether the key is listed: the user excludes such documents. Keys are divided into partitions by the leading bits of their low half, so equal keys are in
the same partition, and one task can mark the keys of one partition. The task of a part writes the
part's keys to one file. The file is a sequence of runs, each with a bounded number of keys:

    starts      partitions + 1 numbers: where the keys of each partition start in the run
    keys        16 bytes each, ordered by partition, in input order within a partition
    partitions  2 bytes for each key, in input order

The task of a partition reads one range of each run. It writes one mark file: where the marks of
each run start, then one byte for each key of the partition. To put the marks of a run back into
input order, a later task of the part reads one range of each mark file. Memory holds one run at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tokenmill.errors import FolderError
from tokenmill.storage.reading import measure_file

Keys = npt.NDArray[np.uint64]  # shape (n, 2), high and low half
Flags = npt.NDArray[np.uint8]  # marks: 0, or one of the next two

REPEATED = 1  # an equal key is earlier in the input
LISTED = 2  # the key is listed, and the document is to be left out; it may be a repeat, too
NEAR = 3  # the document is a near duplicate of one that stays; mark files do not have this mark

_KEY_BYTES, _PARTITION_BYTES, _START_BYTES = 16, 2, 8
MOST_PARTITIONS = 1024


@dataclass(frozen=True, kw_only=True)
class KeyLayout:
    """The layout of key files, which are sequences of runs. A run is a block of keys.

    `partitions` is the number of partitions, a power of two. A run has at most `run_keys` keys.
    """

    partitions: int
    run_keys: int

    @property
    def header(self) -> int:
        """The number of bytes before the keys in each run (block of keys)."""
        return _START_BYTES * (self.partitions + 1)

    def count_runs(self, keys: int) -> int:
        """Return the number of runs (blocks of keys) in a file with this many keys."""
        return -(-keys // self.run_keys)

    def size(self, keys: int) -> int:
        """Return the size in bytes of a file with this many keys.

        >>> KeyLayout(partitions=2, run_keys=10).size(11)
        246
        """
        return self.header * self.count_runs(keys) + (_KEY_BYTES + _PARTITION_BYTES) * keys

    def offset(self, run: int) -> int:
        """Return where run number `run`, which is a block of keys, starts in its file, in bytes."""
        return self.size(run * self.run_keys)

    def partition_of(self, keys: Keys) -> npt.NDArray[np.uint16]:
        """Return the partition of each key."""
        bits = self.partitions.bit_length() - 1
        if not bits:
            return np.zeros(len(keys), np.uint16)
        return (keys[:, 1] >> np.uint64(64 - bits)).astype(np.uint16)


class KeyWriter:
    """Writes a key file. Keys are added in input order, and `write` receives the bytes of the file."""

    def __init__(self, layout: KeyLayout, write: Callable[[Any], None]) -> None:
        self._layout = layout
        self._write = write
        self._held: list[Keys] = []
        self._room = layout.run_keys
        self.count = 0
        write(b"")

    def add(self, keys: Keys) -> None:
        """Add keys, and write a run (a block of `run_keys` keys) whenever it is full."""
        self.count += len(keys)
        while len(keys):
            taken, keys = keys[: self._room], keys[self._room :]
            self._held.append(taken)
            self._room -= len(taken)
            if not self._room:
                self.flush()

    def flush(self) -> None:
        """Write the keys that are not written yet. Call this at the end."""
        if not self._held:
            return
        keys = np.concatenate(self._held)
        self._held.clear()
        self._room = self._layout.run_keys
        partitions = self._layout.partition_of(keys)
        counts = np.bincount(partitions, minlength=self._layout.partitions)
        starts = np.concatenate(([0], np.cumsum(counts))).astype("<u8")
        order = np.argsort(partitions, kind="stable")  # NumPy sorts 16-bit numbers in linear time
        for array in (starts, keys[order], partitions):
            self._write(array.data)


@dataclass(frozen=True)
class KeyRanges:
    """Where the keys of one partition are in one key file.

    The file is a sequence of runs (blocks of keys). For each run, `offsets` and `counts` say where
    the keys of the partition start in the file, and how many there are.
    """

    path: Path
    offsets: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    @classmethod
    def find(cls, path: Path, keys: int, layout: KeyLayout, partition: int) -> KeyRanges:
        """Find the keys of a partition in a file of `keys` keys."""
        runs = layout.count_runs(keys)
        ends = np.zeros((runs, 2), np.int64)
        if runs:
            with path.open("rb") as file:
                for run in range(runs):
                    place = layout.offset(run) + _START_BYTES * partition
                    ends[run] = np.frombuffer(read_range(file, place, 2 * _START_BYTES), "<u8")
        most = np.minimum(layout.run_keys, keys - layout.run_keys * np.arange(runs))
        if (ends[:, 0] < 0).any() or (ends[:, 1] < ends[:, 0]).any() or (ends[:, 1] > most).any():
            raise damaged(path)
        places = np.array([layout.offset(run) for run in range(runs)], np.int64) + layout.header
        return cls(path, places + _KEY_BYTES * ends[:, 0], ends[:, 1] - ends[:, 0])

    def read(self) -> Iterator[Keys]:
        """Yield the partition's keys in input order, one array for each run (block of keys)."""
        if self.counts.any():
            with self.path.open("rb") as file:
                for offset, count in zip(self.offsets.tolist(), self.counts.tolist(), strict=True):
                    if count:
                        data = read_range(file, offset, _KEY_BYTES * count)
                        yield np.frombuffer(data, "<u8").reshape(-1, 2)


@dataclass(frozen=True, kw_only=True)
class PartMarks:
    """Where the marks of one part's keys are: spread over the mark files of all partitions.

    A mark is `REPEATED`, `LISTED` or 0.
    """

    keys: Path  # the part's key file
    count: int
    first_run: int  # the number of the part's first run, counted over all parts
    marks: Path  # the folder of mark files
    context: str  # the names of mark files begin with it
    layout: KeyLayout

    def read(self) -> Iterator[Flags]:
        """Yield the marks of the part's keys in input order, one array for each block of keys."""
        layout, left = self.layout, self.count
        with self.keys.open("rb") as file:
            for run in range(layout.count_runs(self.count)):
                keys = min(layout.run_keys, left)
                left -= keys
                place = layout.offset(run)
                starts = np.frombuffer(read_range(file, place, layout.header), "<u8")
                place += layout.header + _KEY_BYTES * keys
                partitions = np.frombuffer(read_range(file, place, _PARTITION_BYTES * keys), "<u2")
                counts = np.bincount(partitions, minlength=layout.partitions)
                if not np.array_equal(starts, [0, *np.cumsum(counts)]):
                    raise damaged(self.keys)
                flags = np.empty(keys, np.uint8)
                order = np.argsort(partitions, kind="stable")
                flags[order] = self._read_run(self.first_run + run, counts)
                yield flags

    def _read_run(self, run: int, counts: npt.NDArray[np.int64]) -> Flags:
        """Return the marks of a run (block of keys), ordered by partition.

        `run` counts the runs of all parts. `counts[n]` of the keys are in partition n.
        """
        found = []
        for partition in np.flatnonzero(counts).tolist():
            path = mark_path(self.marks, self.context, partition)
            with path.open("rb") as file:
                start = int.from_bytes(read_range(file, _START_BYTES * run, _START_BYTES), "little")
                found.append(read_range(file, start, int(counts[partition])))
        return np.frombuffer(b"".join(found), np.uint8)


class Marks:
    """Hands out marks in input order. A mark is `REPEATED`, `LISTED` or 0."""

    def __init__(self, runs: Iterable[Flags]) -> None:
        self._runs = iter(runs)
        self._held: Flags = np.empty(0, np.uint8)

    def take(self, count: int) -> Flags:
        """Return the next `count` marks. If the input changed, any missing marks are 0."""
        taken = [self._held[:count]]
        self._held = self._held[count:]
        missing = count - len(taken[0])
        while missing:
            run = next(self._runs, None)
            if run is None:
                run = np.zeros(missing, np.uint8)
            taken.append(run[:missing])
            missing -= len(taken[-1])
            self._held = run[len(taken[-1]) :]
        return np.concatenate(taken)


def name_marks(context: str, partition: int) -> str:
    """Return the name of the bundle (set of files) that holds a partition's marks.

    Partitions that are marked together have the same `context`.
    """
    return f"{context}-{partition:04}"


def mark_path(folder: Path, context: str, partition: int) -> Path:
    """Return the path of a partition's mark file, which says of each key whether it is a repeat.

    `context` is explained in `name_marks`.
    """
    return folder / f"{name_marks(context, partition)}.marks"


def encode_starts(starts: npt.NDArray[np.int64]) -> Any:
    """Return the first bytes of a mark file: where the marks of each block of keys start in it.

    `starts` are positions among the marks, so they do not count these first bytes.
    """
    return (starts + _START_BYTES * len(starts)).astype("<u8").data


def mark_file_size(runs: int, keys: int) -> int:
    """Return the size, in bytes, of a mark file for this many keys in this many blocks of keys."""
    return _START_BYTES * runs + keys


def choose_partitions(size: int, partition_bytes: int) -> int:
    """Return the number of partitions for the keys of an input of `size` bytes.

    One for every `partition_bytes`, rounded up to a power of two, and at most `MOST_PARTITIONS`.

    >>> [choose_partitions(size, 100) for size in (0, 100, 101, 300, 10**9)]
    [1, 1, 2, 4, 1024]
    """
    least = max(1, -(-size // partition_bytes))
    return min(MOST_PARTITIONS, 1 << (least - 1).bit_length())


def read_range(file: BinaryIO, start: int, size: int) -> bytes:
    """Read a range of a work file. Raises `FolderError` if the file is too short."""
    if start + size > measure_file(file):
        raise damaged(Path(file.name))
    file.seek(start)
    data = file.read(size)
    if len(data) != size:
        raise damaged(Path(file.name))
    return data


def damaged(path: Path) -> FolderError:
    """Return the error for a damaged work file."""
    return FolderError(
        f"{path} is damaged. Run the same command again: it checks all files, and makes damaged ones "
        "again. If that does not help, add `restart=True` to start over."
    )
