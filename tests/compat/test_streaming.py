"""local.py: `StreamingDataset`, X.npy next to X.txt."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import tokenmill
from tokenmill.compat import StreamingDataset
from tokenmill.errors import InputError, UsageError

TEXT = "It is a truth universally acknowledged.\n<|endoftext|>" * 20 + "Grüße aus Köln\n\n  x = 1\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "c4 subset.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def ids() -> np.ndarray:
    return np.array([id for part in TEXT.split("<|endoftext|>") for id in [*part.encode(), 256]])


def check(dataset: StreamingDataset, expected: np.ndarray, length: int) -> None:
    assert len(dataset) == (len(expected) - 1) // length
    batches = list(DataLoader(dataset, batch_size=3))
    inputs, targets = (torch.cat(parts).ravel().numpy() for parts in zip(*batches, strict=True))
    end = len(dataset) * length
    np.testing.assert_array_equal(inputs, expected[:end])
    np.testing.assert_array_equal(targets, expected[1 : end + 1])


@pytest.mark.parametrize("dtype", ["auto", "int32"])
def test_the_file_next_to_the_text_is_mapped_and_named(
    text: Path, ids: np.ndarray, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenmill.pretokenize(text, tokenizer="bytes", dtype=dtype, workers=1)
    place = int(len(ids) * 0.9)
    check(StreamingDataset(text, seq_length=8), ids[:place], 8)
    assert capsys.readouterr().out.splitlines() == [
        f"🚀 Using memory-mapped file: {text.with_suffix('.npy')}",
        "   (This uses ~0MB RAM regardless of dataset size!)",
        f"   Total tokens in file: {len(ids):,}",
        f"   Using train portion: {place:,} tokens (indices 0 to {place:,})",
        f"StreamingDataset (train): {(place - 1) // 8:,} sequences from {place:,} tokens",
    ]
    check(StreamingDataset(text, seq_len=5, split="val"), ids[place:], 5)
    printed = capsys.readouterr().out
    assert (
        f"Using val portion: {len(ids) - place} tokens (indices {place} to {len(ids)})" in printed
    )


def test_a_text_without_ids_is_tokenized_in_memory_with_a_warning(
    text: Path, ids: np.ndarray
) -> None:
    with pytest.warns(UserWarning, match="No .npy file found") as caught:
        train = StreamingDataset(text, "bytes", 8)
    assert str(caught[0].message).endswith(f"run: tokenmill pretokenize '{text}'")
    assert caught[0].filename == __file__
    place = int(len(ids) * 0.9)
    check(train, ids[:place], 8)
    with pytest.warns(UserWarning, match="No .npy file found"):
        check(StreamingDataset(text, "bytes", 8, split="val"), ids[place:], 8)


def test_the_default_tokenizer_is_gpt2(text: Path) -> None:
    text.write_text("Hello world<|endoftext|>" * 10)
    with pytest.warns(UserWarning, match="No .npy file found"):
        dataset = StreamingDataset(text, seq_length=8)
    check(dataset, np.tile([15496, 995, 50256], 9), 8)


def test_any_object_with_encode_is_a_tokenizer(text: Path) -> None:
    class Letters:
        def encode(self, text: str) -> list[int]:
            return [ord(letter) for letter in text]

    with pytest.warns(UserWarning, match="No .npy file found"):
        dataset = StreamingDataset(text, Letters(), 8)
    expected = np.array([ord(letter) for letter in TEXT])
    check(dataset, expected[: int(len(expected) * 0.9)], 8)


def test_ids_older_than_their_text_give_a_warning(text: Path) -> None:
    made = tokenmill.pretokenize(text, tokenizer="bytes", workers=1)
    os.utime(made.path, ns=(0, 0))
    with pytest.warns(UserWarning, match="is older than .*--restart") as caught:
        StreamingDataset(text, seq_length=8)
    assert caught[0].filename == __file__


def test_ids_are_enough_without_their_text(text: Path, ids: np.ndarray) -> None:
    tokenmill.pretokenize(text, tokenizer="bytes", workers=1)
    text.unlink()
    check(StreamingDataset(text, seq_length=8), ids[: int(len(ids) * 0.9)], 8)


def test_a_missing_text_without_ids_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Neither .*no.txt nor .*no.npy exists"):
        StreamingDataset(tmp_path / "no.txt")


def test_only_train_and_val_are_splits(text: Path) -> None:
    with pytest.raises(UsageError, match="`split` is 'test'"):
        StreamingDataset(text, split="test")  # type: ignore[arg-type]


def test_an_output_without_emoji_is_not_an_error(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenmill.pretokenize(text, tokenizer="bytes", workers=1)
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    StreamingDataset(text, seq_length=8)
    sys.stdout.flush()
    assert written.getvalue().startswith(b"? Using memory-mapped file")
