"""Augmentation is a function of (seed, row); compared with a slow second implementation."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.errors import DatasetError, UsageError
from tokenmill.training.augment import augment
from tokenmill.training.config import Config
from tokenmill.training.model import padded_vocab

VOCAB, END = 50, 49
MANY = np.random.default_rng(0).integers(0, VOCAB, (400, 65))


def changed(rows: np.ndarray, first: int = 0, eot_id: int | None = END, **fractions: float):
    return augment(rows, first, config=Config(**fractions), vocab=VOCAB, eot_id=eot_id)


def whole(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])
    return np.hstack([inputs, targets[:, -1:]])


def test_rows_are_views_without_augmentation() -> None:
    inputs, targets = changed(MANY)
    assert np.shares_memory(inputs, MANY)
    assert np.array_equal(inputs, MANY[:, :-1])
    assert np.array_equal(targets, MANY[:, 1:])


@pytest.mark.parametrize("kind", ["mask_fraction", "noise_fraction", "fim_fraction"])
@settings(deadline=None)
@given(cut=st.integers(0, 20), first=st.integers(0, 2**40))
def test_augmentation_depends_only_on_the_row_number(kind: str, cut: int, first: int) -> None:
    rows = MANY[:20]
    together = changed(rows, first, **{kind: 0.5})
    parts = (
        changed(rows[:cut], first, **{kind: 0.5}),
        changed(rows[cut:], first + cut, **{kind: 0.5}),
    )
    for number in (0, 1):
        assert np.array_equal(together[number], np.vstack([part[number] for part in parts]))


@pytest.mark.parametrize("kind", ["mask_fraction", "noise_fraction", "fim_fraction"])
def test_other_rows_and_seeds_are_augmented_differently(kind: str) -> None:
    one = changed(MANY, **{kind: 0.5})[0]
    assert not np.array_equal(one, changed(MANY, 1, **{kind: 0.5})[0])
    assert not np.array_equal(one, changed(MANY, seed=43, **{kind: 0.5})[0])


def test_masks_have_the_configured_share_and_targets_stay() -> None:
    inputs, targets = changed(np.full_like(MANY, 7), mask_fraction=0.2)
    assert set(np.unique(inputs)) == {7, END}
    assert (inputs == END).mean() == pytest.approx(0.2, abs=0.01)
    assert (targets == 7).all()
    # Over places and over rows alike.
    assert np.ptp((inputs == END).mean(axis=0)) < 0.2
    assert np.ptp((inputs == END).mean(axis=1)) < 0.5
    assert (changed(MANY, mask_fraction=1)[0] == END).all()


def test_noise_is_uniform_and_targets_stay() -> None:
    inputs, targets = changed(np.full_like(MANY, 7), noise_fraction=1)
    counts = np.bincount(inputs.ravel(), minlength=VOCAB)
    assert len(counts) == VOCAB
    expected = inputs.size / VOCAB
    assert ((counts - expected) ** 2 / expected).sum() < 100  # chi-square of 49: 100 is p < 1e-4
    assert (targets == 7).all()


def test_masking_needs_an_end_of_text() -> None:
    with pytest.raises(UsageError, match="no end-of-text id"):
        changed(MANY, eot_id=None, mask_fraction=0.1)


def rearrangements(row: list[int], eot_id: int | None) -> set[tuple[int, ...]]:
    """Every possible rearrangement of a row."""
    room = row[:-3]
    borders = [-1, *(place for place, one in enumerate(room) if one == eot_id), len(room)]
    found = set()
    for before, end in pairwise(borders):
        start = before + 1
        for first in range(start, end + 1):
            for second in range(first, end + 1):
                prefix, middle, suffix = row[start:first], row[first:second], row[second:end]
                made = [VOCAB, *prefix, VOCAB + 1, *suffix, VOCAB + 2, *middle]
                found.add((*row[:start], *made, *row[end : len(room)]))
    return found


@settings(deadline=None)
@given(
    st.lists(st.integers(0, VOCAB - 1) | st.just(END), min_size=6, max_size=14),
    st.sampled_from([END, None]),
    st.integers(0, 2**32),
)
def test_fill_in_the_middle_moves_one_piece_of_one_document(
    row: list[int], eot_id: int | None, first: int
) -> None:
    inputs, targets = changed(np.array([row]), first, eot_id, fim_fraction=1)
    assert tuple(whole(inputs, targets)[0].tolist()) in rearrangements(row, eot_id)


def test_every_rearrangement_of_a_row_occurs() -> None:
    row = [1, 2, END, 3, 4, 5, 6, 7]
    rows = np.tile(row, (5_000, 1))
    found = {tuple(made) for made in whole(*changed(rows, fim_fraction=1)).tolist()}
    assert found == rearrangements(row, END)


def test_the_configured_share_of_rows_is_rearranged() -> None:
    inputs, _ = changed(np.tile(MANY, (5, 1)), fim_fraction=0.3)
    assert (inputs >= VOCAB).any(axis=1).mean() == pytest.approx(0.3, abs=0.03)


def test_markers_have_their_own_ids_and_are_never_masked() -> None:
    config = Config(fim_fraction=1, mask_fraction=1)
    inputs, _ = augment(MANY, 0, config=config, vocab=VOCAB, eot_id=END)
    assert set(np.unique(inputs)) == {END, VOCAB, VOCAB + 1, VOCAB + 2}
    for vocab in (61, 62, 64, 50_257, 65_535):
        padded = padded_vocab(vocab, config)
        assert padded % 64 == 0
        assert vocab + 3 <= padded < vocab + 3 + 64
    narrow = augment(
        np.zeros((2, 9), np.uint16), 0, config=Config(fim_fraction=1), vocab=65_535, eot_id=None
    )
    assert narrow[0].max() >= 65_535


def test_rows_too_short_for_markers_are_not_changed() -> None:
    rows = MANY[:, :4]
    assert np.array_equal(whole(*changed(rows, fim_fraction=1)), rows)


@pytest.mark.parametrize("wrong", [-1, VOCAB, 2**31])
def test_ids_beyond_the_vocabulary_are_an_error_that_names_the_row(wrong: int) -> None:
    rows = MANY[:10].copy()
    rows[3, -1] = wrong
    with pytest.raises(DatasetError, match=f"row 1,003 of the run contains the id {wrong}, "):
        changed(rows, 1_000)
