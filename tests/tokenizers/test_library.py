"""Tokenizers encoded by the `tokenizers` library, against the library with the unchanged file."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import (
    added,
    write_document,
)

import tokenmill
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers import Tokenizer as Library
from tokenmill.errors import TokenizerError, TooLongError
from tokenmill.tokenizers import Tokenizer, from_state, load_tokenizer
from tokenmill.tokenizers.library import LibraryTokenizer
from tokenmill.tokenizers.long_text import LongText

WORDS = (
    "the cat sat on the mat and the dog ran 12 times in 2024 because it's over there\n"
    "Größe und Höhe, naïve café, 日本語 and привет мир; x = [1, 2, 3]\n\n  indented code()\n"
) * 20
SPECIALS = ["<pad>", "</s>", "<unk>"]


def train(library: Library, trainer: Any) -> Library:
    library.train_from_iterator(WORDS.split("\n"), trainer)
    return library


def make_t5() -> Library:
    library = Library(models.Unigram())
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    library.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False
    )
    return train(library, trainer)


def make_xlm() -> Library:
    library = Library(models.Unigram())
    library.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Strip(left=False, right=True),
            normalizers.Replace(Regex(" {2,}"), "▁"),
        ]
    )
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False
    )
    library = train(library, trainer)
    library.add_special_tokens(["<mask>"])
    return library


def make_gemma() -> Library:
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    library = Library(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    library.normalizer = normalizers.Replace(" ", "▁")
    library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=tokens, show_progress=False)
    document = json.loads(train(library, trainer).to_str())
    # In a published file, the tokens of bytes are ordinary, and some others are not special.
    document["added_tokens"] = [one for one in document["added_tokens"] if one["id"] < 4]
    library = Library.from_str(json.dumps(document))
    library.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("<unused0>")])
    return library


def make_bert() -> Library:
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["[PAD]", "[UNK]", "[SEP]"], show_progress=False
    )
    return train(library, trainer)


def make_byte_level(*steps: Any) -> Library:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return train(library, trainer)


def make_starcoder() -> Library:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return make_byte_level(digits, pre_tokenizers.ByteLevel(add_prefix_space=False))


def make_deepseek() -> Library:
    patterns = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+"]
    return make_byte_level(
        *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    )


MAKERS = {
    "t5": make_t5,
    "xlm-r": make_xlm,
    "gemma": make_gemma,
    "bert": make_bert,
    "starcoder": make_starcoder,
    "deepseek": make_deepseek,
}
CUTTABLE = {"t5", "bert", "starcoder"}
PIECES = [*"abcth e  \n\t12.,é日\u0301ñA▁ß\u00a0", "the ", "café", "<unused0>", "\n\n"]
ORDINARY = st.lists(st.sampled_from(PIECES), max_size=60).map("".join) | st.text(max_size=30)


@pytest.fixture(scope="module", params=MAKERS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Tokenizer, Library]:
    library = MAKERS[request.param]()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    library.save(str(path))
    library.encode_special_tokens = True
    return request.param, load_tokenizer(path), library


@settings(deadline=None, max_examples=60)
@given(st.lists(ORDINARY, max_size=4))
def test_ids_are_those_of_the_library(
    pair: tuple[str, Tokenizer, Library], texts: list[str]
) -> None:
    _, tokenizer, library = pair
    ids, offsets = tokenizer.encode_batch([text.encode() for text in texts])
    found = [ids[a:b].tolist() for a, b in pairwise(offsets.tolist())]
    assert found == [library.encode(text, add_special_tokens=False).ids for text in texts]


@settings(deadline=None, max_examples=40)
@given(st.lists(ORDINARY, min_size=1, max_size=12), st.integers(1, 40), st.integers(1, 7))
def test_a_text_in_pieces_has_the_ids_of_the_whole(
    pair: tuple[str, Tokenizer, Library], parts: list[str], window: int, step: int
) -> None:
    name, tokenizer, library = pair
    assert tokenizer.cuttable == (name in CUTTABLE)
    text = "".join(parts)
    long = LongText(tokenizer, 1 << 30, window=window * tokenizer.weight)
    found = []
    for start in range(0, len(text), step):
        found += long.feed(text[start : start + step].encode())
    found += long.finish()
    ids = np.concatenate([np.zeros(0, np.uint32), *found]).tolist()
    assert ids == library.encode(text, add_special_tokens=False).ids


def test_special_tokens_are_plain_text(pair: tuple[str, Tokenizer, Library]) -> None:
    _, tokenizer, library = pair
    assert isinstance(tokenizer, LibraryTokenizer)
    assert tokenizer.vocab_size == library.get_vocab_size()
    assert tokenizer.special_ids
    assert tokenizer.eot_id in tokenizer.special_ids.values() or "[SEP]" in tokenizer.special_ids
    special = set(tokenizer.special_ids.values())
    for token, number in tokenizer.special_ids.items():
        assert library.token_to_id(token) == number
        for text in (token, f"the cat{token}sat", f"{token} {token}"):
            assert not special & set(tokenizer.encode(text.encode()).tolist())
        assert tokenizer.decode([number]) == token
    assert "<unk>" not in tokenizer.special_ids


def test_texts_are_decoded_as_by_the_library(pair: tuple[str, Tokenizer, Library]) -> None:
    name, tokenizer, library = pair
    text = "the cat sat on the mat, 2024 times\n café"
    ids = tokenizer.encode(text.encode())
    assert tokenizer.decode(ids) == library.decode(ids.tolist(), skip_special_tokens=False)
    if tokenizer.spellings() is not None:
        spelled = b"".join(tokenizer.spellings()[number] or b"" for number in ids.tolist())
        assert spelled == text.encode()
        assert int(tokenizer.byte_lengths()[ids].sum()) == len(spelled)
    elif name in ("t5", "gemma"):
        assert abs(int(tokenizer.byte_lengths()[ids].sum()) - len(text.encode())) < 6


def test_a_tokenizer_is_restored_from_its_state_and_pickled(
    pair: tuple[str, Tokenizer, Library], tmp_path: Path
) -> None:
    _, tokenizer, _ = pair
    (tmp_path / "a.txt").write_text(WORDS)
    report = tokenmill.prepare(
        tmp_path / "a.txt",
        tmp_path / "out",
        tokenizer=tokenizer,
        val_fraction=0,
        eot="none",
        workers=1,
    )
    assert report.manifest.tokenizer_fingerprint == tokenizer.fingerprint
    data = tokenmill.open(tmp_path / "out")
    for again in (
        data.tokenizer,
        from_state(json.loads(json.dumps(tokenizer.state()))),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        assert again.fingerprint == tokenizer.fingerprint
        assert again.special_ids == tokenizer.special_ids
        assert again.encode(WORDS.encode()).tolist() == tokenizer.encode(WORDS.encode()).tolist()
    tokenizer.forget()
    assert tokenizer.encode(b"the cat").tolist() == data.tokenizer.encode(b"the cat").tolist()


def test_a_long_document_is_held_only_within_the_memory(tmp_path: Path) -> None:
    make_gemma().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    long = LongText(tokenizer, 1 << 20)
    with pytest.raises(TooLongError, match="bytes of a document cannot be cut for") as caught:
        long.feed(b"word " * 20_000)
    assert caught.value.size == 100_000 * tokenizer.weight


def test_what_the_library_would_drop_or_change_is_refused(tmp_path: Path) -> None:
    def refuse(reason: str, library: Library, **changes: Any) -> None:
        document = json.loads(library.to_str())
        for key, value in changes.items():
            if key == "model":
                document["model"].update(value)
            else:
                document[key] = value
        with pytest.raises(TokenizerError, match=reason):
            load_tokenizer(write_document(tmp_path, document))

    refuse("has no unknown token, so it would", make_t5(), model={"unk_id": None})
    refuse("end_of_word_suffix", make_starcoder(), model={"end_of_word_suffix": "</w>"})
    refuse("the id of its unknown token is 9999", make_t5(), model={"unk_id": 9999})
    refuse(
        "makes a text more than", make_t5(), normalizer={"type": "Prepend", "prepend": "x" * 999}
    )
    refuse(
        "more than 32 steps",
        make_t5(),
        normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}] * 40},
    )
    refuse("dropout", make_starcoder(), model={"dropout": 0.5})
    token = added(9999, "<x>", special=False)
    refuse("has the id 9999, but the", make_t5(), added_tokens=[token])


def test_without_the_library_the_error_says_what_to_install(tmp_path: Path) -> None:
    make_t5().save(str(tmp_path / "tokenizer.json"))
    code = (
        "import sys; sys.modules['tokenizers'] = None\n"
        "from tokenmill.tokenizers import load\n"
        "load.try_in_child = lambda *_, **__: None\n"
        "load.load_tokenizer(sys.argv[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "tokenizer.json"], capture_output=True, check=False
    )
    assert b"pip install 'tokenmill[tokenizers]'" in done.stderr
