"""tokenizer.json files with many configurations, compared with the `tokenizers` library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import (
    CL100K,
    CONFIGURATIONS,
    END,
    END_OF_TEXT,
    FRAGMENTS,
    TRICKY,
    added,
    byte_level,
    make_document,
    make_reference,
    split,
    unflatten,
    write_document,
)

import tokenizers
from tokenmill.errors import TokenizerError
from tokenmill.tokenizers import Tokenizer, load_tokenizer
from tokenmill.tokenizers.gpt2 import read_gpt2
from tokenmill.tokenizers.tokenizer_json import BYTE_LETTERS

Pair = tuple[Tokenizer, tokenizers.Tokenizer]


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    document = make_document(**CONFIGURATIONS[request.param])
    path = write_document(tmp_path_factory.mktemp("tokenizer"), document)
    return load_tokenizer(path), make_reference(document)


def reference_ids(reference: tokenizers.Tokenizer, batch: list[str]) -> list[list[int]]:
    return [reference.encode(text, add_special_tokens=False).ids for text in batch]


def test_ids_equal_the_tokenizers_library(pair: Pair, texts: list[str]) -> None:
    tokenizer, reference = pair
    batch = [*TRICKY, *texts[:8], *texts[-8:]]
    expected = reference_ids(reference, batch)
    assert unflatten(*tokenizer.encode_batch([text.encode() for text in batch])) == expected
    one_by_one = [tokenizer.encode_batch([text.encode()])[0].tolist() for text in batch]
    assert one_by_one == expected


TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join) | st.text(max_size=20)


@given(st.lists(TEXTS, max_size=8))
@settings(deadline=None, max_examples=40)
def test_any_batch_has_the_ids_of_the_tokenizers_library(pair: Pair, batch: list[str]) -> None:
    tokenizer, reference = pair
    expected = reference_ids(reference, batch)
    encoded = [text.encode() for text in batch]
    assert unflatten(*tokenizer.encode_batch(encoded)) == expected
    terminated = [[*ids, END] for ids in expected]
    assert unflatten(*tokenizer.encode_terminated(encoded)) == terminated


def test_special_tokens_and_sizes(pair: Pair) -> None:
    tokenizer, reference = pair
    assert tokenizer.special_ids == {"<|endoftext|>": END}
    assert tokenizer.eot_id == END
    assert tokenizer.vocab_size == reference.get_vocab_size()


def test_gpt2_from_a_file_has_the_fingerprint_of_gpt2_by_name(
    gpt2: Tokenizer, tmp_path: Path
) -> None:
    model = read_gpt2()["model"]
    document = make_document(
        added_tokens=[added(50256, "<|endoftext|>")],
        post_processor=byte_level(),
        model={
            "merges": [merge.split(" ") for merge in model["merges"]],
            "vocab": dict(reversed(model["vocab"].items())),
        },
    )
    assert load_tokenizer(write_document(tmp_path, document)).fingerprint == gpt2.fingerprint


def test_fingerprints_differ_between_configurations(
    gpt2: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = {gpt2.fingerprint}
    for name in ("cl100k", "o200k", "nfc in a sequence", "prefix space", "ignore merges"):
        document = make_document(**CONFIGURATIONS[name])
        path = write_document(tmp_path_factory.mktemp("tokenizer"), document)
        found.add(load_tokenizer(path).fingerprint)
    assert len(found) == 6


def test_a_token_that_merges_can_make_is_not_special(tmp_path: Path) -> None:
    document = make_document(added_tokens=[END_OF_TEXT, added(0, "!"), added(262, "Ġthe")])
    tokenizer = load_tokenizer(write_document(tmp_path, document))
    assert tokenizer.special_ids == {"<|endoftext|>": END}
    assert tokenizer.encode_batch([b"! the"])[0].tolist() == [0, 262]


def test_a_whole_word_is_never_encoded_as_a_special_token(tmp_path: Path) -> None:
    # With ignore_merges, a word in the vocabulary is encoded without merging.
    document = make_document(pre_tokenizer=split(CL100K), model={"ignore_merges": True})
    document["model"]["vocab"] = document["model"]["vocab"] | {"endofdocument": END + 1}
    document["added_tokens"] = [END_OF_TEXT, added(END + 1, "endofdocument")]
    tokenizer = load_tokenizer(write_document(tmp_path, document), eot="endofdocument")
    assert tokenizer.eot_id == END + 1
    assert END + 1 not in tokenizer.encode_batch([b"endofdocument"])[0]
    assert tokenizer.decode([END + 1]) == "endofdocument"


def without(vocabulary: dict[str, int], token: str) -> dict[str, int]:
    return {key: number for key, number in vocabulary.items() if key != token}


WHOLE = make_document()["model"]["vocab"]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dropout": ({"model": {"dropout": 0.1}}, "dropout"),
    "word suffix": ({"model": {"end_of_word_suffix": "</w>"}}, "end_of_word_suffix"),
    "word prefix": ({"model": {"continuing_subword_prefix": "##"}}, "continuing_subword_prefix"),
    "other model": ({"model": {"type": "WordPiece"}}, "WordPiece"),
    "merge of nothing": ({"model": {"merges": ["zz qq"]}}, "zz qq"),
    "merge without a space": ({"model": {"merges": ["zz"]}}, "zz"),
    "two tokens with one id": ({"model": {"vocab": WHOLE | {"zzz": 5}}}, "one id"),
    "id is a string": ({"model": {"vocab": WHOLE | {"zzz": "5"}}}, "not an integer"),
    "negative id": ({"model": {"vocab": WHOLE | {"zzz": -5}}}, "not an integer"),
    "no model": ({"model": {"vocab": None}}, "damaged"),
    "byte without a token": (
        {"model": {"vocab": without(WHOLE, "¿"), "merges": []}},
        "0xbf",
    ),
    "no pre-tokenizer": ({"pre_tokenizer": None}, "ByteLevel"),
    "other pre-tokenizer": ({"pre_tokenizer": {"type": "Whitespace"}}, "ByteLevel"),
    "unknown pattern": ({"pre_tokenizer": split(r"\w+|\W+")}, "regex"),
    "matches removed": ({"pre_tokenizer": split(CL100K, "Removed")}, "Split"),
    "matches merged": ({"pre_tokenizer": split(CL100K, "MergedWithNext")}, "Split"),
    "two patterns": (
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [*split(CL100K)["pretokenizers"][:1], byte_level()],
            }
        },
        "ByteLevel must have use_regex=false",
    ),
    "digits": (
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level()],
            }
        },
        "Digits",
    ),
    "other normalizer": ({"normalizer": {"type": "Lowercase"}}, "Lowercase"),
    "other after NFC": (
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}],
            }
        },
        "Lowercase",
    ),
    "whole words added": (
        {"added_tokens": [added(END + 1, "foo", special=False, single_word=True)]},
        "whole words",
    ),
    "normalized words added": (
        {
            "normalizer": {"type": "NFC"},
            "added_tokens": [added(END + 1, "café", special=False, normalized=True)],
        },
        "normalized",
    ),
    "bytes without a pattern": ({"pre_tokenizer": byte_level(use_regex=False)}, "use_regex=false"),
    "bytes without a pattern in a sequence": (
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [byte_level(use_regex=False, prefix_space=True)],
            }
        },
        "use_regex=false",
    ),
    "added words inside a special token": (
        {"added_tokens": [END_OF_TEXT, added(END + 1, "text|>", special=False)]},
        "overlaps its special token",
    ),
    "added words beside a special token": (
        {"added_tokens": [END_OF_TEXT, added(END + 1, "|> x", special=False)]},
        "overlaps its special token",
    ),
    "added words with ids that the library changes": (
        {"added_tokens": [END_OF_TEXT, added(END + 9, "<x>", special=False)]},
        f"id {END + 9}, but the `tokenizers` library uses {END + 1}",
    ),
    "byte NUL without a token": (
        {"model": {"vocab": without(WHOLE, "Ā"), "merges": []}},
        "0x00",
    ),
    "special with an ordinary id": ({"added_tokens": [added(64, "<x>")]}, "shares the id 64"),
}


# gigatoken cannot encode these, but the `tokenizers` library can.
BY_LIBRARY = {
    *("unknown pattern", "matches removed", "matches merged", "two patterns", "digits"),
    *("other normalizer", "other after NFC", "whole words added", "normalized words added"),
    *("bytes without a pattern", "bytes without a pattern in a sequence"),
}


@pytest.mark.parametrize("name", sorted(BY_LIBRARY))
def test_other_configurations_are_encoded_by_the_library(name: str, tmp_path: Path) -> None:
    document = make_document(**REFUSED[name][0])
    document["added_tokens"] = [
        END_OF_TEXT,
        *(one for one in document["added_tokens"] if one["id"] != END),
    ]
    tokenizer, reference = (
        load_tokenizer(write_document(tmp_path, document)),
        make_reference(document),
    )
    assert tokenizer.kind == "tokenizers"
    for text in ("The café has 12 foods,\n\n  foo bar.", "<|endoftext|>", "", "a\0b", "日本語 foo"):
        expected = reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text.encode()).tolist() == expected


@pytest.mark.parametrize("name", sorted({*REFUSED} - BY_LIBRARY))
def test_configurations_that_would_give_other_ids_are_refused_by_name(
    name: str, tmp_path: Path
) -> None:
    changes, reason = REFUSED[name]
    path = write_document(tmp_path, make_document(**changes))
    with pytest.raises(TokenizerError, match=reason) as caught:
        load_tokenizer(path)
    assert str(caught.value).startswith("tokenizer.json ")


def test_bytes_are_spelled_as_in_the_tokenizers_library() -> None:
    spell = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert len(BYTE_LETTERS) == 256
    assert set(BYTE_LETTERS.values()) == set(spell.alphabet())
    for byte in range(128):
        assert spell.pre_tokenize_str(chr(byte))[0][0] == BYTE_LETTERS[byte]
