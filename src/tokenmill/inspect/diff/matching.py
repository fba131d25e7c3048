"""Match the documents of two datasets by their keys, as multisets.

Equal documents are matched in three rounds: in the same split and source, then in the same split, then
in any split. Documents that are matched in the third round were moved. Documents of the first dataset
without a match were removed, and those of the second were added. So a text that is in one dataset
twice and in the other once counts as one document removed or added.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

# Documents of one dataset with the same key, split and source. `side` is 0 for the first dataset.
# `place` is the position of the first of them in the split.
ENTRY = np.dtype(
    [
        ("key", "<u8", (2,)),
        ("side", "<u2"),
        ("split", "<u2"),
        ("source", "<u4"),
        ("count", "<u8"),
        ("tokens", "<u8"),
        ("place", "<u8"),
    ]
)
EXAMPLES = 10

Entries = npt.NDArray[np.void]
Integers = npt.NDArray[np.int64]


def reduce_entries(entries: Entries) -> Entries:
    """Sort entries by key, side, split and source; join those that are equal in all four.

    >>> entries = np.zeros(3, ENTRY)
    >>> entries["count"], entries["key"][:, 1] = 1, [7, 5, 7]
    >>> reduce_entries(entries)["count"].tolist()
    [1, 2]
    """
    if not len(entries):
        return entries
    high, low = entries["key"].T
    group = entries["side"].astype(np.uint64) << np.uint64(48)
    group |= entries["split"].astype(np.uint64) << np.uint64(32)
    group |= entries["source"].astype(np.uint64)
    order = np.lexsort((group, low, high))
    high, low, group = high[order], low[order], group[order]
    is_first = np.append(True, (np.diff(high) != 0) | (np.diff(low) != 0) | (np.diff(group) != 0))
    firsts = np.flatnonzero(is_first)
    if len(firsts) == len(entries):
        return entries[order]
    found = entries[order[firsts]]
    for name, join in (("count", np.add), ("tokens", np.add), ("place", np.minimum)):
        found[name] = join.reduceat(entries[name][order], firsts)
    return found


@dataclass(kw_only=True)
class Tally:
    """The totals of the documents matched so far, and examples of those that differ."""

    splits: int
    sources: int
    same: Integers = field(
        default_factory=lambda: np.zeros(3, np.int64)
    )  # documents, tokens of the first side, of the second
    moved: Integers = field(init=False)  # (from, to, documents and tokens)
    removed: Integers = field(init=False)  # (source, documents and tokens)
    added: Integers = field(init=False)
    examples: dict[str, Entries] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.moved = np.zeros((self.splits, self.splits, 2), np.int64)
        self.removed = np.zeros((self.sources, 2), np.int64)
        self.added = np.zeros((self.sources, 2), np.int64)

    def add(self, entries: Entries) -> None:
        """Match the entries of some keys. Entries with the same key must come in the same call."""
        found = reduce_entries(entries)
        if not len(found):
            return
        side = found["side"].astype(np.int64)
        split, source = found["split"].astype(np.int64), found["source"].astype(np.int64)
        high, low = found["key"].T
        key = np.cumsum(np.append(0, (np.diff(high) != 0) | (np.diff(low) != 0)))
        in_split = _number(key * self.splits + split)
        left = found["count"].astype(np.int64)
        same = np.zeros_like(left)
        for group in (_number(in_split * self.sources + source), in_split):
            taken = _match(group, side, left)
            same += taken
            left -= taken
        moved = _match(key, side, left)
        left -= moved
        count = np.maximum(found["count"].astype(np.int64), 1)
        tokens = found["tokens"].astype(np.int64)

        def measure(chosen: Integers) -> Integers:
            """Return how many tokens `chosen` documents of each entry have."""
            return np.where(chosen == count, tokens, tokens // count * chosen)

        same_tokens = measure(same)
        self.same += (
            same[side == 0].sum(),
            same_tokens[side == 0].sum(),
            same_tokens[side == 1].sum(),
        )
        self._add_moves(key, side, split, moved, tokens // count)
        left_tokens = measure(left)
        for number, columns in enumerate((self.removed, self.added)):
            chosen = (side == number) & (left > 0)
            np.add.at(columns[:, 0], source[chosen], left[chosen])
            np.add.at(columns[:, 1], source[chosen], left_tokens[chosen])
        self._keep_examples("removed", found[(side == 0) & (left > 0)])
        self._keep_examples("added", found[(side == 1) & (left > 0)])
        self._keep_examples("moved", found[(side == 1) & (moved > 0)])

    def _add_moves(
        self, key: Integers, side: Integers, split: Integers, moved: Integers, tokens: Integers
    ) -> None:
        """Pair the moved documents of both sides by key, and count them by their pair of splits."""
        ends, entries = [], []
        for number in (0, 1):
            chosen = np.flatnonzero((side == number) & (moved > 0))
            chosen = chosen[np.argsort(key[chosen], kind="stable")]
            entries.append(chosen)
            ends.append(np.cumsum(moved[chosen]))
        # For every key, both sides have the same number of moved documents. So the documents of a key
        # are in the same range on both sides.
        borders = np.union1d(*ends)
        if not len(borders):
            return
        amounts = np.diff(borders, prepend=0)
        before, after = (
            chosen[np.searchsorted(end, borders)] for chosen, end in zip(entries, ends, strict=True)
        )
        np.add.at(self.moved[:, :, 0], (split[before], split[after]), amounts)
        np.add.at(self.moved[:, :, 1], (split[before], split[after]), amounts * tokens[after])

    def _keep_examples(self, kind: str, entries: Entries) -> None:
        known = self.examples.get(kind)
        both = entries if known is None else np.concatenate((known, entries))
        order = np.lexsort((both["place"], both["split"]))
        self.examples[kind] = both[order[:EXAMPLES]]


def _number(values: Integers) -> Integers:
    """Return for each value its rank among the different values, from 0."""
    return np.unique(values, return_inverse=True)[1].ravel()


def _match(group: Integers, side: Integers, left: Integers) -> Integers:
    """Match documents of the two sides within each group; return how many matched, by entry.

    `left[n]` is how many documents of entry n are not yet matched. In each group, each document
    matches one of the other side, until one side has none left. Earlier entries are matched first.
    """
    size = int(group.max()) + 1
    totals = np.zeros((2, size), np.int64)
    np.add.at(totals, (side, group), left)
    matched = totals.min(axis=0)
    taken = np.zeros_like(left)
    for number in (0, 1):
        chosen = np.flatnonzero(side == number)
        chosen = chosen[np.argsort(group[chosen], kind="stable")]
        ends = np.cumsum(left[chosen])
        starts = ends - left[chosen]
        firsts = np.append(True, np.diff(group[chosen]) != 0)[: len(chosen)]
        before = starts - np.repeat(
            starts[firsts], np.diff(np.append(np.flatnonzero(firsts), len(chosen)))
        )
        taken[chosen] = np.clip(matched[group[chosen]] - before, 0, left[chosen])
    return taken
