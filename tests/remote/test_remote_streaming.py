"""Loaders stream from a bucket through a cache, which is there by default."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest
from line import Line

import tokenmill
from tokenmill.storage import object_connection
from tokenmill.storage.cache import SET_BYTES

IDS = np.random.default_rng(3).integers(1, 50_000, 12_000_001).astype(np.uint16)
RUN = {"batch_size": 32, "seq_len": 1_024, "seed": 5}
BLOCKS = {"order": "blocks", "group_blocks": 4}


@pytest.fixture
def corpus(bucket, tmp_path, monkeypatch):
    """A dataset of 24 MB in a bucket, whose shards end inside of blocks."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    IDS.tofile(tmp_path / "ids.bin")
    tokenmill.import_dataset(
        tmp_path / "ids.bin",
        f"{bucket}/corpus",
        dtype="uint16",
        eot_id=0,
        tokenizer="gpt2",
        tokens_per_shard=5_000_000,
    )
    return f"{bucket}/corpus"


@pytest.fixture
def slow(corpus, server, monkeypatch):
    """A line to the server with 20 ms and 20 MB/s."""
    line = Line(server, latency=0.02, bandwidth=20e6)
    monkeypatch.setenv("AWS_ENDPOINT_URL", line.address)
    object_connection.disconnect()
    yield line
    line.close()
    object_connection.disconnect()


def test_a_bucket_is_cached_by_default_unless_it_is_turned_off(corpus, tmp_path):
    tokens = tokenmill.open(corpus)["train"]
    assert tokens.cache.folder == tmp_path / "home" / "tokenmill"
    assert (tokens[5:10] == IDS[5:10]).all()
    assert (tmp_path / "home" / "tokenmill" / "pieces.bin").stat().st_size
    assert tokenmill.open(corpus, cache_bytes=0)["train"].cache is None
    assert tokenmill.open(tmp_path / "ids.bin", dtype="uint16")["train"].cache is None
    small = tokenmill.open(corpus, cache_bytes=SET_BYTES)["train"].cache
    assert (small.folder, small.limit) == (tokens.cache.folder, SET_BYTES)


def test_a_cache_that_cannot_be_made_is_a_warning(corpus, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(
        UserWarning, match=r"cache folder .*file.* cannot be used .*`cache_dir`.*`cache_bytes=0`"
    ):
        tokens = tokenmill.open(corpus)["train"]
    assert tokens.cache is None
    assert (tokens[5:10] == IDS[5:10]).all()


def test_data_larger_than_the_cache_are_a_warning_with_the_cure(corpus, tmp_path):
    tokens = tokenmill.open(corpus, cache_bytes=SET_BYTES)["train"]
    with pytest.warns(UserWarning, match=r"24.0 MB.* 8.4 MB.*'shuffled'.*`order='blocks'`"):
        tokenmill.Loader(tokens, **RUN)
    with pytest.warns(UserWarning, match=r"blocks of two groups.*`group_blocks`"):
        tokenmill.Loader(tokens, **RUN, order="blocks")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenmill.Loader(tokens, **RUN, **BLOCKS | {"group_blocks": 2})
        tokenmill.Loader(tokens, **RUN, order="sequential")
        tokenmill.Loader(tokenmill.open(corpus, cache_bytes=10**8)["train"], **RUN)


def test_an_epoch_through_a_small_cache_fetches_every_byte_about_once(corpus, slow):
    """The cache has room for a third of the data, and blocks do not end where pieces do."""
    tokens = tokenmill.open(corpus, cache_bytes=SET_BYTES)["train"]
    run = {**RUN, "order": "blocks", "group_blocks": 2, "limit_epochs": 1}
    with tokenmill.Loader(tokens, **run) as loader:
        for batch, expected in zip(
            loader, tokenmill.Loader(tokenmill.Tokens.of(IDS), **run), strict=True
        ):
            assert (batch.tokens == expected.tokens).all()
    # A few rows before their blocks, of at most a megabyte, and headers.
    assert IDS.nbytes < slow.bytes < 1.05 * IDS.nbytes + 1.5e6


def test_the_first_batch_and_resuming_wait_for_rows_and_not_for_blocks(corpus, slow, tmp_path):
    """All blocks take 1.2 s, and whole blocks of the first batch almost as long."""
    waits = []
    for row in (0, 5_024):
        options = {"cache_dir": tmp_path / str(row), "cache_bytes": 10**8}
        tokens = tokenmill.open(corpus, **options)["train"]
        loader = tokenmill.Loader(tokens, **RUN, order="blocks")
        before, started = slow.bytes, time.monotonic()
        loader._move(row)
        batch = next(loader)
        waits.append((slow.bytes - before, time.monotonic() - started))
        loader.close()
        assert (
            batch.tokens
            == tokenmill.Loader(tokenmill.Tokens.of(IDS), **RUN, order="blocks")
            .batch_from(row)
            .tokens
        ).all()
    assert all(count < IDS.nbytes / 3 for count, _ in waits), waits


def test_ranks_of_one_machine_fetch_each_block_once(corpus, slow):
    tokens = tokenmill.open(corpus)["train"]
    loaders = [
        tokenmill.Loader(tokens, **RUN, order="blocks", rank=rank, world_size=2, limit_epochs=1)
        for rank in (0, 1)
    ]
    rows = 0
    for batches in zip(*loaders, strict=True):
        rows += sum(len(batch.inputs) for batch in batches)
    assert rows >= (len(IDS) - 1) // 1_024 // 64 * 64
    assert slow.bytes < 1.05 * IDS.nbytes + 3e6
