"""SentencePiece models compared with sentencepiece, and their tokenizer.json form with tokenizers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import TRICKY, added, make_reference, unflatten

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers import Tokenizer, from_state, load_tokenizer
from tokenmill.tokenizers.sentencepiece import read_model_file

Pair = tuple[Tokenizer, sentencepiece.SentencePieceProcessor]

# Training sees the spelling of control tokens as plain text, so that merges could produce it.
SPELLED = "</s> <s> <unk> <0x41> <pad> a</s> x<s>y " * 3
MODELS: dict[str, dict[str, Any]] = {
    "default": {},
    "llama": {
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "split_digits": True,
        "allow_whitespace_only_pieces": True,
    },
    "no dummy prefix": {"add_dummy_prefix": False, "pad_id": 3},
    "trimming spaces only": {"normalization_rule_name": "identity"},
}


def train(texts: list[str], **options: Any) -> bytes:
    lines = [line for text in texts[:25] for line in text.splitlines() if line.strip()]
    model = io.BytesIO()
    defaults = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 1200}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*lines[:6000], *[SPELLED] * 300]),
        model_writer=model,
        minloglevel=2,
        hard_vocab_limit=False,
        **(defaults | options),
    )
    return model.getvalue()


@pytest.fixture(scope="module", params=MODELS)
def pair(
    request: pytest.FixtureRequest, texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    data = train(texts, **MODELS[request.param])
    path = tmp_path_factory.mktemp("sentencepiece") / "small.model"
    path.write_bytes(data)
    return load_tokenizer(path), sentencepiece.SentencePieceProcessor(model_proto=data)


ORDINARY = [text for text in TRICKY if "\x85" not in text]
CONTROLS = ["</s>", "<s>", "a </s> b<s>", "<unk>", "<0x41>", "x<0x0A> <pad>", SPELLED]


def test_ids_equal_sentencepiece(pair: Pair, texts: list[str]) -> None:
    tokenizer, reference = pair
    batch = [*texts[::6], *ORDINARY, *CONTROLS]
    expected = [reference.encode(text) for text in batch]
    assert unflatten(*tokenizer.encode_batch([text.encode() for text in batch])) == expected
    terminated = [[*ids, 2] for ids in expected]
    encoded = [text.encode() for text in batch]
    assert unflatten(*tokenizer.encode_terminated(encoded)) == terminated


@given(st.lists(st.text(max_size=30) | st.sampled_from(CONTROLS), max_size=5))
@settings(deadline=None, max_examples=80)
def test_any_text_gets_the_same_ids_as_from_sentencepiece(pair: Pair, batch: list[str]) -> None:
    tokenizer, reference = pair
    batch = [text.strip("\x85") for text in batch]
    expected = [reference.encode(text) for text in batch]
    assert unflatten(*tokenizer.encode_batch([text.encode() for text in batch])) == expected


def test_text_that_spells_a_control_token_is_plain_text(pair: Pair) -> None:
    tokenizer, reference = pair
    ids, _ = tokenizer.encode_batch([text.encode() for text in CONTROLS])
    reserved = [number for number in range(reference.vocab_size()) if reference.is_control(number)]
    assert not set(reserved) & set(ids.tolist())
    assert set(reserved) == set(tokenizer.special_ids.values())


def test_attributes_match_the_model_and_survive_saving(pair: Pair) -> None:
    tokenizer, reference = pair
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.eot_id == reference.eos_id() == 2
    assert tokenizer.vocab_size == reference.vocab_size()
    assert not tokenizer.cuttable
    again = from_state(json.loads(json.dumps(tokenizer.state())))
    assert again.fingerprint == tokenizer.fingerprint
    batch = [text.encode() for text in CONTROLS]
    assert unflatten(*again.encode_batch(batch)) == unflatten(*tokenizer.encode_batch(batch))
    again.forget()
    assert unflatten(*again.encode_batch(batch)) == unflatten(*tokenizer.encode_batch(batch))


def test_decoding_matches_sentencepiece(pair: Pair) -> None:
    tokenizer, reference = pair
    for text in ("def run(self):", "héllo wörld 日本", "a b"):
        ids = reference.encode(text)
        assert tokenizer.decode(ids) == reference.decode(ids)
        assert tokenizer.decode([*ids, 2]) == reference.decode(ids) + "</s>"
    with pytest.raises(TokenizerError, match="is not an id of the tokenizer 'small'"):
        tokenizer.decode([tokenizer.vocab_size])


METASPACE = [("first", False), ("always", False), ("never", False), ("first", True)]


@pytest.mark.parametrize("metaspace", [None, *METASPACE])
def test_a_tokenizer_json_with_byte_fallback_has_the_ids_of_the_tokenizers_library(
    metaspace: tuple[str, bool] | None, texts: list[str], tmp_path: Path
) -> None:
    # Like Llama 2's file: the same model, with spaces handled by a normalizer or by Metaspace.
    state = read_model_file(train(texts, **MODELS["llama"]), "llama").settings()
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}
    document = state["tokenizer"] | {
        "version": "1.0",
        "added_tokens": [
            added(number, token) for token, number in {"<unk>": 0, **state["special_ids"]}.items()
        ],
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]},
    }
    del document["trim_spaces"]
    if metaspace is not None:
        document["normalizer"] = None
        document["pre_tokenizer"] = {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": metaspace[0],
            "split": metaspace[1],
        }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    tokenizer = load_tokenizer(path)
    reference = make_reference(document)
    batch = [*texts[::12], *TRICKY[1:], *CONTROLS]
    expected = [reference.encode(text, add_special_tokens=False).ids for text in batch]
    assert unflatten(*tokenizer.encode_batch([text.encode() for text in batch])) == expected


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model_type": "unigram"}, "unigram"),
        ({"byte_fallback": False}, "byte_fallback"),
        ({"user_defined_symbols": ["<think>"]}, "user-defined symbol '<think>'"),
        ({"normalization_rule_name": "nfkc"}, "removes extra spaces but keeps"),
    ],
)
def test_unsupported_models_are_refused_by_name(
    options: dict[str, Any], reason: str, texts: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "other.model"
    path.write_bytes(train(texts, vocab_size=600, **options))
    with pytest.raises(TokenizerError, match=f"^other.model cannot be used .*{reason}"):
        load_tokenizer(path)


def test_damaged_models_are_refused(texts: list[str], tmp_path: Path) -> None:
    whole = train(texts, vocab_size=600)
    path = tmp_path / "broken.model"
    for data in (b"", b"\xff" * 30, b"hello", whole[: len(whole) // 2], whole[100:]):
        path.write_bytes(data)
        with pytest.raises(TokenizerError, match=r"^broken\.model "):
            load_tokenizer(path)


def test_byte_lengths_of_ids_add_up_to_the_text(pair: Pair) -> None:
    tokenizer, _ = pair
    lengths = tokenizer.byte_lengths()
    assert len(lengths) == tokenizer.vocab_size
    for text in ("run def", "héllo wörld 日本 \U0001f9f8", "a"):
        ids = tokenizer.encode_batch([text.encode()])[0]
        # A model may add a space before a text.
        assert lengths[ids].sum() - len(text.encode()) in (0, 1)
