"""`prepare` with tokenizers of every kind: user-defined, without end of text, SentencePiece."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive import (
    check_dataset,
    make_expected,
)
from preparing import make, python_sources, small, write_documents

import tokenmill
from tokenmill.dataset.verify import verify
from tokenmill.errors import TokenizerError, UsageError
from tokenmill.tokenizers import Tokenizer, load_tokenizer


@pytest.fixture
def no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk is most of the time that tiny shards take."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "text.txt")


class WordTokenizer(Tokenizer):
    """Encodes a word as its length."""

    kind = name = "words"
    vocab_size = 1 << 20

    def __init__(self, eot_id: int | None = 7) -> None:
        self.eot_id = eot_id

    def encode(self, text: bytes) -> list[int]:
        return encode_words(text)

    def encode_batch(self, texts: Sequence[bytes]) -> Any:
        # Without the base class's check of ids, so that the pipeline's own is tested.
        ids = [encode_words(text) for text in texts]
        offsets = np.cumsum([0, *map(len, ids)], dtype=np.int64)
        return np.array([x for text in ids for x in text], np.uint32), offsets

    def decode(self, ids: Any) -> str:
        return " ".join("x" * (int(number) - 70_000) for number in ids)

    def settings(self) -> dict[str, Any]:
        return {"eot_id": self.eot_id}


def encode_words(text: bytes) -> list[int]:
    return [len(word) + 70_000 for word in text.split()]


def test_a_tokenizer_of_the_user_works_in_worker_processes(tmp_path: Path, text: Path) -> None:
    report = tokenmill.prepare(text, tmp_path / "out", tokenizer=WordTokenizer(), workers=2)
    expected = make_expected([text], encode=encode_words, eot_id=7)
    check_dataset(tmp_path / "out", expected, [text], 100_000_000)
    assert report.manifest.dtype == "uint32"
    assert report.manifest.vocab_size == 1 << 20


def test_a_tokenizer_without_end_of_text_requires_eot_none(tmp_path: Path, text: Path) -> None:
    for eot in ("after", "before"):
        with pytest.raises(UsageError, match="`eot='none'`"):
            make(text, tmp_path / "out", tokenizer=WordTokenizer(None), eot=eot)
    assert not (tmp_path / "out").exists()
    make(text, tmp_path / "out", tokenizer=WordTokenizer(None), eot="none")
    expected = make_expected([text], encode=encode_words, eot_id=None, eot="none")
    check_dataset(tmp_path / "out", expected, [text], 100_000_000)


def test_ids_that_do_not_fit_are_refused(tmp_path: Path, text: Path) -> None:
    with pytest.raises(UsageError, match="beyond uint16"):
        make(text, tmp_path / "out", tokenizer=WordTokenizer(), dtype="uint16")
    liar = WordTokenizer()
    liar.vocab_size = 300
    with pytest.raises(TokenizerError, match="its ids must be below 300"):
        make(text, tmp_path / "out", tokenizer=liar)
    assert not (tmp_path / "out" / "dataset_metadata.json").exists()
    report = make(text, tmp_path / "wide", dtype="uint32")
    assert report.manifest.dtype == "uint32"
    assert verify(tmp_path / "wide") == []


class SilentTokenizer(WordTokenizer):
    """Gives no ids for some texts, like models that remove characters."""

    kind = "silent"

    def encode_batch(self, texts: Sequence[bytes]) -> Any:
        return super().encode_batch([text.replace(b"~", b"") for text in texts])


@pytest.mark.parametrize("tokens_per_shard", [1, 2, 3, 100])
def test_empty_documents_are_counted(tmp_path: Path, no_flush: None, tokens_per_shard: int) -> None:
    path = tmp_path / "a.txt"
    path.write_text("<|endoftext|>".join(["~", "a b", "~~", "c", "~~~", "~~~~"]))
    out = tmp_path / "out"
    report = make(
        path,
        out,
        tokenizer=SilentTokenizer(),
        eot="none",
        val_fraction=0,
        tokens_per_shard=tokens_per_shard,
    )
    ledger = report.manifest.ledger
    train = report.manifest.splits["train"]
    assert ledger["documents_kept"] == train.documents == 2
    assert ledger["dropped"]["no tokens"] == {"documents": 4, "bytes": 10}
    assert ledger["tokens"] == train.tokens == 3
    tables = [np.load(out / shard.documents_path) for shard in train.shards]
    assert sum(map(len, tables)) == 2
    assert all((table["length"] > 0).all() for table in tables)


def test_a_sentencepiece_model_takes_documents_whole(tmp_path: Path) -> None:
    import io

    import sentencepiece

    model = io.BytesIO()
    sentences = [line for text in python_sources(200_000) for line in text.splitlines() if line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type="bpe",
        byte_fallback=True,
        vocab_size=600,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    (tmp_path / "small.model").write_bytes(model.getvalue())
    tokenizer = load_tokenizer(tmp_path / "small.model")
    assert not tokenizer.cuttable
    reference = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    path = tmp_path / "a.txt"
    path.write_text("<|endoftext|>".join(["one long document\n" * 300, "short", "words " * 500]))
    limits = small(part=1000, block=100)
    report = make(path, tmp_path / "out", limits=limits, tokenizer=tokenizer, val_fraction=0)
    assert report.parts > 5
    expected = make_expected(
        [path],
        encode=lambda data: reference.encode(data.decode()),
        eot_id=tokenizer.eot_id,
        val_fraction=0,
    )
    check_dataset(tmp_path / "out", expected, [path], 100_000_000)
    assert verify(tmp_path / "out") == []
