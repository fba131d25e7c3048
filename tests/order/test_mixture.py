"""Sources have their exact share of each block and give their rows in turn, across phases."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import order_reference
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tokenmill.errors import UsageError
from tokenmill.order.mixture import MixtureOrder, share_slots

weight = st.just(0.0) | st.integers(1, 9) | st.floats(1e-300, 1e300) | st.floats(0.1, 1)


@st.composite
def settings_of_mixtures(draw):
    sources = draw(st.integers(1, 5))
    weights = st.lists(weight, min_size=sources, max_size=sources).filter(any)
    firsts = [0, *sorted(draw(st.sets(st.integers(1, 400), max_size=3)))]
    return {
        "phases": tuple((first, tuple(draw(weights))) for first in firsts),
        "seed": draw(st.integers(-5, 5)),
        "block": draw(st.integers(1, 120)),
    }


def build(order):
    for _, weights in order["phases"]:
        shares = order_reference.share_slots(weights, order["block"])
        assume(all(share or not weight for share, weight in zip(shares, weights, strict=True)))
    names = tuple(f"source {n}" for n in range(len(order["phases"][0][1])))
    return MixtureOrder(names=names, **order)


@settings(max_examples=150, deadline=None)
@given(order=settings_of_mixtures(), data=st.data())
def test_rows_are_assigned_as_documented(order, data):
    mixture = build(order)
    expected = order_reference.mixture(600, **order)
    sources, rows = mixture.assign(np.arange(600))
    assert list(zip(sources.tolist(), rows.tolist(), strict=True)) == expected
    some = data.draw(st.lists(st.integers(0, 599), max_size=10))
    sources, rows = mixture.assign(np.array(some, np.int64))
    assert list(zip(sources.tolist(), rows.tolist(), strict=True)) == [expected[n] for n in some]
    for row in [*some, 600]:
        before = [source for source, _ in expected[:row]]
        assert mixture.counts(row).tolist() == [before.count(n) for n in range(len(mixture.names))]


@pytest.mark.parametrize("block", [10, 1_000, 10_000])
def test_each_block_has_the_exact_shares_in_its_own_order(block):
    mixture = MixtureOrder(names=("a", "b", "c"), phases=((0, (0.5, 0.3, 0.2)),), block=block)
    sources, _ = mixture.assign(np.arange(20 * block))
    blocks = sources.reshape(20, block)
    for source, share in enumerate((0.5, 0.3, 0.2)):
        assert ((blocks == source).sum(axis=1) == share * block).all()
    assert len({tuple(layout) for layout in blocks.tolist()}) == 20


def test_slots_of_a_block_go_to_each_source_equally_often():
    mixture = MixtureOrder(names=("a", "b"), phases=((0, (1, 3)),), block=20)
    blocks = mixture.assign(np.arange(400_000))[0].reshape(20_000, 20)
    counts = (blocks == 0).sum(axis=0)
    # Each count is binomial: 5,000 of 20,000, give or take 61.
    assert np.abs(counts - 5_000).max() < 4 * 61.3
    together = (blocks[:, :-1] & blocks[:, 1:]).sum(axis=0) / 20_000
    assert np.abs(together - 15 * 14 / (20 * 19)).max() < 4 * np.sqrt(0.25 / 20_000)


@pytest.mark.parametrize("first", [0, 10**15 + 7, 2**61])
def test_sources_give_their_rows_in_turn_at_any_row(first):
    phases = ((0, (5, 2, 1)), (123_457, (1, 0, 3)), (2**60, (1, 1, 1)))
    mixture = MixtureOrder(names=("a", "b", "c"), phases=phases, seed=9)
    sources, rows = mixture.assign(np.arange(first, first + 300_000))
    before = mixture.counts(first)
    for source in range(3):
        taken = rows[sources == source]
        assert np.array_equal(taken, before[source] + np.arange(len(taken)))
    after = before + np.bincount(sources, minlength=3)
    assert mixture.counts(first + 300_000).tolist() == after.tolist()
    assert after.sum() == first + 300_000


def test_a_later_phase_changes_nothing_before_it():
    short = MixtureOrder(names=("a", "b"), phases=((0, (1, 2)),), block=30)
    long = MixtureOrder(names=("a", "b"), phases=((0, (1, 2)), (1_000, (1, 0))), block=30)
    for one, other in zip(
        short.assign(np.arange(1_000)), long.assign(np.arange(1_000)), strict=True
    ):
        assert np.array_equal(one, other)
    sources, rows = long.assign(np.arange(1_000, 1_100))
    assert not sources.any()
    assert rows.tolist() == list(range(short.counts(1_000)[0], short.counts(1_000)[0] + 100))


def test_rows_may_have_any_order_and_shape():
    mixture = MixtureOrder(names=("a", "b"), phases=((0, (1, 2)), (500, (2, 1))), block=64)
    rows = np.random.default_rng(3).integers(0, 100_000, (20, 30))
    sources, numbers = mixture.assign(rows)
    all_sources, all_numbers = mixture.assign(np.arange(100_000))
    assert np.array_equal(sources, all_sources[rows])
    assert np.array_equal(numbers, all_numbers[rows])
    assert mixture.assign(np.empty(0, np.int64))[0].shape == (0,)


def test_writing_to_results_does_not_change_later_ones():
    mixture = MixtureOrder(names=("a", "b"), phases=((0, (1, 2)),))
    expected = mixture.assign(np.arange(50))[0].tolist()
    sources, rows = mixture.assign(np.arange(50))
    sources[:], rows[:] = -1, -1
    mixture.counts(50)[:] = -1
    assert mixture.assign(np.arange(50))[0].tolist() == expected
    assert mixture.counts(50).tolist() == [expected.count(0), expected.count(1)]


def test_seeds_change_the_order_and_pickling_keeps_it():
    orders = {}
    for seed in range(5):
        mixture = MixtureOrder(names=("a", "b"), phases=((0, (1, 2)),), seed=seed)
        orders[seed] = tuple(mixture.assign(np.arange(100))[0].tolist())
        copy = pickle.loads(pickle.dumps(mixture))
        assert tuple(copy.assign(np.arange(100))[0].tolist()) == orders[seed]
    assert len(set(orders.values())) == 5


@settings(deadline=None)
@given(st.lists(weight, min_size=1, max_size=30).filter(any), st.integers(1, 10_000))
def test_shares_are_within_a_slot_of_the_exact_ones(weights, slots):
    shares = share_slots(tuple(weights), slots)
    assert sum(shares) == slots
    total = sum(map(Fraction, weights))
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - Fraction(weight) * slots / total) < 1
        assert weight or not share


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phases": ((0, (1, 1e-5)),)}, "source 'b' has weight 1e-05 of 1.00001 in the phase from"),
        ({"phases": ((0, (1, 1e-5)),)}, "larger block, a larger weight, or weight 0"),
        ({"phases": ((0, (1, 1)), (10, (1, -1)))}, "weight -1 in the phase from row 10"),
        ({"phases": ((0, (1, float("nan"))),)}, "weight nan"),
        ({"phases": ((0, (1, float("inf"))),)}, "weight inf"),
        ({"phases": ((0, (0, 0.0)),)}, "all weights are 0"),
        ({"phases": ((0, (1,)),)}, "1 weights for 2 sources"),
        ({"phases": ()}, "the first must be row 0"),
        ({"phases": ((5, (1, 1)),)}, "rows [5]"),
        ({"phases": ((0, (1, 1)), (9, (1, 1)), (9, (1, 2)))}, "the numbers must increase"),
        ({"names": ("a", "a")}, "none twice"),
        ({"names": ()}, "at least one"),
        ({"block": 0}, "`block` is 0"),
        ({"block": 2**20 + 1}, "from 1 to 1,048,576"),
    ],
)
def test_invalid_settings_are_refused(change, message):
    with pytest.raises(UsageError) as refusal:
        MixtureOrder(**{"names": ("a", "b"), "phases": ((0, (1, 1)),)} | change)
    assert message in str(refusal.value)


def test_negative_rows_are_refused():
    mixture = MixtureOrder(names=("a",), phases=((0, (1,)),))
    with pytest.raises(UsageError, match="row -1 does not exist"):
        mixture.assign(np.array([-1]))
    with pytest.raises(UsageError, match="row -1 does not exist"):
        mixture.counts(-1)
