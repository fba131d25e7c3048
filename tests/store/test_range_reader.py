"""Ranges of tokens for a pass over a split: compared with the ids that were written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from dataset_builder import build

import tokenmill
from tokenmill.errors import DatasetError
from tokenmill.store.tokens import Tokens


def ranges_of(total: int) -> list[tuple[int, int]]:
    return [(low, min(low + 7 * (low % 5 + 1), total)) for low in range(0, total, 3)]


@pytest.mark.parametrize("frame_tokens", [None, 4])
def test_ranges_across_shards_are_those_of_the_split(tmp_path: Path, frame_tokens: int) -> None:
    expected = build(tmp_path / "d", shard_tokens=10, frame_tokens=frame_tokens)["train"]
    view = tokenmill.open(tmp_path / "d")["train"].viewer()
    for low, high in ranges_of(len(expected)):
        with view(low, high) as ids:
            assert ids.tolist() == expected[low:high].tolist()


def test_parts_of_files_and_files_of_others_are_read_too(tmp_path: Path) -> None:
    expected = np.arange(1000, dtype=">u4")
    np.save(tmp_path / "x.npy", expected)
    for tokens, low in zip(
        tokenmill.open(tmp_path / "x.npy", val_fraction=0.25).values(), (0, 750), strict=True
    ):
        view = tokens.viewer()
        for start, stop in ranges_of(len(tokens)):
            with view(start, stop) as ids:
                assert ids.tolist() == expected[low + start : low + stop].tolist()
    with Tokens.of(expected).viewer()(5, 8) as ids:
        assert ids.tolist() == [5, 6, 7]


def test_threads_share_a_reader(tmp_path: Path) -> None:
    expected = build(tmp_path / "d", {"train": ["some words " * 300]}, shard_tokens=50)["train"]
    view = tokenmill.open(tmp_path / "d")["train"].viewer()

    def check(place: tuple[int, int]) -> bool:
        with view(*place) as one, view(0, 60) as other:
            return one.tolist() == expected[slice(*place)].tolist() and len(other) == 60

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, ranges_of(len(expected))))


def test_a_file_that_is_truncated_in_use_is_named(tmp_path: Path) -> None:
    build(tmp_path / "d", {"train": ["some words " * 3000]}, shard_tokens=1 << 16)
    view = tokenmill.open(tmp_path / "d")["train"].viewer()
    with view(0, 10):
        pass
    with (tmp_path / "d/train/shard_00000.bin").open("r+b") as file:
        file.truncate(5000)
    with (
        pytest.raises(DatasetError, match=r"train/shard_00000.bin is .* bytes too short"),
        view(10_000, 20_000),
    ):
        pass
