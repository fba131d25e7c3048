"""The order `blocks`: shuffle for storage that reads neighbouring rows faster than scattered ones.

A window is the tokens of one row. Neighbouring windows of a source form a block. The blocks are
shuffled over the whole source and divided into groups. The rows of each group are shuffled together.
So a run reads whole blocks, and needs the blocks of only one group at a time.

Guarantees: every window comes once per epoch, for any number of windows, size of blocks and number
of blocks per group. The rows of a group come from exactly its blocks. Only the last block may be
shorter than the others; the key chooses its position, so it can be in any group.

Costs: one permutation of rows and one of blocks, which take 0.1 µs a row in calls for thousands of
rows. Nothing is stored, and row 10**15 costs as much as row 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tokenmill.errors import UsageError
from tokenmill.order.permutation import (
    Keys,
    Places,
    derive_keys,
    permute,
    pick_keys,
    unpermute,
)

BLOCK_TOKENS = 1 << 19  # default size of a block in tokens; 1 MB if ids are uint16
GROUP_BLOCKS = 256  # default number of blocks in a group

# Numbers for `derive_keys`, so that each use of an epoch's key gets its own key.
_BLOCK_ORDER, _LAST_POSITION, _FIRST_GROUP = 0, 1, 2


class _Groups(NamedTuple):
    """For each place in an epoch, the group that the place belongs to."""

    numbers: Places
    firsts: Places  # the group's first place
    sizes: Places  # the group's number of rows
    has_last: Places  # 1 if the group has the last block, else 0
    is_later: Places  # 1 if an earlier group has the last block, else 0


@dataclass(frozen=True)
class BlockShuffle:
    """A shuffle of [0, windows) in blocks of `block` windows and groups of `group` blocks.

    Calling it with places in an epoch returns the window at each place.

    >>> shuffle = BlockShuffle(windows=10, block=2, group=2)
    >>> shuffle(np.arange(10), derive_keys(7, 0)).tolist()
    [1, 0, 4, 5, 6, 3, 2, 7, 9, 8]
    """

    windows: int
    block: int
    group: int

    def __call__(self, places: Places, keys: Keys) -> Places:
        """Return the window at each place of an epoch.

        `keys` has the key of the epoch: one key for all places, or one for each.
        """
        block, last, rest = self._sizes
        groups = self._find_groups(places, keys)
        rows = self._permute_rows(places - groups.firsts, groups, keys)
        # If a group has the last block, that block has the highest row numbers of the group.
        ends = groups.sizes - groups.has_last * rest
        ranks = groups.numbers * self._group - groups.is_later + rows // block
        windows = rows - ends + last * block
        others = np.flatnonzero(rows < ends)
        block_keys = derive_keys(pick_keys(keys, others), _BLOCK_ORDER)
        if len(others):
            blocks = permute(ranks[others], last, block_keys)
            windows[others] = blocks * block + rows[others] % block
        return windows

    def invert(self, windows: Places, keys: Keys) -> Places:
        """Return the place of each window in an epoch: the inverse of calling the shuffle.

        `keys` has the key of the epoch: one key for all windows, or one for each.

        >>> shuffle = BlockShuffle(windows=10, block=2, group=2)
        >>> shuffle.invert(np.array([1, 0, 4]), derive_keys(7, 0)).tolist()
        [0, 1, 2]
        """
        block, last, rest = self._sizes
        size, missing = self._group * block, block - rest
        with_last = self._find_last_group(keys)
        others = np.flatnonzero(windows < last * block)
        ranks = np.full_like(windows, -1)  # the rank of each window's block; the last has none
        if len(others):
            block_keys = derive_keys(pick_keys(keys, others), _BLOCK_ORDER)
            ranks[others] = unpermute(windows[others] // block, last, block_keys)
        is_last = ranks < 0
        # The group with the last block has one rank less, so later groups start one rank earlier.
        is_later = (ranks >= (with_last + 1) * self._group - 1).astype(np.int64)
        numbers: Places = np.where(is_last, with_last, (ranks + is_later) // self._group)
        firsts = numbers * size - is_later * missing
        has_last = (numbers == with_last).astype(np.int64)
        sizes = np.minimum(size - has_last * missing, self.windows - firsts)
        rows: Places = (ranks - (numbers * self._group - is_later)) * block + windows % block
        rows = np.where(is_last, sizes - rest + windows - last * block, rows)
        groups = _Groups(numbers, firsts, sizes, has_last, is_later)
        return firsts + self._permute_rows(rows, groups, keys, unpermute)

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """The size of a block, the number of the last block, and the last block's size."""
        block = min(self.block, self.windows)
        last = (self.windows - 1) // block
        return block, last, self.windows - last * block

    @property
    def _group(self) -> int:
        return min(self.group, self._sizes[1] + 1)

    def _find_groups(self, places: Places, keys: Keys) -> _Groups:
        block, _, rest = self._sizes
        size, missing = self._group * block, block - rest
        with_last = self._find_last_group(keys)
        # Groups after the one that has the last block start `missing` places earlier.
        is_later = ((places + missing) // size > with_last).astype(np.int64)
        numbers = (places + is_later * missing) // size
        firsts = numbers * size - is_later * missing
        has_last = (numbers == with_last).astype(np.int64)
        sizes = np.minimum(size - has_last * missing, self.windows - firsts)
        return _Groups(numbers, firsts, sizes, has_last, is_later)

    def _find_last_group(self, keys: Keys) -> Places:
        """Return the number of the group that has the last block, for each key."""
        blocks = self._sizes[1] + 1
        position = (derive_keys(keys, _LAST_POSITION) % np.uint64(blocks)).view(np.int64)
        return position // self._group

    def _permute_rows(
        self,
        offsets: Places,
        groups: _Groups,
        keys: Keys,
        shuffle: Callable[[Places, int, Keys], Places] = permute,
    ) -> Places:
        """Shuffle the rows of each group. Returns which row of its group is at each offset in it."""
        rows = np.empty_like(offsets)
        group_keys = derive_keys(keys, groups.numbers + _FIRST_GROUP)
        # At most three sizes: of a full group, of the group with the last block, of the last group.
        for size in np.unique(groups.sizes).tolist():
            chosen = np.flatnonzero(groups.sizes == size)
            rows[chosen] = shuffle(offsets[chosen], size, group_keys[chosen])
        return rows


def choose_blocks(
    kind: str, seq_len: int, block_rows: int | None, group_blocks: int | None
) -> tuple[int | None, int | None]:
    """Return `block_rows` and `group_blocks`, with None replaced by the default.

    `kind` is the kind of order. For kinds other than `blocks`, the result is (None, None). The
    defaults do not depend on the dtype of the files, so that converting a dataset changes no row.

    >>> choose_blocks("blocks", 2048, None, None)
    (256, 256)
    >>> choose_blocks("blocks", 10**6, None, 8)
    (1, 8)
    """
    for name, size in (("block_rows", block_rows), ("group_blocks", group_blocks)):
        if size is not None and kind != "blocks":
            raise UsageError(
                f"`{name}` is {size}, but `order` is {kind!r}. Omit `{name}`, or use `order='blocks'`."
            )
        if size is not None and size < 1:
            raise UsageError(f"`{name}` is {size}; it must be 1 or more.")
    if kind != "blocks":
        return None, None
    return block_rows or max(1, BLOCK_TOKENS // seq_len), group_blocks or GROUP_BLOCKS
