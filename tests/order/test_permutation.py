"""The permutation is a bijection for every size, equals docs/order.md, and depends on the key."""

from __future__ import annotations

import numpy as np
import order_reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.errors import UsageError
from tokenmill.order.permutation import Permutation, derive_keys, make_key, permute

KEYS = (0, 1, 2**64 - 1, 0x0123456789ABCDEF)
any_key = st.integers(0, 2**64 - 1)
any_part = st.integers() | st.text(st.characters(codec=None), max_size=8)


def is_bijection(size, key):
    counts = np.bincount(Permutation(size, key)(np.arange(size)), minlength=size)
    return len(counts) == size and (counts == 1).all()


def test_every_size_up_to_2000_is_a_bijection():
    for size in range(1, 2_001):
        assert is_bijection(size, KEYS[size % len(KEYS)]), size


@pytest.mark.parametrize("power", range(1, 21))
def test_sizes_around_powers_of_two_are_bijections(power):
    for size in (2**power - 1, 2**power, 2**power + 1):
        assert all(is_bijection(size, key) for key in KEYS), size


@pytest.mark.parametrize("size", [2**40 + 1, 2**53 - 1, 2**61 + 1, 2**62 - 1, 2**62])
def test_large_sizes_have_no_repetition_and_stay_inside(size):
    scattered = np.unique(np.random.default_rng(0).integers(0, size, 200_000))
    for places in (np.arange(1_000_000), np.arange(size - 100_000, size), scattered):
        reached = Permutation(size, 5)(places)
        assert reached.min() >= 0
        assert reached.max() < size
        assert len(np.unique(reached)) == len(places)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), size=st.integers(1, 2**62) | st.integers(1, 5_000), key=any_key)
def test_permutation_is_as_documented(data, size, key):
    places = data.draw(st.lists(st.integers(0, size - 1), max_size=6))
    expected = [order_reference.permute(place, size, key) for place in places]
    assert Permutation(size, key)(np.array(places, np.int64)).tolist() == expected


@settings(deadline=None)
@given(keys=st.lists(any_key, min_size=2, max_size=20), size=st.integers(1, 100))
def test_one_key_per_place_equals_separate_calls(keys, size):
    places = np.arange(len(keys)) % size
    together = permute(places, size, np.array(keys, np.uint64))
    alone = [order_reference.permute(n % size, size, key) for n, key in enumerate(keys)]
    assert together.tolist() == alone


@pytest.mark.parametrize("size", [11, 70_001])
def test_one_call_of_many_chunks_equals_many_calls(size):
    places = np.random.default_rng(1).integers(0, size, 50_000)
    keys = derive_keys(3, places)
    whole, many_keys = Permutation(size, 9)(places), permute(places, size, keys)
    for start in range(0, 50_000, 999):
        piece = slice(start, start + 999)
        assert np.array_equal(Permutation(size, 9)(places[piece]), whole[piece])
        assert np.array_equal(permute(places[piece], size, keys[piece]), many_keys[piece])


def test_places_keep_their_shape_and_are_not_modified():
    places = np.arange(12).reshape(3, 4)
    keys = np.array([3], np.uint64)
    result = Permutation(12, 3)(places)
    assert result.shape == (3, 4)
    assert result.ravel().tolist() == permute(np.arange(12), 12, keys).tolist()
    assert places.ravel().tolist() == list(range(12))
    assert keys.tolist() == [3]
    assert Permutation(12, 3)(np.empty(0, np.int64)).shape == (0,)


@settings(deadline=None)
@given(parts=st.lists(any_part, max_size=5))
def test_keys_are_as_documented(parts):
    assert make_key(*parts) == order_reference.make_key(*parts)
    assert 0 <= make_key(*parts) < 2**64


def test_keys_of_similar_parts_differ():
    alike = [
        ("1", "2"),
        ("12",),
        ("1", 2),
        (1, 2),
        (12,),
        ("", "12"),
        ("12", ""),
        (-12,),
        (),
        ("",),
    ]
    assert len({make_key(*parts) for parts in alike}) == len(alike)
    assert make_key(np.int64(5)) == make_key(5)


@settings(deadline=None)
@given(key=any_key, numbers=st.lists(st.integers(0, 2**62), min_size=1, max_size=5))
def test_derived_keys_are_as_documented(key, numbers):
    expected = [order_reference.derive(key, number) for number in numbers]
    assert derive_keys(key, np.array(numbers)).tolist() == expected
    assert derive_keys(np.array([key], np.uint64), np.array(numbers)).tolist() == expected
    assert derive_keys(key, numbers[0]).tolist() == expected[:1]


@pytest.mark.parametrize(
    ("size", "key", "place", "message"),
    [
        (0, 0, 0, "1 to 2**62 places"),
        (2**62 + 1, 0, 0, "1 to 2**62"),
        (5, -1, 0, "key is -1"),
        (5, 2**64, 0, "make_key"),
        (5, 0, 5, "place 5 is not between 0 and 4"),
        (5, 0, -1, "place -1"),
    ],
)
def test_invalid_settings_are_refused(size, key, place, message):
    with pytest.raises(UsageError) as refusal:
        Permutation(size, key)(np.array([0, place]))
    assert message in str(refusal.value)
