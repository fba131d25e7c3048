"""Every order can be inverted: from a window, a place or a source's row back to the row of the run."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tokenmill.errors import UsageError
from tokenmill.order.blocks import BlockShuffle
from tokenmill.order.mixture import MixtureOrder
from tokenmill.order.permutation import Permutation, derive_keys, permute, unpermute
from tokenmill.order.rows import RowOrder

KEYS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("size", [*range(1, 70), 4_095, 4_096, 4_097, 70_001])
def test_a_permutation_of_any_small_size_is_undone(size):
    for key in range(3):
        shuffle, places = Permutation(size, key), np.arange(size)
        assert (shuffle.invert(shuffle(places)) == places).all()
        assert (shuffle(shuffle.invert(places)) == places).all()


@settings(max_examples=200, deadline=None)
@given(size=st.integers(1, 2**62), key=KEYS, data=st.data())
def test_a_permutation_of_any_size_and_key_is_undone(size, key, data):
    places = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=8)), np.int64)
    shuffle = Permutation(size, key)
    assert (shuffle.invert(shuffle(places)) == places).all()
    assert (shuffle(shuffle.invert(places)) == places).all()


@settings(max_examples=100, deadline=None)
@given(size=st.integers(1, 5_000), keys=st.lists(KEYS, min_size=1, max_size=50), data=st.data())
def test_places_with_a_key_each_are_undone_together(size, keys, data):
    some = st.lists(st.integers(0, size - 1), min_size=len(keys), max_size=len(keys))
    places, each = np.array(data.draw(some), np.int64), np.array(keys, np.uint64)
    assert (unpermute(permute(places, size, each), size, each) == places).all()


def test_many_places_are_undone_in_chunks():
    places = np.arange(100_000)
    keys = derive_keys(5, places % 7)
    assert (unpermute(permute(places, 10**9, keys), 10**9, keys) == places).all()


def test_places_outside_are_refused():
    with pytest.raises(UsageError, match="place 5 is not between 0 and 4"):
        Permutation(5, 1).invert(np.array([5]))


@pytest.mark.parametrize("windows", [1, 2, 3, 4, 7, 12, 13, 59, 60, 61])
def test_blocks_of_any_small_size_are_undone(windows):
    for block, group, key in itertools.product((1, 2, 3, 7, 100), (1, 2, 3, 100), range(4)):
        shuffle, keys = BlockShuffle(windows, block, group), derive_keys(key, 0)
        places = np.arange(windows)
        assert (shuffle.invert(shuffle(places, keys), keys) == places).all()


@settings(max_examples=200, deadline=None)
@given(
    windows=st.integers(1, 10**15),
    block=st.integers(1, 10**6),
    group=st.integers(1, 1_000),
    key=KEYS,
    data=st.data(),
)
def test_blocks_of_any_size_are_undone(windows, block, group, key, data):
    shuffle = BlockShuffle(windows, block, group)
    ends = st.integers(0, min(windows, 3 * block) - 1).map(lambda n: windows - 1 - n)
    places = data.draw(st.lists(st.integers(0, windows - 1) | ends, min_size=1, max_size=8))
    keys = derive_keys(key, np.arange(len(places)))
    found = shuffle(np.array(places), keys)
    assert shuffle.invert(found, keys).tolist() == places
    # The last block is the short one, so its windows are worth a test of their own.
    last = np.arange(max(0, windows - len(places)), windows)
    keys = derive_keys(key, np.arange(len(last)))
    assert (shuffle(shuffle.invert(last, keys), keys) == last).all()


@settings(max_examples=150, deadline=None)
@given(
    tokens=st.integers(2, 3_000) | st.integers(2, 10**12),
    seq_len=st.integers(1, 40),
    seed=st.integers(-3, 2**64),
    kind=st.sampled_from(["shuffled", "blocks", "sequential"]),
    data=st.data(),
)
def test_the_row_of_a_window_and_epoch_is_the_row_that_starts_there(
    tokens, seq_len, seed, kind, data
):
    assume(tokens > seq_len)
    sizes = {"block_rows": data.draw(st.integers(1, 9)), "group_blocks": 3}
    order = RowOrder(
        tokens=tokens, seq_len=seq_len, seed=seed, kind=kind, **(sizes if kind == "blocks" else {})
    )
    rows = np.array(data.draw(st.lists(st.integers(0, 10**14), max_size=20)), np.int64)
    starts = order.starts(rows)
    assert (order.rows_of(starts // seq_len, rows // order.windows) == rows).all()
    epoch = np.full(3, 8)
    windows = np.array([0, order.windows // 2, order.windows - 1])
    assert (order.starts(order.rows_of(windows, epoch)) == windows * seq_len).all()


def test_a_random_order_has_no_inverse():
    order = RowOrder(tokens=100, seq_len=3, kind="random")
    with pytest.raises(UsageError, match="no inverse"):
        order.rows_of(np.array([1]), np.array([0]))


@pytest.mark.parametrize(("tokens", "seq_len"), [(2, 1), (30, 1), (30, 7), (29, 7), (31, 30)])
def test_the_windows_with_a_token_are_found(tokens, seq_len):
    order = RowOrder(tokens=tokens, seq_len=seq_len)
    for start, stop in itertools.combinations_with_replacement(range(tokens + 3), 2):
        expected = [
            window
            for window in range(order.windows)
            if set(range(window * seq_len, window * seq_len + seq_len + 1)) & {*range(start, stop)}
        ]
        assert list(order.find_windows(start, stop)) == expected


WEIGHTS = st.lists(st.sampled_from([0, 1, 2.5, 7]), min_size=3, max_size=3).filter(any)


@settings(max_examples=150, deadline=None)
@given(
    firsts=st.sets(st.integers(1, 1_500), max_size=4),
    block=st.integers(12, 400),
    seed=st.integers(0, 9),
    data=st.data(),
)
def test_the_row_of_a_source_is_found_in_the_run(firsts, block, seed, data):
    phases = tuple((first, tuple(data.draw(WEIGHTS))) for first in [0, *sorted(firsts)])
    try:
        mixture = MixtureOrder(names=("a", "b", "c"), phases=phases, block=block, seed=seed)
    except UsageError:  # a weight is less than one row in a block
        assume(False)
    sources, numbers = mixture.assign(np.arange(2_000))
    for source in range(3):
        rows = np.flatnonzero(sources == source)
        assert (mixture.rows_of(source, numbers[rows]) == rows).all()
        mixed = np.random.default_rng(seed).permutation(rows)
        assert (mixture.rows_of(source, mixture.assign(mixed)[1]) == mixed).all()
        for count in {0, len(rows) // 2, len(rows)}:
            end = mixture.find_end(source, count)
            assert end == (rows[count - 1] + 1 if count else 0)


def test_large_blocks_and_row_numbers_are_inverted():
    mixture = MixtureOrder(names=("a", "b"), phases=((0, (7, 3)), (25_003, (1, 9))), block=10_000)
    rows = np.array([10**15 + 3 * n for n in range(2_000)])
    sources, numbers = mixture.assign(rows)
    for source in range(2):
        chosen = sources == source
        assert (mixture.rows_of(source, numbers[chosen]) == rows[chosen]).all()


def test_rows_that_a_paused_source_never_gives_are_minus_one():
    mixture = MixtureOrder(names=("a", "b"), phases=((0, (3, 1)), (17, (1, 0))), block=8)
    given_before = int(mixture.counts(17)[1])
    rows = mixture.rows_of(1, np.arange(given_before + 3))
    assert (rows[:given_before] < 17).all()
    assert rows[given_before:].tolist() == [-1, -1, -1]
    assert mixture.find_end(1, 10**9) == rows[given_before - 1] + 1


def test_a_source_that_pauses_is_found_after_the_pause():
    phases = ((0, (1, 1)), (10, (1, 0)), (30, (0, 1)))
    mixture = MixtureOrder(names=("a", "b"), phases=phases, block=4)
    sources, numbers = mixture.assign(np.arange(100))
    rows = np.flatnonzero(sources == 1)
    assert (mixture.rows_of(1, numbers[rows]) == rows).all()
    assert not ((rows >= 10) & (rows < 30)).any()
