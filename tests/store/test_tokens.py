"""Slices and documents equal the concatenated oracle, however the tokens are sharded."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from dataset_builder import RECORD, build, key_of
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.dataset.opening import Dataset
from tokenmill.errors import DatasetError, UsageError
from tokenmill.formats.prepared import read_contents
from tokenmill.storage import mapping
from tokenmill.store.gather import PIECE
from tokenmill.store.manifest import Manifest, Split
from tokenmill.store.tables import Shard, ShardTable, SourceTable
from tokenmill.store.tokens import Tokens


@pytest.fixture
def folder(tmp_path):
    """A small sound dataset with several shards, and documents that span them."""
    build(tmp_path / "data")
    return tmp_path / "data"


documents = st.lists(st.binary(max_size=30), max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    texts=documents,
    shard_tokens=st.integers(1, 40),
    eot=st.sampled_from(["after", "before", "none"]),
    dtype=st.sampled_from(["uint16", "uint32"]),
    data=st.data(),
)
def test_slices_and_documents_equal_the_oracle(texts, shard_tokens, eot, dtype, data):
    with tempfile.TemporaryDirectory() as folder:
        oracle = build(
            Path(folder), {"train": texts}, shard_tokens=shard_tokens, eot=eot, dtype=dtype
        )["train"]
        if not len(oracle):
            assert list(tokenmill.open(folder)) == []
            return
        tokens = tokenmill.open(folder)["train"]
        assert len(tokens) == len(oracle)
        assert tokens.dtype == np.dtype(dtype)
        assert np.array_equal(tokens[:], oracle)
        assert np.array_equal(np.asarray(tokens), oracle)
        edges = st.none() | st.integers(-len(oracle) - 3, len(oracle) + 3)
        for _ in range(8):
            a, b = data.draw(edges), data.draw(edges)
            assert np.array_equal(tokens[a:b], oracle[a:b])
            assert tokens[a:b].dtype == tokens.dtype

        extra = 0 if eot == "none" else 1
        kept = [text for text in texts if len(text) + extra]
        assert len(tokens.documents) == len(kept)
        start = 0
        for number, text in enumerate(kept):
            document = tokens.documents[number]
            assert (document.number, document.start) == (number, start)
            assert document.length == len(text) + extra
            assert document.key == "{:016x}{:016x}".format(*key_of(text))
            assert document.source.path == "texts/a.txt"
            for token in range(start, start + document.length):
                assert tokens.documents.at(token) == document
            start += document.length
        assert start == len(oracle)
        if kept:
            assert tokens.documents[-1] == tokens.documents[len(kept) - 1]


def test_one_token_by_index(folder):
    tokens = tokenmill.open(folder)["train"]
    everything = tokens[:].tolist()
    assert [tokens[n] for n in range(len(tokens))] == everything
    assert tokens[-1] == everything[-1]
    assert tokens[np.int32(3)] == everything[3]
    assert isinstance(tokens[0], int)
    assert list(tokens) == everything
    with pytest.raises(IndexError):
        tokens[len(tokens)]
    with pytest.raises(IndexError):
        tokens.documents.at(len(tokens))
    with pytest.raises(UsageError, match=r"tokens\[a:b\]\[::n\]"):
        tokens[::2]


def test_iterating_reads_piece_after_piece(tmp_path):
    ids = np.arange(2 * PIECE + 5, dtype=np.uint32) % 50_021
    assert list(Tokens.of(ids)) == ids.tolist()
    assert list(Tokens.of(ids[: 2 * PIECE])) == ids[: 2 * PIECE].tolist()
    ids.astype("<u4").tofile(tmp_path / "x.bin")
    one_by_one = iter(tokenmill.open(tmp_path / "x.bin", dtype="u4")["train"])
    assert all(
        type(one) is int and one == wanted
        for one, wanted in zip(one_by_one, ids.tolist(), strict=True)
    )


def test_a_slice_is_a_copy(folder):
    tokens = tokenmill.open(folder)["train"]
    part = tokens[0:5]
    part[:] = 0
    assert tokens[0] != 0


FORKS = """
import os, sys, numpy, tokenmill
tokens = tokenmill.open(sys.argv[1])["train"]
before = tokens.gather(numpy.arange(len(tokens) - 15), 15)
child = os.fork()
same = numpy.array_equal(tokens.gather(numpy.arange(len(tokens) - 15), 15), before)
if not child:
    os._exit(0 if same else 3)
