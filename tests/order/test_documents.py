"""The documents of a batch equal those of counting token by token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.errors import UsageError
from tokenmill.order.documents import locate_documents, locate_documents_by_id


def count_token_by_token(starts, rows, seq_len):
    ids, positions, cu_seqlens = [], [], []
    for row in range(rows):
        document = position = -1
        for place in range(seq_len):
            position += 1
            if place == 0 or (row, place) in starts:
                document, position = document + 1, 0
                cu_seqlens.append(row * seq_len + place)
            ids.append(document)
            positions.append(position)
    return ids, positions, [*cu_seqlens, rows * seq_len]


@given(data=st.data(), rows=st.integers(1, 6), seq_len=st.integers(1, 12))
def test_documents_equal_counting_token_by_token(data, rows, seq_len):
    places = st.tuples(st.integers(0, rows - 1), st.integers(0, seq_len - 1))
    starts = data.draw(st.lists(places, max_size=15))  # empty documents repeat a place
    pairs = np.array(starts, np.int64).reshape(-1, 2)
    batch = locate_documents(pairs[:, 0] * seq_len + pairs[:, 1], rows, seq_len)
    ids, positions, cu_seqlens = count_token_by_token(set(starts), rows, seq_len)
    assert batch.ids.shape == batch.positions.shape == (rows, seq_len)
    assert batch.ids.ravel().tolist() == ids
    assert batch.positions.ravel().tolist() == positions
    assert batch.cu_seqlens.tolist() == cu_seqlens
    assert (np.diff(batch.cu_seqlens) > 0).all()
    assert batch.max_seqlen == max(positions) + 1
    for array in (batch.ids, batch.positions, batch.cu_seqlens):
        assert array.dtype == np.int32


@given(
    data=st.data(),
    rows=st.integers(0, 6),
    seq_len=st.integers(1, 12),
    eot=st.sampled_from(["after", "before"]),
    scanned_whole=st.sampled_from([1, 8, 1 << 17]),
    dtype=st.sampled_from(["<u2", "<u4", "<i8", "u1"]),
)
def test_documents_by_id_equal_counting_token_by_token(
    data, rows, seq_len, eot, scanned_whole, dtype
):
    size = rows * (seq_len + 1)
    ids = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    eot_id = data.draw(st.sampled_from([0, 2, 70_000, -1]))  # the dtype cannot hold some of them
    tokens = np.array(ids, dtype).reshape(rows, seq_len + 1)
    places = np.argwhere(tokens.astype(object) == eot_id)
    starts = {(row, place + (eot == "after")) for row, place in places.tolist()}
    batch = locate_documents_by_id(tokens, eot_id, eot, scanned_whole=scanned_whole)
    assert batch.cu_seqlens.tolist() == count_token_by_token(starts, rows, seq_len)[2]
    assert batch.cu_seqlens.dtype == np.int32
    if rows in (2, 4, 6):
        halves = [half.cu_seqlens for half in batch.split(2)]
        again = [
            locate_documents_by_id(half, eot_id, eot).cu_seqlens for half in np.split(tokens, 2)
        ]
        assert [half.tolist() for half in halves] == [half.tolist() for half in again]


@pytest.mark.parametrize(
    ("start", "rows", "seq_len", "message"),
    [
        (8, 2, 4, "token 8"),
        (2**40, 2, 4, f"token {2**40}"),
        (-1, 2, 4, "token -1"),
        (0, -1, 4, "-1 rows of 4 tokens"),
        (0, 2, 0, "2 rows of 0 tokens"),
        (0, 2**16, 2**15, "fewer than 2**31"),
    ],
)
def test_starts_outside_of_the_batch_and_impossible_shapes_are_refused(
    start, rows, seq_len, message
):
    with pytest.raises(UsageError) as refusal:
        locate_documents(np.array([0, start]), rows, seq_len)
    assert message in str(refusal.value)
