"""Find pairs of documents that may be similar: those with an equal band hash.

The documents with equal band hashes, in input order, are a bucket. Each is paired with the first of its
bucket, and in later rounds also with the previous `REACH`, so the number of pairs grows linearly with the
documents, however large a bucket is. The first round leaves one document of most groups of similar ones;
the later rounds look at what is left. A round does not repeat the pairs of the rounds before.

A bucket is known by the leading 42 bits of its hash, always, so that the pairs do not depend on the
memory. Unlike documents in the same bucket cost time and nothing else, because each pair is verified.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenmill.preparation.engine import Worker
from tokenmill.preparation.key_files import KeyLayout, KeyRanges, Keys, KeyWriter, read_range
from tokenmill.preparation.segment import Bundle, Receipt
from tokenmill.preparation.shingle_sets import Numbers

REACH = 16
_PLACE_BITS = 22  # of a packed number; the others are of a hash
_PLACE = np.uint64((1 << _PLACE_BITS) - 1)
_LEAST, _MOST = 1 << 14, 1 << _PLACE_BITS  # hashes to sort at once
_ENTRY_BYTES = 96  # of memory for each
_WINDOW = 4 << 20  # bytes of a bitmap to read at once
_SHARE = np.uint64(0x9E3779B97F4A7C15)

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PairLayout:
    """How pairs are stored: as keys, with the first document in the high half.

    The low half is the second document, whose number has `bits` bits, shifted to the left. So a
    partition of the pairs has those with a range of second documents.
    """

    keys: KeyLayout
    bits: int

    def encode(self, first: Numbers, second: Numbers) -> Keys:
        """Return pairs as keys."""
        keys = np.empty((len(first), 2), np.uint64)
        keys[:, 0] = first
        keys[:, 1] = second.view(np.uint64) << np.uint64(64 - self.bits)
        return keys

    def decode(self, keys: Keys) -> tuple[Numbers, Numbers]:
        """Return the first and the second documents of some pairs."""
        second = keys[:, 1] >> np.uint64(64 - self.bits)
        return keys[:, 0].astype(np.int64), second.astype(np.int64)

    def bounds(self, partition: int) -> tuple[int, int]:
        """Return the range of second documents of a partition."""
        width = 1 << max(0, self.bits - (self.keys.partitions.bit_length() - 1))
        return partition * width, (partition + 1) * width


@dataclass(frozen=True, kw_only=True)
class FindPairs:
    """A task: find the pairs in one partition of the band hashes.

    `gone` are the files of earlier rounds that say which documents have been removed: after the round
    before the last, and after the last. Before that round there is none.
    """

    name: str
    folder: Path  # for the bundle
    keys: Path  # the folder of key files
    key_files: tuple[tuple[str, int], ...]  # the name of each, and its number of keys
    partition: int
    layout: KeyLayout
    pairs: PairLayout
    round: int  # from 1
    gone: tuple[Path, ...]
    limit: int | None  # hashes to sort at once; None: as many as the memory allows

    def run(self, worker: Worker) -> Receipt:
        """Write the pairs to a bundle, and return its receipt."""
        ranges = [
            KeyRanges.find(self.keys / name, keys, self.layout, self.partition)
            for name, keys in self.key_files
        ]
        total = sum(int(one.counts.sum()) for one in ranges)
        spare = worker.workspace.spare_memory()
        limit = min(_MOST // 2, self.limit or max(_LEAST, spare // _ENTRY_BYTES))
        step = limit if total <= limit else max(1, limit // 4)
        shares = max(1, -(-total // limit))
        with Bundle(self.folder, self.name) as bundle:
            writer = KeyWriter(self.pairs.keys, partial(bundle.write, "pairs"))
            for share in range(shares):
                buckets = _Buckets(self.round)
                for hashes, numbers in self._read(ranges, share, shares):
                    for start in range(0, len(hashes), step):
                        part = slice(start, start + step)
                        buckets.add(hashes[part], self._encode(numbers[part]))
                        if buckets.fresh >= step:
                            writer.add(self.pairs.encode(*buckets.pair()))
                writer.add(self.pairs.encode(*buckets.pair()))
            writer.flush()
            worker.report(16 * total)
            return bundle.finish({"pairs": writer.count})

    def _read(
        self, ranges: list[KeyRanges], share: int, shares: int
    ) -> Iterator[tuple[npt.NDArray[np.uint64], Numbers]]:
        """Yield the band hashes and the documents of one of several shares, in input order."""
        for one in ranges:
            for keys in one.read():
                hashes = keys[:, 1] & ~_PLACE
                if shares > 1:
                    mixed = (hashes * _SHARE) >> np.uint64(32)
                    keys = keys[mixed % np.uint64(shares) == share]
                    hashes = keys[:, 1] & ~_PLACE
                if len(keys):
                    yield hashes, keys[:, 0].astype(np.int64)

    def _encode(self, numbers: Numbers) -> Numbers:
        """Return the numbers of documents, shifted to the left by two bits.

        The lowest bit says whether the document is left, the next one whether it was left in the round
        before.
        """
        codes = numbers << 2
        if self.round > 1:
            codes |= _are_left(self.gone[-1], numbers)
        else:
            codes |= 1
        if self.round > 2:
            codes |= _are_left(self.gone[-2], numbers) << 1
        elif self.round == 2:
            codes |= 2
        return codes


def _are_left(gone: Path, numbers: Numbers) -> npt.NDArray[np.int64]:
    """Return 1 for each of some ascending numbers that is not set in a bitmap, else 0."""
    found = np.empty(len(numbers), np.int64)
    places = numbers >> 3
    first = 0
    with gone.open("rb") as file:
        while first < len(numbers):
            low = int(places[first])
            stop = int(places.searchsorted(low + _WINDOW))
            data = read_range(file, low, int(places[stop - 1]) + 1 - low)
            some = np.frombuffer(data, np.uint8)[places[first:stop] - low]
            found[first:stop] = 1 - ((some >> (numbers[first:stop] & 7)) & 1)
            first = stop
    return found


class _Buckets:
    """Documents with their band hashes, in input order. Makes pairs of those with equal hashes."""

    def __init__(self, round: int) -> None:
        self._reach = REACH if round > 1 else 0
        self._reach_before = REACH if round > 2 else 0
        self._hashes: list[npt.NDArray[np.uint64]] = []
        self._codes: list[Numbers] = []
        self._paired = 0  # how many are held from earlier calls of `pair`
        self.fresh = 0  # how many are not

    def add(self, hashes: npt.NDArray[np.uint64], codes: Numbers) -> None:
        """Add documents. Those that were left neither now nor in the round before do not count."""
        wanted = codes & 3 != 0
        self._hashes.append(hashes[wanted])
        self._codes.append(codes[wanted])
        self.fresh += len(self._codes[-1])

    def pair(self) -> tuple[Numbers, Numbers]:
        """Return the pairs in which the later document is new since the last call.

        Afterwards, forgets all documents that later ones cannot be paired with.
        """
        hashes = np.concatenate([np.zeros(0, np.uint64), *self._hashes])
        codes = np.concatenate([np.zeros(0, np.int64), *self._codes])
        assert len(hashes) < _MOST
        packed = np.sort(hashes | np.arange(len(hashes), dtype=np.uint64))
        same = np.diff(packed >> np.uint64(_PLACE_BITS)) == 0
        several = np.zeros(len(packed), np.bool_)  # most buckets have one document
        several[1:] |= same
        several[:-1] |= same
        alone = (packed[~several] & _PLACE).view(np.int64)
        bucket = packed[several] >> np.uint64(_PLACE_BITS)
        place = (packed[several] & _PLACE).view(np.int64)
        members = codes[place]
        edges = np.concatenate(([0], np.flatnonzero(np.diff(bucket)) + 1, [len(bucket)]))
        edges = edges if len(bucket) else edges[:1]
        before = _Members((members & 2) != 0, edges)
        left = _Members((members & 1) != 0, edges)
        pairs = self._pair(members >> 2, place >= self._paired, left, before)
        needed = left.ends(self._reach) | before.ends(self._reach_before)
        held = np.sort(np.concatenate((alone, place[needed])))
        self._hashes, self._codes = [hashes[held]], [codes[held]]
        self._paired, self.fresh = len(held), 0
        return pairs

    def _pair(
        self, numbers: Numbers, is_fresh: Mask, left: _Members, before: _Members
    ) -> tuple[Numbers, Numbers]:
        chosen = np.flatnonzero(left.mask)
        at = np.arange(len(chosen))
        first = at - (left.rank[chosen] - 1)
        firsts, seconds = [], []
        for back in (*range(1, self._reach + 1), None):
            if back is None:
                two = at[is_fresh[chosen] & (at - self._reach > first)]
                one = first[two]
            else:
                two = at[is_fresh[chosen] & (at - back >= first)]
                one = two - back
            one, two = chosen[one], chosen[two]
            is_known = before.mask[one] & before.mask[two]
            apart = before.rank[two] - before.rank[one]
            is_known &= (before.rank[one] == 1) | (apart <= self._reach_before)
            firsts.append(numbers[one[~is_known]])
            seconds.append(numbers[two[~is_known]])
        return np.concatenate(firsts), np.concatenate(seconds)


class _Members:
    """Some of the documents of all buckets. `rank` counts those of a bucket from 1."""

    def __init__(self, mask: Mask, edges: Numbers) -> None:
        self.mask = mask
        total = np.concatenate(([0], np.cumsum(mask)))
        sizes = np.diff(edges)
        self.rank = total[1:] - np.repeat(total[edges[:-1]], sizes)
        self._after = np.repeat(total[edges[1:]], sizes) - total[1:]

    def ends(self, count: int) -> Mask:
        """Return which are the first of their bucket, or one of the last `count`."""
        found: Mask = self.mask & ((self.rank == 1) | (self._after < count))
        return found
