"""Make shards from segments: copy the kept documents, in input order, into files of equal length.

A shard is a range of the split's tokens, so each shard can be made independently, from the segments
that it overlaps. Neighbouring documents of the same split are copied as one range. Memory holds a
block of records and a block of tokens.
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

from tokenmill.errors import FolderError
from tokenmill.preparation.engine import Worker
from tokenmill.preparation.key_files import damaged
from tokenmill.preparation.plan import Limits
from tokenmill.preparation.segment import (
    CONTINUES,
    UNFINISHED,
    Records,
    read_document_records,
)
from tokenmill.preparation.settings import SPLITS
from tokenmill.preparation.sift import Fates
from tokenmill.preparation.spanning import Whole
from tokenmill.storage.files import NpyFile
from tokenmill.store.frames import Compression
from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest
from tokenmill.store.shard_file import ShardFile
from tokenmill.store.shard_receipts import is_intact
from tokenmill.store.tables import Shard, ShardName


@dataclass(frozen=True, kw_only=True)
class SegmentSlice:
    """A segment that a shard copies from.

    The segment has `tokens` tokens of the split, and `before` are in earlier segments. `fates` is the
    file that says which split each document belongs to, or that it is dropped.
    """

    segment: Path
    fates: Path
    before: int
    tokens: int
    key: tuple[int, int]  # of the document that begins here and ends in a later part
    length: int  # the number of that document's tokens


@dataclass(frozen=True, kw_only=True)
class PackShard(ShardName):
    """A task: write one shard, the tokens from `start` to `end` of a split."""

    start: int
    end: int
    slices: tuple[SegmentSlice, ...]
    dtype: str
    folder: Path
    limits: Limits
    first_source: int = 0  # the number of the input's first source in the dataset

    def run(self, worker: Worker) -> Shard:
        """Write the shard and its document table. Returns their entry for the manifest."""
        dtype = np.dtype(self.dtype).newbyteorder("<")
        documents = 0
        with (
            ShardFile(self.folder / self.path, dtype, self.compression) as tokens_file,
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
                raise FolderError(
                    f"The unfinished run is damaged: {self.path} would have {written:,} tokens, expected "
                    f"{self.end - self.start:,}. Add `restart=True` to start over."
                )
            checksum, compressed = tokens_file.finish()
            return Shard(
                path=self.path,
                tokens=written,
                documents=documents,
                xxh3_128=checksum,
                documents_path=self.documents_path,
                documents_xxh3_128=documents_file.finish(),
                compressed=compressed,
            )


@dataclass(frozen=True)
class CheckShard:
    """A task: check a finished shard of an earlier run."""

    folder: Path
    shard: Shard
    dtype: np.dtype[Any]

    def run(self, worker: Worker) -> bool:  # noqa: ARG002  the interface of tasks
        """Read the shard's files, and return whether they match their sizes and checksums."""
        return is_intact(self.folder, self.shard, self.dtype)


@dataclass(frozen=True, kw_only=True)
class Sifted:
    """The segments, the fates of their documents, and the documents that span segments.

    A document's fate says which split it belongs to, or that it is dropped.
    """

    segments: list[Path]
    fates: list[Path]
    tokens: dict[str, list[int]]  # for each split, the number of tokens from each segment
    spanning: dict[int, Whole]  # by the number of the segment in which they begin
    ledger: dict[str, Any]
    rejected: list[Path]  # the segments' reports about rejected records
    repaired: list[Path]  # the segments' reports about repaired documents
    excluded: list[Path]  # the segments' reports about excluded documents
    contaminated: list[Path]  # the segments' reports about evaluation texts
    examples: bytes  # the report about the documents that judges dropped
    removed: list[Path]  # the segments' reports about near duplicates


def plan_shards(
    sifted: Sifted,
    tokens_per_shard: int,
    dtype: str,
    folder: Path,
    limits: Limits,
    compression: Compression | None,
    base: Manifest | None = None,
) -> Iterator[PackShard]:
    """Yield the tasks that write the shards of all splits, behind those of the dataset `base`."""
    nothing = Whole(())
    for split in SPLITS:
        before = [0, *accumulate(sifted.tokens[split])]
        first_number = len(base.splits[split].shards) if base else 0
        starts = range(0, before[-1], tokens_per_shard)
        for number, start in enumerate(starts, first_number):
            end = min(start + tokens_per_shard, before[-1])
            first, last = bisect_right(before, start) - 1, bisect_left(before, end)
            yield PackShard(
                split=split,
                number=number,
                compression=compression,
                start=start,
                end=end,
                slices=tuple(
                    SegmentSlice(
                        segment=sifted.segments[i],
                        fates=sifted.fates[i],
                        before=before[i],
                        tokens=sifted.tokens[split][i],
                        key=sifted.spanning.get(i, nothing).key,
                        length=sifted.spanning.get(i, nothing).length,
                    )
                    for i in range(first, last)
                    if sifted.tokens[split][i]
                ),
                dtype=dtype,
                folder=folder,
                limits=limits,
                first_source=len(base.sources) if base else 0,
            )


def _choose(
    part: SegmentSlice, task: PackShard
) -> Iterator[tuple[list[tuple[int, int]], npt.NDArray[np.void]]]:
    """Choose which tokens and documents of a segment go into a shard, one batch of records at a time.

    For each batch, yields the ranges of tokens to copy and a table of the documents that start in
    the shard.
    """
    fate = 1 + SPLITS.index(task.split)
    in_segment, in_split = 0, part.before
    for records, fates in _read_records(part, task.limits.records):
        lengths = records["length"].astype(np.int64)
        firsts = in_segment + np.cumsum(lengths) - lengths
        in_segment += int(lengths.sum())
        kept = np.flatnonzero(fates == fate)
        lengths, firsts = lengths[kept], firsts[kept]
        places = in_split + np.cumsum(lengths) - lengths  # in the split
        in_split += int(lengths.sum())
        if in_split > part.before + part.tokens:
            raise FolderError(
                f"The unfinished run is damaged: {part.segment.name} has more tokens of {task.split} "
                f"than the {part.tokens:,} in its receipt. Add `restart=True` to start over."
            )
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
        table["source"] += np.uint64(task.first_source)
        table["first"] = places[begins] - task.start
        if (records["flags"][chosen[-1:]] & UNFINISHED).any():
            table["key"][-1], table["length"][-1] = part.key, part.length
        yield ranges, table
        if in_split >= task.end:
            return


def _read_records(part: SegmentSlice, count: int) -> Iterator[tuple[Records, Fates]]:
    """Yield the records of a segment's documents and their fates, `count` at a time.

    A fate is 0 if the document is dropped, 1 for train, 2 for val.
    """
    with part.fates.open("rb") as file:
        for records in read_document_records(part.segment, count):
            fates = np.frombuffer(file.read(len(records)), np.uint8)
            if len(fates) != len(records):
                raise damaged(part.fates)
            yield records, fates


def _merge(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Merge ranges that are adjacent.

    >>> _merge(np.array([0, 5, 9]), np.array([5, 7, 12]))
    [(0, 7), (9, 12)]
    """
    apart = np.flatnonzero(starts[1:] != ends[:-1])
    first = starts[np.concatenate(([0], apart + 1))] if len(starts) else starts
    last = ends[np.concatenate((apart, [len(ends) - 1]))] if len(ends) else ends
    return list(zip(first.tolist(), last.tolist(), strict=True))
