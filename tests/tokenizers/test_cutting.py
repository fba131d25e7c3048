"""Encoding a text in parts: the same ids wherever `cuttable` allows a cut."""

from __future__ import annotations

import random
import re
import sys
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import (
    CL100K,
    CONFIGURATIONS,
    END,
    FRAGMENTS,
    added,
    make_document,
    split,
    write_document,
)

from tokenmill.tokenizers import Tokenizer, load_tokenizer

CUTTABLE = {
    "gpt2": True,
    "gpt2 as a split": True,
    "cl100k": True,
    "cl100k by removal": True,
    "qwen2": True,
    "qwen2 with nfc": False,
    "o200k": True,
    "o200k with nfc": True,
    "nfc in a sequence": True,
    "prefix space": False,
    "post-processor": True,
    "ignore merges": True,
    "white space added": True,
    "a word with NUL added": True,
    "words added": False,
}


def make_sharp_document(**changes: Any) -> dict[str, Any]:
    """A vocabulary in which any byte merges first with a space or newline after it.

    A word that continues across a cut then changes the ids, whatever the letter before it.
    """
    document = deepcopy(make_document(**changes))
    model = document["model"]
    bytes_alone = [token for token in model["vocab"] if len(token) == 1]
    pairs = [(byte, space) for byte in bytes_alone for space in "ĠĊč" if byte not in "ĠĊč"]
    joined = {left + right: 60_000 + number for number, (left, right) in enumerate(pairs)}
    model["vocab"] = joined | model["vocab"]
    made = [merge for merge in model["merges"] if "".join(merge.split(" ")) not in joined]
    model["merges"] = [f"{left} {right}" for left, right in pairs] + made
    new = [token for token in document["added_tokens"] if token["content"] not in model["vocab"]]
    for number, token in enumerate(new, len(model["vocab"])):
        token["id"] = number
    return document


@pytest.fixture(scope="module")
def tokenizers_by_name(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    found = {}
    for name, changes in CONFIGURATIONS.items():
        document = make_sharp_document(**changes)
        path = write_document(tmp_path_factory.mktemp("tokenizer"), document)
        found[name] = load_tokenizer(path)
    return found


# gigatoken treats these like one of the others.
ALIKE = {"cl100k by removal", "post-processor", "a word with NUL added"}


@pytest.fixture(
    scope="module",
    params=[name for name, cuttable in CUTTABLE.items() if cuttable and name not in ALIKE],
)
def tokenizer(
    request: pytest.FixtureRequest, tokenizers_by_name: dict[str, Tokenizer]
) -> Tokenizer:
    return tokenizers_by_name[request.param]


def find_cuts(text: str) -> list[int]:
    return [match.end() for match in re.finditer(r"[^\W\d_](?=[ \n]|\r\n)", text)]


def encode_parts(tokenizer: Tokenizer, text: str, cuts: list[int]) -> list[int]:
    bounds = [0, *cuts, len(text)]
    parts = [text[a:b].encode() for a, b in pairwise(bounds)]
    return tokenizer.encode_batch(parts)[0].tolist()


def test_which_configurations_may_be_cut(tokenizers_by_name: dict[str, Tokenizer]) -> None:
    assert {name: found.cuttable for name, found in tokenizers_by_name.items()} == CUTTABLE


def test_real_text_in_parts_has_the_same_ids(tokenizer: Tokenizer, texts: list[str]) -> None:
    chance = random.Random(7)
    for text in [*texts[::6], *texts[-5:]]:
        cuts = find_cuts(text)
        whole = tokenizer.encode_batch([text.encode()])[0].tolist()
        assert encode_parts(tokenizer, text, cuts) == whole
        some = sorted(chance.sample(cuts, len(cuts) // 5))
        assert encode_parts(tokenizer, text, some) == whole


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join) | st.text(max_size=40))
@settings(deadline=None, max_examples=60)
def test_random_text_in_parts_has_the_same_ids(tokenizer: Tokenizer, text: str) -> None:
    whole = tokenizer.encode_batch([text.encode()])[0].tolist()
    for cut in find_cuts(text):
        assert encode_parts(tokenizer, text, [cut]) == whole
    assert encode_parts(tokenizer, text, find_cuts(text)) == whole


LETTERS = [chr(number) for number in range(sys.maxunicode + 1) if chr(number).isalpha()]


@pytest.mark.parametrize("space", [" ", "\n", "\r\n"])
def test_text_may_be_cut_after_every_letter_of_unicode(tokenizer: Tokenizer, space: str) -> None:
    assert len(LETTERS) > 130_000
    behind = f"{space}{space}x"
    whole, offsets = tokenizer.encode_batch([f".{letter}{behind}".encode() for letter in LETTERS])
    first, first_offsets = tokenizer.encode_batch([f".{letter}".encode() for letter in LETTERS])
    second = tokenizer.encode_batch([behind.encode()])[0]
    assert np.array_equal(np.diff(offsets), np.diff(first_offsets) + len(second))
    places = offsets[1:, None] - len(second) + np.arange(len(second))
    assert (whole[places] == second).all()
    assert np.array_equal(np.delete(whole, places.ravel()), first)


def test_a_cut_with_nfc_and_newlines_after_punctuation_would_change_ids(
    tokenizers_by_name: dict[str, Tokenizer],
) -> None:
    tokenizer = tokenizers_by_name["qwen2 with nfc"]
    text = "\u0958\nx"
    parts = encode_parts(tokenizer, text, [1])
    assert parts != tokenizer.encode_batch([text.encode()])[0].tolist()


def test_added_tokens_with_spaces_forbid_cuts(tmp_path: Path) -> None:
    for number, token in enumerate(
        [
            added(END + 1, "the end", special=False),
            added(END + 1, "end", special=False, rstrip=True),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        document = make_document(pre_tokenizer=split(CL100K), added_tokens=[token])
        assert not load_tokenizer(write_document(folder, document)).cuttable
