"""The orders look random: chi-square tests with fixed keys, so that results never vary.

Each test compares counts with what uniform orders would give. `surprise` turns the chi-square sum
into a standard normal deviate; beyond 4 on either side, too even included, is a failure. Keys are
neighbours (0, 1, 2, ...), the hardest case.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tokenmill.order.permutation import Permutation, derive_keys, make_key, permute
from tokenmill.order.rows import RowOrder

BOUND = 4


def surprise(counts, expected):
    """How far counts are from the expected ones, in standard deviations (Wilson and Hilferty)."""
    counts, expected = np.broadcast_arrays(counts, expected)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = counts.size - 1
    spread = 2 / (9 * freedom)
    return ((chi_square / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def orders(size, keys):
    """The orders (keys, size) of the keys 0, 1, 2, ..."""
    places = np.tile(np.arange(size), keys)
    return permute(places, size, np.repeat(np.arange(keys, dtype=np.uint64), size)).reshape(
        keys, size
    )


@pytest.mark.parametrize("size", [2, 3, 5, 8, 16, 63, 64, 100])
def test_every_element_reaches_every_place_equally_often(size):
    drawn = orders(size, 20_000)
    for element in range(size):
        counts = np.bincount(drawn[:, element], minlength=size)
        assert abs(surprise(counts, len(drawn) / size)) < BOUND, element


@pytest.mark.parametrize("size", [3, 4, 5, 6, 7])
def test_every_order_of_a_few_places_is_equally_frequent(size):
    # All orders, not only the even ones: a grid of 3 by 3 for 7 places would show here.
    drawn = orders(size, 60_000)
    _, counts = np.unique(drawn @ size ** np.arange(size), return_counts=True)
    assert len(counts) == math.factorial(size)
    assert abs(surprise(counts, len(drawn) / len(counts))) < BOUND


@pytest.mark.parametrize("size", [9, 25, 81, 225])
def test_odd_permutations_are_as_frequent_as_even_ones(size):
    odd = 0
    for order in orders(size, 1_000).tolist():
        cycles, seen = 0, set()
        for start in range(size):
            cycles += start not in seen
            while start not in seen:
                seen.add(start)
                start = order[start]
        odd += (size - cycles) % 2
    assert abs(surprise(np.array([odd, 1_000 - odd]), 500)) < BOUND


@pytest.mark.parametrize("size", [8, 16, 40])
def test_neighbours_go_to_every_pair_of_places_equally_often(size):
    drawn = orders(size, 60_000)
    for left in (0, 1, size // 2, size - 2):
        pairs = np.bincount(drawn[:, left] * size + drawn[:, left + 1], minlength=size * size)
        off_diagonal = np.delete(pairs, np.arange(size) * (size + 1))
        assert off_diagonal.sum() == len(drawn)
        assert abs(surprise(off_diagonal, len(drawn) / off_diagonal.size)) < BOUND


@pytest.mark.parametrize("size", [4_096, 4_097, 10**6 + 3, 2**40 + 1, 2**62])
@pytest.mark.parametrize("apart", [1, 2, 1_000])
def test_gaps_between_neighbours_are_uniform(size, apart):
    places = np.arange(min(size, 500_000))
    reached = Permutation(size, 11)(places)
    gaps = (reached[apart:] - reached[:-apart]) % size
    counts = np.bincount((gaps / size * 100).astype(int), minlength=100)
    assert abs(surprise(counts, len(gaps) / 100)) < BOUND


@pytest.mark.parametrize("size", [10**6 + 3, 2**40 + 1, 2**62])
def test_a_range_of_places_spreads_evenly_at_large_and_small_scale(size):
    reached = Permutation(size, 12)(np.arange(200_000))
    coarse = np.bincount((reached / size * 64).astype(int), minlength=64)
    fine = np.bincount(reached % 61, minlength=61)
    assert abs(surprise(coarse, len(reached) / 64)) < BOUND
    assert abs(surprise(fine, len(reached) / 61)) < BOUND


def agreements(first, second):
    return int((first == second).sum())


def check_poisson(counts):
    """Unrelated orders agree in k places with the probability 1 / (e k!)."""
    seen = np.bincount(np.minimum(counts, 5), minlength=6)
    expected = np.array([1 / math.factorial(k) for k in range(5)]) / math.e
    expected = np.append(expected, 1 - expected.sum()) * len(counts)
    assert abs(surprise(seen, expected)) < BOUND


@pytest.mark.parametrize("size", [50, 1_000, 5_000])
def test_epochs_agree_only_by_chance_and_are_uncorrelated(size):
    order = RowOrder(tokens=size + 1, seq_len=1, seed=1)
    epochs = order.starts(np.arange(400 * size)).reshape(400, size)
    check_poisson([agreements(a, b) for a, b in itertools.pairwise(epochs)])
    check_poisson([agreements(epoch, np.arange(size)) for epoch in epochs])
    correlations = np.corrcoef(epochs)[np.triu_indices(400, 1)] * math.sqrt(size - 1)
    assert abs(correlations.mean()) < 4 / math.sqrt(len(correlations))
    assert correlations.std() == pytest.approx(1, abs=0.02)


def test_neighbouring_seeds_agree_only_by_chance():
    size = 1_000
    first_epochs = [
        RowOrder(tokens=size + 1, seq_len=1, seed=seed).starts(np.arange(size))
        for seed in range(400)
    ]
    check_poisson([agreements(a, b) for a, b in itertools.pairwise(first_epochs)])


def test_no_two_of_seed_epoch_and_name_share_an_order():
    seen = set()
    for seed in range(10):
        for name in ("", "a", "b"):
            order = RowOrder(tokens=101, seq_len=1, seed=seed, name=name)
            epochs = order.starts(np.arange(1_000)).reshape(10, 100)
            seen |= {tuple(epoch) for epoch in epochs.tolist()}
    assert len(seen) == 10 * 3 * 10


def test_random_starts_are_uniform_and_unrelated_to_their_neighbours():
    order = RowOrder(tokens=1_064, seq_len=64, seed=3, kind="random")
    starts = order.starts(np.arange(500_000))
    assert abs(surprise(np.bincount(starts, minlength=1_000), 500)) < BOUND
    pairs = np.bincount(starts[:-1] // 50 * 20 + starts[1:] // 50, minlength=400)
    assert abs(surprise(pairs, len(starts[1:]) / 400)) < BOUND


def test_keys_derived_from_one_key_are_uniform():
    numbers = derive_keys(make_key("any", 1), np.arange(500_000))
    for shift in range(0, 64, 8):
        octets = (numbers >> np.uint64(shift)) & np.uint64(255)
        counts = np.bincount(octets.astype(int), minlength=256)
        assert abs(surprise(counts, len(numbers) / 256)) < BOUND, shift