assert same and os.waitpid(child, 0)[1] == 0
"""


def test_a_fork_can_read_the_same_tokens(folder):
    subprocess.run([sys.executable, "-c", FORKS, folder], check=True, timeout=60)


def test_opening_does_not_open_shards(folder):
    for name in ("train", "val"):
        (folder / name).rename(folder / f"{name}.away")
    tokens = tokenmill.open(folder)["train"]
    assert (len(tokens), len(tokens.documents)) == (68, 5)


OPEN_NOW = Path("/proc/self/fd")
MAPS_KEEP_FILES = sys.version_info < (3, 13)


@pytest.mark.skipif(not OPEN_NOW.exists(), reason="this system does not list open files")
def test_open_files_stay_few(tmp_path, monkeypatch):
    monkeypatch.setattr(mapping, "OPEN_FILES", 3)
    oracle = build(tmp_path, {"train": ["some text"] * 40}, shard_tokens=4)["train"]
    tokens = tokenmill.open(tmp_path)["train"]
    before = len(list(OPEN_NOW.iterdir()))
    assert np.array_equal(tokens[:], oracle)
    for number in range(len(tokens.documents)):
        assert tokens.documents[number].length == 10
    assert len(list(OPEN_NOW.iterdir())) <= before + 3
    others = [tokenmill.open(tmp_path)["train"] for _ in range(5)]
    for start in range(0, len(oracle) - 9, 7):
        for other in [tokens, *others]:
            assert np.array_equal(other[start : start + 9], oracle[start : start + 9])
            assert other.documents.at(start).number == start // 10
    assert len(list(OPEN_NOW.iterdir())) <= before + 3
    with ThreadPoolExecutor(8) as pool:
        for place, one in pool.map(lambda n: (n, tokens[n]), list(range(len(oracle))) * 3):
            assert one == oracle[place]
    assert len(list(OPEN_NOW.iterdir())) <= before + 3


@pytest.mark.skipif(not OPEN_NOW.exists(), reason="this system does not list open files")
def test_deleted_tokens_keep_no_file_open(folder):
    tokens = tokenmill.open(folder)["train"]
    before = len(list(OPEN_NOW.iterdir()))
    assert len(tokens[:]) == len(tokens)
    assert (len(list(OPEN_NOW.iterdir())) > before) == MAPS_KEEP_FILES
    del tokens
    assert len(list(OPEN_NOW.iterdir())) == before


FULL = """
import resource, sys
import tokenmill
tokens = tokenmill.open(sys.argv[1])["train"]
taken = []
resource.setrlimit(resource.RLIMIT_NOFILE, (20, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    while True:
        taken.append(open("/dev/null"))
except OSError:
    pass
for free in (0, 1):
    for _ in range(free):
        taken.pop()
    try:
        tokens[0]
    except tokenmill.errors.DatasetError as error:
        print(error)
"""


def test_too_many_open_files_are_not_called_damage(folder):
    pytest.importorskip("resource")
    done = subprocess.run(
        [sys.executable, "-c", FULL, folder], capture_output=True, text=True, check=True
    )
    errors = done.stdout.splitlines()  # one for opening the file, one for mapping it
    assert len(errors) == 1 + MAPS_KEEP_FILES
    for error in errors:
        assert "Too many open files" in error
        assert "ulimit -n" in error
        assert "Copy" not in error


def test_150_000_shards_open_without_opening_a_file(tmp_path):
    shard = Shard(
        path="a", tokens=3, documents=1, xxh3_128="", documents_path="b", documents_xxh3_128=""
    )
    manifest = Manifest(
        dtype="uint16",
        vocab_size=257,
        tokenizer="bytes",
        tokenizer_fingerprint="",
        eot="after",
        eot_id=256,
        splits={"train": Split(shards=ShardTable.of([shard] * 150_000))},
        sources=SourceTable.of([]),
    )
    tokens = Dataset(tmp_path, "tokenmill", read_contents(tmp_path, manifest))["train"]
    assert len(tokens) == 450_000
    assert tokens.locate(449_999) == (149_999, 2)


def test_pickles_and_threads(folder):
    dataset = tokenmill.open(folder)
    tokens = dataset["train"]
    expected = tokens[:]
    assert np.array_equal(pickle.loads(pickle.dumps(tokens))[:], expected)
    assert np.array_equal(pickle.loads(pickle.dumps(dataset))["train"][:], expected)
    with ThreadPoolExecutor(8) as pool:
        fresh = tokenmill.open(folder)["train"]
        for part in pool.map(lambda n: (n, fresh[n : n + 25]), list(range(40)) * 20):
            assert np.array_equal(part[1], expected[part[0] : part[0] + 25])


def test_a_pickled_dataset_does_not_depend_on_the_working_folder(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder.parent)
    tokens = tokenmill.open("data")["train"]
    monkeypatch.chdir("/")
    assert len(tokens[:]) == len(tokens)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        ("train/shard_00001.bin", cut, "1 bytes too short"),
        ("train/shard_00001.bin", lengthen, "1 bytes too long"),
        ("train/shard_00001.bin", Path.unlink, "is missing"),
        ("train/shard_00001.docs.npy", cut, "1 bytes too short"),
        ("train/shard_00001.docs.npy", lengthen, "1 bytes too long"),
        ("train/shard_00001.docs.npy", Path.unlink, "is missing"),
        ("train/shard_00001.docs.npy", lambda p: p.write_bytes(b""), "npy header"),
        ("train/shard_00001.docs.npy", lambda p: p.write_bytes(b"\x93NUMPY" * 9), "npy header"),
        (
            "train/shard_00001.docs.npy",
            lambda p: np.save(p, np.zeros(9)),
            "is not a table of documents",
        ),
        ("train/shard_00001.docs.npy", lambda p: np.save(p, np.zeros(9, RECORD)), "shape"),
        (
            "train/shard_00001.docs.npy",
            lambda p: np.save(p, np.array([{}], object), allow_pickle=True),
            "is not a table of documents",
        ),
    ],
)
def test_a_damaged_file_is_refused_by_name_with_a_cure(folder, name, damage, says):
    damage(folder / name)
    tokens = tokenmill.open(folder)["train"]
    with pytest.raises(DatasetError, match=says) as caught:
        list(tokens if name.endswith(".bin") else tokens.documents)
    assert name in str(caught.value)
    assert "--restart" in str(caught.value)
    assert tokens[0] == ord("H")  # the other shards can be read


def test_a_document_table_with_impossible_values_is_refused(folder):
    path = folder / "train/shard_00001.docs.npy"
    for column, value in (("first", 2**64 - 1), ("length", 2**64 - 1), ("source", 1)):
        table = np.load(path)
        changed = table.copy()
        changed[column] = value
        np.save(path, changed)
        documents = tokenmill.open(folder)["train"].documents
        with pytest.raises(DatasetError, match=r"shard_00001\.docs\.npy is damaged"):
            list(documents)
        np.save(path, table)


def test_links_out_of_the_folder_and_pipes_are_not_opened(folder, tmp_path):
    shard = folder / "train/shard_00000.bin"
    shard.rename(tmp_path / "outside.bin")
    shard.symlink_to(tmp_path / "outside.bin")
    with pytest.raises(DatasetError, match=r"train/shard_00000\.bin is a link that leads out of"):
        tokenmill.open(folder)["train"][0]
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(DatasetError, match="not a regular file"):
        tokenmill.open(folder)["train"][0]
    shard.unlink()
    shard.symlink_to(shard)
    with pytest.raises(DatasetError, match="cannot be read"):
        tokenmill.open(folder)["train"][0]


def test_links_inside_the_folder_and_to_the_folder_are_followed(folder, tmp_path):
    (folder / "train/shard_00000.bin").rename(folder / "moved.bin")
    (folder / "train/shard_00000.bin").symlink_to("../moved.bin")
    (tmp_path / "link").symlink_to(folder)
    assert tokenmill.open(tmp_path / "link")["train"][0] == ord("H")


LOADERS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
import tokenmill
loaders = [
    tokenmill.Loader(
        tokenmill.open(sys.argv[1], dtype="uint16")["train"],
        batch_size=8, seq_len=16, seed=number, prefetch=0,
    )
    for number in range(12)
]
for _ in range(40):
    for loader in loaders:
        next(loader)
print(len({loader.row for loader in loaders}))
"""


def test_many_loaders_stay_below_the_limit_of_open_files(tmp_path):
    pytest.importorskip("resource")
    for number in range(16):
        np.arange(400, dtype="<u2").tofile(tmp_path / f"train_{number:03}.bin")
    done = subprocess.run(
        [sys.executable, "-c", LOADERS, tmp_path], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
