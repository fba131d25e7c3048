"""Which source a row of a mixture comes from, and which of that source's rows it is.

The weights of the sources may change at given rows. A phase is the rows from one change to the
next. A phase is cut into blocks, and each row of a block is a slot that belongs to one source.

Guarantees: in each block, every source has its share of the slots, rounded to a whole slot, in an
order chosen by a key. Each source gives its rows 0, 1, 2 and so on, without gaps. When the weights
change, every source continues where it was. All of this depends only on (phases, seed, block) and the
row's number.

Costs: about 40 ns a row in calls for many thousands of rows. The most recent block layouts are
cached, so a call for the next few rows takes 15 µs, and a call for rows elsewhere takes 0.3 ms. Row
10**15 costs as much as row 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError
from tokenmill.order.permutation import Places, derive_keys, make_key
from tokenmill.order.rows import check_rows

DEFAULT_BLOCK = 10_000  # rows
LARGEST_BLOCK = 2**20
_SLOT_BITS = np.uint64(LARGEST_BLOCK - 1)
# Small blocks are laid out together, up to this many slots, because each NumPy call has a fixed cost.
_STRETCH = 8_192


class _Stretch(NamedTuple):
    """The rows [first, stop) of a mixture: a few blocks, laid out together.

    If the weights change inside these blocks, the rows end there.
    """

    first: int
    stop: int
    sources: Places  # the source of each slot
    numbers: Places  # the number of each slot among the slots of its source in this stretch
    before: Places  # how many rows each source has given before the stretch

    def count_before(self, row: int) -> Places:
        """Return how many rows each source has given before a row of this stretch."""
        taken = self.sources[: row - self.first]
        return self.before + np.bincount(taken, minlength=len(self.before))


@dataclass(frozen=True, kw_only=True)
class MixtureOrder:
    """The order in which a mixture takes rows from its sources.

    >>> mixture = MixtureOrder(names=("web", "code"), phases=((0, (3, 1)),), block=8)
    >>> sources, rows = mixture.assign(np.arange(8))
    >>> sources.tolist()
    [1, 0, 1, 0, 0, 0, 0, 0]
    >>> rows.tolist()
    [0, 0, 1, 1, 2, 3, 4, 5]
    >>> mixture.counts(1_000_000).tolist()
    [750000, 250000]

    Parameters
    ----------
    names
        The names of the sources.
    phases
        For each phase, its first row and its weights. The first phase starts at row 0. There is one
        weight for each source, in the order of the names. Weights are relative; a source of weight
        0 pauses.
    seed
        Seed of the order.
    block
        Rows per block. In every block, each source has its share of the rows, rounded to a whole
        row.
    """

    names: tuple[str, ...]
    phases: tuple[tuple[int, tuple[float, ...]], ...]
    seed: int = 0
    block: int = DEFAULT_BLOCK

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) != len(self.names):
            raise UsageError(
                f"the names of the sources are {self.names!r}; give at least one, and none twice."
            )
        if not 1 <= self.block <= LARGEST_BLOCK:
            raise UsageError(f"`block` is {self.block:,}; it must be from 1 to {LARGEST_BLOCK:,}.")
        firsts = [first for first, _ in self.phases]
        if not firsts or firsts[0] != 0 or sorted(set(firsts)) != firsts:
            raise UsageError(
                f"the phases start at rows {firsts}; the first must be row 0, and the numbers must "
                "increase."
            )
        for first, weights in self.phases:
            _check_weights(self.names, weights, f"the phase from row {first:,}")
        _ = self.shares

    @cached_property
    def shares(self) -> tuple[tuple[int, ...], ...]:
        """For each phase (rows with the same weights), how many rows of a block each source has."""
        shares = tuple(share_slots(weights, self.block) for _, weights in self.phases)
        for (first, weights), slots in zip(self.phases, shares, strict=True):
            for name, weight, slot in zip(self.names, weights, slots, strict=True):
                if weight > 0 and not slot:
                    raise UsageError(
                        f"source {name!r} has weight {weight} of {sum(weights)} in the phase "
                        f"from row {first:,}, which is less than one row in a block of "
                        f"{self.block:,}. Use a larger block, a larger weight, or weight 0."
                    )
        return shares

    def assign(self, rows: Places) -> tuple[Places, Places]:
        """Return each row's source, as an index in `names`, and the row's number in that source."""
        rows = check_rows(rows)
        flat = rows.ravel()
        if (flat[1:] < flat[:-1]).any():
            order = np.argsort(flat, kind="stable")
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            sources, numbers = self._assign_ascending(flat[order])
            sources, numbers = sources[back], numbers[back]
        else:
            sources, numbers = self._assign_ascending(flat)
        return sources.reshape(rows.shape), numbers.reshape(rows.shape)

    def rows_of(self, source: int, numbers: Places) -> Places:
        """Return the row of the run that is row `numbers` of a source: the inverse of `assign`.

        `numbers` is 1-D. The result is -1 for rows that the source never gives, because its weight
        is 0 to the end.

        >>> mixture = MixtureOrder(names=("web", "code"), phases=((0, (3, 1)),), block=8)
        >>> mixture.rows_of(1, np.arange(2)).tolist()
        [0, 2]
        """
        numbers = check_rows(numbers)
        rows = np.full_like(numbers, -1)
        given = np.array([before[source] for before in self._given])
        phases = given.searchsorted(numbers, "right") - 1
        for phase in np.unique(phases).tolist():
            share = self.shares[phase][source]
            if share:
                chosen = np.flatnonzero(phases == phase)
                rows[chosen] = self._find_slots(phase, source, numbers[chosen] - given[phase])
        return rows

    def find_end(self, source: int, number: int) -> int:
        """Return the row of the run that follows the `number`-th row of a source.

        If the source never has that many rows, returns the row that follows its last one.
        """
        if not self.shares[-1][source]:
            number = min(number, int(self._given[-1][source]))
        return int(self.rows_of(source, np.array([number - 1]))[0]) + 1 if number else 0

    def _find_slots(self, phase: int, source: int, numbers: Places) -> Places:
        """Return the rows of a phase that are rows `numbers` of a source, counted from the phase."""
        first, shares = self.phases[phase][0], self.shares[phase]
        key = make_key("mixture", self.seed, first)
        blocks, places = np.unique(numbers // shares[source], return_inverse=True)
        offset = sum(shares[:source])
        rows = np.empty_like(numbers)
        most = max(1, _STRETCH // self.block)
        order = places.argsort(kind="stable")  # so that each few blocks are one slice
        cuts = places[order].searchsorted(np.arange(0, len(blocks) + most, most))
        for at, (low, high) in enumerate(pairwise(cuts.tolist())):
            chosen = order[low:high]
            slots = _shuffle_slots(key, blocks[at * most : (at + 1) * most], shares)
            entry = places[chosen] - at * most, offset + numbers[chosen] % shares[source]
            rows[chosen] = slots[entry] + first + blocks[places[chosen]] * self.block
        return rows

    def counts(self, row: int) -> npt.NDArray[np.int64]:
        """Return how many of the first `row` rows of the run come from each source."""
        check_rows(np.array([row]))
        return self._find_stretch(row).count_before(row)

    def _assign_ascending(self, rows: Places) -> tuple[Places, Places]:
        sources, numbers = np.empty_like(rows), np.empty_like(rows)
        done = 0
        while done < len(rows):
            stretch = self._find_stretch(int(rows[done]))
            end = int(np.searchsorted(rows, stretch.stop))
            places = rows[done:end] - stretch.first
            taken = stretch.sources[places]
            sources[done:end] = taken
            numbers[done:end] = stretch.numbers[places] + stretch.before[taken]
            done = end
        return sources, numbers

    def _find_stretch(self, row: int) -> _Stretch:
        """Return the stretch (a few blocks) that contains a row."""
        phase = int(np.searchsorted(self._phase_firsts, row, side="right")) - 1
        return self._make_stretch(phase, row, self._given[phase])

    def _make_stretch(self, phase: int, row: int, given: Places) -> _Stretch:
        """Make the stretch (a few blocks) of a phase that contains a row.

        `row` may also be the first row after the phase. `given` is how many rows each source has
        given before the phase.
        """
        phase_first = self.phases[phase][0]
        blocks = max(1, _STRETCH // self.block)
        number = (row - phase_first) // (blocks * self.block)
        first = phase_first + number * blocks * self.block
        stop = first + blocks * self.block
        if phase + 1 < len(self.phases):
            stop = min(stop, self.phases[phase + 1][0])
        key = make_key("mixture", self.seed, phase_first)
        shares = self.shares[phase]
        sources, numbers = _lay_out(key, number * blocks, blocks, shares)
        before = given + number * blocks * np.array(shares)
        return _Stretch(first, stop, sources, numbers, before)

    @cached_property
    def _phase_firsts(self) -> Places:
        return np.array([first for first, _ in self.phases])

    @cached_property
    def _given(self) -> list[Places]:
        """How many rows each source has given before each phase."""
        given = [np.zeros(len(self.names), np.int64)]
        for phase, row in enumerate(self._phase_firsts[1:].tolist()):
            # The last block of a phase may be incomplete, so its slots have to be counted.
            given.append(self._make_stretch(phase, row, given[-1]).count_before(row))
        return given


def share_slots(weights: tuple[float, ...], slots: int) -> tuple[int, ...]:
    """Return how many of the `slots` each source gets, in proportion to the weights.

    First, all shares are rounded down. Then the remaining slots go one each to the sources with the
    largest remainders; in a tie, the first source wins. The arithmetic is exact.

    >>> share_slots((0.5, 0.25, 0.25), 10)
    (5, 3, 2)
    """
    exact = [Fraction(weight) for weight in weights]
    quotas = [weight * slots / sum(exact) for weight in exact]
    shares = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda n: (shares[n] - quotas[n], n))
    for number in by_remainder[: slots - sum(shares)]:
        shares[number] += 1
    return tuple(shares)


def _check_weights(names: tuple[str, ...], weights: tuple[float, ...], where: str) -> None:
    if len(weights) != len(names):
        raise UsageError(
            f"{where} has {len(weights)} weights for {len(names)} sources; give one weight for "
            f"each of {', '.join(names)}."
        )
    for name, weight in zip(names, weights, strict=True):
        if not 0 <= weight < math.inf:
            raise UsageError(
                f"source {name!r} has weight {weight} in {where}; it must be 0 or a positive number."
            )
    if not any(weights):
        raise UsageError(f"all weights are 0 in {where}; at least one must be positive.")


@lru_cache(maxsize=4)
def _lay_out(
    key: int, first_block: int, blocks: int, shares: tuple[int, ...]
) -> tuple[Places, Places]:
    """Return the source of each row of some blocks, and the row's number among that source's rows.

    The number counts from 0 at the first of these blocks. `shares` is how many rows of a block each
    source has. Both arrays are read-only and have blocks * sum(shares) entries.
    """
    size = sum(shares)
    sources = np.repeat(np.arange(len(shares)), shares)
    numbers_of_blocks = np.arange(first_block, first_block + blocks)
    places = _shuffle_slots(key, numbers_of_blocks, shares) + np.arange(blocks)[:, None] * size
    slot_sources, slot_numbers = np.empty((2, blocks * size), np.int64)
    slot_sources[places] = sources
    numbers = np.concatenate([np.arange(share) for share in shares])
    slot_numbers[places] = numbers + np.arange(blocks)[:, None] * np.array(shares)[sources]
    slot_sources.flags.writeable = slot_numbers.flags.writeable = False
    return slot_sources, slot_numbers


def _shuffle_slots(key: int, blocks: Places, shares: tuple[int, ...]) -> Places:
    """Return the slots of each block: those of source 0 in ascending order, then those of source 1...

    The result has the shape (blocks, sum(shares)). Entry i has the same source, and the same number
    among the rows of that source, in all blocks.
    """
    size = sum(shares)
    slots = np.arange(size, dtype=np.uint64)
    keys = derive_keys(key, blocks)
    # Shuffle the slots of each block. Of the shuffled slots, the first ones go to the first source,
    # the next ones to the second, and so on. To shuffle, sort random numbers that have the slot in
    # their lower bits. This is several times as fast as sorting slots by random numbers.
    drawn = derive_keys(keys[:, None], slots.view(np.int64)) & ~_SLOT_BITS | slots
    drawn.sort(axis=1)
    sources = np.repeat(np.arange(len(shares)), shares)
    by_source = sources * size + (drawn & _SLOT_BITS).view(np.int64)
    by_source.sort(axis=1)
    return by_source - sources * size
