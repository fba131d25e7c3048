"""Move the end-of-text id before or after each document, as a format needs it.

Let E be the end-of-text id. With E after each document, a split is `a E b E c E`; with E before
each document, it is `E a E b E c`. To convert one form into the other, a single E moves from one
end of the split to the other end. A split such as `a E b E c`, which begins or ends within a
document, is not changed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tokenmill.formats.base import Contents
from tokenmill.store.shards import ArrayShard, JoinedShards, PartOfShards, Shards
from tokenmill.store.tokens import Tokens


def move_eot(contents: Contents, side: str) -> tuple[Contents, list[str]]:
    """Return the contents with the end-of-text id on the given side of each document.

    `side` is "before" or "after". Also return the names of the changed splits. Nothing is written:
    the result is a view of the same shards.

    >>> after = Contents(splits={"train": ArrayShard(np.array([5, 6, 0, 7, 0]))}, eot_id=0)
    >>> before, moved = move_eot(after, "before")
    >>> Tokens(before.splits["train"], "train")[:].tolist(), moved
    ([0, 5, 6, 0, 7], ['train'])
    """
    if contents.eot_id is None or contents.eot in ("none", side):
        return contents, []
    splits, moved = dict(contents.splits), []
    for split, shards in contents.splits.items():
        count = int(shards.counts.sum())
        edge = 0 if side == "after" else count - 1
        if count > 1 and Tokens(shards, split)[edge] == contents.eot_id:
            splits[split] = _move_id(shards, count, contents.eot_id, side)
            moved.append(split)
    return replace(contents, splits=splits, eot=side), moved


def _move_id(shards: Shards, count: int, eot_id: int, side: str) -> Shards:
    id_shard = ArrayShard(np.array([eot_id], shards.dtype))
    if side == "before":
        return JoinedShards((id_shard, PartOfShards(whole=shards, start=0, stop=count - 1)))
    return JoinedShards((PartOfShards(whole=shards, start=1, stop=count), id_shard))
