"""windows.py: `GPTDataLoader` with shards on disk, of the guide and of tokenmill, and with text."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tokenmill
from tokenmill.compat import GPTDataLoader
from tokenmill.errors import DatasetError, TokenizerError, UsageError

LENGTH = 6
CONFIG = {"batch_size": 4_000, "block_size": LENGTH, "device": "cpu"}


def starts(loader: GPTDataLoader, tokens: np.ndarray, split: str = "train") -> Counter[int]:
    """How often each window of some tokens came, all different; anything else is an error."""
    all_windows = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1).tolist()
    places = {tuple(window): place for place, window in enumerate(all_windows)}
    assert len(places) == len(all_windows)
    x, y = loader.get_batch(split)  # type: ignore[arg-type]
    rows = np.column_stack([x.numpy(), y.numpy()[:, -1]])
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    return Counter(places[tuple(row)] for row in rows.tolist())


def write_guide_dataset(folder: Path) -> dict[str, np.ndarray]:
    """As the guide's script writes it: uint32, the last shards for validation."""
    parts = np.split(np.arange(100_000, 100_260), [90, 95, 200])
    for number, part in enumerate(parts):
        path = folder / ("val" if number == 3 else "train") / f"shard_{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(part.astype("<u4").tobytes())
    (folder / "dataset_metadata.json").write_text(json.dumps({"total_tokens": 260}))
    return {"train": np.concatenate(parts[:3]), "val": parts[3]}


@pytest.mark.parametrize("config", [CONFIG, SimpleNamespace(**CONFIG)], ids=["mapping", "object"])
def test_all_windows_of_the_guides_shards_are_equally_likely(tmp_path: Path, config: Any) -> None:
    tokens = write_guide_dataset(tmp_path)
    loader = GPTDataLoader(config, None, dataset_dir=tmp_path)
    for split in ("train", "val"):
        counts = starts(loader, tokens[split], split)
        assert len(counts) == len(tokens[split]) - LENGTH  # windows over borders included
        assert max(counts.values()) < 3 * 4_000 / len(counts)


def test_a_prepared_dataset_provides_its_tokenizer(tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(60)]
    (tmp_path / "x.txt").write_text("<|endoftext|>".join(texts))
    data = tokenmill.prepare(
        tmp_path / "x.txt",
        tmp_path / "data",
        tokenizer="bytes",
        tokens_per_shard=50,
        val_fraction=0.2,
        workers=1,
    )
    assert data.manifest.splits["val"].tokens > 50
    loader = GPTDataLoader(CONFIG, dataset_dir=tmp_path / "data")
    assert loader.tokenizer.name == "bytes"
    x, _ = loader.get_batch("val")
    shards = sorted((tmp_path / "data/val").glob("*.bin"))
    val = np.concatenate([np.fromfile(shard, "<u2") for shard in shards])
    text = loader.tokenizer.decode(val)
    assert all(loader.tokenizer.decode(row) in text for row in x[:50].numpy())
    assert GPTDataLoader(CONFIG, "bytes", dataset_dir=tmp_path / "data").tokenizer == "bytes"
    with pytest.raises(TokenizerError, match="were made with the tokenizer 'bytes'"):
        GPTDataLoader(CONFIG, "gpt2", dataset_dir=tmp_path / "data")


def test_all_windows_of_a_text_are_equally_likely() -> None:
    text = " ".join(map(str, range(70)))
    ids = np.array([*text.encode(), 256])
    loader = GPTDataLoader(CONFIG, "bytes")
    loader.prepare_data(text)
    place = int(len(ids) * 0.9)
    assert len(starts(loader, ids[:place])) == place - LENGTH
    assert len(starts(loader, ids[place:], "val")) == len(ids) - place - LENGTH


def test_a_short_text_can_be_trained_on() -> None:
    loader = GPTDataLoader(CONFIG, "bytes")
    loader.prepare_data("twenty letters, say.")
    starts(loader, np.frombuffer(b"twenty letters, sa", np.uint8).astype(int))
    with pytest.raises(
        DatasetError, match="split 'val' is missing or shorter than a window of 6 \\+ 1"
    ):
        loader.get_batch("val")


@pytest.mark.parametrize("there", [None, "data", "data/train"])
def test_a_folder_without_shards_is_named_with_the_cure(tmp_path: Path, there: str | None) -> None:
    if there:
        (tmp_path / there).mkdir(parents=True)
    with pytest.raises(DatasetError) as caught:
        GPTDataLoader(CONFIG, "gpt2", dataset_dir=tmp_path / "data")
    assert str(caught.value).startswith(f"No training shards found: {tmp_path / 'data'} has")
    assert f"tokenmill prepare TEXTS --out {tmp_path / 'data'}" in str(caught.value)


def test_damaged_metadata_is_not_mistaken_for_the_guides(tmp_path: Path) -> None:
    write_guide_dataset(tmp_path)
    (tmp_path / "dataset_metadata.json").write_text('{"format": "tokenm')
    with pytest.raises(DatasetError, match=r"dataset_metadata\.json"):
        GPTDataLoader(CONFIG, dataset_dir=tmp_path)


def test_metadata_that_is_not_a_file_is_not_read(tmp_path: Path) -> None:
    write_guide_dataset(tmp_path)
    metadata = tmp_path / "dataset_metadata.json"
    metadata.unlink()
    os.mkfifo(metadata)
    with pytest.raises(DatasetError, match=r"dataset_metadata\.json in .* is not a regular file"):
        GPTDataLoader(CONFIG, dataset_dir=tmp_path)
    metadata.unlink()
    metadata.symlink_to("/dev/zero")
    with pytest.raises(DatasetError, match=r"dataset_metadata\.json is a link that leads out of"):
        GPTDataLoader(CONFIG, dataset_dir=tmp_path)


def test_missing_settings_and_data_are_named() -> None:
    with pytest.raises(UsageError, match="has no block_size"):
        GPTDataLoader({"batch_size": 2}, "gpt2")
    with pytest.raises(UsageError, match="pass dataset_dir, or call prepare_data"):
        GPTDataLoader(CONFIG, "gpt2").get_batch()
    with pytest.raises(UsageError, match="prepare_data needs a tokenizer"):
        GPTDataLoader(CONFIG).prepare_data("text")
    with pytest.raises(TokenizerError, match="int is not a tokenizer"):
        GPTDataLoader(CONFIG, 7).prepare_data("text")
