"""Cutting passages: nothing protected is left, other words stay, and cleaned text stays cleaned."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from plain_words import all_units, find_units, words_of

from tokenmill.contamination.cutting import cut_passages, cut_protected
from tokenmill.contamination.protected import EvaluationFile, Text, protect
from tokenmill.preparation.clean import clean

EVALUATION = [
    "one two three four five six seven eight",
    "東京都の人口は何人",
    "is this a short question",
]
UNITS = all_units(EVALUATION, 6)
PROTECTED = protect(
    [Text(0, n, text.encode()) for n, text in enumerate(EVALUATION)],
    [EvaluationFile("eval", "line")],
    size=6,
    common=9,
)
pieces = st.sampled_from(
    [
        *EVALUATION,
        "ONE, two\nthree  four (five) six",
        "two three four five six seven. ",
        "other",
        " ",
        "\n",
        "\n\n",
        "    ",
        "\t",
        ".",
        "(",
        ")",
        "é",
        "words ",
        "one two three ",
    ]
)


@settings(deadline=None)
@given(st.lists(pieces, max_size=12).map("".join).map(clean))
def test_no_protected_text_is_left_and_clean_text_stays_clean(text: str) -> None:
    left = cut_protected(text.encode(), PROTECTED).decode()
    assert find_units(left, UNITS) == []
    assert clean(left) == left
    if not find_units(text, UNITS):
        assert left == text
    rest = iter(words_of(text))
    assert all(word in rest for word in words_of(left))  # in order


def test_only_the_passage_is_cut() -> None:
    text = "Before it.\n\n    One two, three four five six seven eight?!\n\nAfter it:东京。"
    assert cut_protected(text.encode(), PROTECTED).decode() == "Before it.\n\n    After it:东京。"
    assert cut_passages(b"a (b) c", [(1, 2)]) == b"a ( c"
    assert cut_passages(b"a b", [(0, 2)]) == b""
