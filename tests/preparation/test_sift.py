"""sift.py: the choice of a split equals plain Python integers, and is pinned for all versions."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from tokenmill.errors import FolderError
from tokenmill.preparation.choose import _refuse_unfit
from tokenmill.preparation.plan import make_plan
from tokenmill.preparation.sift import belongs_to_val


def naive_fraction(low: int) -> float:
    """SplitMix64's finalizer of the salted low half, as a fraction of 2**64."""
    mask = 2**64 - 1
    x = low ^ int.from_bytes(b"tokenmil", "big")
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return (x ^ (x >> 31)) / 2**64


def test_the_split_follows_from_the_low_half_of_the_key() -> None:
    chance = np.random.default_rng(1)
    keys = chance.integers(0, 2**64, (5000, 2), np.uint64, endpoint=False)
    keys[:4, 1] = [0, 1, 2**63, 2**64 - 1]
    places = [naive_fraction(int(low)) for low in keys[:, 1]]
    for fraction in (0.0, 0.01, 0.3, 0.999):
        assert belongs_to_val(keys, fraction).tolist() == [place < fraction for place in places]
    swapped = np.column_stack([keys[::-1, 0], keys[:, 1]])
    assert np.array_equal(belongs_to_val(swapped, 0.3), belongs_to_val(keys, 0.3))


def test_a_larger_fraction_only_adds_to_validation() -> None:
    keys = np.random.default_rng(2).integers(0, 2**64, (20_000, 2), np.uint64, endpoint=False)
    before = np.zeros(len(keys), np.bool_)
    for fraction in (0.0, 0.01, 0.02, 0.5, 0.9):
        chosen = belongs_to_val(keys, fraction)
        assert not (before & ~chosen).any()
        assert chosen.mean() == pytest.approx(fraction, abs=0.02)
        before = chosen


def test_the_split_of_a_key_never_changes() -> None:
    keys = np.array([[0, n] for n in range(24)], np.uint64)
    chosen = np.flatnonzero(belongs_to_val(keys, 0.25)).tolist()
    assert chosen == [8, 10, 11, 12, 17, 19]


@pytest.mark.parametrize(
    ("tokens", "records", "source", "fits"),
    [
        ([6, 4], 3, 0, True),
        ([7, 4], 3, 0, False),  # the segment has 10 tokens
        ([6, 4], 4, 0, False),
        ([6, 4], 3, 1, False),  # there is one source
    ],
)
def test_fates_that_their_segment_cannot_have_are_refused(tmp_path, tokens, records, source, fits):
    (tmp_path / "x.txt").write_text("a text")
    plan = make_plan(tmp_path / "x.txt", tmp_path / "out", tokenizer="bytes", workers=1)
    segment = {"name": "a", "files": {"tokens": [20, ""]}, "facts": {"records": 3}}
    facts = {"records": records, "tokens": tokens, "sources": [[source, 0]]}
    with nullcontext() if fits else pytest.raises(FolderError, match="contradict each other"):
        _refuse_unfit(plan, segment, {"name": "b", "facts": facts})
