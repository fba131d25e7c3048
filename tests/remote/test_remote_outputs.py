"""`export`, `import`, `reshard` and `prepare` write to a real S3 server the bytes they write to a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from servers import Proxy

import tokenmill
from tokenmill.errors import FolderError, StorageError, UsageError
from tokenmill.formats import WRITABLE
from tokenmill.preparation.plan import make_plan
from tokenmill.preparation.prepare import run_plan
from tokenmill.progress import Nobody
from tokenmill.storage.object_path import as_path
from tokenmill.tokenizers import load_tokenizer


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for name in range(6):
        documents = [f"Document {name} {n}: " + "word " * (n % 97) for n in range(200)]
        (folder / f"{name}.txt").write_text("<|endoftext|>".join(documents))
    (folder / "broken.jsonl").write_text('{"text": "good"}\n{"no": 1}\n')
    return folder


@pytest.fixture(scope="module")
def local(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("local") / "data"
    tokenmill.prepare(texts, out, tokenizer="bytes", val_fraction=0.1, tokens_per_shard=40_000)
    return out


def list_files(path: str | Path) -> dict[str, bytes]:
    """The names and bytes of all files below a folder or an address."""
    root = as_path(path)
    files = [one for one in root.rglob("*") if one.is_file()]
    return {one.relative_to(root).as_posix(): one.read_bytes() for one in sorted(files)}


@pytest.mark.parametrize("name", sorted(WRITABLE))
def test_an_export_to_a_bucket_has_the_same_bytes(
    local: Path, bucket: str, tmp_path: Path, name: str
) -> None:
    mine = tokenmill.export(local, tmp_path / "out", to=name, tokens_per_shard=30_000)
    theirs = tokenmill.export(local, f"{bucket}/out", to=name, tokens_per_shard=30_000)
    assert str(theirs.path) == f"{bucket}/out"
    assert (theirs.files, theirs.documents) == (mine.files, mine.documents)
    assert list_files(f"{bucket}/out") == list_files(tmp_path / "out")
    again = tokenmill.export(local, f"{bucket}/out", to=name, tokens_per_shard=30_000)
    assert again.files_done_before == len(mine.files)


def test_a_reshard_from_bucket_to_bucket_has_the_same_bytes(
    local: Path, bucket: str, tmp_path: Path
) -> None:
    tokenmill.reshard(local, f"{bucket}/a", tokens_per_shard=25_000)
    tokenmill.reshard(f"{bucket}/a", f"{bucket}/b", tokens_per_shard=40_000)
    assert list_files(f"{bucket}/b") == list_files(local)
    assert tokenmill.verify(f"{bucket}/b") == []
    made = tokenmill.reshard(f"{bucket}/a", f"{bucket}/b", tokens_per_shard=40_000)
    assert made == tokenmill.open(local).manifest


def test_an_import_from_bucket_to_bucket_has_the_same_bytes(bucket: str, tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 257, 100_000).astype(np.uint16)
    np.save(tmp_path / "ids.npy", ids)
    as_path(f"{bucket}/ids.npy").write_bytes((tmp_path / "ids.npy").read_bytes())
    options = {"tokenizer": "bytes", "tokens_per_shard": 30_000}
    tokenmill.import_dataset(tmp_path / "ids.npy", tmp_path / "out", **options)
    tokenmill.import_dataset(f"{bucket}/ids.npy", f"{bucket}/out", **options)
    assert list_files(f"{bucket}/out") == list_files(tmp_path / "out")


def test_an_interrupted_reshard_is_not_a_dataset_and_resumes(
    local: Path, bucket: str, proxy: Proxy
) -> None:
    out = f"{bucket}/out"
    proxy.fail("503", method="PUT", part="train/shard_00002.bin")
    with pytest.raises(StorageError, match=r"shard_00002.bin: .*too many requests"):
        tokenmill.reshard(local, out, tokens_per_shard=40_000)
    assert not as_path(f"{out}/dataset_metadata.json").exists()
    with pytest.raises(tokenmill.TokenmillError, match="is not finished"):
        tokenmill.open(out)
    with pytest.raises(FolderError, match="tokens_per_shard was 40000, is 50000"):
        tokenmill.reshard(local, out, tokens_per_shard=50_000)
    proxy.clear()
    proxy.requests.clear()
    tokenmill.reshard(local, out, tokens_per_shard=40_000)
    assert list_files(out) == list_files(local)
    written = [path for method, path in proxy.requests if method == "PUT"]
    assert not any("train/shard_00001.bin" in path for path in written)
    assert "dataset_metadata.json" in written[-1]


def test_a_shard_that_was_changed_before_a_resumed_reshard_is_written_again(
    local: Path, bucket: str, proxy: Proxy
) -> None:
    out = f"{bucket}/out"
    proxy.fail("503", method="PUT", part="train/shard_00002.bin")
    with pytest.raises(StorageError):
        tokenmill.reshard(local, out, tokens_per_shard=40_000)
    proxy.clear()
    shard = as_path(f"{out}/train/shard_00001.bin")
    shard.write_bytes(bytes(len(shard.read_bytes())))
    tokenmill.reshard(local, out, tokens_per_shard=40_000)
    assert list_files(out) == list_files(local)


def test_an_address_with_other_objects_is_refused(local: Path, bucket: str) -> None:
    as_path(f"{bucket}/out/thesis.pdf").write_bytes(b"x")
    with pytest.raises(FolderError, match=r"holds other files \(thesis.pdf\)"):
        tokenmill.export(local, f"{bucket}/out", to="npy")
    with pytest.raises(FolderError, match="is a file"):
        tokenmill.export(local, f"{bucket}/out/thesis.pdf", to="npy")
    assert [*list_files(f"{bucket}/out")] == ["thesis.pdf"]


def prepare(texts: Path, out: str | Path, **options: object) -> tokenmill.Report:
    return tokenmill.prepare(
        texts, out, tokenizer="bytes", val_fraction=0.1, tokens_per_shard=40_000, workers=2,
        **options,
    )  # fmt: skip


def test_a_dataset_prepared_into_a_bucket_has_the_same_bytes(
    texts: Path, local: Path, bucket: str, tmp_path: Path
) -> None:
    out = f"{bucket}/data"
    report = prepare(texts, out, work=tmp_path / "work")
    assert str(report.path) == out
    assert list_files(out) == list_files(local)
    assert "rejected.jsonl" in list_files(out)
    assert tokenmill.verify(out) == []
    assert list((tmp_path / "work").rglob("*")) == []
    assert prepare(texts, out, work=tmp_path / "work").was_finished
    with pytest.raises(FolderError, match="made differently"):
        prepare(texts, out, eot="before")


def test_an_interrupted_preparation_keeps_the_shards_in_the_bucket(
    texts: Path, local: Path, bucket: str, proxy: Proxy
) -> None:
    out = f"{bucket}/data"
    proxy.fail("503", method="PUT", part="train/shard_00003.bin")
    with pytest.raises(StorageError, match=r"train/shard_00003.bin: .*too many requests"):
        prepare(texts, out)
    assert not as_path(f"{out}/dataset_metadata.json").exists()
    with pytest.raises(tokenmill.TokenmillError, match="is not finished"):
        tokenmill.open(out)
    with pytest.raises(FolderError, match="unfinished run with different settings"):
        prepare(texts, out, eot="before")
    proxy.clear()
    changed = as_path(f"{out}/train/shard_00001.bin")
    changed.write_bytes(bytes(len(changed.read_bytes())))
    proxy.requests.clear()
    report = prepare(texts, out)
    assert report.parts_done_before == report.parts
    assert list_files(out) == list_files(local)
    written = [path for method, path in proxy.requests if method == "PUT"]
    assert not any("train/shard_00000.bin" in path for path in written)
    assert any("train/shard_00001.bin" in path for path in written)
    assert "dataset_metadata.json" in written[-1]


def test_another_machine_can_finish_or_restart_a_preparation(
    texts: Path, local: Path, bucket: str, tmp_path: Path, proxy: Proxy
) -> None:
    out = f"{bucket}/data"
    proxy.fail("503", method="PUT", part="dataset_metadata.json")
    with pytest.raises(StorageError):
        prepare(texts, out, work=tmp_path / "one")
    as_path(f"{out}/train/shard_00099.bin").write_bytes(b"of a run that was cut")
    proxy.clear()
    prepare(texts, out, work=tmp_path / "two")
    assert list_files(out) == list_files(local)
    made = prepare(texts, out, work=tmp_path / "two", restart=True, eot="before")
    assert not made.was_finished
    assert tokenmill.verify(out) == []


def test_a_work_folder_needs_an_output_in_an_object_store(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`work` is for an `out` in an object store"):
        prepare(texts, tmp_path / "out", work=tmp_path / "work")
    with pytest.raises(UsageError, match="web server, which cannot be written to"):
        prepare(texts, "https://127.0.0.1/out")


PREPARE = """
import sys, tokenmill
texts, out, work, dedup = sys.argv[1:]
tokenmill.prepare(
    texts, out, work=work, dedup=dedup, tokenizer="bytes", val_fraction=0.1,
    tokens_per_shard=40_000, workers=2,
)
"""


def start_preparation(texts: Path, out: str, work: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PREPARE, str(texts), out, str(work), "documents"]
    return subprocess.Popen(command, start_new_session=True)


def test_a_killed_preparation_resumes_and_leaves_nothing_behind(
    texts: Path,
    local: Path,
    bucket: str,
    proxy: Proxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    out = f"{bucket}/data"
    proxy.fail("delay", method="PUT", part="train/shard_00002.bin")
    process = start_preparation(texts, out, tmp_path / "work")
    while not any("train/shard_00002.bin" in path for _, path in proxy.requests):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not as_path(f"{out}/train/shard_00002.bin").exists()
    proxy.clear()
    with start_preparation(texts, out, tmp_path / "work") as again:
        assert again.wait() == 0
    assert list_files(out) == list_files(local)
    assert list((tmp_path / "work").rglob("*")) == []


@pytest.mark.parametrize("dedup", ["documents", "lines"])
def test_work_in_the_bucket_is_resumed_by_another_machine(
    texts: Path, bucket: str, tmp_path: Path, proxy: Proxy, dedup: str
) -> None:
    out, work = f"{bucket}/data", f"{bucket}/work"
    proxy.fail("503", method="PUT", part="train/shard_00001.bin")
    with pytest.raises(StorageError):
        prepare(texts, out, work=work, dedup=dedup)
    proxy.clear()
    damaged = next(path for path in as_path(work).rglob("*.tokens"))
    damaged.write_bytes(bytes(len(damaged.read_bytes())))
    (tmp_path / "temporary").mkdir()
    command = [sys.executable, "-c", PREPARE, str(texts), out, work, dedup]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    assert subprocess.run(command, env=environment, timeout=120).returncode == 0
    prepare(texts, tmp_path / "local", dedup=dedup)
    assert list_files(out) == list_files(tmp_path / "local")
    assert list_files(work) == {}
    assert list((tmp_path / "temporary").iterdir()) == []


def test_unfinished_work_of_a_cluster_is_found_in_the_bucket(
    texts: Path, local: Path, bucket: str, proxy: Proxy
) -> None:
    out = f"{bucket}/data"
    settings = {"tokenizer": load_tokenizer("bytes"), "val_fraction": 0.1}
    plan = make_plan(texts, out, **settings, tokens_per_shard=40_000, workers=2)
    proxy.fail("503", method="PUT", part="train/shard_00001.bin")
    with pytest.raises(StorageError):
        run_plan(plan, as_path(out), Nobody())  # as on a cluster, whose nodes share the bucket
    assert any("segments/" in name for name in list_files(out))
    proxy.clear()
    report = prepare(texts, out)
    assert report.parts_done_before == report.parts
    assert list_files(out) == list_files(local)


def test_two_machines_that_run_the_same_command_write_the_same_dataset(
    texts: Path, local: Path, bucket: str, tmp_path: Path
) -> None:
    out = f"{bucket}/data"
    processes = [start_preparation(texts, out, tmp_path / str(n)) for n in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert list_files(out) == list_files(local)


def test_compressed_shards_in_a_bucket_have_the_same_bytes_and_tokens(
    texts: Path, local: Path, bucket: str, tmp_path: Path
) -> None:
    options = {"tokenizer": "bytes", "val_fraction": 0.1, "tokens_per_shard": 40_000}
    tokenmill.prepare(texts, tmp_path / "mine", compress="zstd", **options)
    tokenmill.prepare(texts, f"{bucket}/theirs", compress="zstd", work=tmp_path / "work", **options)
    assert list_files(f"{bucket}/theirs") == list_files(tmp_path / "mine")
    assert tokenmill.verify(f"{bucket}/theirs") == []
    plain, packed = tokenmill.open(local)["train"], tokenmill.open(f"{bucket}/theirs")["train"]
    assert np.array_equal(plain[:], packed[:])
    starts = np.random.default_rng(2).integers(0, len(plain) - 300, 200)
    for tokens in (packed, packed.unmapped()):
        assert np.array_equal(tokens.gather(starts, 300), plain.gather(starts, 300))
    tokenmill.reshard(f"{bucket}/theirs", f"{bucket}/plain", compress="none")
    assert list_files(f"{bucket}/plain") == list_files(local)
