"""The data of a run: arguments, validation sets, and errors; rows are read, not mapped."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.errors import DatasetError, InputError, TokenizerError, UsageError
from tokenmill.load.mixture import Mixture
from tokenmill.load.prefetch import Prefetch
from tokenmill.preparation.train_tokenizer import train_tokenizer
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers import Tokenizer, load_tokenizer
from tokenmill.training.config import Config
from tokenmill.training.data import open_data, read_not_mapped
from tokenmill.training.validation import bytes_per_token

MEASURED = [
    (tokenizer, bytes_per_token(tokenizer, tokenizer.vocab_size))
    for tokenizer in map(load_tokenizer, ("gpt2", "bytes"))
]
SMALL = Config(seq_len=16, batch_tokens=64, val_tokens=320)


def prepare(folder: Path, word: str, documents: int = 400) -> Path:
    text = folder / f"{word}.txt"
    text.write_text("".join(f"{word} number {one}.<|endoftext|>" for one in range(documents)))
    out = folder / word
    tokenmill.prepare(text, out, tokenizer="bytes", val_fraction=0.2, workers=1)
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare(folder, "web")
    prepare(folder, "code")
    np.save(folder / "ids.npy", np.arange(5_000, dtype=np.int32) % 300)
    return folder


def test_a_prepared_dataset_needs_no_other_arguments(folder: Path) -> None:
    found = open_data([str(folder / "web")], config=SMALL)
    data = tokenmill.open(folder / "web")
    assert np.array_equal(found.train[:], data["train"][:])
    assert found.val is not None
    assert np.array_equal(found.val[:], data["val"][:])
    assert (found.vocab, found.eot_id, found.notes) == (257, 256, ())
    assert found.tokenizer is not None
    assert found.fingerprints == {
        "train": data["train"].identity,
        "val": data["val"].identity,
        "tokenizer": load_tokenizer("bytes").fingerprint,
    }
    json.dumps(found.fingerprints)


def test_a_damaged_tokenizer_of_a_dataset_is_refused(tmp_path: Path) -> None:
    data = prepare(tmp_path, "web")
    (data / "tokenizer_state.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer_state\.json"):
        open_data([str(data)], config=SMALL)


def test_a_mixture_is_validated_on_the_beginnings_of_its_sources_by_weight(folder: Path) -> None:
    given = [f"web={folder}/web:0.75", f"code={folder}/code:0.25"]
    found = open_data(given, config=SMALL)
    assert isinstance(found.train, Mixture)
    assert found.train.names == ("web", "code")
    assert found.train.phases == ((0, (0.75, 0.25)),)
    web, code = (tokenmill.open(folder / name)["val"] for name in ("web", "code"))
    assert found.val is not None
    # 320 tokens are 15 rows of 16 from the one and 5 from the other.
    assert np.array_equal(found.val[:], np.concatenate([web[:240], code[:81]]))
    assert set(found.fingerprints) == {"train web", "train code", "val", "tokenizer"}


def test_an_existing_path_with_special_characters_is_a_path(folder: Path) -> None:
    odd = folder / "a=b:0.5"
    odd.symlink_to(folder / "web")
    plain = open_data([str(odd)], config=SMALL)
    assert not isinstance(plain.train, Mixture)
    named = open_data([f"x={odd}:2"], config=SMALL)
    assert isinstance(named.train, Mixture)
    assert named.train.names == ("x",)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (["{}/web", "{}/code"], "each needs a name and a weight"),
        (["a={}/web:1", "a={}/code:1"], "two of the datasets are named 'a'"),
        (["a={}/web:much"], "the weight 'much'"),
        (["a={}/web:-1"], "the weight '-1'"),
        (["a={}/web:nan"], "the weight 'nan'"),
        ([], "give the data once"),
    ],
)
def test_wrong_data_arguments_are_named(folder: Path, data: list[str], found: str) -> None:
    with pytest.raises(UsageError, match=found):
        open_data([text.format(folder) for text in data], config=SMALL)


def test_ids_without_a_vocabulary_need_one(folder: Path) -> None:
    path = str(folder / "ids.npy")
    with pytest.raises(UsageError, match="`vocab_size=50257`"):
        open_data([path], config=SMALL)
    found = open_data([path], config=SMALL, vocab_size=300, eot_id=299)
    assert (found.vocab, found.eot_id, found.tokenizer, found.val) == (300, 299, None, None)
    assert "no validation split" in found.notes[0]
    named = open_data([path], config=SMALL, tokenizer="gpt2")
    assert (named.vocab, named.eot_id) == (50_257, 50_256)
    assert named.tokenizer is not None


def test_validation_from_a_fraction_or_from_other_tokens(folder: Path) -> None:
    path = str(folder / "ids.npy")
    held = open_data([path], config=SMALL, vocab_size=300, val_fraction=0.2)
    assert held.val is not None
    assert (len(held.train), len(held.val), held.notes) == (4_000, 1_000, ())
    apart = open_data([path], config=SMALL, vocab_size=300, val=path)
    assert apart.val is not None
    assert (len(apart.train), len(apart.val), apart.notes) == (5_000, 5_000, ())
    with_split = open_data([str(folder / "web")], config=SMALL, val=folder / "code")
    assert with_split.val is not None
    assert with_split.val.fingerprint == tokenmill.open(folder / "code")["val"].fingerprint


def test_a_validation_set_shorter_than_a_row_is_omitted_with_a_note(folder: Path) -> None:
    config = Config(seq_len=4_096, batch_tokens=4_096)
    found = open_data([str(folder / "web")], config=config)
    assert found.val is None
    assert "one row needs more than" in found.notes[0]


def test_sources_of_different_tokenizers_are_refused(folder: Path) -> None:
    text = folder / "web.txt"
    train_tokenizer(text, vocab_size=300, out=folder / "other/tokenizer.json")
    other = folder / "other_data"
    tokenmill.prepare(text, other, tokenizer=folder / "other/tokenizer.json", workers=1)
    with pytest.raises(TokenizerError, match="ids may mean different things"):
        open_data([f"a={folder}/web:1", f"b={other}:1"], config=SMALL)
    with pytest.raises(TokenizerError, match="ids may mean different things"):
        open_data([str(folder / "web")], val=other, config=SMALL)
    with pytest.raises(TokenizerError, match="made with the tokenizer 'bytes'"):
        open_data([str(folder / "web")], tokenizer="gpt2", config=SMALL)


def test_a_text_is_tokenized_in_memory_and_its_end_held_out(tmp_path: Path) -> None:
    text = tmp_path / "input.txt"
    text.write_text("one two three<|endoftext|>" * 200)
    found = open_data([], input_file=text, config=SMALL)
    tokenizer = load_tokenizer("gpt2")
    document = [*tokenizer.encode_batch([b"one two three"])[0].tolist(), 50_256]
    assert found.val is not None
    whole = [*found.train[:].tolist(), *found.val[:].tolist()]
    assert whole == document * 200
    assert len(found.train) == int(len(whole) * 0.9)
    assert found.train.dtype == np.uint16


def test_an_unusable_text_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no\.txt cannot be read"):
        open_data([], input_file=tmp_path / "no.txt", config=SMALL)
    empty = tmp_path / "empty.txt"
    empty.write_text("<|endoftext|>")
    with pytest.raises(InputError, match=r"empty\.txt contains no text"):
        open_data([], input_file=empty, config=SMALL)
    with pytest.raises(UsageError, match="give the data once"):
        open_data(["data"], input_file=empty, config=SMALL)


def test_the_validation_fraction_of_a_text_is_checked(tmp_path: Path) -> None:
    text = tmp_path / "input.txt"
    text.write_text("one two three " * 200)
    for wrong in (-0.1, 1.0, float("nan")):
        with pytest.raises(UsageError, match=r"`val_fraction` is .* below 1"):
            open_data([], input_file=text, config=SMALL, val_fraction=wrong)
    whole = open_data([], input_file=text, config=SMALL, val_fraction=0.0)
    assert whole.val is None


@settings(deadline=None)
@given(st.text(max_size=200))
def test_bytes_per_token_add_up_to_the_bytes_of_the_text(text: str) -> None:
    for tokenizer, lengths in MEASURED:
        ids = tokenizer.encode_batch([text.encode()])[0]
        assert lengths[ids].sum() == len(text.encode())
        assert lengths[tokenizer.eot_id] == 0


def test_bytes_per_token_are_measured_for_other_tokenizers() -> None:
    class Foreign(Tokenizer):
        vocab_size = 3
        special_ids = MappingProxyType({"<end>": 2})

        def encode(self, _text: bytes) -> list[int]:
            raise NotImplementedError

        def decode(self, ids: Any) -> str:
            return ["ab", "\ufffd", "<end>"][ids[0]]

        def settings(self) -> dict[str, Any]:
            return {}

    assert bytes_per_token(Foreign(), 4).tolist() == [2, 1, 0, 0]


def save_tokens(folder: Path, dtype: str = "u2", shards: int = 3) -> Tokens:
    ids = np.random.default_rng(0).integers(0, 60_000, 30_000).astype(dtype)
    folder.mkdir()
    for number, part in enumerate(np.array_split(ids, shards)):
        np.save(folder / f"train_{number}.npy", part)
    return tokenmill.open(folder)["train"]


def batches(data: Any, **more: Any) -> list[list[list[int]]]:
    loader = tokenmill.Loader(data, batch_size=8, seq_len=100, seed=3, **more)
    return [next(loader).inputs.tolist() for _ in range(30)]


@pytest.mark.parametrize("order", ["shuffled", "sequential"])
@pytest.mark.parametrize("shards", [1, 3])
def test_batches_read_and_mapped_are_the_same(tmp_path: Path, shards: int, order: str) -> None:
    tokens = save_tokens(tmp_path / "a", shards=shards)
    read = read_not_mapped(tokens)
    assert read.fingerprint == tokens.fingerprint
    assert batches(read, order=order) == batches(tokens, order=order)
    assert batches(read, dtype=np.uint16) == batches(tokens)


@pytest.mark.parametrize("dtype", ["u2", "u4"])
def test_mixtures_read_and_mapped_are_the_same(tmp_path: Path, dtype: str) -> None:
    both = save_tokens(tmp_path / "a"), save_tokens(tmp_path / "b", dtype=dtype)
    mixture = Mixture({"a": (both[0], 0.7), "b": (both[1], 0.3)})
    assert batches(read_not_mapped(mixture)) == batches(mixture)


@pytest.mark.parametrize("mixed", [False, True])
def test_a_file_truncated_while_loading_is_an_error(tmp_path: Path, mixed: bool) -> None:
    """Through a map, this would be a SIGBUS."""
    tokens = save_tokens(tmp_path / "a", shards=1)
    data: Any = Mixture({"a": (tokens, 1), "b": (tokens, 1)}) if mixed else tokens
    loader = tokenmill.Loader(read_not_mapped(data), batch_size=8, seq_len=100, prefetch=2)
    next(loader)
    os.truncate(tmp_path / "a" / "train_0.npy", 4096)
    with pytest.raises(DatasetError, match=r"train_0\.npy is .* bytes too short"):
        list(islice(loader, 30))
    loader.close()


def test_a_file_truncated_after_the_size_check_is_an_error(tmp_path: Path) -> None:
    tokens = save_tokens(tmp_path / "a", shards=1)
    path = tmp_path / "a" / "train_0.npy"
    cut = replace(tokens._shards, check=lambda *_: os.truncate(path, 4096))  # after the size
    with pytest.raises(DatasetError, match=r"train_0\.npy is .* bytes too short"):
        cut.read(0, 0, len(tokens))


def test_a_loader_of_large_batches_closes_promptly(tmp_path: Path) -> None:
    tokens = read_not_mapped(save_tokens(tmp_path / "a"))
    loader = tokenmill.Loader(tokens, batch_size=1_000_000, seq_len=1)  # takes half a minute
    ahead = Prefetch(loader.reader.plan_reads(0), 1)
    time.sleep(0.5)
    started = time.monotonic()
    ahead.close()
    assert time.monotonic() - started < 5
    assert not ahead._threads[0].is_alive()
