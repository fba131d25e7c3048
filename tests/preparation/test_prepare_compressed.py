"""`prepare` with compressed shards: the bytes of plain shards in zstd frames, and nothing else."""

from __future__ import annotations

import json
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from preparing import assert_same_files, make, make_in_workers, small, write_documents
from test_resume import Engine, Notes, flip

import tokenmill
from tokenmill.errors import FolderError, WorkError
from tokenmill.preparation import prepare as preparing
from tokenmill.preparation.pack import CheckShard, PackShard
from tokenmill.preparation.plan import Plan, make_plan
from tokenmill.preparation.prepare import run_plan
from tokenmill.store import frames

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd  # another library than the one that compresses

OPTIONS: dict[str, Any] = {"tokens_per_shard": 2_000, "val_fraction": 0.2}
PACKED = {**OPTIONS, "compress": "zstd"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, and the plain and the compressed dataset that are made from it."""
    folder = tmp_path_factory.mktemp("made")
    text = write_documents(folder / "text.txt")
    with text.open("a") as file:
        file.write("<|endoftext|>" + "A document that spans shards. " * 300)
    make(text, folder / "plain", **OPTIONS)
    make(text, folder / "packed", **PACKED)
    return folder


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "TOKENS_PER_FRAME", 150)


def test_decompressed_files_are_the_plain_shards(folder: Path) -> None:
    found = sorted((folder / "packed").glob("*/*.bin.zst"))
    assert len(found) == len(list((folder / "plain").glob("*/*.bin"))) > 4
    for path in found:
        plain = folder / "plain" / path.parent.name / path.stem
        assert zstd.decompress(path.read_bytes()) == plain.read_bytes()
    for path in (folder / "plain").glob("*/*.docs.npy"):
        assert (folder / "packed" / path.parent.name / path.name).read_bytes() == path.read_bytes()
    before, after = (
        json.loads((folder / name / "dataset_metadata.json").read_text())
        for name in ("plain", "packed")
    )
    assert (before["version"], after["version"]) == (3, 4)
    assert after["settings"] == {**before["settings"], "compress": "zstd"}
    assert after["ledger"] == before["ledger"]
    for split in ("train", "val"):
        pairs = zip(
            after["splits"][split]["shards"], before["splits"][split]["shards"], strict=True
        )
        for own, other in pairs:
            assert own["xxh3_128"] == other["xxh3_128"]
            assert own["compressed"]["bytes"] == (folder / "packed" / own["path"]).stat().st_size


@pytest.mark.usefixtures("small_frames")
def test_the_table_at_the_end_is_that_of_the_seekable_format(tmp_path: Path, folder: Path) -> None:
    make(folder / "text.txt", tmp_path / "data", **PACKED)
    data = (tmp_path / "data/train/shard_00000.bin.zst").read_bytes()
    plain = (folder / "plain/train/shard_00000.bin").read_bytes()
    count, flags, magic = struct.unpack("<IBI", data[-9:])
    assert (count, flags, magic) == (-(-len(plain) // 300), 0, 0x8F92EAB1)
    assert count > 2
    start = len(data) - 17 - 8 * count
    assert struct.unpack_from("<II", data, start) == (0x184D2A5E, 8 * count + 9)
    at = got = 0
    for packed, size in struct.iter_unpack("<II", data[start + 8 : -9]):
        assert zstd.decompress(data[at : at + packed]) == plain[got : got + size]
        at, got = at + packed, got + size
    assert (got, at) == (len(plain), start)


def test_bytes_do_not_depend_on_workers_blocks_or_memory(folder: Path, tmp_path: Path) -> None:
    text = folder / "text.txt"
    make_in_workers(text, tmp_path / "workers", workers=2, limits=small(part=400), **PACKED)
    make(text, tmp_path / "blocks", limits=small(part=400, block=100), **PACKED)
    for name in ("workers", "blocks"):
        assert_same_files(folder / "packed", tmp_path / name)
    assert tokenmill.verify(tmp_path / "workers") == []


def run(text: Path, out: Path, shards: int | None = None) -> tuple[Engine, list[str]]:
    plan = make_plan(text, out, tokenizer="bytes", workers=1, **PACKED)
    engines: list[Engine] = []

    def start(plan: Plan) -> Engine:
        engines.append(Engine(plan, shards))
        return engines[0]

    watcher = Notes()
    run_plan(plan, out, watcher, start=start)
    return engines[0], watcher.notes


@pytest.fixture(scope="module")
def stopped(folder: Path) -> Path:
    with pytest.raises(WorkError, match="stopped"):
        run(folder / "text.txt", folder / "stopped", 4)
    return folder / "stopped"


def test_a_resumed_run_keeps_intact_shards_and_writes_changed_ones_again(
    folder: Path, stopped: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(stopped, tmp_path / "out"))
    changed, *rest = sorted(out.glob("*/*.bin.zst"))
    assert len(rest) == 3
    kept = {path: path.stat().st_ino for path in rest}
    flip(changed)
    engine, notes = run(folder / "text.txt", out)
    assert_same_files(folder / "packed", out)
    assert {path: path.stat().st_ino for path in rest} == kept
    assert engine.count(CheckShard) == 4
    assert engine.count(PackShard) == len(list(out.glob("*/*.bin.zst"))) - 3
    assert len(notes) == 1
    assert changed.name in notes[0]


def test_shards_of_another_library_are_written_again(
    folder: Path, stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(stopped, tmp_path / "out"))

    def choose(name: frames.Compress) -> frames.Compression | None:
        compression = frames.choose_compression(name)
        assert compression is not None
        return frames.Compression(**{**_fields(compression), "library": "9.9.9"})

    monkeypatch.setattr(preparing, "choose_compression", choose)
    engine, _ = run(folder / "text.txt", out)
    assert engine.count(PackShard) == len(list(out.glob("*/*.bin.zst")))
    compression = tokenmill.open(out).manifest.compression  # type: ignore[union-attr]
    assert compression is not None
    assert compression.library == "9.9.9"


def _fields(compression: frames.Compression) -> dict[str, Any]:
    return {name: getattr(compression, name) for name in compression.__struct_fields__}


def test_a_folder_with_other_compression_is_refused(folder: Path) -> None:
    with pytest.raises(FolderError, match="compress was None, is 'zstd'"):
        make(folder / "text.txt", folder / "plain", **PACKED)
    with pytest.raises(FolderError, match="compress was 'zstd', is None"):
        make(folder / "text.txt", folder / "packed", **OPTIONS)


def test_a_state_of_the_plain_dataset_resumes_on_the_compressed_one(folder: Path) -> None:
    plain, packed = (tokenmill.open(folder / name)["train"] for name in ("plain", "packed"))
    assert plain.identity == packed.identity
    loader = tokenmill.Loader(plain, batch_size=2, seq_len=60, seed=3)
    for _ in range(5):
        next(loader)
    resumed = tokenmill.Loader(packed, batch_size=2, seq_len=60, seed=3)
    resumed.load_state_dict(loader.state_dict())
    np.testing.assert_array_equal(next(resumed).inputs, next(loader).inputs)
    back = tokenmill.Loader(plain, batch_size=2, seq_len=60, seed=3)
    back.load_state_dict(resumed.state_dict())
    np.testing.assert_array_equal(next(back).inputs, next(loader).inputs)
