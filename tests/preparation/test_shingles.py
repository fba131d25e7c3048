"""Shingles: sets, samples and band hashes, next to sets of tuples of words."""

from __future__ import annotations

import random

import naive_near
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.preparation.shingles import MOST, Shingler, sample, shingle_texts
from tokenmill.preparation.signatures import Bands

LETTERS = "aAbZ09_ÄßéñİЖжΩπקرأनमस्ते한국어中文字ひらカナไทยខ្មែ²½"
OTHERS = " \n\t\0.,-'\"“”…—。、！？٪।·€±→▲😀𝒳𠀀\u00a0\u3000\ufeff"
ALPHABET = [c for c in LETTERS + OTHERS if c not in "²½İ𠀀"]
texts = st.text(st.sampled_from(ALPHABET), max_size=120)
broken = st.lists(st.sampled_from("aÄ中😀 ".encode()), max_size=300).map(bytes)


def shingles_of(text: bytes, *cuts: int) -> np.ndarray:
    shingler = Shingler()
    for start, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
        shingler.add(text[start:end])
    found, level = shingler.finish()
    assert level == 0
    return found


@given(st.lists(texts, min_size=1, max_size=6))
def test_sets_of_many_texts_are_those_of_their_words(some: list[str]) -> None:
    block = b"\0".join(text.encode() for text in some)
    sizes = np.array([len(text.encode()) for text in some])
    ends = np.cumsum(sizes + 1) - 1
    found, counts = shingle_texts(block, ends - sizes, ends)
    expected = [naive_near.shingles(text) for text in some]
    assert counts.tolist() == [len(one) for one in expected]
    sets = [set(one.tolist()) for one in np.split(found, np.cumsum(counts)[:-1])]
    for one, mine in zip(expected, sets, strict=True):
        for other, yours in zip(expected, sets, strict=True):
            assert len(mine & yours) == len(one & other)
    assert all(sorted(one) == list(one) for one in np.split(found, np.cumsum(counts)[:-1]))


@given(texts.map(str.encode) | st.binary(max_size=300) | broken, st.data())
def test_a_text_may_be_cut_anywhere(text: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    assert shingles_of(text, *cuts).tolist() == shingles_of(text).tolist()


def test_long_words_are_cut_and_may_arrive_in_pieces() -> None:
    chance = random.Random(1)
    text = "".join(chance.choice("abcdefgÄß") for _ in range(5000)).encode()
    whole = shingles_of(text)
    assert len(whole) == -(-len(text) // 64) - 4
    assert shingles_of(text, *range(7, len(text), 7)).tolist() == whole.tolist()
    assert shingles_of(text * 100, 1, 64, 65, 300_001).tolist() == shingles_of(text * 100).tolist()


def test_a_large_set_is_a_sample_that_keeps_its_similarity() -> None:
    words = np.random.default_rng(1).integers(0, 1 << 40, 2 * MOST).astype("S").tolist()
    one, two = Shingler(), Shingler()
    one.add(b" ".join(words))
    two.add(b" ".join(words[: MOST // 2 + 9]))  # a quarter, not sampled
    (sampled, level), (small, zero) = one.finish(), two.finish()
    assert (level, zero) == (1, 0)
    assert MOST * 0.98 < len(sampled) <= MOST
    assert sample(sampled, level).tolist() == sampled.tolist()
    shared = np.intersect1d(sampled, sample(small, level)).size
    total = np.union1d(sampled, sample(small, level)).size
    assert shared / total == pytest.approx(0.25, abs=0.003)


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
def test_sets_at_the_threshold_have_a_band_in_common(threshold: float) -> None:
    chance = np.random.default_rng(2)
    bands = Bands.choose(threshold)
    found = []
    for size in (10, 40, 128, 129, 150, 600):
        sets, sizes = [], []
        for _ in range(300):
            other = int(chance.integers(np.ceil(size * threshold), size + 1))
            shared = int(np.ceil(threshold * (size + other) / (1 + threshold)))
            numbers = np.unique(chance.integers(0, 1 << 32, 3 * size, np.uint32))
            numbers = chance.permutation(numbers)[: size + other - shared]
            sets += [np.sort(numbers[:size]), np.sort(numbers[size - shared :])]
            sizes += [size, other]
        places, hashes = bands.hash(np.concatenate(sets), np.array(sizes))
        own = [set(one.tolist()) for one in np.split(hashes, np.flatnonzero(np.diff(places)) + 1)]
        found += [bool(one & other) for one, other in zip(own[::2], own[1::2], strict=True)]
    assert np.mean(found) > 0.99
