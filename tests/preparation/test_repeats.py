"""repeats.py against a set, in memory and on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.preparation import repeats
from tokenmill.preparation.repeats import mark_repeats


def naive_marks(keys: np.ndarray) -> list[int]:
    seen: set[tuple[int, int]] = set()
    marks = []
    for key in map(tuple, keys.tolist()):
        marks.append(int(key in seen))
        seen.add(key)
    return marks


def in_tables(keys: np.ndarray, size: int) -> list[np.ndarray]:
    return [keys[i : i + size] for i in range(0, len(keys), size)]


def run(keys: np.ndarray, folder: Path, *, table: int = 1000, limit: int = 1 << 20) -> list[int]:
    marks = folder / "marks"
    count = mark_repeats(in_tables(keys, table), len(keys), marks, folder / "spill", limit)
    found = np.fromfile(marks, np.uint8).tolist()
    assert count == sum(found)
    assert not list((folder / "spill").glob("*"))
    return found


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables and windows, so that a few thousand keys take many of them."""
    monkeypatch.setattr(repeats, "_TABLE", 97)
    monkeypatch.setattr(repeats, "_PAGES", 13)


# Few values, so that keys share halves, and high bits of all kinds.
HALVES = st.sampled_from([0, 1, 2, 3, 2**63, 2**63 + 1, 2**64 - 1, 2**62, 2**56, 2**32, 77, 2**40])
KEYS = st.lists(st.tuples(HALVES, HALVES), max_size=60)


@settings(max_examples=100, deadline=None)
@given(keys=KEYS, table=st.integers(1, 20))
def test_repeats_match_a_set(tmp_path_factory, keys, table):
    array = np.array(keys, np.uint64).reshape(-1, 2)
    assert run(array, tmp_path_factory.mktemp("repeats"), table=table) == naive_marks(array)


@pytest.mark.parametrize("different", [1, 3, 50, 900, 10**6])
@pytest.mark.parametrize("total", [101, 130, 3_000, 30_000])
def test_spilled_repeats_match_a_set(tmp_path, small_limits, total, different):
    chance = np.random.default_rng(different)
    pool = chance.integers(0, 2**64, (different, 2), np.uint64, endpoint=False)
    pool[::3, 0] = pool[0, 0]  # equal high halves, different low ones
    pool[1::5, 1] = pool[0, 1]
    keys = pool[chance.integers(0, different, total)]
    assert run(keys, tmp_path, table=211, limit=100) == naive_marks(keys)


def test_keys_that_lead_with_the_same_bits_take_several_rounds(tmp_path, small_limits):
    chance = np.random.default_rng(1)
    keys = chance.integers(0, 300, (2_000, 2), np.uint64)
    assert run(keys, tmp_path, limit=100) == naive_marks(keys)


def test_repeats_are_marked_where_the_system_cannot_allocate_a_file(tmp_path, monkeypatch):
    monkeypatch.delattr("os.posix_fallocate", raising=False)  # as on macOS
    keys = np.array([[1, 2], [3, 4], [1, 2]], np.uint64)
    assert run(keys, tmp_path) == [0, 0, 1]


def test_no_keys_give_an_empty_file(tmp_path):
    assert run(np.zeros((0, 2), np.uint64), tmp_path) == []


def test_spilled_files_of_an_earlier_run_are_removed(tmp_path, small_limits):
    (tmp_path / "spill").mkdir()
    for name in ("000", "255", "other"):
        (tmp_path / "spill" / name).write_bytes(bytes(range(240)))
    keys = np.random.default_rng(2).integers(0, 50, (500, 2), np.uint64)
    assert run(keys, tmp_path, limit=100) == naive_marks(keys)


def test_a_key_that_fills_the_list_is_held_in_memory_once(tmp_path, small_limits, monkeypatch):
    keys = np.full((20_000, 2), 2**63 + 5, np.uint64)
    keys[::50] = np.random.default_rng(3).integers(0, 2**64, (400, 2), np.uint64, endpoint=False)
    most = 0
    mark = repeats._mark

    def watch(keys, places, marks):
        nonlocal most
        most = max(most, len(keys))
        return mark(keys, places, marks)

    monkeypatch.setattr(repeats, "_mark", watch)
    assert run(keys, tmp_path, table=211, limit=100) == naive_marks(keys)
    assert most < 1_000
