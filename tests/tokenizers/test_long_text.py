"""Long texts encoded piece by piece have the ids that the reference libraries give for the whole."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cutting import make_sharp_document
from vocabularies import (
    CL100K,
    CONFIGURATIONS,
    END,
    END_OF_TEXT,
    O200K,
    added,
    make_document,
    make_reference,
    split,
    write_document,
)

from tokenizers import normalizers
from tokenmill.errors import TooLongError
from tokenmill.tokenizers import Tokenizer, load_tokenizer
from tokenmill.tokenizers.cutting import CutRules, Family
from tokenmill.tokenizers.long_text import LongText
from tokenmill.tokenizers.tokenizer_json import BYTE_LETTERS

NAMES = ["gpt2", "cl100k", "qwen2", "qwen2 with nfc", "o200k", "o200k with nfc", "ignore merges"]
NAMES += ["white space added", "words added", "nfc in a sequence", "a word added"]
# Unlike "words added", this one strips no white space, so there are rules for where to cut.
A_WORD_ADDED = {"added_tokens": [END_OF_TEXT, added(END + 1, "<think>", special=False)]}

# Characters of every class that a pattern distinguishes, and some that NFC joins or changes.
ALPHABET = [*" \t\n\r'/.,-_aZsltrevmdſʼª19²½日本のǅß", "\u0301", "\u093c", "\u0958", "é", "e\u0301"]
ALPHABET += [
    "\u00a0",
    "\u3000",
    "\u2028",
    "\u200b",
    "\u0e31",
    "\u1161",
    "\u11a8",
    "가",
    "😀",
    "\u1100",
    "\u1025",
    "\u1025\u102e",  # a letter and a mark, which NFC makes one letter
]
ALPHABET += ["'s", "'LL", "\r\n", "  ", "\n\n", "<think>", "ab", "12", "//", "。"]


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    configurations = {**CONFIGURATIONS, "a word added": A_WORD_ADDED}
    document = make_sharp_document(**configurations[request.param])
    path = write_document(tmp_path_factory.mktemp("tokenizer"), document)
    return load_tokenizer(path), make_reference(document)


def encode_in_pieces(tokenizer: Tokenizer, text: str, sizes: list[int], window: int) -> list[int]:
    long = LongText(tokenizer, 1 << 30, window=window)
    found, start = [], 0
    while start < len(text):
        size = sizes[len(found) % len(sizes)]
        found.append(long.feed(text[start : start + size].encode()))
        start += size
    ids = [np.zeros(0, np.uint32), *(part for parts in [*found, long.finish()] for part in parts)]
    return np.concatenate(ids).tolist()


TEXTS = st.lists(st.sampled_from(ALPHABET), max_size=60).map("".join)
RUNS = st.lists(st.tuples(st.sampled_from(ALPHABET), st.integers(1, 40)), max_size=8).map(
    lambda runs: "".join(characters * count for characters, count in runs)
)


@given(text=TEXTS | RUNS | st.text(max_size=60), sizes=st.lists(st.integers(1, 20), min_size=1))
@settings(deadline=None, max_examples=150)
def test_any_text_in_any_pieces_has_the_ids_of_the_whole(
    pair: Any, text: str, sizes: list[int]
) -> None:
    tokenizer, reference = pair
    expected = reference.encode(text, add_special_tokens=False).ids
    assert encode_in_pieces(tokenizer, text, sizes, window=8) == expected


RULES: list[Family] = ["gpt2", "cl100k", "qwen2", "o200k"]


# One character of each class, and of those that the rules name.
ONE_OF_EACH = [*" \t\n\r'/.szZ日1²", "\u0301", "\u0316", "\u1025", "\u102e"]


@pytest.mark.parametrize("nfc", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_no_match_of_the_pattern_crosses_a_cut(name: Family, nfc: bool) -> None:
    reference = make_reference(make_document(**CONFIGURATIONS[name]))
    normalize = normalizers.NFC().normalize_str if nfc else str
    rules = CutRules(name, nfc=nfc)

    def find_words(text: bytes) -> list[str]:
        normal = normalize(text.decode())
        return [word for word, _ in reference.pre_tokenizer.pre_tokenize_str(normal)]

    chance = random.Random(name)
    texts = ["".join(characters) for characters in product(ONE_OF_EACH, repeat=3)]
    texts += ["".join(chance.choices(ALPHABET, k=chance.randint(2, 12))) for _ in range(1000)]
    for text in texts:
        data = text.encode()
        whole, cut = find_words(data), rules.find_last_cut(data)
        while cut:
            assert find_words(data[:cut]) + find_words(data[cut:]) == whole, (text, cut)
            cut = rules.find_last_cut(data[:cut])


def test_tokens_of_half_characters_are_not_settled_by_whole_characters(
    tmp_path: Path,
) -> None:
    """Each pair of bytes merges before the one to its left, so the end of a text decides all ids."""
    letters = [chr(code).encode() for code in (*range(0x400, 0x482), *range(0x48A, 0x530))]
    chance, data = random.Random(0), letters[0]
    pairs = {data: None}
    while fitting := [one for one in letters if not {one, data[-1:] + one[:1]} & pairs.keys()]:
        letter = chance.choice(fitting)
        pairs |= {data[-1:] + letter[:1]: None, letter: None}
        data += letter
    pairs.popitem()  # the last character is two tokens, so the first of them merges to the left
    merges = [[BYTE_LETTERS[byte] for byte in pair] for pair in reversed(pairs)]
    tokens = [*BYTE_LETTERS.values(), *map("".join, merges), "<|endoftext|>"]
    document = make_document(
        model={
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [" ".join(pair) for pair in merges],
        },
        added_tokens=[added(len(tokens) - 1, "<|endoftext|>")],
    )
    reference = make_reference(document)
    ids, shorter = (reference.encode(text.decode()).ids for text in (data, data[:-2]))
    assert not set(ids) & set(shorter)
    tokenizer = load_tokenizer(write_document(tmp_path, document))
    assert encode_in_pieces(tokenizer, data.decode(), [40], window=8) == ids


def make_hostile(size: int) -> dict[str, str]:
    rng = np.random.default_rng(3)
    chinese = rng.integers(0x4E00, 0x9FA5, size // 3).astype("<u4").tobytes().decode("utf-32-le")
    letters = rng.integers(97, 123, size).astype(np.uint8).tobytes().decode()
    return {
        "a": "a" * size,
        "ab": "ab" * (size // 2),
        "Chinese": chinese,
        "common Chinese": "的一是不了人我在有他" * (size // 30),
        "letters": letters,
        "digits": rng.integers(48, 58, size).astype(np.uint8).tobytes().decode(),
        "spaces": "x" + " " * size + "y",
        "newlines": "x" + "\n" * size + "y",
        "emoji": "😀" * (size // 4),
        "marks": "\u0301" * (size // 2),
        "dashes": "-=" * (size // 2),
        "a space and letters": " " + letters,
        "punctuation before letters": "..." + letters,
    }


@pytest.mark.parametrize("name", make_hostile(12))
def test_words_longer_than_the_window_have_the_ids_of_tiktoken(
    name: str, gpt2: Tokenizer, tiktoken_gpt2: tiktoken.Encoding
) -> None:
    text = make_hostile(60_000)[name]
    long = LongText(gpt2, 20_000, window=10_000)  # holds at most two windows
    ids = [
        *(
            ids
            for i in range(0, len(text), 1_999)
            for ids in long.feed(text[i : i + 1_999].encode())
        ),
        *long.finish(),
    ]
    assert np.concatenate(ids).tolist() == tiktoken_gpt2.encode_ordinary(text)
    assert len(ids) > 3


@pytest.mark.parametrize("seed", [220, 254, 272])
def test_settled_ids_never_end_inside_a_character(
    seed: int, gpt2: Tokenizer, tiktoken_gpt2: tiktoken.Encoding
) -> None:
    # With these seeds, the last ids that all windows have in common end with half a character,
    # because GPT-2 has tokens such as の with the first byte of the next character.
    text = "".join(random.Random(seed).choices("裏龍の士極醒ーоی大中国年生先的是不", k=4000))
    assert encode_in_pieces(gpt2, text, [4000], window=4000) == tiktoken_gpt2.encode_ordinary(text)


@pytest.mark.parametrize("pattern", [CL100K, O200K])
@pytest.mark.parametrize("name", ["a", "Chinese", "common Chinese", "digits", "marks", "letters"])
def test_long_words_with_other_patterns_have_the_ids_of_the_library(
    pattern: str, name: str, tmp_path: Path
) -> None:
    document = make_sharp_document(pre_tokenizer=split(pattern))
    tokenizer = load_tokenizer(write_document(tmp_path, document))
    text = make_hostile(30_000)[name]
    expected = make_reference(document).encode(text, add_special_tokens=False).ids
    assert encode_in_pieces(tokenizer, text, [777], window=10_000) == expected


class WholeTexts(Tokenizer):
    """A tokenizer with the defaults of the base class, so texts are held whole."""

    kind = name = "whole"
    vocab_size = 256

    def encode(self, text: bytes) -> list[int]:
        return list(text)

    def decode(self, ids: Any) -> str:
        return bytes(ids).decode()

    def settings(self) -> dict[str, Any]:
        return {}


class CuttableTexts(WholeTexts):
    cuttable = True


def test_a_text_that_is_too_long_to_hold_is_an_error_that_names_the_tokenizer() -> None:
    long = LongText(WholeTexts(), 100, window=10)
    long.feed(b"words go on " * 8)
    with pytest.raises(TooLongError, match=r"108 bytes .* tokenizer whole"):
        long.feed(b"words go on ")


def test_a_cuttable_tokenizer_settles_text_up_to_a_cut() -> None:
    text = b"words go on " * 9 + b"to the end"
    long = LongText(CuttableTexts(), 100, window=10)
    found = long.feed(text)
    assert len(found) > 3
    assert bytes(np.concatenate([*found, *long.finish()]).tolist()) == text
