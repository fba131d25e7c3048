"""local.py: local .npy files, every window once per epoch with any workers and ranks."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tokenmill.compat import (
    LocalDataModule,
    LocalTokenizedDataset,
    LocalTokenizedDatasetFixed,
    create_dataloaders,
)
from tokenmill.errors import DatasetError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on few cores

LENGTH = 8
Windows = list[tuple[int, ...]]


def oracle(ids: np.ndarray, length: int = LENGTH) -> Windows:
    """All windows of a file, by NumPy alone."""
    count = (len(ids) - 1) // length
    return [tuple(ids[w * length : w * length + length + 1].tolist()) for w in range(count)]


def windows(batches: Iterable[Any]) -> Windows:
    """Inputs and targets as the windows that they came from."""
    found = []
    for inputs, targets in batches:
        assert inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        found += [tuple(row) for row in torch.cat([inputs, targets[:, -1:]], dim=1).tolist()]
    return found


@pytest.fixture
def ids() -> np.ndarray:
    return np.random.default_rng(5).integers(0, 50_257, 1_000).astype(np.int32)


@pytest.fixture
def path(tmp_path: Path, ids: np.ndarray) -> Path:
    np.save(tmp_path / "owt_train_tokens.npy", ids)
    return tmp_path / "owt_train_tokens.npy"


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_iterable_dataset_gives_each_window_once(
    path: Path, ids: np.ndarray, workers: int
) -> None:
    dataset = LocalTokenizedDataset(path, max_length=LENGTH)
    found = windows(DataLoader(dataset, batch_size=7, num_workers=workers))
    assert sorted(found) == sorted(oracle(ids))
    assert found != oracle(ids)
    assert len(dataset) == len(found) == 124


def test_the_iterable_dataset_keeps_the_order_of_the_file_without_shuffle(
    path: Path, ids: np.ndarray
) -> None:
    dataset = LocalTokenizedDataset(path, max_length=LENGTH, shuffle=False)
    assert windows(DataLoader(dataset, batch_size=7)) == oracle(ids)


def test_epochs_and_seeds_have_different_orders(path: Path, ids: np.ndarray) -> None:
    orders = []
    for seed in (1, 2):
        dataset = LocalTokenizedDataset(path, max_length=LENGTH, seed=seed)
        for epoch in (0, 1, 2):
            dataset.set_epoch(epoch)
            orders.append(windows(DataLoader(dataset, batch_size=50)))
            assert sorted(orders[-1]) == sorted(oracle(ids))
    assert len({tuple(order) for order in orders}) == 6
    default, named = (
        LocalTokenizedDataset(path, max_length=LENGTH, **seed) for seed in ({}, {"seed": 42})
    )
    assert windows(DataLoader(default, batch_size=50)) == windows(DataLoader(named, batch_size=50))


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 300), st.integers(1, 40), st.sampled_from(["u2", "u4", "i4", "i8"]))
def test_the_fixed_dataset_is_the_windows_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, tokens: int, length: int, dtype: str
) -> None:
    ids = np.arange(1, tokens + 1, dtype=dtype)
    path = tmp_path_factory.mktemp("fixed") / "x.npy"
    np.save(path, ids)
    if tokens <= length:
        with pytest.raises(UsageError, match="too few for one row"):
            LocalTokenizedDatasetFixed(path, max_length=length)
        return
    dataset = LocalTokenizedDatasetFixed(path, max_length=length)
    assert len(dataset) == (tokens - 1) // length
    found = [
        (*inputs.tolist(), int(targets[-1]))
        for inputs, targets in map(dataset.__getitem__, range(len(dataset)))
    ]
    assert found == oracle(ids, length)


def test_the_fixed_dataset_is_shuffled_by_the_data_loader(path: Path, ids: np.ndarray) -> None:
    dataset = LocalTokenizedDatasetFixed(path, max_length=LENGTH)
    found = windows(DataLoader(dataset, batch_size=7, shuffle=True, num_workers=2))
    assert sorted(found) == sorted(oracle(ids))


def test_loaders_give_the_same_batches_with_any_workers(path: Path, ids: np.ndarray) -> None:
    seen = []
    for workers in (0, 1, 2):
        train, val = create_dataloaders(
            path, path, batch_size=5, max_length=LENGTH, num_workers=workers, prefetch_factor=2
        )
        epochs = [windows(train), windows(train)]
        assert windows(val) == windows(val) == oracle(ids)
        assert len(train) == len(list(train)) == 25
        seen.append(epochs)
    assert seen[0] == seen[1] == seen[2]
    assert sorted(seen[0][0]) == sorted(seen[0][1]) == sorted(oracle(ids))
    assert seen[0][0] != seen[0][1]


def test_ranks_share_an_epoch(path: Path, ids: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    found, rows, steps = [], [], set()
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        train, _ = create_dataloaders(path, path, batch_size=4, max_length=LENGTH, num_workers=0)
        batches = list(train)
        found += windows(batches)
        steps.add((len(train), len(batches)))
        dataset = LocalTokenizedDataset(path, max_length=LENGTH)
        own = list(dataset)
        assert len(dataset) == len(own)
        rows += windows((inputs[None], targets[None]) for inputs, targets in own)
    assert steps == {(11, 11)}  # 124 windows, 12 a step, and 4 are left for the last
    assert sorted(found) == sorted(rows) == sorted(oracle(ids))


def test_no_rank_gets_a_batch_without_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.arange(14 * LENGTH + 1))  # 12 in one step, and 2 for 3 ranks
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        paths = tmp_path / "x.npy", tmp_path / "x.npy"
        train, _ = create_dataloaders(*paths, batch_size=4, max_length=LENGTH, num_workers=0)
        assert [len(batch.inputs) for batch in train] == [4]


def test_a_file_without_a_header_needs_its_dtype(tmp_path: Path, ids: np.ndarray) -> None:
    ids.tofile(tmp_path / "raw.npy")
    with pytest.raises(DatasetError, match="does not begin with NumPy's magic bytes"):
        LocalTokenizedDataset(tmp_path / "raw.npy", max_length=LENGTH)
    dataset = LocalTokenizedDatasetFixed(tmp_path / "raw.npy", max_length=LENGTH, dtype="int32")
    assert windows(DataLoader(dataset, batch_size=9)) == oracle(ids)


@pytest.mark.parametrize("make", [create_dataloaders, LocalDataModule])
@pytest.mark.parametrize(
    ("missing", "message"),
    [(0, "Training data file not found: "), (1, "Validation data file not found: ")],
)
def test_a_missing_file_is_named_with_the_cure(
    path: Path, make: Callable[..., Any], missing: int, message: str
) -> None:
    paths = [path, path]
    paths[missing] = path.with_name("no.npy")
    with pytest.raises(DatasetError) as caught:
        make(*paths, max_length=LENGTH)
    assert str(caught.value).startswith(f"{message}{path.with_name('no.npy')}.")
    assert str(caught.value).endswith(f"tokenmill pretokenize {path.with_name('no.txt')}")


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_of_no_rows_is_refused(path: Path, batch_size: int) -> None:
    with pytest.raises(UsageError, match=f"`batch_size` is {batch_size}"):
        create_dataloaders(path, path, batch_size=batch_size, max_length=LENGTH)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_data_module_continues_from_epoch_to_epoch(
    path: Path, ids: np.ndarray, workers: int
) -> None:
    module = LocalDataModule(path, path, batch_size=4, max_length=LENGTH, num_workers=workers)
    found = windows(module.train_dataloader()) + windows(module.train_dataloader())
    assert sorted(found[:124]) == sorted(found[124:]) == sorted(oracle(ids))
    assert found[:124] != found[124:]
    assert windows(module.val_dataloader()) == oracle(ids)


def test_the_data_module_starts_no_processes_unless_asked(path: Path) -> None:
    batches = iter(LocalDataModule(path, path, batch_size=4, max_length=LENGTH).train_dataloader())
    before = set(multiprocessing.active_children())
    next(batches)
    assert set(multiprocessing.active_children()) <= before
