"""The tokenizer `bytes`, and the stand-in for an unknown one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import unflatten

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers import from_state, load_tokenizer
from tokenmill.tokenizers.minimal import UnknownTokenizer

TOKENIZER = load_tokenizer("bytes")


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_ids_are_the_bytes(batch: list[bytes]) -> None:
    assert unflatten(*TOKENIZER.encode_batch(batch)) == [list(text) for text in batch]
    terminated = [[*text, 256] for text in batch]
    assert unflatten(*TOKENIZER.encode_terminated(batch)) == terminated


@given(st.text())
def test_decoding_returns_the_text(text: str) -> None:
    ids, _ = TOKENIZER.encode_batch([text.encode()])
    assert TOKENIZER.decode(ids) == text


def test_attributes_of_bytes() -> None:
    assert (TOKENIZER.vocab_size, TOKENIZER.eot_id, TOKENIZER.cuttable) == (257, 256, True)
    assert TOKENIZER.special_ids == {"<|endoftext|>": 256}
    assert TOKENIZER.decode([97, 256, 255]) == "a<|endoftext|>\ufffd"
    with pytest.raises(TokenizerError, match="257 is not an id of the tokenizer 'bytes'"):
        TOKENIZER.decode([257])
    assert load_tokenizer("bytes", eot=10).eot_id == 10


def test_an_unknown_tokenizer_has_a_size_and_refuses_text() -> None:
    tokenizer = from_state(UnknownTokenizer(100, 7).state())
    assert (tokenizer.name, tokenizer.vocab_size, tokenizer.eot_id) == ("unknown", 100, 7)
    for use in (lambda: tokenizer.encode_batch([b"a"]), lambda: tokenizer.decode([1])):
        with pytest.raises(TokenizerError, match="imported without their tokenizer"):
            use()
