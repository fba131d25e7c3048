"""Opening a dataset: what it shows, and what it says when it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from dataset_builder import build, edit_manifest, seal_bytes

import tokenmill
from tokenmill.errors import DatasetError, TokenizerError
from tokenmill.tokenizers import load_tokenizer


@pytest.fixture
def folder(tmp_path):
    """A small sound dataset with several shards, and documents that span them."""
    build(tmp_path / "data")
    return tmp_path / "data"


def test_a_dataset_shows_its_splits_and_its_tokenizer(folder):
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


def test_an_unknown_split_lists_those_there(folder):
    with pytest.raises(DatasetError, match=r"no split 'test'.*train, val"):
        tokenmill.open(folder)["test"]


def test_the_error_says_what_is_there_instead_of_a_dataset(folder, tmp_path):
    with pytest.raises(DatasetError, match="does not exist"):
        tokenmill.open(tmp_path / "nothing")
    with pytest.raises(DatasetError, match="is a file, and a dataset is a folder; give the folder"):
        tokenmill.open(folder / "dataset_metadata.json")
    with pytest.raises(DatasetError, match=r"has datasets in it\. Name one of them"):
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


def test_a_hand_edited_manifest_is_refused(folder):
    path = folder / "dataset_metadata.json"
    body = json.loads(path.read_bytes())
    body["settings"]["seed"] = 8
    path.write_text(json.dumps(body, indent=2))
    with pytest.raises(DatasetError, match="its own checksum"):
        tokenmill.open(folder)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("vocab_size", 70_000),
        ("vocab_size", True),
        ("vocab_size", -1),
        ("eot", {"place": "after", "id": None}),
        ("eot", {"place": "after", "id": True}),
        ("eot", {"place": "after", "id": 300}),
        ("eot", {"place": "between", "id": 256}),
        ("splits", {"a\x1b[2J": {"tokens": 0, "documents": 0, "shards": []}}),
        ("splits", {"train": {"tokens": 1, "documents": 0, "shards": []}}),
        ("splits", []),
        ("sources", [{"path": "a"}]),
        ("sources", {"path": "../sources.jsonl", "count": 1, "bytes": 1, "xxh3_128": ""}),
        ("sources", {"path": "sources.jsonl", "count": -1, "bytes": 1, "xxh3_128": ""}),
        ("version", 1),
        ("version", 2),
        ("version", 4),
        ("version", True),
        ("version", "3"),
        ("version", None),
        ("vocab_size", 5.0),
        ("dtype", "uint64"),
        ("tokenizer", {"name": "bytes"}),
        ("tokenizer", {"name": "bytes", "fingerprint": "", "more": 1}),
        ("settings", []),
        ("sources", {"path": "a\x1b", "count": 1, "bytes": 1, "xxh3_128": ""}),
        ("format", "other"),
        ("ledger", None),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(folder, where, value):
    edit_manifest(folder, lambda body: body.update({where: value}))
    with pytest.raises(DatasetError, match=r"dataset_metadata\.json"):
        tokenmill.open(folder)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("vocab_sise", "vocab_size"), ("setings", "settings"), ("zzz", None)],
)
def test_an_unknown_entry_is_refused_with_the_nearest_right_name(folder, wrong, near):
    edit_manifest(folder, lambda body: body.update({wrong: 1}))
    with pytest.raises(DatasetError, match=f"unknown field '{wrong}'") as caught:
        tokenmill.open(folder)
    assert (f"did you mean '{near}'?" in str(caught.value)) == (near is not None)


def test_an_unknown_or_missing_entry_of_a_shard_is_refused_with_its_place(folder):
    def change(edit):
        edit_manifest(folder, lambda body: edit(body["splits"]["train"]["shards"][1]))

    change(lambda shard: shard.update(document=1))
    with pytest.raises(DatasetError, match=r"'document'.*shards\[1\].*did you mean 'documents'"):
        tokenmill.open(folder)
    change(lambda shard: shard.pop("document"))
    tokenmill.open(folder)
    change(lambda shard: shard.pop("documents"))
    with pytest.raises(DatasetError, match=r"missing required field 'documents'.*shards\[1\]"):
        tokenmill.open(folder)


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        (b'"vocab_size"', "vocab_size"),
        (b'"fingerprint"', "fingerprint"),
        (b'"documents_path"', "documents_path"),
        (b'"seed"', "seed"),
        (b'"duplicate"', "duplicate"),
        (b'"train"', "train"),
    ],
)
def test_an_entry_given_twice_is_refused_by_name(folder, entry, key):
    path = folder / "dataset_metadata.json"
    data = path.read_bytes()
    place = data.index(entry)
    end, depth = place + len(entry) + 1, 0
    while depth or data[end] not in b",}\n":
        depth += (data[end] in b"{[") - (data[end] in b"}]")
        end += 1
    twice = (
        data[:end] + b", " + data[place:end].replace(entry, rb'"\u%04x%s' % (entry[1], entry[2:]))
    )
    path.write_bytes(seal_bytes(twice + data[end:]))
    with pytest.raises(DatasetError, match=f"has the entry '{key}' twice"):
        tokenmill.open(folder)


def test_text_with_quotes_and_escapes_in_a_manifest_is_fine(folder):
    strange = {'"\\"': ["\\", '"', "\n", "\x00", 'a"b\\"c', {"": "é\u2028"}]}
    edit_manifest(folder, lambda body: body["settings"].update(strange))
    assert tokenmill.open(folder).manifest.settings['"\\"'] == strange['"\\"']


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"a":' * 100_000, b'"', b"\xff", b'{"a":"\\ud800"}']
)
def test_a_manifest_that_is_not_json_is_refused(folder, data):
    (folder / "dataset_metadata.json").write_bytes(data)
    with pytest.raises(DatasetError, match=r"dataset_metadata\.json is damaged: it is not "):
        tokenmill.open(folder)


def test_deep_settings_are_refused(folder):
    path = folder / "dataset_metadata.json"
    deep = b"[" * 50_000 + b"]" * 50_000
    path.write_bytes(seal_bytes(path.read_bytes().replace(b'"seed": 7', b'"seed": ' + deep)))
    with pytest.raises(DatasetError, match=r"dataset_metadata\.json"):
        tokenmill.open(folder)


def test_counts_beyond_64_bits_are_refused(folder):
    def edit(body):
        body["splits"]["train"]["tokens"] = body["splits"]["train"]["shards"][0]["tokens"] = 2**63
        del body["splits"]["train"]["shards"][1:]

    edit_manifest(folder, edit)
    with pytest.raises(DatasetError, match=r"dataset_metadata\.json"):
        tokenmill.open(folder)


def link_to_itself(path):
    path.symlink_to(path.name)


def link_to_zeros(path):
    path.symlink_to("/dev/zero")


def make_huge(path):
    path.touch()
    os.truncate(path, 1 << 40)  # no disk is used


@pytest.mark.parametrize("name", ["dataset_metadata.json", "tokenizer_state.json"])
@pytest.mark.parametrize(
    ("replace", "says"),
    [
        (os.mkfifo, "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (link_to_itself, "cannot be read"),
        (link_to_zeros, "leads out of"),
        (make_huge, r"has 1,099,511,627,776 bytes, but at most 1,073,741,824 are allowed"),
    ],
)
def test_what_is_no_small_file_is_not_read(folder, name, replace, says):
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
if os.geteuid() == 0:  # who may read everything
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


def test_a_folder_that_may_not_be_looked_into_is_told_of():
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        (Path(place) / "train.bin").write_bytes(bytes(18))
        done = subprocess.run(
            [sys.executable, "-c", CLOSED, place], capture_output=True, text=True, check=True
        )
    told = f"{place} cannot be read: Permission denied. Let this user read it"
    assert done.stdout.count(told) == 2


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("data", "dataset_metadata.json"),
        ("data", "train/shard_00000.bin"),
        ("data/train/shard_00000.bin", "shard_00000.bin"),
    ],
)
def test_what_may_not_be_read_is_not_called_damaged(path, name):
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are closed to others
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
