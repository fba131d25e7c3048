"""From steps to rows to tokens and back: the same rows as a loader yields, and no others."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.errors import DatasetError, UsageError
from tokenmill.inspect.run_opening import view_data

KINDS = ["shuffled", "blocks", "sequential", "random"]
CHANGES = {40: {"b": 0.0}, 75: {"a": 1.0, "b": 3.0}}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two sources in which no id occurs twice, so that an id says where its token is."""
    folder = tmp_path_factory.mktemp("files")
    np.save(folder / "a.npy", np.arange(0, 211, dtype=np.int32))
    np.save(folder / "b.npy", np.arange(1_000, 1_097, dtype=np.int32))
    return folder


def make_both(files, kind, mixed, seq_len, **settings):
    """The view of some settings, and a loader with the same."""
    sizes = {"block_rows": 3, "group_blocks": 2} if kind == "blocks" else {}
    same = {"seq_len": seq_len, "order": kind, "seed": 3, **sizes, **settings}
    if not mixed:
        loader = tokenmill.Loader(tokenmill.open(files / "a.npy")["train"], rank=0, **same)
        return view_data(files / "a.npy", **same), loader
    sources = {
        name: (tokenmill.open(files / f"{name}.npy")["train"], weight)
        for name, weight in (("a", 2.0), ("b", 1.0))
    }
    mixture = tokenmill.Mixture(sources, changes=CHANGES, block=20)
    data = [f"{name}={files}/{name}.npy:{weight}" for name, (_, weight) in sources.items()]
    view = view_data(data, changes=CHANGES, block=20, **same)
    return view, tokenmill.Loader(mixture, rank=0, **same)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_of_tokens_are_those_that_a_loader_yields_with_them(files, kind, mixed):
    """Brute force: all batches of a loader, searched for every token."""
    view, loader = make_both(files, kind, mixed, 10, batch_size=4, world_size=1)
    rows = np.concatenate([loader.batch_at(step).tokens for step in range(40)])
    names = ["a", "b"] if mixed else [""]
    for name, first in zip(names, (0, 1_000), strict=False):
        length = len(view.tokens(name))
        ranges = [(n, n + 1) for n in range(0, length, 7)]
        ranges += [(0, length), (length - 1, length), (30, 51), (50, 50)]
        for start, stop in ranges:
            holds = ((rows >= first + start) & (rows < first + stop)).any(axis=1)
            for low, high in ((0, 160), (37, 91)):
                found = view.find_rows(name, start, stop, first_row=low, last_row=high)
                assert found.tolist() == (np.flatnonzero(holds[low:high]) + low).tolist()
    assert (view.read(np.arange(160)) == rows).all()


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    mixed=st.booleans(),
    seq_len=st.integers(1, 40),
    first=st.integers(0, 3_000),
    count=st.integers(0, 400),
    start=st.integers(0, 96),
    length=st.integers(0, 60),
)
def test_find_rows_is_the_inverse_of_span(files, kind, mixed, seq_len, first, count, start, length):
    view, _ = make_both(files, kind, mixed, seq_len, batch_size=1, world_size=1)
    spans = [view.span(row) for row in range(first, first + count)]
    stop = min(start + length, 97)
    for name in view.rows.names:
        found = view.find_rows(name, start, stop, first_row=first, last_row=first + count)
        assert found.tolist() == [
            span.row
            for span in spans
            if span.source == name and max(span.start, start) < min(span.stop, stop)
        ]


@pytest.mark.parametrize("kind", ["shuffled", "blocks", "sequential"])
def test_rows_far_into_a_long_run_are_found(files, kind):
    view, _ = make_both(files, kind, True, 10, batch_size=1, world_size=1)
    for row in (10**9 + 7, 10**12, 10**15 + 1):
        span = view.span(row)
        found = view.find_rows(
            span.source, span.start, span.stop, first_row=row - 50, last_row=row + 50
        )
        assert row in found
        assert all(view.span(int(one)).source == span.source for one in found)
        assert view.place(row).step == row


@pytest.mark.parametrize("mixed", [False, True])
def test_steps_and_ranks_have_the_rows_of_their_loaders(files, mixed):
    for world_size, batch_size in itertools.product((1, 3), (1, 4)):
        view, _ = make_both(
            files, "shuffled", mixed, 10, batch_size=batch_size, world_size=world_size
        )
        for rank, step in itertools.product(range(world_size), (0, 1, 17)):
            data = view.rows.data
            loader = tokenmill.Loader(
                data, batch_size=batch_size, seq_len=10, seed=3, rank=rank, world_size=world_size
            )
            batch, rows = loader.batch_at(step), view.step_rows(step, rank)
            assert (batch.row, len(batch.inputs)) == (rows.start, len(rows))
            assert (view.read(np.array(rows)) == batch.tokens).all()
            for index, row in enumerate(rows):
                place = view.place(row)
                assert (place.row, place.step, place.rank) == (row, step, rank)
                assert place.index == index
        assert view.step_rows(17) == range(
            17 * batch_size * world_size, 18 * batch_size * world_size
        )


def test_epochs_are_counted_by_source(files):
    view, _ = make_both(files, "shuffled", True, 10, batch_size=2, world_size=1)
    seen = dict.fromkeys(view.rows.names, 0)
    for row in range(200):
        name = view.span(row).source
        assert view.place(row).epoch == seen[name] // view.order(name).windows
        seen[name] += 1


def test_wrong_questions_are_errors(files):
    view, _ = make_both(files, "shuffled", True, 10, batch_size=2, world_size=2)
    with pytest.raises(UsageError, match="numbered from 0"):
        view.step_rows(1, 2)
    with pytest.raises(UsageError, match="`step` is -1"):
        view.step_rows(-1)
    with pytest.raises(UsageError, match="the sources are a, b"):
        view.find_rows("c", 0, 1, last_row=3)
    with pytest.raises(UsageError, match="needs a name and a weight"):
        view_data([str(files / "a.npy"), str(files / "b.npy")], seq_len=3)
    with pytest.raises(DatasetError, match="does not exist"):
        view_data(Path("nowhere"), seq_len=3)


def test_a_view_without_a_run_has_no_losses(files):
    view, _ = make_both(files, "shuffled", False, 10, batch_size=2, world_size=2)
    assert view.row_count is None
    assert view.losses_count == 0
    assert len(view.losses(0, 10)) == 0


def test_a_compressed_and_resharded_dataset_has_the_same_rows(tmp_path):
    (tmp_path / "x.txt").write_text("\n".join(f"{n} has the square {n * n}" for n in range(900)))
    tokenmill.prepare(
        tmp_path / "x.txt",
        tmp_path / "plain",
        tokenizer="bytes",
        documents="line",
        workers=1,
        val_fraction=0,
    )
    tokenmill.reshard(
        tmp_path / "plain", tmp_path / "packed", tokens_per_shard=999, compress="zstd"
    )
    views = [
        view_data(tmp_path / name, seq_len=32, batch_size=4, order="blocks", block_rows=5)
        for name in ("plain", "packed")
    ]
    plain, packed = views
    rows = np.arange(500, 540)
    assert (plain.read(rows) == packed.read(rows)).all()
    for start in range(0, len(plain.tokens("")), 777):
        one, other = (view.find_rows("", start, start + 40, last_row=4_000) for view in views)
        assert one.tolist() == other.tolist()
