"""Choose which blocks of the data to read: all, or as many as a limit allows, evenly spaced.

The choice depends only on the sizes, so the same data gives the same sample.
"""

from __future__ import annotations

from collections.abc import Iterator


def choose_blocks(total: int, limit: int, block: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of up to `block` items of [0, total), in order; about `limit` items together.

    If the limit allows it, the ranges cover everything. Otherwise they are evenly spaced, from the
    first block to the last.

    >>> list(choose_blocks(10, 10, 4)), list(choose_blocks(100, 12, 4))
    ([(0, 4), (4, 8), (8, 10)], [(0, 4), (48, 52), (96, 100)])
    """
    blocks = -(-total // block)
    wanted = blocks if total <= limit else min(blocks, max(1, limit // block))
    for number in range(wanted):
        start = block * (
            number if wanted == blocks else (blocks - 1) * number // max(1, wanted - 1)
        )
        yield start, min(start + block, total)


def share_limit(limit: int, part: int, total: int) -> int:
    """Return the limit for a part of the data, in proportion to its size, and at least 1.

    >>> share_limit(100, 200, 800), share_limit(800, 200, 800)
    (25, 200)
    """
    return max(1, limit * part // total) if total > limit else part
