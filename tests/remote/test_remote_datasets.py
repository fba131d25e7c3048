"""Datasets in a real S3 server: every way to read gives the same as from a folder."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from servers import Proxy

import tokenmill
from tokenmill.errors import DatasetError, StorageError
from tokenmill.formats import WRITABLE
from tokenmill.storage import mapping
from tokenmill.storage.object_path import as_path
from tokenmill.storage.reading import DamagedFileError


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared dataset with several shards and documents that cross them."""
    folder = tmp_path_factory.mktemp("local")
    texts = [f"Document {n}: " + "word " * (n % 97) for n in range(800)]
    (folder / "texts.txt").write_text("<|endoftext|>".join(texts))
    tokenmill.prepare(
        folder / "texts.txt", folder / "data", tokenizer="bytes", val_fraction=0.1,
        tokens_per_shard=20_000,
    )  # fmt: skip
    return folder / "data"


def upload(folder: Path, address: str) -> str:
    """Copy a local folder to an address."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            as_path(f"{address}/{path.relative_to(folder)}").write_bytes(path.read_bytes())
    return address


@pytest.fixture
def remote(local: Path, bucket: str) -> str:
    return upload(local, f"{bucket}/data")


def test_a_remote_dataset_reads_like_the_local_one(local: Path, remote: str) -> None:
    mine, theirs = tokenmill.open(local), tokenmill.open(remote)
    assert repr(theirs).replace(remote, str(local)) == repr(mine)
    assert theirs.manifest == mine.manifest
    assert theirs.tokenizer.fingerprint == mine.tokenizer.fingerprint
    for split in ("train", "val"):
        own, other = mine[split], theirs[split]
        assert np.array_equal(own[:], other[:])
        assert own.identity == other.identity
        starts = np.random.default_rng(1).integers(0, len(own) - 300, 500)
        assert np.array_equal(own.gather(starts, 300), other.gather(starts, 300))
        assert np.array_equal(own.unmapped().gather(starts, 300), other.gather(starts, 300))
        assert other[-1] == own[-1]
        assert own.documents is not None
        assert other.documents is not None
        assert list(own.documents) == list(other.documents)
        assert own.documents.at(1000) == other.documents.at(1000)
        found = [one.find_document_starts(starts, 300).tolist() for one in (own, other)]
        assert found[0] == found[1]
    again = pickle.loads(pickle.dumps(theirs["train"]))
    assert np.array_equal(again[:100], mine["train"][:100])
    assert tokenmill.open(theirs.path)["val"].fingerprint == mine["val"].fingerprint


@pytest.mark.parametrize("documents", [False, True])
def test_batches_of_a_remote_dataset_are_the_same(
    local: Path, remote: str, documents: bool
) -> None:
    def load(path: object) -> Iterator[tokenmill.Batch]:
        tokens = tokenmill.open(str(path))["train"]
        return iter(
            tokenmill.Loader(tokens, seq_len=64, batch_size=16, seed=3, documents=documents)
        )

    for _, mine, theirs in zip(range(30), load(local), load(remote), strict=False):
        assert np.array_equal(mine.inputs, theirs.inputs)
        assert np.array_equal(mine.targets, theirs.targets)


def test_a_batch_takes_few_requests_however_many_shards_it_touches(
    local: Path, remote: str, proxy: Proxy
) -> None:
    tokens = tokenmill.open(remote, cache_bytes=0)["train"]
    starts = np.random.default_rng(1).integers(0, len(tokens) - 65, 256)
    tokens.gather(starts, 65)
    proxy.requests.clear()
    tokens.gather(starts, 65)
    crossing = sum(
        tokens.locate(int(start))[0] != tokens.locate(int(start) + 64)[0] for start in starts
    )
    assert len(proxy.requests) <= tokens.shard_count + 2 * crossing
    assert {method for method, _ in proxy.requests} == {"GET"}


def test_copies_of_document_tables_are_limited(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = tokenmill.open(remote)["train"].documents
    assert documents is not None
    monkeypatch.setattr(mapping, "MOST_COPIED", 20_000)
    assert len([document.key for document in documents]) == len(documents)
    assert sum(mapping._copied.values()) < 40_000


COMMAND = "from tokenmill.cli import main; import sys; sys.exit(main(sys.argv[1:]))"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COMMAND, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "command",
    [
        ["info"],
        ["peek", "--document", "3"],
        ["explain", "--step", "7", "--seq-len", "64", "--batch-size", "4"],
        ["verify"],
    ],
    ids=lambda command: command[0],
)
def test_commands_say_the_same_about_a_remote_dataset(
    local: Path, remote: str, command: list[str]
) -> None:
    name, *more = command
    mine, theirs = run(name, str(local), *more), run(name, remote, *more)
    assert (mine.returncode, theirs.returncode, theirs.stderr) == (0, 0, "")
    assert theirs.stdout.replace(remote, str(local)) == mine.stdout


def test_a_dataset_without_a_manifest_is_not_complete(local: Path, remote: str) -> None:
    as_path(f"{remote}/dataset_metadata.json").unlink()
    with pytest.raises(DatasetError, match=r"has no dataset_metadata.json"):
        tokenmill.open(remote)
    as_path(f"{remote}/.work/plan.json").write_bytes(b"{}")
    with pytest.raises(DatasetError, match="is not finished"):
        tokenmill.open(remote)
    with pytest.raises(DatasetError, match=f"{remote}-2 does not exist"):
        tokenmill.open(f"{remote}-2")


def test_verify_names_damaged_and_missing_objects(local: Path, remote: str) -> None:
    shard = as_path(f"{remote}/train/shard_00001.bin")
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(bytes(data))
    as_path(f"{remote}/train/shard_00002.bin").unlink()
    as_path(f"{remote}/train/shard_00000.docs.npy").write_bytes(b"short")
    problems = {problem.file: problem.what for problem in tokenmill.verify(remote)}
    assert "does not match its checksum" in problems["train/shard_00001.bin"]
    assert problems["train/shard_00002.bin"] == f"is missing from {remote}"
    assert "train/shard_00000.docs.npy" in problems


def test_a_shard_that_is_replaced_in_use_is_named(local: Path, remote: str) -> None:
    tokens = tokenmill.open(remote, cache_bytes=0)["train"]
    before = tokens[:10]
    shard = as_path(f"{remote}/train/shard_00000.bin")
    data = shard.read_bytes()
    tokens[:10]
    subprocess.run(  # another process replaces it
        [sys.executable, "-c", REPLACE, str(shard)], check=True, timeout=60
    )
    with pytest.raises(
        DamagedFileError, match=r"replaced while it was being read.* Open the data again"
    ):
        tokens[:10]
    shard.write_bytes(data)
    assert np.array_equal(tokens[:10], before)


REPLACE = """
import sys
from tokenmill.storage.object_path import as_path
path = as_path(sys.argv[1])
path.write_bytes(bytes(len(path.read_bytes())))
"""


def test_failures_of_the_network_are_reported_with_the_address(remote: str, proxy: Proxy) -> None:
    tokens = tokenmill.open(remote)["train"]
    proxy.fail("503", part="shard_00003.bin")
    with pytest.raises(StorageError, match=f"^{remote}/train/shard_00003.bin: .*too many requests"):
        tokens[:]


@pytest.mark.parametrize("name", sorted(WRITABLE))
def test_every_format_opens_in_a_bucket(
    local: Path, bucket: str, tmp_path: Path, name: str
) -> None:
    tokenmill.export(local, tmp_path / name, to=name, tokens_per_shard=30_000)
    remote = upload(tmp_path / name, f"{bucket}/{name}")
    mine, theirs = tokenmill.open(tmp_path / name), tokenmill.open(remote)
    assert (mine.format, list(mine)) == (theirs.format, list(theirs))
    for split, tokens in mine.items():
        starts = np.random.default_rng(2).integers(0, len(tokens) - 50, 100)
        assert np.array_equal(tokens.gather(starts, 50), theirs[split].gather(starts, 50))
        table, other = tokens.documents, theirs[split].documents
        assert (table is None) == (other is None)
        if table is not None and other is not None:
            assert list(table.lengths) == list(other.lengths)


def test_a_glob_and_a_list_of_objects_open_together(bucket: str) -> None:
    for number in range(12):
        ids = np.full(5, number, np.uint16)
        as_path(f"{bucket}/ids/part_{number}.bin").write_bytes(ids.tobytes())
    data = tokenmill.open(f"{bucket}/ids/part_*.bin", dtype="uint16")
    assert data["train"][:].tolist() == np.repeat(np.arange(12), 5).tolist()
    some = [f"{bucket}/ids/part_7.bin", f"{bucket}/ids/part_3.bin"]
    assert tokenmill.open(some, dtype="uint16")["train"][:].tolist() == [7] * 5 + [3] * 5
    with pytest.raises(DatasetError, match="matches no file"):
        tokenmill.open(f"{bucket}/ids/x*.bin", dtype="uint16")


def test_a_dataset_on_a_web_server_reads_like_the_local_one(
    local: Path, remote: str, website: str
) -> None:
    address = f"{website}/data".replace("//", "//name:password@") + "?signature=abc"
    mine, theirs = tokenmill.open(local), tokenmill.open(address, cache_bytes=0)
    starts = np.arange(0, len(mine["train"]) - 100, 700)
    assert np.array_equal(mine["train"].gather(starts, 99), theirs["train"].gather(starts, 99))
    assert tokenmill.verify(address) == []
    said = run("info", address)
    assert said.stdout == run("info", str(local)).stdout.replace(str(local), f"{website}/data")
    said = run("peek", f"{website}/missing".replace("//", "//name:password@") + "?signature=abc")
    assert f"{website}/missing does not exist" in said.stderr
    for text in (repr(theirs), said.stderr):
        assert "password" not in text
        assert "abc" not in text


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_a_web_server_that_cannot_send_parts_is_refused(local: Path) -> None:
    handler = functools.partial(_Quiet, directory=str(local.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(StorageError, match=r"cannot send parts of a file\. Download the file"):
            tokenmill.open(f"http://127.0.0.1:{server.server_port}/data")
        server.shutdown()


def test_a_cached_remote_dataset_is_fetched_once(
    local: Path, remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"cache_dir": tmp_path / "cache", "cache_bytes": 32 << 20}
    plain = tokenmill.open(local)["train"]
    starts = np.random.default_rng(3).integers(0, len(plain) - 300, 100)
    cached = tokenmill.open(remote, **options)["train"]
    assert cached.identity == plain.identity
    for tokens in (cached, pickle.loads(pickle.dumps(cached))):
        assert np.array_equal(tokens.gather(starts, 300), plain.gather(starts, 300))
        assert np.array_equal(tokens[:], plain[:])
    again = tokenmill.open(remote, **options)["train"]
    monkeypatch.delattr("tokenmill.storage.object_file.ObjectFile.read")
    assert np.array_equal(again[:], plain[:])


def test_a_replaced_shard_is_not_read_from_the_cache(
    local: Path, remote: str, tmp_path: Path
) -> None:
    options = {"cache_dir": tmp_path / "cache", "cache_bytes": 32 << 20}
    before = tokenmill.open(remote, **options)["train"]
    shard = as_path(f"{remote}/train/shard_00000.bin")
    old = before[:100].tobytes()
    shard.write_bytes(bytes(len(shard.read_bytes())))
    after = tokenmill.open(remote, **options)["train"]
    assert old != bytes(len(old)) == after[:100].tobytes()
