"""Pairs of documents with equal band hashes, next to buckets of a plain dict, for any memory limit."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from tokenmill.preparation.engine import Worker
from tokenmill.preparation.key_files import KeyLayout, KeyRanges, KeyWriter
from tokenmill.preparation.memory import Workspace
from tokenmill.preparation.near_pairs import REACH, FindPairs, PairLayout
from tokenmill.tokenizers import load_tokenizer

DOCUMENTS = 900
LAYOUT = KeyLayout(partitions=4, run_keys=200)
PAIRS = PairLayout(KeyLayout(partitions=8, run_keys=64), DOCUMENTS.bit_length())
Keys = list[tuple[int, int]]
Gone = list[set[int]]


def find(folder: Path, files: list[Keys], gone: Gone, number: int, limit: int | None) -> list:
    """All pairs that the tasks of a round find, sorted."""
    keys, bitmaps = [], []
    for index, some in enumerate(files):
        path = folder / f"{index}.bands"
        with path.open("wb") as file:
            writer = KeyWriter(LAYOUT, file.write)
            writer.add(np.array(some, np.uint64).reshape(-1, 2))
            writer.flush()
        keys.append((path.name, len(some)))
    for index, some in enumerate(gone):
        bits = np.isin(np.arange(DOCUMENTS), list(some))
        bitmaps.append(folder / f"{index}.gone")
        bitmaps[-1].write_bytes(np.packbits(bits, bitorder="little").tobytes())
    worker = Worker(Workspace(load_tokenizer("bytes"), 1 << 40), lambda *amounts: None)
    found = []
    for partition in range(LAYOUT.partitions):
        task = FindPairs(
            name=f"{partition}",
            folder=folder,
            keys=folder,
            key_files=tuple(keys),
            partition=partition,
            layout=LAYOUT,
            pairs=PAIRS,
            round=number,
            gone=tuple(bitmaps),
            limit=limit,
        )
        count = task.run(worker)["facts"]["pairs"]
        for part in range(8):
            ranges = KeyRanges.find(folder / f"{partition}.pairs", count, PAIRS.keys, part)
            low, high = PAIRS.bounds(part)
            for some in ranges.read():
                first, second = PAIRS.decode(some)
                assert ((low <= second) & (second < high)).all()
                found += zip(first.tolist(), second.tolist(), strict=True)
    return sorted(found)


def expect(files: list[Keys], gone: Gone, number: int) -> list[tuple[int, int]]:
    """The first and the previous documents of each bucket, without the pairs of earlier rounds."""
    buckets: dict[int, list[int]] = defaultdict(list)
    for document, band in (key for some in files for key in some):
        buckets[band >> 22].append(document)

    def pairs(members: list[int], reach: int) -> set[tuple[int, int]]:
        near = {(a, b) for i, b in enumerate(members) for a in members[max(0, i - reach) : i]}
        return near | {(members[0], b) for b in members[1:]}

    found = []
    for members in buckets.values():
        states = [members, *([m for m in members if m not in some] for some in gone)]
        now = pairs(states[number - 1], REACH if number > 1 else 0)
        if number > 1:
            now -= pairs(states[number - 2], REACH if number > 2 else 0)
        found += now
    return sorted(found)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_pairs_do_not_depend_on_the_memory(tmp_path: Path, number: int) -> None:
    chance = np.random.default_rng(number)
    bands = [int(band) << 22 for band in chance.integers(0, 1 << 42, 60)]
    keys: Keys = []
    for document in range(DOCUMENTS):
        # One bucket has half of the documents, some have a few, and most have one.
        some = {bands[0]} if chance.random() < 0.5 else set()
        some |= {bands[int(i)] for i in chance.integers(1, 60, 2)}
        some |= {int(band) for band in chance.integers(0, 1 << 63, 3)}
        keys += [(document, band) for band in sorted(some)]
    files = [keys[:700], keys[700:701], keys[701:]]
    draw = chance.random((2, DOCUMENTS))
    gone = [set(np.flatnonzero(one < 0.3).tolist()) for one in draw[: number - 1]]
    expected = expect(files, gone, number)
    assert len(expected) > 400
    for limit in (None, 1000, 100, 9):
        folder = tmp_path / str(limit)
        folder.mkdir()
        assert find(folder, files, gone, number, limit) == expected
