"""Compressed shards give the same tokens through a cache, which holds their compressed bytes."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest

import tokenmill
from tokenmill.errors import DatasetError
from tokenmill.load.loader import Loader
from tokenmill.storage.cache import SET_BYTES
from tokenmill.store.frame_cache import CACHE

WORDS = np.random.default_rng(4).integers(97, 123, (2_000, 5), dtype=np.uint8)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A plain and a compressed dataset with the same tokens."""
    folder = tmp_path_factory.mktemp("made")
    draw = np.random.default_rng(5)
    documents = [
        b" ".join(word.tobytes() for word in WORDS[draw.integers(0, len(WORDS), count)])
        for count in draw.integers(10, 4_000, 300)
    ]
    (folder / "a.txt").write_bytes(b"<|endoftext|>".join(documents))
    options = {"tokenizer": "bytes", "val_fraction": 0.1, "tokens_per_shard": 500_000}
    tokenmill.prepare(folder / "a.txt", folder / "plain", **options)
    tokenmill.prepare(folder / "a.txt", folder / "packed", compress="zstd", **options)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made / "packed", tmp_path / "packed")


@pytest.fixture(autouse=True)
def forget():
    """Decoded frames of earlier tests would hide whether files are read."""
    CACHE.reset()


def open_train(folder, cache_dir):
    return tokenmill.open(folder, cache_dir=cache_dir, cache_bytes=2 * SET_BYTES)["train"]


def test_slices_rows_tokens_and_states_are_those_of_plain_shards(made, folder, tmp_path):
    plain = tokenmill.open(made / "plain")["train"]
    cached = open_train(folder, tmp_path / "cache")
    assert cached.cache.folder == tmp_path / "cache"
    assert cached.shard_count > 5
    assert cached.identity == plain.identity
    assert np.array_equal(cached[:], plain[:])
    assert cached[1_234_567] == plain[1_234_567]
    assert np.array_equal(cached.read(499_000, 1_001_000), plain[499_000:1_001_000])
    for length in (1, 100, 4_097, 700_000):
        starts = np.random.default_rng(length).integers(0, len(plain) - length, 40)
        assert np.array_equal(cached.gather(starts, length), plain.gather(starts, length))
    again = pickle.loads(pickle.dumps(cached))
    assert np.array_equal(again[5:10_000], plain[5:10_000])
    part = tokenmill.open(made / "packed", val_fraction=None, cache_dir=tmp_path / "cache")["val"]
    assert np.array_equal(part[:], tokenmill.open(made / "plain")["val"][:])


def test_the_cache_holds_the_compressed_bytes(folder, tmp_path):
    cached = open_train(folder, tmp_path / "cache")
    cached[:]
    packed = sum(path.stat().st_size for path in (folder / "train").glob("*.zst"))
    kept = (tmp_path / "cache" / "pieces.bin").stat().st_blocks * 512
    assert packed < len(cached) * cached.dtype.itemsize / 2
    assert 0.9 * packed < kept < 1.5 * packed


def test_tokens_that_were_read_are_read_again_without_the_files(made, folder, tmp_path):
    cached = open_train(folder, tmp_path / "cache")
    cached[:]
    CACHE.reset()
    shutil.rmtree(folder / "train")
    assert np.array_equal(cached[:], tokenmill.open(made / "plain")["train"][:])


def test_fetched_rows_are_in_the_cache(made, folder, tmp_path):
    """Rows in several shards, one of which crosses from one shard into the next."""
    cached = open_train(folder, tmp_path / "cache")
    starts = np.array([499_000, 1_200_000, 100_000, 2_000_000])
    cached.fetch(starts, 3_000)
    shutil.rmtree(folder / "train")
    expected = tokenmill.open(made / "plain")["train"].gather(starts, 3_000)
    assert np.array_equal(cached.gather(starts, 3_000), expected)
    with pytest.raises(DatasetError, match="is missing"):
        cached[:]


def test_fetching_stops_when_asked(folder, tmp_path):
    cached = open_train(folder, tmp_path / "cache")
    cached.fetch(np.array([0]), len(cached), lambda: True)
    shutil.rmtree(folder / "train")
    with pytest.raises(DatasetError, match="is missing"):
        cached[:]


def test_a_held_out_part_is_read_alike(tmp_path):
    (tmp_path / "a.txt").write_text("a text of some words\n" * 9_000)
    options = {"tokenizer": "bytes", "val_fraction": 0, "tokens_per_shard": 20_000}
    tokenmill.prepare(tmp_path / "a.txt", tmp_path / "own", compress="zstd", **options)
    whole = tokenmill.open(tmp_path / "own")["train"][:]
    halves = tokenmill.open(tmp_path / "own", cache_dir=tmp_path / "cache", val_fraction=0.3)
    assert np.array_equal(np.concatenate((halves["train"][:], halves["val"][:])), whole)
    halves["val"].fetch(np.array([0, 100]), 50)


def test_tables_that_do_not_fit_in_memory_are_read_again(made, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("tokenmill.store.compressed._TABLES", 3_000)  # one or two tables
    plain = tokenmill.open(made / "plain")["train"]
    starts = np.random.default_rng(3).integers(0, len(plain) - 5_000, 200)
    for tokens in (
        open_train(folder, tmp_path / "cache"),
        tokenmill.open(folder)["train"].unmapped(),
    ):
        tokens.fetch(starts, 5_000)
        assert np.array_equal(tokens.gather(starts, 5_000), plain.gather(starts, 5_000))
        assert len(tokens._gatherer._frames._tables) <= 2
        CACHE.reset()


@pytest.mark.parametrize("order", ["blocks", "shuffled", "sequential"])
def test_batches_are_those_of_plain_shards(made, folder, tmp_path, order):
    run = {"batch_size": 8, "seq_len": 256, "seed": 3, "order": order, "limit_rows": 2_000}
    if order == "blocks":
        run |= {"block_rows": 128, "group_blocks": 4}
    plain = Loader(tokenmill.open(made / "plain")["train"], documents=True, **run)
    with Loader(open_train(folder, tmp_path / "cache"), documents=True, **run) as cached:
        for batch, expected in zip(cached, plain, strict=True):
            assert np.array_equal(batch.inputs, expected.inputs)
            assert np.array_equal(batch.targets, expected.targets)
            assert np.array_equal(batch.documents.cu_seqlens, expected.documents.cu_seqlens)


def test_a_damaged_frame_is_refused_by_name_and_not_only_the_first_time(folder, tmp_path):
    path = next((folder / "train").glob("*1.bin.zst"))
    data = bytearray(path.read_bytes())
    data[50_000] ^= 4
    path.write_bytes(data)
    cached = open_train(folder, tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(DatasetError, match=rf"{path.name} is damaged in frame"):
            cached[500_000:1_000_000]
