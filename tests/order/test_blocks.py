"""The order `blocks` reads whole blocks, a group at a time, and shuffles each group completely."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.order.rows import RowOrder

SIZES = [1, 2, 3, 7, 16, 59, 60, 61, 1_000]


def make_order(windows, block, group, **others):
    return RowOrder(
        tokens=windows + 1, seq_len=1, kind="blocks", block_rows=block, group_blocks=group, **others
    )


def visit_epoch(order, epoch=0):
    return order.starts(np.arange(order.windows) + epoch * order.windows)


def cut_into_groups(visited, windows, block, group):
    """The blocks of each group of an epoch. Fails if a group lacks a row of its blocks."""
    blocks = math.ceil(windows / block)
    last = blocks - 1
    missing = blocks * block - windows  # how much shorter the last block is
    found, done = [], 0
    while done < windows:
        size = group * block
        if last in visited[done : done + size - missing] // block:
            size -= missing
        rows = visited[done : done + size]
        members = set((rows // block).tolist())
        complete = (range(each * block, min(each * block + block, windows)) for each in members)
        assert sorted(rows.tolist()) == sorted(itertools.chain.from_iterable(complete))
        found.append(members)
        done += len(rows)
    return found


@settings(max_examples=300, deadline=None)
@given(
    windows=st.integers(1, 400),
    block=st.integers(1, 60) | st.integers(1, 2**62),
    group=st.integers(1, 30) | st.integers(1, 2**62),
    seed=st.integers(0, 100),
    epoch=st.integers(0, 3) | st.integers(0, 2**50),
)
def test_each_group_has_all_rows_of_its_blocks_and_no_others(windows, block, group, seed, epoch):
    visited = visit_epoch(make_order(windows, block, group, seed=seed), epoch)
    groups = cut_into_groups(visited, windows, block, group)
    blocks = math.ceil(windows / block)
    assert sorted(each for members in groups for each in members) == list(range(blocks))
    assert [len(members) for members in groups[:-1]] == [group] * (len(groups) - 1)


@pytest.mark.parametrize("windows", SIZES)
def test_every_epoch_visits_every_window_once(windows):
    for block, group in itertools.product(SIZES, SIZES):
        order = make_order(windows, block, group)
        epochs = order.starts(np.arange(3 * windows)).reshape(3, windows)
        assert (np.sort(epochs) == np.arange(windows)).all(), (block, group)


def test_the_last_block_can_be_in_any_group_and_blocks_in_any_order():
    windows, block, group = 95, 10, 3
    at, firsts = set(), set()
    for epoch in range(60):
        visited = visit_epoch(make_order(windows, block, group), epoch)
        groups = cut_into_groups(visited, windows, block, group)
        at |= {number for number, members in enumerate(groups) if 9 in members}
        firsts |= groups[0]
    assert at == {0, 1, 2, 3}
    assert firsts == set(range(10))


def test_the_rows_of_a_group_are_shuffled_completely():
    """At each place of a group, every block and every place in a block is equally likely."""
    block, group, epochs = 8, 4, 4_000
    order = make_order(block * group, block, group, seed=3)
    visited = order.starts(np.arange(epochs * order.windows)).reshape(epochs, order.windows)
    counts = np.stack([np.bincount(place, minlength=order.windows) for place in visited.T])
    expected = epochs / order.windows
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    freedom = (order.windows - 1) ** 2
    assert abs(chi_squared - freedom) < 6 * math.sqrt(2 * freedom)
    # Neighbours in a block are neighbours in the order only by chance: two of `windows` pairs.
    near = (np.abs(np.diff(visited, axis=1)) == 1).mean()
    assert near == pytest.approx(2 / order.windows, rel=0.1)


def test_one_group_of_all_blocks_is_a_full_shuffle_of_rows():
    order = make_order(10_050, 100, 10_000)
    visited = visit_epoch(order)
    assert np.corrcoef(visited, np.arange(len(visited)))[0, 1] == pytest.approx(0, abs=0.05)
    assert (np.abs(np.diff(visited)) < 100).mean() < 0.05


def test_a_row_far_away_costs_as_much_as_the_first():
    order = RowOrder(tokens=10**15, seq_len=2048, kind="blocks")

    def measure(first):
        rows = np.arange(first, first + 512)
        times = []
        for _ in range(9):
            start = time.perf_counter()
            order.starts(rows)
            times.append(time.perf_counter() - start)
        return min(times)

    measure(0)
    assert measure(10**17) < 5 * measure(0) + 0.001


def test_a_default_block_has_half_a_million_tokens():
    order = RowOrder(tokens=10**9, seq_len=1024, kind="blocks")
    assert (order.block_rows, order.group_blocks) == (512, 256)
    assert RowOrder(tokens=10**9, seq_len=10**6, kind="blocks").block_rows == 1


def test_extreme_sizes_do_not_overflow():
    windows = 2**62 - 1
    for block in (1, 2**60 + 1, 2**61, 2**61 + 1, windows - 1, windows, 2**63, 2**80):
        for group in (1, 2, 3, 2**40, 2**80):
            order = make_order(windows, block, group)
            rows = np.array([0, 1, windows // 2, windows - 2, windows - 1])
            starts = order.starts(rows)
            assert len(set(starts.tolist())) == len(rows)
            assert 0 <= starts.min() <= starts.max() < windows
