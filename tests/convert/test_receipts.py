"""A resumed `import` or `reshard` trusts no file of the run before."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import xxhash
from dataset_builder import build
from test_export import contents

import tokenmill
from tokenmill.errors import FolderError
from tokenmill.progress import Nobody
from tokenmill.storage.lock import FileLock


class Stopped(Exception):
    pass


class Watcher(Nobody):
    """Keeps the notices, and stops the work after some tokens."""

    def __init__(self, after=10**9):
        self.notes, self.left = [], after

    def note(self, text):
        self.notes.append(text)

    def advance(self, amount, *_):
        self.left -= amount
        if self.left <= 0:
            raise Stopped


def convert(kind, folder, out, watcher):
    if kind == "reshard":
        return tokenmill.reshard(folder / "data", out, tokens_per_shard=15, watcher=watcher)
    return tokenmill.import_dataset(
        folder / "x.npy", out, tokenizer="bytes", tokens_per_shard=15, watcher=watcher
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Sources, and of each conversion one that finished and one that stopped after three shards."""
    folder = tmp_path_factory.mktemp("made")
    build(folder / "data")
    np.save(folder / "x.npy", np.array([5, 6, 7, 8, 256] * 14))
    for kind in ("reshard", "import"):
        convert(kind, folder, folder / f"{kind}-clean", Watcher())
        with pytest.raises(Stopped):
            convert(kind, folder, folder / f"{kind}-stopped", Watcher(45))
        assert len(list((folder / f"{kind}-stopped" / "train").iterdir())) == 6
    return folder


@pytest.fixture(params=["reshard", "import"])
def kind(request):
    return request.param


@pytest.fixture
def out(made, kind, tmp_path):
    return shutil.copytree(made / f"{kind}-stopped", tmp_path / "out")


def resume(kind, made, out):
    watcher = Watcher()
    convert(kind, made, out, watcher)
    assert contents(out) == contents(made / f"{kind}-clean")
    assert tokenmill.verify(out) == []
    return watcher.notes


def test_finished_shards_are_not_written_again(kind, made, out):
    before = {path: path.stat().st_ino for path in out.glob("*/shard_*")}
    assert resume(kind, made, out) == []
    assert {path: path.stat().st_ino for path in before} == before


def flip(path):
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


def truncate(path):
    os.truncate(path, path.stat().st_size - 2)


def empty(path):
    os.truncate(path, 0)


def fill_with_zeros(path):
    path.write_bytes(bytes(path.stat().st_size))


def lengthen(path):
    os.truncate(path, 1 << 40)  # a sparse file: takes no space


DAMAGE = [flip, truncate, empty, fill_with_zeros, lengthen, os.unlink]


@pytest.mark.parametrize("suffix", [".bin", ".docs.npy"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_shard_that_changed_is_written_again_with_a_notice(kind, made, out, damage, suffix):
    damage(out / "train" / f"shard_00001{suffix}")
    kept = (out / "train" / "shard_00000.bin").stat().st_ino
    (note,) = resume(kind, made, out)
    assert note.startswith("train/shard_00001.bin or its document table changed")
    assert (out / "train" / "shard_00000.bin").stat().st_ino == kept


def edit(change):
    """Change a receipt and update its checksum, as an attacker would."""

    def damage(path):
        value = json.loads(path.read_bytes().partition(b"\n")[2])
        content = json.dumps(change(value)).encode()
        path.write_bytes(xxhash.xxh3_128_hexdigest(content).encode() + b"\n" + content)

    return damage


def put(key, value):
    return edit(lambda receipt: {**receipt, "shard": {**receipt["shard"], key: value}})


@pytest.mark.parametrize(
    "damage",
    [
        *DAMAGE,
        edit(lambda _: 5),
        edit(lambda receipt: {"shard": receipt["shard"], "facts": 7}),
        edit(lambda receipt: {"shard": receipt["shard"], "facts": {"after": "yes"}}),
        edit(lambda receipt: {"facts": receipt["facts"]}),
        put("tokens", 10**15),
        put("documents", 10**15),
        put("documents", -1),
        put("path", "../x"),
        put("path", "train/shard_00000.bin"),
        put("xxh3_128", None),
    ],
)
def test_a_damaged_receipt_is_not_trusted(kind, made, out, damage):
    damage(out / ".work" / "train-00001.json")
    resume(kind, made, out)


def test_the_receipt_of_another_shard_is_not_trusted(kind, made, out):
    shutil.copyfile(out / ".work" / "train-00000.json", out / ".work" / "train-00001.json")
    resume(kind, made, out)


@pytest.mark.parametrize("content", [b"", b"\0" * 99, b"5", b"[]", b"[" * 100_000, b'{"a": 1}'])
def test_a_damaged_record_of_the_settings_is_refused(kind, made, out, content):
    (out / ".work" / "conversion.json").write_bytes(content)
    with pytest.raises(FolderError, match="elete "):
        convert(kind, made, out, Watcher())


def test_a_finished_dataset_with_a_truncated_shard_is_refused(kind, made, tmp_path):
    out = shutil.copytree(made / f"{kind}-clean", tmp_path / "out")
    os.truncate(out / "train" / "shard_00001.bin", 8)
    with pytest.raises(FolderError, match=r"train/shard_00001\.bin is missing or cut short"):
        convert(kind, made, out, Watcher())


@pytest.mark.parametrize("kind", ["reshard", "import"])
def test_the_work_folder_of_a_run_that_is_about_to_finish_is_left_to_it(made, tmp_path, kind):
    out = tmp_path / "out"
    shutil.copytree(made / f"{kind}-stopped" / ".work", out / ".work")
    shutil.copytree(made / f"{kind}-clean", out, dirs_exist_ok=True)
    before = contents(out)
    lock = FileLock(out, is_folder=True)
    assert lock.acquire()  # as the run has it until it has removed the work folder
    with pytest.raises(FolderError, match="Another run is working in"):
        convert(kind, made, out, Watcher())
    assert contents(out) == before
    lock.release()
    convert(kind, made, out, Watcher())
    assert contents(out) == contents(made / f"{kind}-clean")
