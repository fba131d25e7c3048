"""compat.windows: `download_tokenized_data`, against a local Hub with small shards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_hub import LocalHub, llmc_shard

from tokenmill.compat import TokenizedDataset, download_tokenized_data

REPOSITORY = "karpathy/fineweb-edu-100B-gpt2-token-shards"
SHARDS = {f"edu_fineweb_train_{n:06}.bin": llmc_shard([n] * 600) for n in range(1, 6)}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with LocalHub(tmp_path / "site") as served:
        served.put(REPOSITORY, SHARDS)
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


def test_the_lines_of_the_guide_run(
    hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_dir = download_tokenized_data(tmp_path / "data")
    assert capsys.readouterr().out.endswith("Data download complete!\n")
    assert sorted(os.listdir(data_dir)) == list(SHARDS)[:3]
    assert len(TokenizedDataset(data_dir, split="train", block_size=16)) == 1200
    x, _ = TokenizedDataset(data_dir, split="val", block_size=16).get_batch(2, device="cpu")
    assert x.unique().tolist() == [3]


def test_only_missing_or_truncated_shards_are_fetched(hub: LocalHub, tmp_path: Path) -> None:
    data_dir = Path(download_tokenized_data(tmp_path / "data"))
    hub.fail()
    download_tokenized_data(data_dir)
    assert hub.requests("/") == []
    os.truncate(data_dir / "edu_fineweb_train_000002.bin", 1500)
    (data_dir / "edu_fineweb_train_000003.bin").unlink()
    download_tokenized_data(data_dir)
    assert hub.sent() == 2 * len(SHARDS["edu_fineweb_train_000002.bin"])
    assert {path.name: path.read_bytes() for path in data_dir.iterdir()} == dict(
        list(SHARDS.items())[:3]
    )
