"""Band hashes of shingle sets: similar sets probably have an equal one, and others rarely do.

A signature has up to `_MOST` numbers, each the minimum of a set in another random order (MinHash). Two
sets agree in each number with a probability equal to their Jaccard similarity. The numbers are divided
into bands of some rows, and each band is hashed. `Bands.choose` takes as many rows as still find 99.7%
of the pairs at the threshold; the more rows, the fewer pairs are compared in vain.

Small sets get true MinHash, in vectorised form. Large sets get MinHash with one permutation: a set is
divided into bins, and the minimum of each bin is a number of the signature. An empty bin copies a random
other one. Around the border between the two, sets get both, so that similar sets always have one kind of
signature in common. One permutation takes a tenth of the time, and true MinHash finds more pairs of
small sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tokenmill.preparation.shingles import Hashes, Places

BandHashes = npt.NDArray[np.uint64]

_MOST = 128  # numbers in a signature
_MOST_ROWS = 16
_RECALL = 0.997
_SMALL = 128  # shingles: sets of at most this size get true MinHash
_AT_ONCE = 1 << 18  # numbers to compute at once
_ORDERS = 20  # of true MinHash to compute at once
_MIX = np.uint64(0x9FB21C651E98DF25)
_LAST = np.uint64(0xC4CEB9FE1A85EC53)


@dataclass(frozen=True)
class Bands:
    """How signatures are divided: into `bands` bands of `rows` numbers, for sets of a `threshold`."""

    threshold: float
    bands: int
    rows: int

    @classmethod
    def choose(cls, threshold: float) -> Bands:
        """Return the bands for a threshold of the Jaccard similarity.

        >>> Bands.choose(0.8)
        Bands(threshold=0.8, bands=21, rows=6)
        """
        rows = 1
        for more in range(2, _MOST_ROWS + 1):
            if 1 - (1 - threshold**more) ** (_MOST // more) >= _RECALL:
                rows = more
        return cls(threshold, _MOST // rows, rows)

    @property
    def most_keys(self) -> int:
        """The most band hashes of one set."""
        return 2 * self.bands

    def hash(self, sets: Hashes, sizes: Places) -> tuple[Places, BandHashes]:
        """Return the band hashes of some sets, and for each the number of its set, in order.

        `sets` has the sorted sets, one after the other. An empty set has no hashes.
        """
        starts = np.cumsum(sizes) - sizes
        small = np.flatnonzero((sizes > 0) & (sizes <= _SMALL))
        large = np.flatnonzero(sizes >= max(1.0, self.threshold * _SMALL))
        kinds = [self._hash_small(sets, starts, sizes, small)]
        kinds.append(self._hash_large(sets, starts, sizes, large))
        numbers = np.concatenate([np.repeat(small, self.bands), np.repeat(large, self.bands)])
        order = np.argsort(numbers, kind="stable")
        return numbers[order], np.concatenate(kinds)[order]

    def _hash_small(
        self, sets: Hashes, starts: Places, sizes: Places, chosen: Places
    ) -> BandHashes:
        """Return the band hashes of the chosen sets by true MinHash. Sets of equal size go together."""
        signatures = np.empty((len(chosen), self.bands * self.rows), np.uint32)
        by_size = np.argsort(sizes[chosen], kind="stable")
        ordered = sizes[chosen][by_size]
        for size in np.unique(ordered).tolist():
            low, high = ordered.searchsorted([size, size + 1]).tolist()
            step = max(1, _AT_ONCE // (_ORDERS * size))
            for first in range(low, high, step):
                some = by_size[first : min(high, first + step)]
                shingles = sets[np.arange(size)[:, None] + starts[chosen[some]]]
                for order in range(0, signatures.shape[1], _ORDERS):
                    factors = self._factors[order : order + _ORDERS]
                    values = shingles[None] * factors[:, None, None]
                    signatures[some, order : order + _ORDERS] = values.min(axis=1).T
        return self._join(signatures, 1)

    def _hash_large(
        self, sets: Hashes, starts: Places, sizes: Places, chosen: Places
    ) -> BandHashes:
        """Return the band hashes of the chosen sets by MinHash with one permutation."""
        bins = self.bands * self.rows
        signatures = np.empty((len(chosen), bins), np.uint32)
        ends = np.cumsum(sizes[chosen])
        first = 0
        while first < len(chosen):
            room = (ends[first - 1] if first else 0) + _AT_ONCE
            stop = max(first + 1, int(ends.searchsorted(room, "right")))
            stop = min(stop, first + _AT_ONCE // bins)
            some = chosen[first:stop]
            own = sizes[some]
            shift = starts[some] - (np.cumsum(own) - own)
            shingles = sets[np.arange(own.sum()) + np.repeat(shift, own)]
            place = (shingles.astype(np.uint64) * np.uint64(bins) >> np.uint64(32)).view(np.int64)
            place += np.repeat(np.arange(len(some)) * bins, own)
            edges = np.flatnonzero(np.diff(place, prepend=-1))
            part = np.zeros(len(some) * bins, np.uint32)
            # Samples of larger sets have the shingles whose reversed bytes are small.
            part[place[edges]] = np.minimum.reduceat(shingles.byteswap(), edges)
            filled = np.zeros(len(part), np.bool_)
            filled[place[edges]] = True
            _fill(part, filled, bins)
            signatures[first:stop] = part.reshape(-1, bins)
            first = stop
        return self._join(signatures, 2)

    def _join(self, signatures: Hashes, kind: int) -> BandHashes:
        """Return a hash of each band of each signature, which also depends on the band's number."""
        salt = np.arange(self.bands, dtype=np.uint64) + np.uint64(kind << 32)
        hashes = np.repeat((salt * _LAST)[None], len(signatures), axis=0)
        bands = signatures.reshape(-1, self.bands, self.rows)
        for row in range(self.rows):
            hashes = (hashes ^ bands[:, :, row]) * _MIX
            hashes ^= hashes >> np.uint64(31)
        hashes *= _LAST
        hashes ^= hashes >> np.uint64(33)
        return hashes.ravel()

    @cached_property
    def _factors(self) -> Hashes:
        """The odd factors that put shingles in other random orders."""
        numbers = _scramble(np.arange(1, self.bands * self.rows + 1, dtype=np.uint64))
        return (numbers >> np.uint64(32)).astype(np.uint32) | np.uint32(1)


def _fill(values: Hashes, filled: npt.NDArray[np.bool_], bins: int) -> None:
    """Let each empty bin copy the first filled one of a random sequence of bins of its set.

    The sequence depends only on the number of the bin.
    """
    empty = np.flatnonzero(~filled)
    number = np.arange(bins, dtype=np.uint64)
    attempt = 0
    while len(empty):
        attempt += 1
        others = _scramble(number + np.uint64(attempt << 32)) >> np.uint64(32)
        others = (others * np.uint64(bins) >> np.uint64(32)).view(np.int64)
        inside = empty % bins
        other = empty - inside + others[inside]
        found = filled[other]
        values[empty[found]] = values[other[found]]
        empty = empty[~found]


def _scramble(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return a random-looking number for each number: the finalizer of SplitMix64."""
    x = numbers * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
