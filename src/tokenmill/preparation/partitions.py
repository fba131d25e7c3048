"""Mark repeated and listed keys, one task for each partition of the keys.

A key is the hash of a document or of a line. A partition has all keys of the input with the same
leading bits, so equal keys are always in the same partition. A mark is a byte for a key: `LISTED` if
the user listed the key to leave its documents out, else `REPEATED` if an equal key is earlier in the
input, else 0.

The listed keys are sorted (`sorted_keys.py`), so those of a partition are a range of their file. The
task reads as many of them as fit in memory, goes through its own keys, and reads the next ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.preparation.engine import Worker
from tokenmill.preparation.key_files import (
    LISTED,
    KeyLayout,
    KeyRanges,
    Keys,
    damaged,
    encode_starts,
    name_marks,
    read_range,
)
from tokenmill.preparation.repeats import (
    clear_marks,
    keys_in_memory,
    mark_repeats,
    write_marks,
)
from tokenmill.preparation.segment import Bundle, Receipt
from tokenmill.preparation.sorted_keys import find_keys
from tokenmill.storage.files import temporary_folder
from tokenmill.storage.receipts import read_receipt
from tokenmill.store.tables import Count

_TABLE = 1 << 18  # keys given to `mark_repeats` at once, at least
_COPY = 4 << 20  # bytes to copy at once
_KEY = 16  # bytes


class KeyFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key files of all parts in input order, and the keys of documents that span parts."""

    files: list[tuple[str, Count]]  # the name of each file, and its number of keys
    spanning: list[tuple[Count, int, int]]  # the part in which the document begins, and its key


@dataclass(frozen=True)
class ListedKeys:
    """The listed keys of a partition: a range of a file of sorted keys."""

    path: Path
    start: int
    stop: int

    def read(self, limit: int) -> Iterator[Keys]:
        """Yield the keys, at most `limit` at a time."""
        if self.start < self.stop:
            with self.path.open("rb") as file:
                for start in range(self.start, self.stop, limit):
                    count = min(limit, self.stop - start)
                    data = read_range(file, _KEY * start, _KEY * count)
                    yield np.frombuffer(data, "<u8").reshape(-1, 2)


@dataclass(frozen=True, kw_only=True)
class MarkRepeats:
    """A task: mark the repeats and the listed keys among the keys of one partition.

    A document that spans parts is ordered after all others that begin in its first part. Its mark
    is also in the receipt.
    """

    folder: Path  # for the bundle
    context: str  # the bundles of all partitions have names that begin with it
    partition: int
    keys: Path  # the folder of key files
    key_files: Path  # the file that stores a `KeyFiles`
    layout: KeyLayout
    limit: int | None  # keys to sort at once; None: as many as the memory allows
    repeats: bool = True  # whether to mark repeats
    listed: ListedKeys | None = None

    @property
    def name(self) -> str:
        """The name of the bundle (set of files) that the task makes."""
        return name_marks(self.context, self.partition)

    def run(self, worker: Worker) -> Receipt:
        """Write the marks of all keys of the partition to a bundle, and return its receipt."""
        listed = read_receipt(self.key_files, KeyFiles)
        if listed is None:
            raise damaged(self.key_files)
        limit = self.limit or keys_in_memory(worker.workspace.spare_memory())
        ranges = [
            KeyRanges.find(self.keys / name, keys, self.layout, self.partition)
            for name, keys in listed.files
        ]
        spanning = self._choose(listed.spanning)
        counts = [
            np.append(one.counts, number in spanning)  # the last entry is for a spanning document
            for number, one in enumerate(ranges)
        ]
        ends = np.cumsum(np.concatenate(counts), dtype=np.int64)
        is_run = np.concatenate([np.arange(len(one)) < len(one) - 1 for one in counts])
        starts = np.concatenate(([0], ends[:-1]))
        total = int(ends[-1])
        with temporary_folder(self.folder / f"{self.name}.spill") as spill:
            tables = _join(self._read(ranges, spanning, worker))
            if self.repeats:
                repeats = mark_repeats(tables, total, spill / "marks", spill / "keys", limit)
            else:
                clear_marks(spill / "marks", total)
                repeats = 0
                worker.report(_KEY * total)
            for listed in self.listed.read(limit) if self.listed else ():
                place = 0
                for table in _join(self._read(ranges, spanning)):
                    found = np.flatnonzero(find_keys(table, listed)) + place
                    write_marks(found, spill / "marks", LISTED)
                    place += len(table)
            with Bundle(self.folder, self.name) as bundle, (spill / "marks").open("rb") as marks:
                bundle.write("marks", encode_starts(starts[is_run]))
                while data := marks.read(_COPY):
                    bundle.write("marks", data)
                facts = {
                    "keys": total,
                    "runs": int(np.count_nonzero(is_run)),
                    "repeats": repeats,
                    "spanning": _read_marks(marks, starts[~is_run], spanning),
                }
                return bundle.finish(facts)

    def _choose(self, spanning: list[tuple[int, int, int]]) -> dict[int, Keys]:
        """Return the keys of spanning documents in this partition, by the number of their first part."""
        keys = np.array([key for _, *key in spanning], np.uint64).reshape(-1, 2)
        chosen = np.flatnonzero(self.layout.partition_of(keys) == self.partition).tolist()
        return {spanning[i][0]: keys[i : i + 1] for i in chosen}

    def _read(
        self, ranges: list[KeyRanges], spanning: dict[int, Keys], worker: Worker | None = None
    ) -> Iterator[Keys]:
        for number, one in enumerate(ranges):
            for keys in chain(one.read(), [spanning[number]] if number in spanning else []):
                yield keys
                if worker is not None:
                    worker.report(keys.nbytes)


def _read_marks(
    marks: BinaryIO, places: npt.NDArray[np.int64], spanning: dict[int, Keys]
) -> list[tuple[int, int]]:
    """Return, for each document that spans parts, its first part and its mark.

    `places[n]` is where the file `marks` has the mark of the document whose first part is n.
    """
    found = []
    for number in spanning:
        marks.seek(int(places[number]))
        found.append((number, int.from_bytes(marks.read(1), "little")))
    return found


def _join(tables: Iterable[Keys]) -> Iterator[Keys]:
    """Yield the same keys in larger arrays: `mark_repeats` may write to many files per array."""
    held: list[Keys] = []
    count = 0
    for table in tables:
        held.append(table)
        count += len(table)
        if count >= _TABLE:
            yield np.concatenate(held)
            held, count = [], 0
    if held:
        yield np.concatenate(held)
