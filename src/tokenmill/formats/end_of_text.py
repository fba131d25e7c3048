"""Put the end-of-text id on the side of documents where a format's readers look for it.

With the id after each document, a split is `a E b E c E`; with the id before, `E a E b E c`. To
convert one into the other, one id moves from one end of the split to the other end. No document
changes its text, place or length. A split such as `a E b E c`, which begins or ends within a
document, has no end-of-text id at either end and is not changed. Readers of both kinds find the
same texts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tokenmill.formats.base import Contents
from tokenmill.store.shards import ArrayShard, JoinedShards, PartOfShards, Shards
from tokenmill.store.tokens import Tokens


def move_eot(contents: Contents, side: str) -> tuple[Contents, list[str]]:
    """The same documents with the end-of-text id on `side` of each, and the splits that changed.

    Nothing is written: only the order in which shards are joined changes.

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
