"""Opening a dataset: its splits and tokenizer, and the errors for what cannot be opened."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from dataset_builder import build, edit_manifest

import tokenmill
from tokenmill.errors import DatasetError, TokenizerError
from tokenmill.tokenizers import load_tokenizer


@pytest.fixture
def folder(tmp_path):
    """A small sound dataset with several shards, and documents that span them."""
    build(tmp_path / "data")
    return tmp_path / "data"


def test_a_dataset_has_its_splits_and_its_tokenizer(folder):
    dataset = tokenmill.open(folder)
    assert dataset.splits == ("train", "val")
    assert dataset.path == folder
    assert dataset.manifest.dtype == "uint16"
    assert dataset["val"] is dataset["val"]
    assert dataset.tokenizer.name == "bytes"
    first = dataset["train"].documents[0]
    assert dataset.tokenizer.decode(dataset["train"][: first.length - 1]) == "Hello, world!\n"
    assert "train" in repr(dataset)
    assert "uint16" in repr(dataset["train"])


def test_the_error_for_an_unknown_split_lists_the_splits(folder):
    with pytest.raises(DatasetError, match=r"no split 'test'.*train, val"):
        tokenmill.open(folder)["test"]


def test_the_error_describes_a_path_that_is_not_a_dataset(folder, tmp_path):
    with pytest.raises(DatasetError, match="does not exist"):
        tokenmill.open(tmp_path / "nothing")
    with pytest.raises(DatasetError, match="is a file; a dataset is a folder"):
        tokenmill.open(folder / "dataset_metadata.json")
    with pytest.raises(DatasetError, match="is a folder of datasets"):
        tokenmill.open(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="not a finished dataset"):
        tokenmill.open(tmp_path / "empty")
    (tmp_path / ".work").mkdir()
    with pytest.raises(DatasetError, match="interrupted or is still running"):
        tokenmill.open(tmp_path)
    for name in ("x" * 5000, "a\0b"):
        with pytest.raises(DatasetError):
            tokenmill.open(name)


def test_the_right_tokenizer_is_accepted_by_name_and_as_object(folder):
    (folder / "tokenizer_state.json").unlink()
    assert tokenmill.open(folder, tokenizer="bytes").tokenizer.name == "bytes"
    given = load_tokenizer("bytes")
    assert tokenmill.open(folder, tokenizer=given).tokenizer is given


def test_another_tokenizer_is_refused_with_both_fingerprints(folder):
    ours = load_tokenizer("bytes").fingerprint

    def edit(body):
        body["tokenizer"]["fingerprint"] = "another"

    edit_manifest(folder, edit)
    for use in (
        lambda: tokenmill.open(folder, tokenizer="bytes"),
        lambda: tokenmill.open(folder).tokenizer,
    ):
        with pytest.raises(TokenizerError) as caught:
            use()
        assert ours in str(caught.value)
        assert "another" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"kind": 7}', b"\xff", b"[" * 5000])
def test_a_damaged_tokenizer_is_refused_by_name(folder, content):
    (folder / "tokenizer_state.json").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"tokenizer_state\.json"):
        _ = tokenmill.open(folder).tokenizer


def link_to_itself(path):
    path.symlink_to(path.name)


def link_to_zeros(path):
    path.symlink_to("/dev/zero")


def make_huge(path):
    path.touch()
    os.truncate(path, 1 << 40)  # a sparse file: takes no space


@pytest.mark.parametrize("name", ["dataset_metadata.json", "tokenizer_state.json"])
@pytest.mark.parametrize(
    ("replace", "says"),
    [
        (os.mkfifo, "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (link_to_itself, "cannot be read"),
        (link_to_zeros, "leads out of"),
        (make_huge, r"has 1,099,511,627,776 bytes, but at most [0-9,]+ are allowed"),
    ],
)
def test_a_file_that_is_not_regular_or_too_large_is_not_read(folder, name, replace, says):
    (folder / name).unlink()
    replace(folder / name)
    with pytest.raises(DatasetError, match=says) as caught:
        _ = tokenmill.open(folder).tokenizer
    assert name in str(caught.value)


LOOK = """
import os, sys, tokenmill
from tokenmill.errors import DatasetError
path, file = sys.argv[1:]
tokenmill.open(path)["train"][0]
os.chmod(file, 0)
if os.geteuid() == 0:  # root may read everything
    os.setuid(65534)
try:
    tokenmill.open(path)["train"][0]
except DatasetError as error:
    print(error)
"""


CLOSED = """
import os, sys, tokenmill
from tokenmill.errors import DatasetError
tokenmill.verify(sys.argv[1])
os.chmod(sys.argv[1], 0)
if os.geteuid() == 0:
    os.setuid(65534)
for use in (tokenmill.verify, tokenmill.open):
    try:
        use(sys.argv[1])
    except DatasetError as error:
        print(error)
"""


def test_a_folder_without_permission_is_named():
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        (Path(place) / "train.bin").write_bytes(bytes(18))
        done = subprocess.run(
            [sys.executable, "-c", CLOSED, place], capture_output=True, text=True, check=True
        )
    error = f"{place} cannot be read: Permission denied. Let this user read it"
    assert done.stdout.count(error) == 2


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("data", "dataset_metadata.json"),
        ("data", "train/shard_00000.bin"),
        ("data/train/shard_00000.bin", "shard_00000.bin"),
    ],
)
def test_a_file_without_permission_is_not_called_damaged(path, name):
    with tempfile.TemporaryDirectory() as place:  # other users may not enter pytest's folders
        Path(place).chmod(0o755)
        build(Path(place) / "data")
        folder = f"{place}/{path.removesuffix('/' + name)}"
        done = subprocess.run(
            [sys.executable, "-c", LOOK, f"{place}/{path}", f"{folder}/{name}"],
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.startswith(f"{name} in {folder} cannot be read: Permission denied.")
    assert "Let this user read it" in done.stdout
    assert "again" not in done.stdout
