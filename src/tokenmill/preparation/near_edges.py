"""Verify pairs of documents: compute the Jaccard similarity of their shingle sets, exactly.

An edge is a pair whose similarity is at least the threshold. Edges are ordered by the later document,
then by the earlier one. If one of two sets is a sample (see `shingles.py`), the other is sampled alike,
and the similarity is that of the samples: more than 100,000 shingles, so the error is about 0.001.

Memory holds some pairs and their sets at a time. The pairs of a task are those whose later document is
in one range; if they do not fit in memory, the range is divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from tokenmill.preparation.engine import Worker
from tokenmill.preparation.key_files import KeyRanges, damaged
from tokenmill.preparation.near_pairs import PairLayout
from tokenmill.preparation.segment import Bundle, Receipt
from tokenmill.preparation.shingle_sets import Catalog, Found, Numbers
from tokenmill.preparation.shingles import MOST, Hashes, Places

EDGE = np.dtype(
    [
        ("later", "<u8"),
        ("earlier", "<u8"),
        ("shared", "<u4"),  # shingles of both documents
        ("total", "<u4"),  # shingles of either document
    ]
)
Edges = npt.NDArray[np.void]  # of EDGE

_PAIR_BYTES = 128  # of memory for each pair
_LEAST_PAIRS = 1 << 14
_SHINGLE_BYTES = 64  # of memory for each shingle of a pair that is being compared
_MOST_SHINGLES = 1 << 22  # to compare at once
_STEPS = 4096  # into which a range is divided, to count its pairs
_LOOKED_UP = 1 << 15  # pairs whose sets are looked up at once


def similarity(edges: Edges) -> npt.NDArray[np.float64]:
    """Return the Jaccard similarities of edges."""
    shared: npt.NDArray[np.float64] = edges["shared"] / edges["total"]
    return shared


@dataclass(frozen=True, kw_only=True)
class VerifyPairs:
    """A task: verify the pairs in one partition, and add them to the edges of earlier rounds."""

    name: str
    folder: Path  # of pairs and edges, and for the bundle
    segments: Path
    files: Path  # the file that stores a `SetFiles`
    pair_files: tuple[tuple[str, int], ...]  # the name of each, and its number of pairs
    layout: PairLayout
    partition: int
    threshold: float
    before: Path | None  # the edges of the round before
    limit: int | None  # pairs to sort at once; None: as many as the memory allows

    def run(self, worker: Worker) -> Receipt:
        """Write the edges of this round and those before it to a bundle, and return its receipt."""
        catalog = Catalog.read(self.segments, self.files)
        spare = worker.workspace.spare_memory()
        limit = self.limit or max(_LEAST_PAIRS, spare // 2 // _PAIR_BYTES)
        room = min(_MOST_SHINGLES, max(2 * MOST, spare // 2 // _SHINGLE_BYTES))
        ranges = [
            KeyRanges.find(self.folder / name, count, self.layout.keys, self.partition)
            for name, count in self.pair_files
        ]
        earlier = _EarlierEdges(self.before)
        fresh = edges = 0
        with Bundle(self.folder, self.name) as bundle:
            bundle.write("edges", b"")
            for low, high in self._divide(ranges, limit):
                found = [
                    _verify(catalog, one, two, self.threshold, room)
                    for one, two in self._read_pairs(ranges, low, high)
                ]
                fresh += sum(map(len, found))
                both = np.concatenate([np.zeros(0, EDGE), *found, *earlier.below(high)])
                both = both[np.lexsort((both["earlier"], both["later"]))]
                new = np.ones(len(both), np.bool_)
                for name in ("earlier", "later"):
                    new[1:] &= both[name][1:] == both[name][:-1]
                new[1:] = ~new[1:]
                bundle.write("edges", both[new].data)
                edges += int(np.count_nonzero(new))
            worker.report(sum(16 * int(one.counts.sum()) for one in ranges))
            return bundle.finish({"edges": edges, "fresh": fresh})

    def _divide(self, ranges: list[KeyRanges], limit: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of later documents with about `limit` pairs each. They cover the partition."""
        low, high = self.layout.bounds(self.partition)
        if sum(int(one.counts.sum()) for one in ranges) <= limit:
            yield low, high
            return
        width = max(1, -(-(high - low) // _STEPS))
        counts = np.zeros(-(-(high - low) // width), np.int64)
        for one in ranges:
            for keys in one.read():
                _, later = self.layout.decode(keys)
                counts += np.bincount((later - low) // width, minlength=len(counts))
        held, start = 0, low
        for step, count in enumerate(counts.tolist()):
            if held and held + count > limit:
                yield start, low + step * width
                held, start = 0, low + step * width
            held += count
        yield start, high

    def _read_pairs(
        self, ranges: list[KeyRanges], low: int, high: int
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield the different pairs whose later document is in a range, some at a time, in order."""
        firsts, seconds = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for one in ranges:
            for keys in one.read():
                first, second = self.layout.decode(keys)
                some = (second >= low) & (second < high) & (first < second)
                firsts.append(first[some])
                seconds.append(second[some])
        first, second = np.concatenate(firsts), np.concatenate(seconds)
        if self.layout.bits + (high - low).bit_length() <= 63:
            packed = np.unique((second - low) << self.layout.bits | first)
            first, second = (
                packed & ((1 << self.layout.bits) - 1),
                (packed >> self.layout.bits) + low,
            )
        else:
            first, second = np.unique(np.stack((second, first)), axis=1)[::-1]
        for start in range(0, len(first), _LOOKED_UP):
            yield first[start : start + _LOOKED_UP], second[start : start + _LOOKED_UP]


class _EarlierEdges:
    """Reads the edges of the round before, in order."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._done = 0

    def below(self, high: int) -> Iterator[Edges]:
        """Yield the next edges whose later document is below `high`."""
        if self._path is None:
            return
        with self._path.with_suffix(".edges").open("rb") as file:
            file.seek(self._done * EDGE.itemsize)
            for edges in read_edges(file, self._path):
                inside = int(edges["later"].searchsorted(np.uint64(high)))
                self._done += inside
                yield edges[:inside]
                if inside < len(edges):
                    return


def read_edges(file: BinaryIO, path: Path, count: int = 1 << 14) -> Iterator[Edges]:
    """Yield the edges in a file from its current position on, `count` at a time."""
    while data := file.read(count * EDGE.itemsize):
        if len(data) % EDGE.itemsize:
            raise damaged(path)
        yield np.frombuffer(data, EDGE)


def _verify(
    catalog: Catalog, first: Numbers, second: Numbers, threshold: float, room: int
) -> Edges:
    """Return those of some pairs whose similarity is at least the threshold.

    At most `room` shingles are compared at once, or those of one pair.
    """
    found = catalog.find(np.unique(np.concatenate((first, second))))
    one, two = found.numbers.searchsorted(first), found.numbers.searchsorted(second)
    small, large = np.sort((found.size[one], found.size[two]), axis=0)
    whole = (found.level[one] == 0) & (found.level[two] == 0)
    with np.errstate(invalid="ignore"):
        maybe = np.flatnonzero((small > 0) & (~whole | (small / large >= threshold)))
    one, two = one[maybe], two[maybe]
    needed = np.cumsum(found.size[one] + found.size[two])
    shared, total = np.zeros(len(maybe), np.int64), np.zeros(len(maybe), np.int64)
    start = 0
    while start < len(maybe):
        spent = int(needed[start - 1]) if start else 0
        stop = max(start + 1, int(needed.searchsorted(spent + room, "right")))
        here = slice(start, stop)
        shared[here], total[here] = _compare(catalog, found, one[here], two[here])
        start = stop
    with np.errstate(invalid="ignore"):
        alike = np.flatnonzero((total > 0) & (shared / total >= threshold))
    edges = np.empty(len(alike), EDGE)
    edges["later"], edges["earlier"] = second[maybe[alike]], first[maybe[alike]]
    edges["shared"], edges["total"] = shared[alike], total[alike]
    return edges


def _compare(catalog: Catalog, found: Found, one: Places, two: Places) -> tuple[Numbers, Numbers]:
    """Return how many shingles the sets of each pair share, and how many different ones they have.

    A pair is two places in `found`.
    """
    chosen = np.unique(np.concatenate((one, two)))
    shingles, starts = catalog.load(found, chosen)
    level = np.maximum(found.level[one], found.level[two])
    keys, counts = [], np.zeros(len(one), np.int64)
    for side in (one, two):
        at = chosen.searchsorted(side)
        sizes = found.size[side]
        shift = starts[at] - (np.cumsum(sizes) - sizes)
        own = shingles[np.arange(sizes.sum()) + np.repeat(shift, sizes)]
        pair = np.repeat(np.arange(len(side), dtype=np.uint64), sizes)
        if level.any():
            pair, own = _sample(pair, own, np.repeat(level, sizes))
            sizes = np.bincount(pair.view(np.int64), minlength=len(side))
        counts += sizes
        pair <<= np.uint64(32)
        pair |= own
        keys.append(pair)
    merged = np.sort(np.concatenate(keys))
    twice = merged[1:][merged[1:] == merged[:-1]] >> np.uint64(32)
    shared = np.bincount(twice.view(np.int64), minlength=len(one))
    return shared, counts - shared


def _sample(
    pair: npt.NDArray[np.uint64], shingles: Hashes, level: Places
) -> tuple[npt.NDArray[np.uint64], Hashes]:
    """Keep the shingles that are in the sample of a level; see `shingles.sample`."""
    inside = shingles.byteswap().astype(np.int64) < (np.int64(1) << (32 - level))
    return pair[inside], shingles[inside]
