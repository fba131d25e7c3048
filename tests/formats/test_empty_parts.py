"""Files, splits and documents without tokens open, and nothing else is lost."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from dataset_builder import build
from foreign import (
    litdata_files,
    mds_files,
    write_datatrove,
    write_files,
    write_megatron,
    write_raw,
)

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import DatasetError

# Written by datatrove 0.10.1 in three tasks, for the documents [0, 1], [1]; none; [0, 0, 0].
FILES = {
    "00000_00000_doc_shuffled.ds": (b"\0\0\1\0\1\0", struct.pack("<2Q", 2, 3), "3\n3.00 T"),
    "00001_unshuffled.ds": (b"", b"", "0\n0.00 T"),
    "00002_00000_doc_shuffled.ds": (b"\0\0\0\0\0\0", struct.pack("<Q", 3), "3\n3.00 T"),
}


def write_tasks(folder, rename=lambda name: name, beside=("index", "metadata")):
    folder.mkdir()
    for name, (ids, index, counts) in FILES.items():
        path = folder / rename(name)
        path.write_bytes(ids)
        if "index" in beside:
            path.with_name(f"{path.name}.index").write_bytes(index)
        if "metadata" in beside:
            path.with_name(f"{path.name}.metadata").write_text(f"tok.json|2\n{counts}")


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name,
        lambda name: name[:6] + "unshuffled.ds",
        lambda name: "web2_" + name,
        lambda name: name.replace("doc", "chunk"),
    ],
    ids=["shuffled", "not shuffled", "with a name", "in chunks"],
)
@pytest.mark.parametrize("beside", [("index", "metadata"), ("index",), ("metadata",)])
def test_datatrove_folders_with_a_task_without_documents_open(tmp_path, rename, beside):
    write_tasks(tmp_path / "x", rename, beside)
    dataset = tokenmill.open(tmp_path / "x")
    assert dataset["train"][:].tolist() == [0, 1, 1, 0, 0, 0]
    if "index" in beside:
        assert dataset["train"].documents.lengths.tolist() == [2, 1, 3]
    assert tokenmill.verify(tmp_path / "x") == []


def test_a_missing_or_truncated_datatrove_file_is_still_refused(tmp_path):
    write_tasks(tmp_path / "x")
    for path in (tmp_path / "x").glob("00001*"):
        path.rename(tmp_path / path.name)
    with pytest.raises(DatasetError, match=r"00001_00000_doc_shuffled\.ds is missing"):
        tokenmill.open(tmp_path / "x")
    write_tasks(tmp_path / "y")
    (tmp_path / "y" / "00000_00000_doc_shuffled.ds.index").write_bytes(b"")
    with pytest.raises(DatasetError, match="expected 0 tokens"):
        tokenmill.open(tmp_path / "y")
    write_tasks(tmp_path / "z")
    (tmp_path / "z" / "00002_00000_doc_shuffled.ds").write_bytes(b"")
    with pytest.raises(DatasetError, match=r"00002_00000_doc_shuffled\.ds has 0 bytes"):
        tokenmill.open(tmp_path / "z")


def test_a_datatrove_folder_without_tokens_is_refused_with_the_reason(tmp_path):
    write_tasks(tmp_path / "x")
    for path in (tmp_path / "x").glob("*shuffled.ds*"):
        if not path.name.startswith("00001"):
            path.unlink()
    with pytest.raises(DatasetError, match="has no tokens"):
        tokenmill.open(tmp_path / "x")


def make_prepared(folder):
    build(folder, {"train": ["some text"], "val": []})


def make_nanogpt(folder):
    write_raw(folder / "train.bin", [1, 2, 3])
    (folder / "val.bin").touch()


def make_raw(folder):
    folder.mkdir()
    (folder / "meta.json").write_text('{"dtype": "uint16"}')
    write_raw(folder / "train" / "a.bin", [1, 2, 3])
    write_raw(folder / "val" / "a.bin", [])


def make_npy(folder):
    folder.mkdir()
    np.save(folder / "train_0.npy", np.arange(3))
    np.save(folder / "val_0.npy", np.arange(0))


def make_megatron(folder):
    write_megatron(folder / "train", [[1, 2], [3]])
    write_megatron(folder / "val", [])


def make_datatrove(folder):
    write_datatrove(folder / "00000_train.ds", [[1, 2], [3]])
    for ending in ("", ".index"):
        (folder / f"00000_val.ds{ending}").touch()


def make_litdata(folder):
    write_files(folder / "train", litdata_files([[[1, 2], [3]]]))
    write_files(folder / "val", litdata_files([]))


def make_mds(folder):
    write_files(folder / "train", mds_files([[[1, 2], [3]]]))
    write_files(folder / "val", mds_files([[[]]]))


@pytest.mark.parametrize(
    "make",
    [
        make_prepared,
        make_nanogpt,
        make_raw,
        make_npy,
        make_megatron,
        make_datatrove,
        make_litdata,
        make_mds,
    ],
)
def test_an_empty_split_counts_as_absent(tmp_path, capsys, make):
    folder = tmp_path / "data"
    make(folder)
    dataset = tokenmill.open(folder)
    assert (dataset.splits, list(dataset), "val" in dataset) == (("train",), ["train"], False)
    with pytest.raises(DatasetError, match="val_fraction"):
        dataset["val"]
    held_out = tokenmill.open(folder, val_fraction=0.4)
    assert list(held_out) == ["train", "val"]
    assert len(held_out["train"]) + len(held_out["val"]) == len(dataset["train"])
    assert tokenmill.verify(folder) == []
    assert main(["info", str(folder)]) == 0
    assert "val " not in capsys.readouterr().out.partition("Splits")[2].partition("Settings")[0]
    made = tokenmill.export(dataset, to="npy", out=tmp_path / "out")
    assert list(made.tokens) == ["train"]


def test_an_empty_split_is_not_imported(tmp_path):
    make_nanogpt(tmp_path / "data")
    made = tokenmill.import_dataset(tmp_path / "data", tmp_path / "out", tokenizer="bytes")
    assert list(made.splits) == ["train"]
    assert tokenmill.verify(tmp_path / "out") == []


def test_a_prepared_dataset_without_tokens_can_be_inspected(tmp_path, capsys):
    build(tmp_path, {"train": [], "val": []})
    dataset = tokenmill.open(tmp_path)
    assert (len(dataset), repr(dataset)[-28:]) == (0, ": no tokens; tokenmill, uint16>"[-28:])
    with pytest.raises(DatasetError, match="no tokens in its split 'train'"):
        dataset["train"]
    assert main(["info", str(tmp_path)]) == 0
    assert "0 tokens" in capsys.readouterr().out


def test_both_sides_of_a_cut_keep_empty_documents(tmp_path):
    documents = [[], [1, 2], [], [], [3, 4], [5, 6], [], []]
    write_megatron(tmp_path / "x", documents)
    for fraction, lengths in (
        (0.0, ([0, 2, 0, 0, 2, 2, 0, 0], None)),
        (0.34, ([0, 2, 0, 0, 1], [1, 2, 0, 0])),
        (0.67, ([0, 1], [1, 0, 0, 2, 2, 0, 0])),
        (0.5, ([0, 2, 0, 0, 1], [1, 2, 0, 0])),
    ):
        dataset = tokenmill.open(tmp_path / "x", val_fraction=fraction)
        for split, wanted in zip(("train", "val"), lengths, strict=True):
            if wanted is not None:
                table = dataset[split].documents
                assert table.lengths.tolist() == wanted
                assert [one.length for one in table] == wanted
                assert len(table) == len(wanted)
