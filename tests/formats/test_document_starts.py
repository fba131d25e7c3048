"""Document starts are the same in windows of any size as in all tokens at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.formats.document_starts import (
    find_document_starts,
    find_next_start,
    split_between_documents,
)
from tokenmill.store.tokens import Tokens

EOT = 0


def naive_starts(ids, eot):
    places = [place + (eot == "after") for place, one in enumerate(ids) if one == EOT]
    return sorted({0, *places} - {len(ids)})


@settings(max_examples=150, deadline=None)
@given(
    ids=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    eot=st.sampled_from(["after", "before"]),
    window=st.integers(1, 12),
    data=st.data(),
)
def test_starts_are_the_same_in_windows_of_any_length(ids, eot, window, data):
    tokens = Tokens.of(np.array(ids, np.uint16), eot_id=EOT, eot=eot)
    first = data.draw(st.integers(0, len(ids)))
    stop = data.draw(st.integers(first, len(ids)))
    expected = naive_starts(ids, eot)
    blocks = find_document_starts(tokens, first, stop, window=window)
    found = [int(start) for starts in blocks for start in starts]
    assert found == [start for start in expected if first <= start < stop]
    following = [start for start in expected if start >= first]
    assert find_next_start(tokens, first, window=window) == (following or [len(ids)])[0]
    ranges = list(split_between_documents(tokens, window))
    assert [low for low, _ in ranges] == [0, *(high for _, high in ranges[:-1])]
    assert ranges[-1][1] == len(ids)
    assert {low for low, _ in ranges} <= set(expected)
    assert all(high - low >= window for low, high in ranges[:-1])
