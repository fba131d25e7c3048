"""Tokens that are read rather than mapped: the same ones, and an error where a map would end all."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tokenmill.errors import DatasetError
from tokenmill.load.mixture import Mixture
from tokenmill.load.prefetch import Prefetch
from tokenmill.store.tokens import Tokens
from tokenmill.training.reading import read_not_mapped


def save(folder: Path, dtype: str = "u2", shards: int = 3) -> Tokens:
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
def test_batches_are_the_same(tmp_path: Path, shards: int, order: str) -> None:
    tokens = save(tmp_path / "a", shards=shards)
    read = read_not_mapped(tokens)
    assert read.fingerprint == tokens.fingerprint
    assert batches(read, order=order) == batches(tokens, order=order)
    assert batches(read, dtype=np.uint16) == batches(tokens)


@pytest.mark.parametrize("dtype", ["u2", "u4"])
def test_batches_of_mixtures_are_the_same(tmp_path: Path, dtype: str) -> None:
    both = save(tmp_path / "a"), save(tmp_path / "b", dtype=dtype)
    mixture = Mixture({"a": (both[0], 0.7), "b": (both[1], 0.3)})
    assert batches(read_not_mapped(mixture)) == batches(mixture)


@pytest.mark.parametrize("mixed", [False, True])
def test_a_file_that_is_cut_short_under_a_loader_is_an_error(tmp_path: Path, mixed: bool) -> None:
    """Through a map, this would be a SIGBUS."""
    tokens = save(tmp_path / "a", shards=1)
    data: Any = Mixture({"a": (tokens, 1), "b": (tokens, 1)}) if mixed else tokens
    loader = tokenmill.Loader(read_not_mapped(data), batch_size=8, seq_len=100, prefetch=2)
    next(loader)
    os.truncate(tmp_path / "a" / "train_0.npy", 4096)
    with pytest.raises(DatasetError, match=r"train_0\.npy is .* bytes too short"):
        list(islice(loader, 30))
    loader.close()


def test_a_file_that_is_cut_between_two_looks_at_it_is_told_of(tmp_path: Path) -> None:
    tokens = save(tmp_path / "a", shards=1)
    path = tmp_path / "a" / "train_0.npy"
    cut = replace(tokens._shards, check=lambda *_: os.truncate(path, 4096))  # after the size
    with pytest.raises(DatasetError, match=r"train_0\.npy is .* bytes too short"):
        cut.read(0, 0, len(tokens))


def test_a_loader_of_large_batches_closes_in_the_middle_of_one(tmp_path: Path) -> None:
    tokens = read_not_mapped(save(tmp_path / "a"))
    loader = tokenmill.Loader(tokens, batch_size=1_000_000, seq_len=1)  # takes half a minute
    ahead = Prefetch(loader.reader.plan_reads(0), 1)
    time.sleep(0.5)
    started = time.monotonic()
    ahead.close()
    assert time.monotonic() - started < 5
    assert not ahead._thread.is_alive()
