"""key_files.py and partitions.py: marks of all parts equal those of one set of all keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.errors import FolderError
from tokenmill.preparation.engine import Worker
from tokenmill.preparation.key_files import (
    LISTED,
    REPEATED,
    KeyLayout,
    KeyRanges,
    KeyWriter,
    Marks,
    PartMarks,
    choose_partitions,
    mark_path,
)
from tokenmill.preparation.memory import Workspace
from tokenmill.preparation.partitions import KeyFiles, ListedKeys, MarkRepeats
from tokenmill.preparation.sorted_keys import SortedKeys
from tokenmill.storage.files import write_file
from tokenmill.storage.receipts import encode_receipt
from tokenmill.tokenizers import load_tokenizer

Key = tuple[int, int]
HALVES = st.sampled_from([0, 1, 2**61, 2**62, 2**63, 2**63 + 1, 2**64 - 1, 3 << 60])
KEY = st.tuples(HALVES, HALVES)
# The keys of each part, and the key of a document that begins there and ends in a later part.
PARTS = st.lists(st.tuples(st.lists(KEY, max_size=12), st.none() | KEY), min_size=1, max_size=5)


def write_keys(path: Path, keys: list[Key], layout: KeyLayout) -> None:
    with path.open("wb") as file:
        writer = KeyWriter(layout, lambda data: file.write(data) and None)
        array = np.array(keys, np.uint64).reshape(-1, 2)
        for start in range(0, len(array), 3):
            writer.add(array[start : start + 3])
        writer.flush()
    assert writer.count == len(keys)
    assert path.stat().st_size == layout.size(len(keys))


def make_tasks(
    folder: Path,
    parts: list[Any],
    layout: KeyLayout,
    limit: int,
    listed: set[Key] | None = None,
    *,
    repeats: bool = True,
) -> list[MarkRepeats]:
    files, spanning = [], []
    for number, (keys, whole) in enumerate(parts):
        write_keys(folder / f"{number}.keys", keys, layout)
        files.append((f"{number}.keys", len(keys)))
        spanning += [] if whole is None else [(number, *whole)]
    write_file(folder / "index", encode_receipt(KeyFiles(files, spanning)))
    wanted = SortedKeys.of([np.array(sorted(listed or ()), np.uint64).reshape(-1, 2)])
    wanted.write(folder / "listed")
    starts = wanted.divide(layout)
    return [
        MarkRepeats(
            folder=folder,
            context="x",
            partition=partition,
            keys=folder,
            key_files=folder / "index",
            layout=layout,
            limit=limit,
            repeats=repeats,
            listed=None
            if listed is None
            else ListedKeys(folder / "listed", starts[partition], starts[partition + 1]),
        )
        for partition in range(layout.partitions)
    ]


def run(task: MarkRepeats) -> Any:
    return task.run(Worker(Workspace(load_tokenizer("bytes"), 1 << 30), lambda *_: None))


@settings(max_examples=60, deadline=None)
@given(
    parts=PARTS,
    bits=st.integers(0, 4),
    run_keys=st.integers(1, 7),
    limit=st.sampled_from([2, 1 << 20]),
    listed=st.none() | st.sets(KEY, max_size=9),
    with_repeats=st.booleans(),
)
def test_marks_of_all_partitions_match_a_set(
    tmp_path_factory, parts, bits, run_keys, limit, listed, with_repeats
):
    folder = tmp_path_factory.mktemp("keys")
    layout = KeyLayout(partitions=1 << bits, run_keys=run_keys)
    tasks = make_tasks(folder, parts, layout, limit, listed, repeats=with_repeats)
    receipts = [run(task) for task in tasks]
    spanning = dict(entry for receipt in receipts for entry in receipt["facts"]["spanning"])
    seen: set[Key] = set()
    first_run = repeats = 0

    def mark(key: Key) -> int:
        if listed and key in listed:
            return LISTED
        return REPEATED if with_repeats and key in seen else 0

    for number, (keys, whole) in enumerate(parts):
        expected = []
        for key in keys:
            expected.append(mark(key))
            repeats += with_repeats and key in seen
            seen.add(key)
        marks = PartMarks(
            keys=folder / f"{number}.keys",
            count=len(keys),
            first_run=first_run,
            marks=folder,
            context="x",
            layout=layout,
        )
        assert Marks(marks.read()).take(len(keys)).tolist() == expected
        first_run += layout.count_runs(len(keys))
        if whole is not None:
            assert spanning.pop(number) == mark(whole)
            repeats += with_repeats and whole in seen
            seen.add(whole)
    assert not spanning
    assert sum(receipt["facts"]["repeats"] for receipt in receipts) == repeats
    assert not list(folder.glob("*.tmp"))


def test_a_partition_has_the_keys_of_its_bits_in_input_order(tmp_path):
    layout = KeyLayout(partitions=8, run_keys=100)
    keys = np.random.default_rng(1).integers(0, 2**64, (1_000, 2), np.uint64, endpoint=False)
    write_keys(tmp_path / "keys", [tuple(key) for key in keys.tolist()], layout)
    for partition in range(8):
        ranges = KeyRanges.find(tmp_path / "keys", len(keys), layout, partition)
        found = np.concatenate(list(ranges.read()))
        assert found.tolist() == [key for key in keys.tolist() if key[1] >> 61 == partition]


@pytest.mark.parametrize("takes", [[10], [1] * 10, [3, 0, 5, 2], [4, 6]])
def test_marks_are_taken_in_pieces_of_any_length(takes):
    flags = np.array([0, 1, 1, 0, 0, 1, 0, 1, 1, 0], np.uint8)
    marks = Marks([flags[:3], flags[3:4], flags[4:4], flags[4:]])
    assert [one for count in takes for one in marks.take(count)] == flags.astype(bool).tolist()
    assert marks.take(2).tolist() == [False, False]


def damage(path: Path, offset: int, value: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset : offset + 8] = value.to_bytes(8, "little")
    path.write_bytes(data)


@pytest.mark.parametrize("value", [1 << 63, 1 << 40, 6])
def test_a_key_file_with_impossible_ranges_is_refused(tmp_path, value):
    layout = KeyLayout(partitions=2, run_keys=5)
    task, _ = make_tasks(tmp_path, [([(1, 1)] * 4, None)], layout, 10)
    damage(tmp_path / "0.keys", 8, value)
    with pytest.raises(FolderError, match=r"0\.keys is damaged"):
        run(task)


@pytest.mark.parametrize("value", [1 << 63, 1 << 40, 9])
def test_a_mark_file_with_impossible_ranges_is_refused(tmp_path, value):
    layout = KeyLayout(partitions=1, run_keys=5)
    (task,) = make_tasks(tmp_path, [([(1, 1)] * 4, None)], layout, 10)
    run(task)
    damage(mark_path(tmp_path, "x", 0), 0, value)
    marks = PartMarks(
        keys=tmp_path / "0.keys", count=4, first_run=0, marks=tmp_path, context="x", layout=layout
    )
    with pytest.raises(FolderError, match=r"marks is damaged"):
        list(marks.read())


def test_the_number_of_partitions_depends_on_the_size_of_the_input_alone():
    sizes = [0, 1, 256 << 20, (256 << 20) + 1, 16 << 30, 60 * 10**12]
    assert [choose_partitions(size, 256 << 20) for size in sizes] == [1, 1, 1, 2, 64, 1024]
