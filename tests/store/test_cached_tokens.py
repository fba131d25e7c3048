"""Tokens that are read through a cache are the same tokens."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest

import tokenmill
from tokenmill.errors import DatasetError, UsageError
from tokenmill.storage.cache import PIECE, SET_BYTES, PieceCache
from tokenmill.store.tokens import Tokens, join

IDS = np.random.default_rng(3).integers(0, 60_000, 700_001).astype(np.uint16)
CUTS = [1, 65_536, 65_537, 200_000, 200_000, 555_555]


@pytest.fixture
def cache(tmp_path):
    return PieceCache(tmp_path / "cache", 2 * SET_BYTES)


@pytest.fixture
def folder(tmp_path):
    """Files of several lengths: rows cross files and pieces."""
    path = tmp_path / "data"
    path.mkdir()
    for number, part in enumerate(np.split(IDS, CUTS)):
        if len(part):
            part.tofile(path / f"train_{number}.bin")
    return path


def open_train(folder, **options):
    return tokenmill.open(folder, dtype="uint16", format="raw", **options)["train"]


def test_slices_rows_and_single_tokens_are_the_same(folder, cache):
    tokens, cached = open_train(folder), open_train(folder).cached(cache)
    assert cached.cache is cache
    assert tokens.cache is None
    assert len(cached) == len(IDS)
    assert (cached[:] == IDS).all()
    draw = np.random.default_rng(1)
    for _ in range(50):
        first, last = np.sort(draw.integers(0, len(IDS), 2)).tolist()
        assert (cached[first:last] == IDS[first:last]).all()
        assert cached[first] == IDS[first]
    for length in (1, 100, 2_049, PIECE):
        starts = draw.integers(0, len(IDS) - length, 200)
        expected = np.stack([IDS[start : start + length] for start in starts])
        assert (cached.gather(starts, length) == expected).all()
        read = cached.find_rows(starts, length)
        assert (read(50, 120) == expected[50:120]).all()
        assert read(7, 7).shape == (0, length)


def test_the_second_read_does_not_open_the_files(folder, cache):
    cached = open_train(folder).cached(cache)
    cached[:]
    shutil.rmtree(folder)
    assert (cached[:] == IDS).all()


def test_parts_headers_pickles_and_joins_are_read_alike(tmp_path, folder, cache):
    part = open_train(folder, val_fraction=0.3).cached(cache)
    assert (part[:] == IDS[: len(part)]).all()
    np.save(tmp_path / "ids.npy", IDS)
    npy = tokenmill.open(tmp_path / "ids.npy")["train"].cached(cache)
    assert (npy[:] == IDS).all()
    again = pickle.loads(pickle.dumps(npy))
    assert again.cache.folder == cache.folder
    assert (again[:] == IDS).all()
    joined = join([part, npy])
    assert joined.cache is cache
    starts = np.array([0, len(part) - 5, len(part), len(part) + 600_000])
    expected = np.concatenate((IDS[: len(part)], IDS))
    rows = joined.gather(starts, 100)
    assert (rows == np.stack([expected[start : start + 100] for start in starts])).all()


def test_unmapped_keeps_the_cache_and_calls_the_function_between_pieces(folder, cache):
    calls = []
    tokens = open_train(folder).cached(cache).unmapped(lambda: calls.append(1))
    assert tokens.cache is cache
    assert (tokens[:] == IDS).all()
    assert len(calls) >= 2 * len(IDS) // PIECE


def test_tokens_in_memory_need_no_cache(cache):
    tokens = Tokens.of([1, 2, 3])
    assert tokens.cached(cache) is tokens


def test_a_prepared_dataset_is_read_alike_and_a_format_of_records_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a text of some words\n" * 500)
    tokenmill.prepare(tmp_path / "a.txt", tmp_path / "own", tokenizer="bytes", val_fraction=0)
    cached = tokenmill.open(tmp_path / "own", cache_dir=tmp_path / "cache")["train"]
    plain = tokenmill.open(tmp_path / "own")["train"]
    assert (cached[:] == plain[:]).all()
    assert cached.identity == plain.identity
    tokenmill.export(tmp_path / "own", tmp_path / "mds", to="mds")
    with pytest.raises(UsageError, match=r"shard.* cannot be cached.*tokenmill import"):
        tokenmill.open(tmp_path / "mds", cache_dir=tmp_path / "cache")["train"]


def test_fetched_rows_are_in_the_cache(folder, cache):
    cached = open_train(folder).cached(cache)
    starts = np.array([100_000, 300_000, 640_000])
    cached.fetch(starts, 2_000)
    shutil.rmtree(folder)
    expected = np.stack([IDS[start : start + 2_000] for start in starts])
    assert (cached.gather(starts, 2_000) == expected).all()
    with pytest.raises(DatasetError, match="is missing"):
        cached[500_000:500_010]


def test_the_identity_is_read_through_the_cache(folder, cache):
    """So that not every process and restart has to fetch the sample."""
    tokens = open_train(folder)
    assert tokens.cached(cache).identity == tokens.identity
    again = tokens.cached(cache)
    for shard in range(again.shard_count):
        again._gatherer._find_file(shard)
    shutil.rmtree(folder)
    assert again.identity == tokens.identity
    assert (again.read(0, 100) == IDS[:100]).all()


def test_a_file_with_another_version_is_read_again(folder, cache):
    assert (open_train(folder).cached(cache)[:] == IDS).all()
    for path in folder.iterdir():
        (np.fromfile(path, np.uint16) + 1).tofile(path)
    assert (open_train(folder).cached(cache)[:] == IDS + 1).all()


def test_a_file_that_changes_or_shrinks_while_in_use_is_refused_by_name(folder, cache):
    cached = open_train(folder).cached(cache)
    assert cached[200_100] == IDS[200_100]
    path = folder / "train_5.bin"
    ids = np.fromfile(path, np.uint16)
    (ids + 1).tofile(path)
    with pytest.raises(DatasetError, match=r"train_5\.bin was changed while it was being read"):
        cached[500_000:500_010]
    ids[:-1].tofile(path)
    with pytest.raises(DatasetError, match=r"train_5\.bin is 2 bytes too short"):
        cached[400_000:400_010]


def test_open_takes_the_folder_and_the_size_of_the_cache(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    options = {"dtype": "uint16", "format": "raw"}
    assert tokenmill.open(folder, **options)["train"].cache is None
    for given, place, limit in (
        ({"cache_dir": tmp_path / "a", "cache_bytes": 10**7}, tmp_path / "a", 10**7),
        ({"cache_dir": tmp_path / "a"}, tmp_path / "a", SET_BYTES),  # the limit it has
        ({"cache_dir": tmp_path / "b"}, tmp_path / "b", 16 << 30),
        ({"cache_bytes": 10**7}, tmp_path / "home" / "tokenmill", 10**7),
    ):
        data = pickle.loads(pickle.dumps(tokenmill.open(folder, **options, **given)))
        cache = data["train"].cache
        assert (cache.folder, cache.limit) == (place, limit)
        assert (data["train"][-1_000:] == IDS[-1_000:]).all()
        assert (place / "pieces.bin").stat().st_size > 0
