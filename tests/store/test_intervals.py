"""Intervals, against a search for each number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.store.intervals import Intervals, find_distinct


@given(
    counts=st.lists(st.one_of(st.just(0), st.integers(0, 9), st.integers(0, 10**12)), min_size=1),
    data=st.data(),
)
def test_intervals_are_those_that_a_search_finds(counts, data):
    starts = np.append(0, np.cumsum(counts)).astype(np.int64)
    end = int(starts[-1])
    places = data.draw(st.lists(st.integers(0, end - 1))) if end else []
    edges = [place for start in starts.tolist() for place in (start - 1, start) if 0 <= place < end]
    numbers = np.array(places + edges, np.int64)
    expected = starts[:-1].searchsorted(numbers, "right") - 1
    assert Intervals(starts).find(numbers).tolist() == expected.tolist()


@pytest.mark.parametrize("sizes", ["equal", "any", "tiny and huge"])
def test_many_intervals(sizes):
    random = np.random.default_rng(5)
    counts = {
        "equal": np.append(np.full(1_999, 10_000), 17),
        "any": random.integers(0, 20_000, 2_000),
        "tiny and huge": (10 ** random.uniform(0, 7, 2_000)).astype(np.int64),
    }[sizes]
    starts = np.append(0, np.cumsum(counts))
    numbers = random.integers(0, starts[-1], 50_000)
    found = Intervals(starts).find(numbers)
    assert ((starts[found] <= numbers) & (numbers < starts[found + 1])).all()


@given(numbers=st.lists(st.integers(0, 40), min_size=1), more=st.integers(0, 100))
def test_distinct_numbers_are_those_of_numpy(numbers, more):
    array = np.array(numbers, np.int64)
    found = find_distinct(array, int(array.max()) + 1 + more)
    expected = np.unique(array, return_inverse=True)
    assert [part.tolist() for part in found] == [part.tolist() for part in expected]
