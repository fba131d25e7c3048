"""Globs, lists of files and `~` open all files in order as one dataset."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from dataset_builder import build
from foreign import (
    mds_files,
    write_datatrove,
    write_files,
    write_llmc,
    write_megatron,
    write_olmo,
    write_raw,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import DatasetError, UsageError


def ids_of(path, split="train", **options):
    return tokenmill.open(path, **options)[split][:].tolist()


@pytest.fixture
def shards(tmp_path):
    """Five llm.c shards with numbers of one and two digits."""
    for number in (1, 2, 9, 10):
        write_llmc(tmp_path / f"x_train_{number}.bin", [50256, number])
    write_llmc(tmp_path / "x_val_1.bin", [50256, 7])
    return tmp_path


def test_glob_matches_are_in_numeric_order(shards, monkeypatch):
    assert ids_of(f"{shards}/x_train_*.bin") == [50256, 1, 50256, 2, 50256, 9, 50256, 10]
    assert ids_of(shards / "*_1.bin", "val") == [50256, 7]
    assert tokenmill.open(shards / "*_1.bin").splits == ("train", "val")
    assert ids_of(f"{shards}/**/x_train_[12].bin") == [50256, 1, 50256, 2]
    assert tokenmill.open(f"{shards}/x_train_9*").path == shards / "x_train_9.bin"
    with pytest.raises(DatasetError, match=r"y_\*\.bin matches no file"):
        tokenmill.open(shards / "y_*.bin")
    monkeypatch.setenv("HOME", str(shards))
    assert ids_of("~/x_train_2.bin") == ids_of("~/x_*_2.bin") == [50256, 2]
    (shards / "x_[12].bin").write_bytes((shards / "x_train_9.bin").read_bytes())
    assert ids_of(shards / "x_[12].bin") == [50256, 9]  # an existing name is that file, not a glob


def test_a_list_keeps_its_order_and_holds_nothing_out(shards):
    some = [shards / "x_train_10.bin", str(shards / "x_train_2.bin"), shards / "x_val_1.bin"]
    assert ids_of(some) == [50256, 10, 50256, 2]
    assert ids_of(some, "val") == [50256, 7]
    assert tokenmill.open(some[:2]).splits == ("train",)
    assert tokenmill.open(some).path == shards
    assert ids_of(some[:2], "val", val_fraction=0.5) == [50256, 2]
    assert ids_of([f"{shards}/x_train_1*.bin", some[1]]) == [50256, 1, 50256, 10, 50256, 2]
    assert tokenmill.verify(some) == []
    with pytest.raises(UsageError, match="empty list"):
        tokenmill.open([])
    with pytest.raises(DatasetError, match=r"x_train_3\.bin does not exist"):
        tokenmill.open([some[0], shards / "x_train_3.bin"])


DOCUMENTS = [[[1, 2], [3]], [[4, 5, 6]], [[7], [8, 9]]]


@pytest.mark.parametrize(
    ("write", "name", "options"),
    [
        (lambda path, d: write_megatron(path.with_suffix(""), d), "x{}.bin", {}),
        (lambda path, d: write_megatron(path.with_suffix(""), d), "x{}.idx", {}),
        (write_datatrove, "x{}.ds", {}),
        (lambda path, d: write_olmo(path, d), "x{}.npy", {"dtype": "uint16"}),
        (lambda path, d: np.save(path, np.concatenate(d).astype("u2")), "x{}.npy", {}),
        (lambda path, d: write_raw(path, np.concatenate(d)), "x{}.tok", {"dtype": "uint16"}),
    ],
)
def test_every_format_takes_lists_of_files_in_one_folder_or_several(tmp_path, write, name, options):
    paths = [tmp_path / place / name.format(n) for n, place in enumerate(("a", "a", "b"))]
    for path, documents in zip(paths, DOCUMENTS, strict=True):
        path.parent.mkdir(exist_ok=True)
        write(path, documents)
    for some in ([0, 1], [1, 0], [0, 1, 2], [2, 0], [0, 2, 1]):
        dataset = tokenmill.open([paths[n] for n in some], **options)
        documents = [one for n in some for one in DOCUMENTS[n]]
        tokens = dataset["train"]
        assert tokens[:].tolist() == [one for document in documents for one in document]
        if tokens.documents is not None:
            assert tokens.documents.lengths.tolist() == [len(one) for one in documents]
            assert [document.number for document in tokens.documents] == list(range(len(documents)))
        again = pickle.loads(pickle.dumps(dataset))["train"]
        assert again.fingerprint == tokens.fingerprint
    if "tok" not in name:
        assert len(tokenmill.open(f"{tmp_path}/*/{name.format('*')}", **options)["train"]) == 9


def test_folders_are_joined_by_split(tmp_path):
    for name, ids in (("a", [1, 2]), ("b", [3])):
        write_files(tmp_path / name / "train", mds_files([[ids, [9]]]))
    write_files(tmp_path / "b" / "val", mds_files([[[5]]]))
    dataset = tokenmill.open([tmp_path / "a", tmp_path / "b"])
    assert dataset["train"][:].tolist() == [1, 2, 9, 3, 9]
    assert dataset["train"].documents.lengths.tolist() == [2, 1, 1, 1]
    assert dataset["val"][:].tolist() == [5]
    assert dataset["train"].shard_name(1) == "b/shard.00000.mds"
    assert dataset["train"].gather(np.array([1, 0]), 3).tolist() == [[2, 9, 3], [1, 2, 9]]


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    write_raw(tmp_path / "a" / "train.bin", [1, 2])
    write_llmc(tmp_path / "b.bin", [1])
    with pytest.raises(DatasetError, match="the format is nanogpt in one and llmc in the other"):
        tokenmill.open([tmp_path / "a", tmp_path / "b.bin"])
    np.save(tmp_path / "b.npy", np.arange(3))
    for other in ("b.npy", "notes.txt"):
        (tmp_path / "notes.txt").write_text("Not tokens.")
        with pytest.raises(DatasetError, match=f"{other} is not in the format llmc"):
            tokenmill.open([tmp_path / "b.bin", tmp_path / other])
    write_megatron(tmp_path / "m", [[1]])
    write_megatron(tmp_path / "n" / "m", [[1]], dtype="<i4")
    with pytest.raises(DatasetError, match="the dtype is uint16 in one and int32 in the other"):
        tokenmill.open([tmp_path / "m", tmp_path / "n"])
    for name in ("c", "d"):
        build(tmp_path / name)
    with pytest.raises(DatasetError, match=r"separately.*tokenmill\.Mixture"):
        tokenmill.open([tmp_path / "c", tmp_path / "d"])


@settings(max_examples=40, deadline=None)
@given(
    folders=st.lists(
        st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=5).filter(
            lambda documents: any(documents)
        ),
        min_size=2,
        max_size=4,
    ),
    length=st.integers(1, 6),
    data=st.data(),
)
def test_joined_documents_equal_one_file(folders, length, data):
    """Every method of a document table, compared with one file of the same documents."""
    with tempfile.TemporaryDirectory() as place:
        for number, documents in enumerate(folders):
            write_megatron(Path(place) / str(number) / "x", documents)
        write_megatron(Path(place) / "one", [one for some in folders for one in some])
        one = tokenmill.open(Path(place) / "one")["train"]
        paths = [Path(place) / str(number) for number in range(len(folders))]
        joined = tokenmill.open(paths)["train"]
        assert joined[:].tolist() == one[:].tolist()
        assert joined.documents.lengths.tolist() == one.documents.lengths.tolist()
        assert list(joined.documents) == list(one.documents)
        token = data.draw(st.integers(0, len(one) - 1))
        assert joined.documents.at(token) == one.documents.at(token)
        assert joined.documents.count_before(token) == one.documents.count_before(token)
        if length <= len(one):
            starts = np.array(
                data.draw(st.lists(st.integers(0, len(one) - length), max_size=9)), int
            )
            found = joined.find_document_starts(starts, length)
            assert found.tolist() == one.find_document_starts(starts, length).tolist()


def test_commands_take_globs(shards, capsys):
    for command in ("info", "verify"):
        assert main([command, f"{shards}/x_train_*.bin"]) == 0
        assert "8 tokens" in capsys.readouterr().out
    assert main(["export", f"{shards}/x_*", "--to", "npy", "--out", str(shards / "out")]) == 0
    assert "val: 2 tokens" in capsys.readouterr().out
