"""Every window comes once per epoch, where docs/order.md says."""

from __future__ import annotations

import pickle
from typing import get_args

import numpy as np
import order_reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.errors import UsageError
from tokenmill.order.rows import Kind, RowOrder

row_numbers = st.lists(st.integers(0, 2**60) | st.integers(0, 500), max_size=8)


@st.composite
def settings_of_orders(draw):
    seq_len = draw(st.integers(1, 40))
    extra = draw(st.integers(1, 300) | st.integers(1, 2**61))
    kind = draw(st.sampled_from(["shuffled", "blocks", "blocks", "sequential", "random"]))
    sizes = st.none() | st.integers(1, 50) | st.integers(1, 2**62)
    return {
        "tokens": seq_len + extra,
        "seq_len": seq_len,
        "seed": draw(st.integers(-(2**70), 2**70)),
        "name": draw(st.text(max_size=4)),
        "kind": kind,
        "block_rows": draw(sizes) if kind == "blocks" else None,
        "group_blocks": draw(sizes) if kind == "blocks" else None,
    }


@settings(max_examples=400, deadline=None)
@given(order=settings_of_orders(), rows=row_numbers)
def test_starts_are_as_documented(order, rows):
    expected = [order_reference.row_start(row, **order) for row in rows]
    starts = RowOrder(**order).starts(np.array(rows, np.int64))
    assert starts.tolist() == expected
    assert all(start >= 0 and start + order["seq_len"] + 1 <= order["tokens"] for start in expected)


@pytest.mark.parametrize("kind", ["shuffled", "blocks", "sequential"])
@pytest.mark.parametrize("windows", [1, 2, 3, 7, 14, 15, 16, 59, 60, 61])
def test_every_epoch_visits_every_window_once(windows, kind):
    order = RowOrder(tokens=windows * 5 + 1, seq_len=5, kind=kind)
    assert order.windows == windows
    epochs = order.starts(np.arange(4 * windows)).reshape(4, windows)
    assert (np.sort(epochs) == np.arange(windows) * 5).all()


def test_only_random_rows_use_the_tokens_after_the_last_window():
    order = RowOrder(tokens=110, seq_len=10, kind="sequential")
    assert order.windows == 10  # a window of 11 tokens from 100 on would need one more
    assert RowOrder(tokens=111, seq_len=10).windows == 11
    assert order.starts(np.arange(12)).tolist() == [*range(0, 100, 10), 0, 10]
    drawn = RowOrder(tokens=110, seq_len=10, kind="random").starts(np.arange(5_000))
    assert set(drawn.tolist()) == set(range(100))


def test_rows_may_have_any_order_shape_and_number():
    order = RowOrder(tokens=1_001, seq_len=10, kind="blocks", block_rows=7, group_blocks=3)
    rows = np.random.default_rng(2).integers(0, 100_000, (30, 40))
    alone = [int(order.starts(np.array([row]))[0]) for row in rows.ravel()]
    assert order.starts(rows).tolist() == np.array(alone).reshape(30, 40).tolist()
    assert order.starts(np.empty(0, np.int64)).shape == (0,)


def test_an_order_survives_pickling():
    order = RowOrder(tokens=1_001, seq_len=10, name="web")
    expected = order.starts(np.arange(50)).tolist()
    copy = pickle.loads(pickle.dumps(order))
    assert copy == order
    assert copy.starts(np.arange(50)).tolist() == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": 10}, "source 'web' has 10 tokens, too few for one row of `seq_len` + 1 = 11"),
        ({"tokens": 10}, "`seq_len` of at most 9"),
        ({"tokens": 0}, "has 0 tokens"),
        ({"tokens": 2**62 + 1}, "at most 2**62"),
        ({"seq_len": 0}, "`seq_len` is 0"),
        ({"kind": "shuffle"}, "one of shuffled, blocks, sequential, random"),
        ({"block_rows": 0, "kind": "blocks"}, "`block_rows` is 0"),
        ({"group_blocks": 0, "kind": "blocks"}, "`group_blocks` is 0"),
        ({"block_rows": 4}, "`block_rows` is 4, but `order` is 'shuffled'"),
        ({"group_blocks": 4, "kind": "random"}, "use `order='blocks'`"),
    ],
)
def test_invalid_settings_are_refused(change, message):
    with pytest.raises(UsageError) as refusal:
        RowOrder(**{"tokens": 100, "seq_len": 10, "name": "web"} | change)
    assert message in str(refusal.value)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_negative_rows_are_refused(kind):
    with pytest.raises(UsageError, match="row -3 does not exist"):
        RowOrder(tokens=100, seq_len=10, kind=kind).starts(np.array([5, -3]))


@pytest.mark.parametrize("kind", get_args(Kind))
def test_many_rows_over_several_epochs_equal_separate_calls(kind):
    order = RowOrder(tokens=6_000 * 8 + 1, seq_len=8, seed=3, kind=kind)
    rows = np.arange(3_000, 3_000 + 16_384)
    many = order.starts(rows)
    some = np.r_[0:40, 2_980:3_020, 8_980:9_020, 16_344:16_384]
    assert many[some].tolist() == [int(order.starts(rows[n : n + 1])[0]) for n in some]
