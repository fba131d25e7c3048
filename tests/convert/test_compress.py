"""`reshard` and `import` compress shards; `reshard` and `export` undo it."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from dataset_builder import build, edit_manifest
from test_export import contents, run_killed
from test_reshard import prepare

import tokenmill
from tokenmill.errors import DatasetError, FolderError, UsageError


def test_compressing_and_back_equals_preparing(tmp_path):
    plain = prepare(tmp_path, 100)
    texts, packed = tmp_path / "texts.jsonl", tmp_path / "packed"
    options = {"tokenizer": "bytes", "val_fraction": 0.3, "workers": 1}
    tokenmill.prepare(texts, packed, tokens_per_shard=333, compress="zstd", **options)
    tokenmill.reshard(plain, tmp_path / "a", tokens_per_shard=333, compress="zstd")
    assert contents(tmp_path / "a") == contents(packed)
    tokenmill.reshard(packed, tmp_path / "b", tokens_per_shard=100, compress="none")
    assert contents(tmp_path / "b") == contents(plain)
    tokenmill.reshard(plain, tmp_path / "c", compress="zstd")
    tokenmill.reshard(packed, tmp_path / "d", tokens_per_shard=100)  # stays compressed
    assert contents(tmp_path / "c") == contents(tmp_path / "d")
    assert tokenmill.verify(tmp_path / "c") == []
    assert tokenmill.reshard(plain, tmp_path / "c", compress="zstd").compression is not None
    with pytest.raises(FolderError, match="another finished dataset"):
        tokenmill.reshard(plain, tmp_path / "c", compress="none")
    with pytest.raises(UsageError, match="Pass `tokens_per_shard`, `compress`, or both"):
        tokenmill.reshard(plain, tmp_path / "e")
    with pytest.raises(UsageError, match="`compress` is 'gzip'; it must be one of none, zstd"):
        tokenmill.reshard(plain, tmp_path / "e", compress="gzip")


def test_a_killed_compression_resumes_to_the_same_bytes(tmp_path):
    source = prepare(tmp_path, 100)
    tokenmill.reshard(source, tmp_path / "whole", compress="zstd")
    for after in (1, 1000):
        out = tmp_path / f"out{after}"
        killed = run_killed("reshard", "reshard", source, out, after, "compress='zstd'")
        assert killed.returncode == -signal.SIGKILL
        tokenmill.reshard(source, out, compress="zstd")
        assert contents(out) == contents(tmp_path / "whole")


def test_an_import_can_be_compressed(tmp_path):
    ids = np.array([5, 6, 7, 8, 256] * 900, np.uint16)
    np.save(tmp_path / "x.npy", ids)
    made = tokenmill.import_dataset(
        tmp_path / "x.npy", tmp_path / "data", tokenizer="bytes", compress="zstd"
    )
    assert made.compression.name == "zstd"
    assert sum(shard.compressed.bytes for shard in made.splits["train"].shards) < ids.nbytes
    np.testing.assert_array_equal(tokenmill.open(tmp_path / "data")["train"][:], ids)
    assert tokenmill.verify(tmp_path / "data") == []


@pytest.mark.parametrize("to", ["npy", "llmc", "megatron", "mds"])
def test_an_export_of_compressed_shards_equals_that_of_plain_ones(tmp_path, to):
    for name, frame in (("plain", None), ("packed", 7)):
        build(tmp_path / name, frame_tokens=frame)
        tokenmill.export(tmp_path / name, tmp_path / f"{name}-{to}", to=to, tokens_per_shard=25)
    assert contents(tmp_path / f"packed-{to}") == contents(tmp_path / f"plain-{to}")


def test_other_ids_than_the_manifest_says_are_not_resharded(tmp_path):
    """Frames of other ids, in a file with the right checksum: the ids' checksum tells."""
    build(tmp_path / "data", frame_tokens=7)

    def edit(body):
        shard = body["splits"]["train"]["shards"][1]
        shard["xxh3_128"] = "0" * 32

    edit_manifest(tmp_path / "data", edit)
    with pytest.raises(DatasetError, match=r"shard_00001\.bin does not have the ids of its source"):
        tokenmill.reshard(tmp_path / "data", tmp_path / "out", compress="none")
    with pytest.raises(DatasetError, match="not finished"):
        tokenmill.open(tmp_path / "out")


def test_damaged_frames_are_not_exported(tmp_path):
    build(tmp_path / "data", frame_tokens=7)
    path = tmp_path / "data/train/shard_00001.bin.zst"
    data = path.read_bytes()
    path.write_bytes(data[:12] + bytes([data[12] ^ 4]) + data[13:])
    for convert in (
        lambda: tokenmill.export(tmp_path / "data", tmp_path / "x", to="npy"),
        lambda: tokenmill.reshard(tmp_path / "data", tmp_path / "y", compress="none"),
    ):
        with pytest.raises(DatasetError, match=r"shard_00001\.bin\.zst (does not|is damaged)"):
            convert()
