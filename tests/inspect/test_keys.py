"""Documents are found by their keys: with and without the index, and when the index is damaged."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.errors import DatasetError, UsageError
from tokenmill.inspect.kept import find_kept
from tokenmill.inspect.where import key_index, keys
from tokenmill.inspect.where.keys import find_key, open_tables
from tokenmill.storage.files import write_file
from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest, Split
from tokenmill.store.tables import Shard, ShardTable

TOKENS = 10  # of a document


def make_dataset(folder: Path, splits: dict[str, list[list[int]]], per_shard: int = 7) -> Path:
    """Make a dataset whose documents have the given 128-bit keys; its tokens are a sparse file."""
    folder.mkdir(parents=True)
    text = folder / "a.txt"
    text.write_text("To be, or not to be.")
    data = folder / "data"
    tokenmill.prepare(text, data, tokenizer="bytes", val_fraction=0)
    manifest = Manifest.read(data)
    for path in (data / "train").iterdir():
        path.unlink()
    made = {}
    for split, numbers in splits.items():
        (data / split).mkdir(exist_ok=True)
        shards = []
        for shard, start in enumerate(range(0, len(numbers), per_shard)):
            some = numbers[start : start + per_shard]
            table = np.zeros(len(some), DOCUMENT_DTYPE)
            table["key"] = [[key >> 64, key & (2**64 - 1)] for key in some]
            table["first"] = np.arange(len(some)) * TOKENS
            table["length"] = TOKENS
            table["offset"] = np.arange(start, start + len(some))
            name = f"{split}/shard_{shard:05}"
            np.save(data / f"{name}.docs.npy", table)
            with (data / f"{name}.bin").open("wb") as file:
                file.truncate(len(some) * TOKENS * 2)
            shards.append(
                Shard(
                    path=f"{name}.bin",
                    tokens=len(some) * TOKENS,
                    documents=len(some),
                    xxh3_128=f"{shard:032x}",
                    documents_path=f"{name}.docs.npy",
                    documents_xxh3_128=f"{hash(tuple(some)) & (2**64 - 1):032x}",
                )
            )
        made[split] = Split(shards=ShardTable.of(shards))
    write_file(data / "dataset_metadata.json", dataclasses.replace(manifest, splits=made).to_json())
    return data


def expected(splits: dict[str, list[int]], start: str) -> list[tuple[str, str, int]]:
    """All documents whose keys begin with some digits, by brute force."""
    found = [
        (f"{key:032x}"[:16], position, number, f"{key:032x}", split)
        for position, (split, numbers) in enumerate(splits.items())
        for number, key in enumerate(numbers)
        if f"{key:032x}".startswith(start)
    ]
    return [(key, split, number) for _, _, number, key, split in sorted(found)]


def found(dataset: tokenmill.Dataset, key: str, **more) -> list[tuple[str, str, int]]:
    return [(one.key, one.split, one.number) for one in find_key(dataset, key, **more)]


def index_file(data: Path, name: str = "index.bin") -> Path:
    return find_kept(tokenmill.open(data)) / "keys" / name


@pytest.fixture(params=["scanned", "indexed", "spilled"])
def way(request, monkeypatch):
    """Find keys by reading all tables, with an index, and with one that was sorted on disk."""
    if request.param != "scanned":
        monkeypatch.setattr(keys, "SCANNED", -1)
        monkeypatch.setattr(key_index, "BLOCK", 4)
    if request.param == "spilled":
        monkeypatch.setattr(key_index, "_SORTED", 8)
    return request.param


few = st.integers(0, 3).map(lambda n: n * 0x0123456789ABCDEF0123456789ABCDEF % 2**128)
near = st.integers(0, 2**128 - 1).map(lambda n: n & 0xFF | 0xABCDEF << 104)
any_keys = st.lists(st.one_of(few, near, st.integers(0, 2**128 - 1)), max_size=24)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(train=any_keys, val=any_keys, other=st.integers(0, 2**128 - 1))
def test_every_key_and_prefix_gives_the_documents_that_have_it(
    way, tmp_path_factory, train, val, other
):
    splits = {"train": train, "val": val}
    data = make_dataset(tmp_path_factory.mktemp("keys") / "d", splits)
    dataset = tokenmill.open(data)
    for key in {*train, *val, other}:
        text = f"{key:032x}"
        for digits in (6, 16, 17, 32):
            assert found(dataset, text[:digits]) == expected(splits, text[:digits])
        assert found(dataset, text.upper()) == expected(splits, text)


def test_documents_have_their_places_and_sources(tmp_path, way):
    data = make_dataset(tmp_path / "d", {"train": list(range(1 << 100, (1 << 100) + 20))})
    dataset = tokenmill.open(data)
    for number in range(20):
        (document,) = find_key(dataset, f"{(1 << 100) + number:032x}")
        assert document == dataset["train"].documents[number]
        assert document.offset == number


def test_a_document_of_a_real_dataset_is_found(tmp_path, way):
    texts = [f"text {number}" for number in range(50)]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    tokenmill.prepare(
        tmp_path / "a.txt", tmp_path / "data", tokenizer="bytes", documents="line", val_fraction=0.3
    )
    dataset = tokenmill.open(tmp_path / "data")
    by_key = defaultdict(list)
    for split in dataset:
        for document in dataset[split].documents:
            by_key[document.key].append(document)
    assert len(by_key) == 50
    for key, documents in by_key.items():
        assert find_key(dataset, key) == documents


def test_at_most_so_many_documents_are_returned(tmp_path, way):
    data = make_dataset(tmp_path / "d", {"train": [7] * 30})
    assert found(tokenmill.open(data), "0" * 31 + "7", most=4) == [
        ("0" * 31 + "7", "train", number) for number in range(4)
    ]


def test_what_is_no_key_is_refused(tmp_path):
    data = make_dataset(tmp_path / "d", {"train": [7]})
    for text in ("abcde", "hello world", "0" * 33, "", "０" * 8):
        with pytest.raises(UsageError, match="is not a key"):
            find_key(tokenmill.open(data), text)


def test_documents_in_other_formats_have_no_keys(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(100, dtype=np.uint16))
    with pytest.raises(DatasetError, match=r"neither keys nor sources.*tokenmill import"):
        find_key(tokenmill.open(tmp_path / "x.npy"), "0" * 32)


@pytest.fixture
def indexed(tmp_path, monkeypatch):
    """A dataset that has an index with several blocks, and its keys."""
    monkeypatch.setattr(keys, "SCANNED", -1)
    monkeypatch.setattr(key_index, "BLOCK", 16)
    splits = {
        "train": [number * 0x9E3779B97F4A7C15F39CC0605CEDC834 % 2**128 for number in range(150)],
        "val": [number * 0xC2B2AE3D27D4EB4F9E3779B97F4A7C15 % 2**128 for number in range(1, 50)],
    }
    data = make_dataset(tmp_path / "d", splits)
    assert found(tokenmill.open(data), "0" * 32)
    return data, splits


def check(data: Path, splits: dict[str, list[int]], first: int = 0, every: int = 1) -> None:
    """Look up every key, or some of them."""
    dataset = tokenmill.open(data)
    for numbers in splits.values():
        for key in numbers[first::every]:
            assert found(dataset, f"{key:032x}") == expected(splits, f"{key:032x}")
    assert found(dataset, "f" * 32) == []


def test_a_flipped_bit_anywhere_in_the_index_never_gives_a_wrong_answer(indexed):
    data, splits = indexed
    path = index_file(data)
    sound = path.read_bytes()
    for place in range(0, len(sound), 131):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 0x10]) + sound[place + 1 :])
        check(data, splits, place % 23, 23)
    check(data, splits)
    assert path.read_bytes() == sound


def test_a_short_missing_or_foreign_index_is_made_again(indexed):
    data, splits = indexed
    path, receipt = index_file(data), index_file(data, "index.json")
    sound = path.read_bytes()
    for damage in (
        lambda: path.write_bytes(sound[:100]),
        lambda: path.write_bytes(b""),
        lambda: path.unlink(),
        lambda: receipt.write_bytes(receipt.read_bytes()[:40]),
        lambda: receipt.unlink(),
        lambda: receipt.write_bytes(b"{}"),
    ):
        damage()
        check(data, splits, every=40)
        assert path.read_bytes() == sound


def test_an_index_of_other_documents_is_not_used(indexed, tmp_path):
    data, splits = indexed
    changed = {"train": [key ^ 1 << 90 for key in splits["train"]], "val": splits["val"]}
    other = make_dataset(tmp_path / "other", changed)
    for name in ("index.bin", "index.json"):
        target = index_file(other, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(index_file(data, name).read_bytes())
    check(other, changed)


def test_an_index_is_made_once_by_processes_that_start_together(tmp_path):
    splits = {"train": [n * 0x9E3779B97F4A7C15F39CC0605CEDC834 % 2**128 for n in range(3000)]}
    data = make_dataset(tmp_path / "d", splits, per_shard=100)
    program = (
        "import sys, tokenmill\n"
        "from tokenmill.inspect.where import keys, key_index\n"
        "keys.SCANNED, key_index._SORTED = -1, 64\n"
        "made = key_index.make_index\n"
        "def make(*given):\n"
        "    print('made')\n"
        "    return made(*given)\n"
        "keys.make_index = make\n"
        "print([one.number for one in keys.find_key(tokenmill.open(sys.argv[1]), sys.argv[2])])\n"
    )
    command = [sys.executable, "-c", program, str(data), f"{splits['train'][1234]:032x}"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    printed = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert sorted(printed) == ["[1234]\n", "[1234]\n", "made\n[1234]\n"]


def test_a_killed_build_leaves_nothing_that_is_used(tmp_path, monkeypatch):
    splits = {"train": [n * 0x9E3779B97F4A7C15F39CC0605CEDC834 % 2**128 for n in range(500)]}
    data = make_dataset(tmp_path / "d", splits)
    program = (
        "import os, sys, tokenmill\n"
        "from tokenmill.inspect.where import keys, key_index\n"
        "keys.SCANNED, key_index._SORTED = -1, 64\n"
        "key_index._Writer.finish = lambda self: os.kill(os.getpid(), 9)\n"
        "keys.find_key(tokenmill.open(sys.argv[1]), '0' * 32)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(data)], check=False)
    assert killed.returncode == -9
    folder = index_file(data).parent
    assert any(name.endswith(".tmp") for name in os.listdir(folder))
    monkeypatch.setattr(keys, "SCANNED", -1)
    check(data, splits, every=50)
    assert sorted(os.listdir(folder)) == ["index.bin", "index.json", "lock"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_without_a_place_for_the_index_all_tables_are_read(tmp_path, monkeypatch):
    data = make_dataset(tmp_path / "d", {"train": [5, 6, 7]})
    monkeypatch.setattr(keys, "SCANNED", -1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    (tmp_path / "nothing").write_text("")
    data.chmod(0o500)
    try:
        assert found(tokenmill.open(data), "0" * 31 + "6") == [("0" * 31 + "6", "train", 1)]
    finally:
        data.chmod(0o700)


def test_a_full_disk_is_no_obstacle(tmp_path, monkeypatch):
    data = make_dataset(tmp_path / "d", {"train": [5, 6, 7]})
    monkeypatch.setattr(keys, "SCANNED", -1)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/full")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert found(tokenmill.open(data), "0" * 31 + "6") == [("0" * 31 + "6", "train", 1)]


def test_links_in_the_kept_folder_are_not_followed(tmp_path, monkeypatch):
    data = make_dataset(tmp_path / "d", {"train": [5, 6, 7]})
    monkeypatch.setattr(keys, "SCANNED", -1)
    kept = find_kept(tokenmill.open(data), make=True)
    (tmp_path / "elsewhere").mkdir()
    (kept / "keys").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(tokenmill.TokenmillError, match="symbolic link"):
        find_key(tokenmill.open(data), "0" * 32)
    assert not os.listdir(tmp_path / "elsewhere")


def test_the_tables_of_all_splits_are_opened(tmp_path):
    data = make_dataset(tmp_path / "d", {"train": [1, 2, 3], "val": []})
    assert [len(table) for table in open_tables(tokenmill.open(data))] == [3, 0]
