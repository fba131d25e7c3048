"""Datasets in a real S3 server through the disk cache: plain and compressed, warmed or not."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from servers import Proxy
from test_remote_datasets import upload

import tokenmill
from tokenmill.cli import main
from tokenmill.storage import object_connection, object_store
from tokenmill.store.frame_cache import CACHE


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain and a compressed dataset of many shards."""
    folder = tmp_path_factory.mktemp("local")
    draw = np.random.default_rng(6)
    words = [word.tobytes().decode() for word in draw.integers(97, 123, (500, 6), dtype=np.uint8)]
    texts = [" ".join(draw.choice(words, count)) for count in draw.integers(10, 500, 400)]
    (folder / "texts.txt").write_text("<|endoftext|>".join(texts))
    options = {"tokenizer": "bytes", "val_fraction": 0.1, "tokens_per_shard": 20_000}
    tokenmill.prepare(folder / "texts.txt", folder / "plain", **options)
    tokenmill.prepare(folder / "texts.txt", folder / "packed", compress="zstd", **options)
    return folder


def forget() -> None:
    """Start like a new process: without known objects and decoded frames."""
    object_store._known.clear()
    CACHE.reset()
    object_connection.disconnect()


@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_a_warmed_dataset_takes_one_list_and_no_other_request_to_read(
    local: Path, bucket: str, proxy: Proxy, tmp_path: Path, kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    address = upload(local / kind, f"{bucket}/{kind}")
    cache = ("--cache-dir", str(tmp_path / "cache"))
    forget()
    assert main(["cache", address, "--bytes", "50MB", *cache]) == 0
    assert "Fetched" in capsys.readouterr().out
    forget()
    assert main(["info", address, *cache]) == 0
    assert len(re.findall(r"100%\n", capsys.readouterr().out)) == 2
    forget()
    tokens = tokenmill.open(address, cache_dir=tmp_path / "cache")["train"]
    proxy.requests.clear()
    assert np.array_equal(tokens[:], tokenmill.open(local / "plain")["train"][:])
    assert {method for method, _ in proxy.requests} <= {"HEAD"}
    forget()
    proxy.requests.clear()
    assert main(["cache", address, *cache]) == 0
    assert "Nothing was left to fetch." in capsys.readouterr().out
    assert not [path for _, path in proxy.requests if "/train/shard" in path]


def test_info_shows_nothing_of_a_cache_that_does_not_exist(
    local: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    address = upload(local / "plain", f"{bucket}/plain")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert main(["info", address]) == 0
    assert "In the cache" not in capsys.readouterr().out
    assert not (tmp_path / "home").exists()


def test_frames_of_many_shards_are_fetched_together(local: Path, bucket: str, proxy: Proxy) -> None:
    """Without a cache: after the tables, a batch takes about one request for each shard."""
    address = upload(local / "packed", f"{bucket}/packed")
    tokens = tokenmill.open(address)["train"]
    plain = tokenmill.open(local / "plain")["train"]
    starts = np.random.default_rng(1).integers(0, len(plain) - 65, 256)
    assert np.array_equal(tokens.gather(starts, 65), plain.gather(starts, 65))
    CACHE.reset()
    proxy.requests.clear()
    assert np.array_equal(tokens.gather(starts, 65), plain.gather(starts, 65))
    assert len(proxy.requests) <= tokens.shard_count
    assert np.array_equal(tokens[:], plain[:])
    assert tokens.identity == plain.identity
