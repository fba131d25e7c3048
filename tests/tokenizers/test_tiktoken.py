"""tiktoken files compared with tiktoken."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import CL100K, O200K, QWEN2, TRICKY, unflatten

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers import Tokenizer, from_state, load_tokenizer

TokenRanks = dict[bytes, int]
PATTERNS = {"gpt2": None, "cl100k": CL100K, "o200k": O200K, "qwen2": QWEN2}


@pytest.fixture(scope="module")
def ranks(tiktoken_gpt2: tiktoken.Encoding) -> TokenRanks:
    return {tiktoken_gpt2.decode_single_token_bytes(number): number for number in range(6000)}


def write_ranks(path: Path, ranks: TokenRanks) -> Path:
    lines = [b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.items()]
    path.write_bytes(b"".join(lines))
    return path


@pytest.fixture(scope="module", params=PATTERNS)
def pair(
    request: pytest.FixtureRequest,
    ranks: TokenRanks,
    tiktoken_gpt2: tiktoken.Encoding,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Tokenizer, tiktoken.Encoding]:
    path = write_ranks(tmp_path_factory.mktemp("ranks") / "mine.tiktoken", ranks)
    pattern = PATTERNS[request.param] or tiktoken_gpt2._pat_str
    reference = tiktoken.Encoding(
        "mine", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|end|>": 6000}
    )
    return load_tokenizer(path, scheme=request.param, eot="<|end|>"), reference


def test_real_text_has_the_ids_of_tiktoken(
    pair: tuple[Tokenizer, tiktoken.Encoding], texts: list[str]
) -> None:
    tokenizer, reference = pair
    batch = [*texts[::5], *TRICKY, "<|end|>"]
    expected = [reference.encode_ordinary(text) for text in batch]
    assert unflatten(*tokenizer.encode_batch([text.encode() for text in batch])) == expected


@given(st.lists(st.text(max_size=40), max_size=6))
@settings(deadline=None, max_examples=60)
def test_any_text_has_the_ids_of_tiktoken(
    pair: tuple[Tokenizer, tiktoken.Encoding], batch: list[str]
) -> None:
    tokenizer, reference = pair
    expected = [reference.encode_ordinary(text) for text in batch]
    assert unflatten(*tokenizer.encode_batch([text.encode() for text in batch])) == expected


def test_cut_text_has_the_same_ids(
    pair: tuple[Tokenizer, tiktoken.Encoding], texts: list[str]
) -> None:
    tokenizer, _ = pair
    assert tokenizer.cuttable
    for text in texts[::7]:
        parts = [part.encode() for part in re.split(r"(?<=[^\W\d_])(?=[ \n])", text)]
        whole = tokenizer.encode_batch([text.encode()])[0]
        assert np.array_equal(tokenizer.encode_batch(parts)[0], whole)


def test_attributes_match_the_file_and_survive_saving(
    pair: tuple[Tokenizer, tiktoken.Encoding],
) -> None:
    tokenizer, reference = pair
    assert tokenizer.name == "mine"
    assert tokenizer.cuttable
    assert tokenizer.special_ids == {"<|end|>": 6000}
    assert tokenizer.vocab_size == reference.n_vocab == 6001
    ids = [*reference.encode_ordinary("héllo wörld"), 6000]
    assert tokenizer.decode(ids) == reference.decode(ids) == "héllo wörld<|end|>"
    again = from_state(tokenizer.state())
    assert again.fingerprint == tokenizer.fingerprint
    assert again.encode_batch([b"a b"])[0].tolist() == tokenizer.encode_batch([b"a b"])[0].tolist()


def test_published_names_determine_scheme_and_special_tokens(
    ranks: TokenRanks, tmp_path: Path, gpt2: Tokenizer, tiktoken_gpt2: tiktoken.Encoding
) -> None:
    whole = {tiktoken_gpt2.decode_single_token_bytes(number): number for number in range(50256)}
    tokenizer = load_tokenizer(write_ranks(tmp_path / "r50k_base.tiktoken", whole))
    assert (tokenizer.vocab_size, tokenizer.eot_id) == (50257, 50256)
    batch = [text.encode() for text in TRICKY]
    assert unflatten(*tokenizer.encode_batch(batch)) == unflatten(*gpt2.encode_batch(batch))
    tokenizer = load_tokenizer(write_ranks(tmp_path / "cl100k_base.tiktoken", ranks))
    assert (tokenizer.vocab_size, tokenizer.eot_id) == (100277, 100257)
    assert tokenizer.decode([100276]) == "<|endofprompt|>"
    with pytest.raises(TokenizerError, match=r"100270 is not an id .* gap"):
        tokenizer.decode([100270])


def test_fingerprints_differ_between_schemes(ranks: TokenRanks, tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "mine.tiktoken", ranks)
    schemes = ("gpt2", "cl100k", "o200k", "qwen2")
    found = {load_tokenizer(path, scheme=scheme).fingerprint for scheme in schemes}
    assert len(found) == 4
    one, other = (load_tokenizer(path, scheme=scheme) for scheme in ("r50k", "gpt2"))
    assert one.fingerprint == other.fingerprint
    assert one.eot_id is None


@pytest.mark.parametrize("eot", ["9" * 5000, "-1"])
def test_an_absurd_end_of_text_id_is_refused(ranks: TokenRanks, tmp_path: Path, eot: str) -> None:
    path = write_ranks(tmp_path / "r50k_base.tiktoken", ranks)
    with pytest.raises(TokenizerError, match="has no special token"):
        load_tokenizer(path, eot=eot)


def test_a_scheme_is_never_guessed(ranks: TokenRanks, tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "mine.tiktoken", ranks)
    with pytest.raises(TokenizerError, match="give `scheme`, one of: gpt2, cl100k, o200k"):
        load_tokenizer(path)
    with pytest.raises(
        TokenizerError, match="`scheme` is 'cl200k'; it must be one of: gpt2, cl100k"
    ):
        load_tokenizer(path, scheme="cl200k")
    with pytest.raises(TokenizerError, match=r"is only for \.tiktoken files"):
        load_tokenizer("gpt2", scheme="cl100k")


BYTES = [b"%s %d" % (base64.b64encode(bytes([value])), value) for value in range(256)]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "its ranks are not 0 to"),
        ([*BYTES, b"YWI 256"], "line 257 is not a token in base64"),
        ([*BYTES, b"YW*i 256"], "line 257 is not a token in base64"),
        ([*BYTES, b"YWI="], "line 257 is not a token in base64"),
        ([*BYTES, b"YWI= x"], "line 257 is not a token in base64"),
        ([*BYTES, b"YWI= 255"], "line 257 repeats the rank 255"),
        ([*BYTES, b"", b"YWI= 256", b"YWI= 256"], "line 259 repeats the rank 256"),
        ([*BYTES, b"YWI= 257"], "its ranks are not 0 to 256"),
        ([*BYTES, b"YWI= -1"], "its ranks are not 0 to 256"),
        ([*BYTES, b"YWI= 256", b"YWI= 257"], "a token is empty or has two ranks"),
        (BYTES[:-1], "it has no token for the byte 255"),
        ([b"\xff\x00\x01"], "line 1 is not a token in base64"),
    ],
)
def test_damaged_files_are_refused_by_line(lines: list[bytes], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.tiktoken"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(TokenizerError, match=f"^mine.tiktoken is not a tiktoken file: {reason}"):
        load_tokenizer(path, scheme="cl100k")


def test_a_token_that_no_merge_can_make_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.tiktoken"
    path.write_bytes(b"\n".join([*BYTES, base64.b64encode(b"abc") + b" 256"]))
    with pytest.raises(TokenizerError, match=r"^mine\.tiktoken .* vocabulary inconsistent"):
        load_tokenizer(path, scheme="cl100k")


def test_blank_lines_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "mine.tiktoken"
    path.write_bytes(b"\r\n".join([*BYTES, b"", b"YWI= 256", b"", b""]))
    assert load_tokenizer(path, scheme="cl100k").vocab_size == 257
