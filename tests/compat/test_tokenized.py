"""windows.py: `TokenizedDataset`, headers are not tokens and all windows are equally likely."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from tokenmill.compat import TokenizedDataset
from tokenmill.errors import DatasetError, UsageError

COUNTS = (40, 7, 100, 53)  # tokens of the shards; the last one is held out
LENGTH = 9  # longer than a shard


def write_shard(path: Path, ids: np.ndarray) -> None:
    header = struct.pack("<3i", 20240520, 1, len(ids)).ljust(1024, b"\0")
    path.write_bytes(header + ids.astype("<u2").tobytes())


@pytest.fixture
def ids() -> list[np.ndarray]:
    return np.split(np.arange(1, sum(COUNTS) + 1), np.cumsum(COUNTS)[:-1])


@pytest.fixture
def folder(tmp_path: Path, ids: list[np.ndarray]) -> Path:
    for number, part in zip((1, 2, 9, 10), ids, strict=True):  # a small sample of all windows
        write_shard(tmp_path / f"edu_fineweb_train_{number:06}.bin", part)
    return tmp_path


def draw(dataset: TokenizedDataset, rows: int) -> np.ndarray:
    x, y = dataset.get_batch(rows, device="cpu")
    assert x.dtype == y.dtype == torch.int64
    assert x.shape == y.shape == (rows, dataset.block_size)
    assert x.is_contiguous()
    return np.column_stack([x.numpy(), y.numpy()[:, -1]])


@pytest.mark.parametrize(("split", "parts"), [("train", slice(0, 3)), ("val", slice(3, 4))])
def test_every_window_is_equally_likely(
    folder: Path, ids: list[np.ndarray], split: str, parts: slice
) -> None:
    tokens = np.concatenate(ids[parts])
    dataset = TokenizedDataset(folder, split, block_size=LENGTH)
    assert len(dataset) == len(tokens)
    rows = draw(dataset, 20_000)
    # Ids count up through all shards, so a window counts up too, and its first id is its start.
    np.testing.assert_array_equal(rows, rows[:, :1] + np.arange(LENGTH + 1))
    assert rows.min() == tokens[0]
    assert rows.max() == tokens[-1]
    counts = Counter(rows[:, 0].tolist())
    starts = len(tokens) - LENGTH
    assert len(counts) == starts
    expected = len(rows) / starts
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < starts + 5 * (2 * starts) ** 0.5


def test_the_seed_determines_the_batches(folder: Path) -> None:
    runs = [draw(TokenizedDataset(folder, block_size=LENGTH, seed=seed), 6) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_batches_continue_with_any_size(folder: Path) -> None:
    whole = draw(TokenizedDataset(folder, block_size=LENGTH), 12)
    dataset = TokenizedDataset(folder, block_size=LENGTH)
    np.testing.assert_array_equal(np.vstack([draw(dataset, rows) for rows in (3, 4, 5)]), whole)


def test_ranks_draw_different_windows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = draw(TokenizedDataset(folder, block_size=LENGTH), 12)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        dataset = TokenizedDataset(folder, block_size=LENGTH)
        for step in (0, 1):
            first = 6 * step + 3 * rank
            np.testing.assert_array_equal(draw(dataset, 3), whole[first : first + 3])


@pytest.mark.parametrize("shards", [0, 1])
def test_one_shard_is_too_few(tmp_path: Path, shards: int) -> None:
    if shards:
        write_shard(tmp_path / "edu_fineweb_train_000001.bin", np.arange(99))
    with pytest.raises(DatasetError) as caught:
        TokenizedDataset(tmp_path)
    assert str(caught.value).startswith("Need at least 2 shards to create train/val splits")
    assert f"has {shards}." in str(caught.value)


def test_a_truncated_shard_is_refused(folder: Path) -> None:
    path = folder / "edu_fineweb_train_000009.bin"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DatasetError, match=r"edu_fineweb_train_000009.bin .* header of 100 tokens"):
        draw(TokenizedDataset(folder, block_size=LENGTH), 1_000)


def test_hidden_files_are_ignored(tmp_path: Path) -> None:
    for name in (".x.bin", "edu_fineweb_train_000001.bin"):
        write_shard(tmp_path / name, np.arange(99))
    with pytest.raises(DatasetError, match=r"Need at least 2 shards.* has 1"):
        TokenizedDataset(tmp_path)


def test_only_train_and_val_are_splits(folder: Path) -> None:
    with pytest.raises(UsageError, match="`split` is 'test'"):
        TokenizedDataset(folder, "test")  # type: ignore[arg-type]
