"""A state belongs to its data: a manifest's checksums tell, and in other formats a sample."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from dataset_builder import build

import tokenmill
from tokenmill import Loader, Mixture
from tokenmill.errors import StateError

TEXT = np.random.default_rng(0).integers(0, 256, 100_000).astype(np.uint8).tobytes()
OTHER = TEXT[:1_000] + bytes([TEXT[1_000] ^ 1]) + TEXT[1_001:]  # not in the sample


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same dataset in shards of two sizes, and one that differs in one token of 100,001."""
    folder = tmp_path_factory.mktemp("data")
    build(folder / "data", {"train": [TEXT]}, shard_tokens=40_000)
    build(folder / "cut", {"train": [TEXT]}, shard_tokens=7_000)
    build(folder / "wide", {"train": [TEXT]}, shard_tokens=40_000, dtype="uint32")
    build(folder / "other", {"train": [OTHER]}, shard_tokens=40_000)
    tokenmill.export(folder / "data", folder / "npy", to="npy")
    return folder


def make(data, **options):
    return Loader(data, batch_size=2, seq_len=16, prefetch=0, **options)


def test_one_other_token_is_refused_by_the_checksums_of_the_manifest(folder):
    data, other = (tokenmill.open(folder / name)["train"] for name in ("data", "other"))
    assert data.fingerprint == other.fingerprint
    state = json.loads(json.dumps(make(data).state_dict()))
    with pytest.raises(StateError, match=r"sources\.fingerprint is"):
        make(other).load_state_dict(state)
    with pytest.raises(StateError, match=r"sources\.fingerprint is"):
        make(other, in_memory=True).load_state_dict(state)
    with pytest.raises(StateError, match=r"sources\.fingerprint is"):
        make(other).load_state_dict(make(data, in_memory=True).state_dict())
    mixed, mixed_other = (Mixture({"a": (data, 1), "b": (one, 1)}) for one in (data, other))
    with pytest.raises(StateError, match=r"sources\.b\.fingerprint is"):
        make(mixed_other).load_state_dict({**make(mixed).state_dict(), "row": 5})


@pytest.mark.parametrize("split", ["train", "val"])
def test_one_other_token_is_refused_in_a_part_of_a_dataset(folder, split):
    data, other = (
        tokenmill.open(folder / name, val_fraction=0.5)[split] for name in ("data", "other")
    )
    assert make(data).state_dict() == make(pickle.loads(pickle.dumps(data))).state_dict()
    with pytest.raises(StateError, match=r"sources\.fingerprint is"):
        make(other).load_state_dict(make(data).state_dict())


def test_the_same_tokens_are_accepted_in_other_shards_and_formats(folder):
    state = {**make(tokenmill.open(folder / "data")["train"]).state_dict(), "row": 6}
    for name in ("data", "cut", "wide", "npy"):
        for in_memory in (False, True):
            loader = make(tokenmill.open(folder / name)["train"], in_memory=in_memory)
            loader.load_state_dict(state)
            assert loader.row == 6


def test_a_state_that_has_only_the_sample_is_accepted(folder):
    tokens = tokenmill.open(folder / "data")["train"]
    state = {**make(tokens).state_dict(), "row": 4}
    state["sources"] = {"": {"tokens": len(tokens), "fingerprint": tokens.fingerprint}}
    make(tokens).load_state_dict(state)
    for wrong in (None, 5, [], "", ":", "::", "a:b:c:d", tokens.fingerprint[:-1]):
        state["sources"] = {"": {"tokens": len(tokens), "fingerprint": wrong}}
        with pytest.raises(StateError, match=r"sources\.fingerprint is"):
            make(tokens).load_state_dict(state)


def test_a_cached_run_resumes_without_reading_the_sample_if_checksums_match(folder, tmp_path):
    plain, other = (tokenmill.open(folder / name)["train"] for name in ("data", "other"))
    cached = tokenmill.open(folder / "data", cache_dir=tmp_path, cache_bytes=10 << 20)["train"]
    state = {**make(plain).state_dict(), "row": 6}
    loader = make(cached)
    loader.load_state_dict(state)
    assert not any((tmp_path / "pieces.bin").read_bytes())
    assert loader.state_dict() == state
    with pytest.raises(StateError, match=r"sources\.fingerprint is"):
        make(cached).load_state_dict(make(other).state_dict())
    for broken in ({}, {"sources": 5}, {"sources": {"": {"fingerprint": ["x:y"]}}}):
        with pytest.raises(StateError):
            make(cached).load_state_dict({**state, **dict.fromkeys(state, None), **broken})
