"""Matching, compared with a plain implementation for arbitrary texts and divisions into blocks."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_words import all_units, find_units, words_of

from tokenmill.contamination.folding import fold, locate_words
from tokenmill.contamination.matching import Hits, Stream, find_passages
from tokenmill.contamination.protected import EvaluationFile, Protected, Text, load, protect

FILE = [EvaluationFile("eval.jsonl", "line")]
LONG = "donaudampfschifffahrtsgesellschaft"
pieces = st.sampled_from(
    [
        "the",
        "The ",
        "cat's ",
        "dog, ",
        "dog. ",
        "\n",
        " ",
        "  ",
        "東",
        "京",
        "ナ",
        "ﾅ",
        "กข",
        "Ünï ",
        "ＡＢ ",
        f"{LONG}kapitän ",
        f"{LONG}matrose ",
        "q" * 999 + " ",
        "q" * 1001 + " ",
        "é",
        "\xad",
        "’",
        "naïve ",
        "x-y_z ",
    ]
)
texts = st.lists(pieces, max_size=40).map("".join)


def make(evaluation: list[str], size: int, common: int = 100) -> Protected | None:
    if not all_units(evaluation, size, 10**9):
        return None
    rows = [Text(0, number, text.encode()) for number, text in enumerate(evaluation)]
    return protect(rows, FILE, size=size, common=common)


def spell(hits: Hits, protected: Protected) -> list[list[tuple[int, tuple[str, ...]]]]:
    found: dict[int, list[tuple[int, tuple[str, ...]]]] = {}
    for text, place, unit in zip(
        hits.texts.tolist(), hits.places.tolist(), hits.units.tolist(), strict=True
    ):
        first = int(protected.places[unit])
        words = protected.spell(first, first + int(protected.lengths[unit])).split(" ")
        found.setdefault(text, []).append((place, tuple(words)))
    return [sorted(found.get(text, [])) for text in range(max(found, default=-1) + 1)]


@given(st.text(max_size=60))
def test_folded_words_equal_the_plain_ones(text: str) -> None:
    text = text.replace("\0", "")
    assert fold(text.encode()).decode().split() == words_of(text)
    starts, stops = locate_words(text.encode())
    located = [
        text.encode()[a:b].decode() for a, b in zip(starts.tolist(), stops.tolist(), strict=True)
    ]
    assert [words_of(word) for word in located] == [[word] for word in words_of(text)]


@settings(deadline=None)
@given(
    st.lists(texts, min_size=1, max_size=4),
    st.lists(texts, min_size=1, max_size=4),
    st.integers(5, 8),
    st.integers(1, 3),
    st.lists(st.integers(1, 200), max_size=6),
    st.integers(3, 64),
)
def test_hits_equal_the_plain_ones(
    evaluation: list[str], corpus: list[str], size: int, common: int, cuts: list[int], window: int
) -> None:
    protected = make(evaluation, size, common)
    if protected is None:
        return
    units = all_units(evaluation, size, common)
    assert len(protected.hashes) == len(units)
    corpus = [*corpus, evaluation[0], " ".join([evaluation[-1], *corpus])]
    block = "\0".join(corpus).encode()
    stream, found, place = Stream(protected, window=window), [], 0
    for cut in cuts:
        found.append(stream.feed(block[place : place + cut]))
        place += cut
    found += [stream.feed(block[place:]), stream.finish()]
    expected = [sorted(find_units(text, units)) for text in corpus]
    result = spell(Hits.join(found), protected)
    assert result + [[]] * (len(corpus) - len(result)) == expected


def test_words_that_differ_in_the_middle_only_do_not_match() -> None:
    middle = "one two three four abcdefgh{}abcdefgh five six seven"
    protected = make([middle.format("1234")], 6)
    assert protected is not None
    for inside, count in (("1234", 3), ("1243", 0)):
        stream = Stream(protected)
        hits = Hits.join([stream.feed(middle.format(inside).encode()), stream.finish()])
        assert len(hits) == count


def test_a_saved_table_gives_the_same_hits(tmp_path) -> None:  # type: ignore[no-untyped-def]
    protected = make(["a b c d e f g h i j k l m n o", "who wrote the first novel about mills"], 13)
    assert protected is not None
    protected.save(tmp_path / "table")
    loaded = load(tmp_path / "table")
    stream = Stream(loaded)
    hits = Hits.join(
        [
            stream.feed(b"Who wrote the first novel about mills?\0A b c d e f g h i j k l m n o p"),
            stream.finish(),
        ]
    )
    passages = find_passages(hits, loaded)
    assert [(one.text, one.start, one.stop) for one in passages] == [(0, 0, 7), (1, 0, 15)]
    assert loaded.spell(passages[1].first, passages[1].last) == "a b c d e f g h i j k l m n o"
    assert loaded.name_text(passages[0].protected) == {
        "evaluation": "eval.jsonl",
        "record": 1,
        "unit": "line",
    }
    assert np.array_equal(loaded.hashes, protected.hashes)
