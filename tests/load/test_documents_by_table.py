"""Documents of batches, from the tables of prepared datasets."""

from __future__ import annotations

import numpy as np
import pytest

import tokenmill
from tokenmill import Loader, Mixture
from tokenmill.errors import DatasetError

EOT = 256  # of the bytes tokenizer
SIZE = 6_000


@pytest.fixture
def prepared(tmp_path):
    """Two datasets of several shards."""
    made = {}
    for seed, name in enumerate("ab"):
        ids = np.random.default_rng(seed).integers(0, 60, SIZE)
        np.save(tmp_path / f"{name}.npy", np.where(ids == 0, EOT, ids).astype("<u2"))
        out = tmp_path / name
        options = {"tokens_per_shard": 700, "tokenizer": "bytes", "progress": lambda *_: None}
        tokenmill.import_dataset(tmp_path / f"{name}.npy", out, **options)
        made[name] = tokenmill.open(out)["train"]
        assert made[name].documents is not None
        assert made[name].shard_count == 9
    return made


@pytest.mark.parametrize("order", ["shuffled", "sequential"])
@pytest.mark.parametrize("prefetch", [None, 0])
@pytest.mark.parametrize("mixed", [False, True])
def test_documents_of_every_batch_start_after_the_end_of_text(prepared, order, prefetch, mixed):
    data = Mixture({name: (tokens, 1) for name, tokens in prepared.items()}, block=10)
    loader = Loader(
        data if mixed else prepared["a"],
        batch_size=3, seq_len=40, order=order, prefetch=prefetch, documents=True, seed=4,
    )  # fmt: skip
    for _ in range(200):  # several epochs
        batch = next(loader)
        begins = np.ones(batch.inputs.shape, bool)
        begins[:, 1:] = batch.inputs[:, :-1] == EOT
        assert batch.documents.cu_seqlens.tolist() == [*np.flatnonzero(begins), begins.size]
        assert np.array_equal(
            loader.batch_from(batch.row).documents.cu_seqlens, batch.documents.cu_seqlens
        )


@pytest.mark.parametrize("prefetch", [None, 0])
def test_a_missing_table_raises_an_error_at_its_rows(prepared, tmp_path, prefetch):
    (tmp_path / "a/train/shard_00004.docs.npy").unlink()
    loader = Loader(
        prepared["a"], batch_size=2, seq_len=40, documents=True, seed=7, prefetch=prefetch
    )
    starts = loader.rows.locate(np.arange(100))
    bad = int(np.flatnonzero((starts < 3_500) & (starts + 40 > 2_800))[0])
    with pytest.raises(DatasetError, match=r"shard_00004\.docs\.npy is missing"):
        list(loader)
    assert loader.row == bad // 2 * 2
    assert bad > 3
