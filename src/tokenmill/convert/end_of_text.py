"""Put the end-of-text id on the side of documents where a format's readers look for it.

With the id after each document, a split is `a E b E c E`; with the id before, `E a E b E c`. The two
differ in one id, which moves from one end of the split to the other: no document changes its text,
place or length. A split that was cut within a document lacks the id at that end and stays as it is:
its documents have the same text whichever side the ids are on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tokenmill.dataset.opening import Dataset
from tokenmill.store.shards import ArrayShard, JoinedShards, PartOfShards, Shards


def find_movable(dataset: Dataset, side: str) -> list[str]:
    """The splits whose end-of-text id has to move for readers that look for it on `side`."""
    if dataset.eot_id is None or dataset.contents.eot not in {"after", "before"} - {side}:
        return []
    edge = 0 if side == "after" else -1
    return [
        split
        for split, tokens in dataset.items()
        if len(tokens) > 1 and tokens[edge] == dataset.eot_id
    ]


def move_eot(dataset: Dataset, side: str) -> Dataset:
    """The same documents, with the end-of-text id on `side` of each; nothing is written.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import tokenmill
    >>> path = Path(tempfile.mkdtemp()) / "x.npy"
    >>> np.save(path, np.array([5, 6, 0, 7, 0]))
    >>> move_eot(tokenmill.open(path, eot_id=0), "before")["train"][:].tolist()
    [0, 5, 6, 0, 7]
    """
    if dataset.eot_id is None or dataset.contents.eot == "none":
        return dataset
    moved = {
        split: _move(dataset.contents.splits[split], dataset.eot_id, side)
        for split in find_movable(dataset, side)
    }
    splits = {**dataset.contents.splits, **moved}
    return dataset.with_contents(replace(dataset.contents, splits=splits, eot=side))


def _move(shards: Shards, eot_id: int, side: str) -> Shards:
    one = ArrayShard(np.array([eot_id], shards.dtype))
    count = int(shards.counts.sum())
    if side == "before":
        return JoinedShards((one, PartOfShards(whole=shards, start=0, stop=count - 1)))
    return JoinedShards((PartOfShards(whole=shards, start=1, stop=count), one))
