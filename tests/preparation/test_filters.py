"""Filters: every rule decides as a plain implementation of one text does."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_filters import MEASURES, script
from preparing import python_sources

from tokenmill.preparation.clean import clean
from tokenmill.preparation.filter_judge import FilterJudge
from tokenmill.preparation.filters import rules
from tokenmill.preparation.filters.block import Block
from tokenmill.preparation.filters.rules import PRESETS, REPEATED, RULES, TOP, Rule, parse_filters
from tokenmill.preparation.filters.scripts import share_of_script
from tokenmill.preparation.texts import Texts

# For each measure, thresholds on which random texts differ.
THRESHOLDS = {
    "bytes": 200, "words": 20, "word_length": 5, "hashes": 0.05, "ellipses": 0.05,
    "bullet_lines": 0.2, "ellipsis_lines": 0.1, "letter_words": 0.8, "stop_words": 2,
    "punctuated_lines": 0.3, "short_lines": 0.6, "newlines": 0.2, "line_bytes": 80,
    "encoded_lines": 0.1, "brace_lines": 0, "placeholder_lines": 0, "sentences": 2,
}  # fmt: skip
WORDS = [
    "the", "of", "and", "that", "have", "with", "be", "to", "The", "there", "a", "I", "word", "words",
    "x" * 9, "y" * 17, "longword" * 10, "1", "2024", "3.14", "#", "##", "...", "....", "......", "…",
    "wait...", "so…", "-", "•", "•x", "-x", "—", "«", "end.", "end?", "end!", "\"end.\"", "'", "{", "}",
    "{x}.", "Lorem", "ipsum", "lorem ipsum", "JavaScript", "privacy policy", "Terms of Use", "use cookies.",
    "é", "über", "日本語", "日本。", "мир", "слово.", "🙂", "x-y", "a,b", ",", "!", "\u00a0", "؟",
    "end.[1]", "[12][edit]", "x.[citation needed]", "[a]", "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5ejAxMjM0NTY3ODk=",
]  # fmt: skip
BETWEEN = [" "] * 12 + ["\n", "\n", "\n\n", "\n    ", "\t", "\n- ", " \v"]
PHRASES = [
    "This is lorem ipsum.\n", "Get JavaScript to run.\n", "We use cookies here. Thanks.\n", "It is {so}.\n",
    "one two three four five six", "a b c d e f g h i j k l", "the same line\n", "again\n\n",
]  # fmt: skip


def make_text(chance: random.Random) -> str:
    few = chance.sample(WORDS, chance.randrange(1, 12))
    pieces = []
    for _ in range(chance.choice([1, 3, 10, 40, 150])):
        choice = chance.random()
        if choice < 0.1:
            pieces.append(chance.choice(PHRASES))
        else:
            pieces.append(chance.choice(few if choice < 0.6 else WORDS))
        pieces.append(chance.choice(BETWEEN))
    return clean("".join(pieces)) or "x"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """10,000 documents: real and random text."""
    chance = random.Random(3)
    found = [clean(text) for text in python_sources(2_000_000)]
    pieces = [
        text[i : i + chance.randrange(20, 3000)]
        for text in found
        for i in range(0, len(text), 4000)
    ]
    pieces = [cleaned for piece in pieces if (cleaned := clean(piece))]
    whole = [*found[:20], *pieces]
    while len(whole) < 10_000:
        whole.append(make_text(chance))
    chance.shuffle(whole)
    return whole


def chunk_of(texts: Sequence[str]) -> Texts:
    raw = [text.encode() for text in texts]
    return Texts.of(raw, list(range(len(raw))), np.array(list(map(len, raw))), None)


def check(texts: Sequence[str], rules: Sequence[Rule]) -> None:
    """Compare each text's first broken rule, and its measure, with the plain implementation."""
    verdicts = FilterJudge(rules).judge(chunk_of(texts))
    for text, number, value in zip(texts, verdicts.numbers.tolist(), verdicts.values, strict=True):
        expected, measured = 0, 0.0
        for place in sorted(range(len(rules)), key=lambda i: rules[i].repeats):
            rule = rules[place]
            measured = MEASURES[rule.measure](text)
            if measured < rule.threshold if rule.is_least else measured > rule.threshold:
                expected = place + 1
                break
        assert number == expected, (rules[max(number, expected) - 1], text)
        if number:
            assert value == pytest.approx(measured)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_decide_as_the_plain_rules(texts: list[str], preset: str) -> None:
    check(texts, parse_filters([preset]))


@pytest.mark.parametrize("measure", THRESHOLDS)
def test_measures_equal_the_plain_ones(texts: list[str], measure: str) -> None:
    rule = Rule(name=measure, measure=measure, is_least=False, threshold=THRESHOLDS[measure])
    some = texts[:2500]
    block = Block("\0".join(some).encode())
    measured = rules.MEASURES[measure](block).tolist()
    assert measured == pytest.approx([MEASURES[measure](text) for text in some])
    above = sum(value > rule.threshold for value in measured)
    assert 0 < above < len(some)


@pytest.mark.parametrize("threshold", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("measure", [*TOP, *REPEATED, "repeated_lines", "repeated_line_text"])
def test_repetition_is_bounded_but_decided_exactly(
    texts: list[str], measure: str, threshold: float
) -> None:
    check(texts[:600], [Rule(name=measure, measure=measure, is_least=False, threshold=threshold)])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_text(data: st.DataObject) -> None:
    pieces = st.lists(st.sampled_from(WORDS + BETWEEN + PHRASES) | st.text(max_size=3), max_size=40)
    whole = data.draw(st.lists(pieces.map("".join), min_size=1, max_size=5))
    texts = [
        text for one in whole if (text := one.replace("\0", "").encode(errors="ignore").decode())
    ]
    if texts:
        name = data.draw(st.sampled_from(sorted(RULES)))
        measure, is_least = RULES[name]
        threshold = data.draw(st.sampled_from([0, 0.01, 0.1, 0.5, 1, 3, 20]))
        check(texts, [Rule(name=name, measure=measure, is_least=is_least, threshold=threshold)])


def test_scripts() -> None:
    texts = ["plain", "мир and peace", "日本語の文", "12 34", "Ärger über 日本", "ﬁ «—»"]
    block = Block("\0".join(texts).encode())
    for name in ("Latin", "Cyrillic", "Han"):
        expected = [script(text, name) for text in texts]
        assert share_of_script(block, script=name).tolist()[:5] == pytest.approx(expected[:5])


@pytest.mark.parametrize("size", [999, 1000, 1001, 1002, 1500, 2048])
def test_lines_with_very_long_words(size: int) -> None:
    line = f"one two {'z' * size}."
    texts = [line, f"{line}\nOne two three. Four.", "é" * size, f"x1{'y' * size}", "a " * size]
    for measure in ("sentences", "encoded_lines"):
        measured = rules.MEASURES[measure](Block("\0".join(texts).encode())).tolist()
        assert measured == pytest.approx([MEASURES[measure](text) for text in texts])
