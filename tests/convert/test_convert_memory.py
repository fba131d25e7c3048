"""Conversions of five times the tokens need no more memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import tokenmill
from tokenmill.formats import WRITABLE

EOT = 256  # of the tokenizer "bytes"
SMALL, LARGE = 2_200_000, 11_000_000  # tokens: over two blocks, and over ten
MARGIN = 2_000_000  # bytes; the larger has 17 MB more of ids


def peak_of(call, *arguments, **options) -> int:
    tracemalloc.start()
    try:
        call(*arguments, **options)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Two prepared datasets, and the peaks of importing them."""
    folder = tmp_path_factory.mktemp("memory")
    peaks = {}
    for size in (1000, SMALL, LARGE):  # the first loads everything that is loaded once
        rng = np.random.default_rng(size)
        ids = rng.integers(0, EOT, size).astype("<u2")
        ids[rng.integers(0, size, size // 10_000 + 1)] = EOT
        np.save(folder / f"{size}.npy", ids)
        peaks[size] = peak_of(
            tokenmill.import_dataset,
            folder / f"{size}.npy",
            folder / f"{size}",
            tokenizer="bytes",
        )
    return folder, peaks


def test_importing_more_needs_no_more_memory(imported):
    _, peaks = imported
    assert peaks[LARGE] < peaks[SMALL] + MARGIN


@pytest.mark.parametrize("shards", [1, 4])
def test_resharding_more_needs_no_more_memory(imported, tmp_path, shards):
    folder, _ = imported
    small, large = (
        peak_of(
            tokenmill.reshard,
            folder / f"{size}",
            tmp_path / f"{size}",
            tokens_per_shard=size // shards,
        )
        for size in (SMALL, LARGE)
    )
    assert large < small + MARGIN


@pytest.mark.parametrize("to", sorted(WRITABLE))
def test_exporting_more_and_importing_it_needs_no_more_memory(imported, tmp_path, to):
    folder, _ = imported
    out, back = {}, {}
    for size in (SMALL, LARGE):
        made = tmp_path / f"{size}"
        out[size] = peak_of(tokenmill.export, folder / f"{size}", made, to=to)
        opened = made / "train" if to == "megatron" else made
        options = {"tokenizer": "bytes", **({"val_fraction": 0} if to == "llmc" else {})}
        back[size] = peak_of(tokenmill.import_dataset, opened, tmp_path / f"back{size}", **options)
    assert out[LARGE] < out[SMALL] + MARGIN
    assert back[LARGE] < back[SMALL] + MARGIN
