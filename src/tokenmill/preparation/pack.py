"""Segments to shards: copy the kept documents, in input order, into files of equal length.

A shard is a range of the split's tokens, so each can be made independently from the segments that it
overlaps. Neighbouring documents with the same fate are copied as one range. Memory holds a block of
records and a block of tokens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.preparation.engine import Worker
from tokenmill.preparation.plan import Limits
from tokenmill.preparation.segment import CONTINUES, UNFINISHED, read_document_records
from tokenmill.preparation.sift import SPLITS, Sifted, Stitched
from tokenmill.storage.files import AtomicFile, NpyFile
from tokenmill.store.manifest import DOCUMENT_DTYPE
from tokenmill.store.shard_receipts import is_intact
from tokenmill.store.tables import Shard, ShardName


@dataclass(frozen=True, kw_only=True)
class SegmentSlice:
    """A segment that a shard overlaps; `before` tokens of the split precede it."""

    segment: Path
    first_record: int
    before: int


@dataclass(frozen=True, kw_only=True)
class PackShard(ShardName):
    """A task: write one shard, the tokens from `start` to `end` of a split."""

    start: int
    end: int
    slices: tuple[SegmentSlice, ...]
    fates: Path
    stitched: dict[int, Stitched]
    dtype: str
    folder: Path
    limits: Limits

    def run(self, worker: Worker) -> Shard:
        """Write the shard and its document table; returns their entry in the manifest."""
        dtype = np.dtype(self.dtype).newbyteorder("<")
        documents = 0
        with (
            AtomicFile(self.folder / self.path) as tokens_file,
            NpyFile(self.folder / self.documents_path, DOCUMENT_DTYPE) as documents_file,
        ):
            for part in self.slices:
                with part.segment.with_suffix(".tokens").open("rb") as tokens:
                    for ranges, table in _choose(part, self):
                        for low, high in ranges:
                            tokens.seek(low * dtype.itemsize)
                            for at in range(low, high, self.limits.copied_tokens):
                                count = min(self.limits.copied_tokens, high - at)
                                tokens_file.write(tokens.read(count * dtype.itemsize))
                                worker.report(count)
                        documents_file.write(table.tobytes())
                        documents += len(table)
            written = tokens_file.size // dtype.itemsize
            if written != self.end - self.start:
                raise AssertionError(f"{self.path}: {written} tokens, not {self.end - self.start}")
            return Shard(
                path=self.path,
                tokens=written,
                documents=documents,
                xxh3_128=tokens_file.finish(),
                documents_path=self.documents_path,
                documents_xxh3_128=documents_file.finish(),
            )


@dataclass(frozen=True)
class CheckShard:
    """A task: check a finished shard of an earlier run."""

    folder: Path
    shard: Shard
    dtype: np.dtype[Any]

    def run(self, worker: Worker) -> bool:  # noqa: ARG002  the interface of tasks
        """Whether the shard is intact."""
        return is_intact(self.folder, self.shard, self.dtype)


def plan_shards(
    sifted: Sifted,
    segments: list[Path],
    tokens_per_shard: int,
    dtype: str,
    folder: Path,
    limits: Limits,
) -> Iterator[PackShard]:
    """The tasks for the shards of all splits."""
    numbers = list(sifted.stitched)
    for split in SPLITS:
        before = [0, *accumulate(sifted.tokens[split])]
        for number, start in enumerate(range(0, before[-1], tokens_per_shard)):
            end = min(start + tokens_per_shard, before[-1])
            first, last = bisect_right(before, start) - 1, bisect_left(before, end)
            records = sifted.first_record[first], [*sifted.first_record, 1 << 62][last]
            spanning = numbers[bisect_left(numbers, records[0]) : bisect_left(numbers, records[1])]
            yield PackShard(
                split=split,
                number=number,
                start=start,
                end=end,
                slices=tuple(
                    SegmentSlice(
                        segment=segments[i],
                        first_record=sifted.first_record[i],
                        before=before[i],
                    )
                    for i in range(first, last)
                    if sifted.tokens[split][i]
                ),
                fates=sifted.fates,
                stitched={number: sifted.stitched[number] for number in spanning},
                dtype=dtype,
                folder=folder,
                limits=limits,
            )


def _choose(
    part: SegmentSlice, task: PackShard
) -> Iterator[tuple[list[tuple[int, int]], npt.NDArray[np.void]]]:
    """Choose the tokens and documents that a shard takes from a segment, some records at a time.

    Yields the ranges of tokens to copy, and the table of the documents that start in the shard.
    """
    fate = 1 + SPLITS.index(task.split)
    in_segment, in_split = 0, part.before
    for start, records in read_document_records(part.segment, task.limits.records):
        number = part.first_record + start
        fates = np.fromfile(task.fates, np.uint8, count=len(records), offset=number)
        lengths = records["length"].astype(np.int64)
        firsts = in_segment + np.cumsum(lengths) - lengths
        in_segment += int(lengths.sum())
        kept = np.flatnonzero(fates == fate)
        lengths, firsts = lengths[kept], firsts[kept]
        places = in_split + np.cumsum(lengths) - lengths  # in the split
        in_split += int(lengths.sum())
        if in_split <= task.start:
            continue

        low = np.maximum(places, task.start)
        high = np.minimum(places + lengths, task.end)
        some = low < high
        shift = (firsts - places)[some]
        ranges = _merge(low[some] + shift, high[some] + shift)

        begins = (places >= task.start) & (places < task.end)
        begins &= (records["flags"][kept] & np.uint64(CONTINUES)) == 0
        chosen = kept[begins]
        table = np.empty(len(chosen), DOCUMENT_DTYPE)
        for name in ("key", "length", "source", "offset"):
            table[name] = records[name][chosen]
        table["first"] = places[begins] - task.start
        for index in np.flatnonzero(records["flags"][chosen] & np.uint64(UNFINISHED)):
            whole = task.stitched[number + int(chosen[index])]
            table["key"][index], table["length"][index] = whole.key, whole.length
        yield ranges, table
        if in_split >= task.end:
            return


def _merge(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges, with adjacent ones merged.

    >>> _merge(np.array([0, 5, 9]), np.array([5, 7, 12]))
    [(0, 7), (9, 12)]
    """
    apart = np.flatnonzero(starts[1:] != ends[:-1])
    first = starts[np.concatenate(([0], apart + 1))] if len(starts) else starts
    last = ends[np.concatenate((apart, [len(ends) - 1]))] if len(ends) else ends
    return list(zip(first.tolist(), last.tolist(), strict=True))
