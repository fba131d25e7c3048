"""Every format keeps documents as they are, or a note says what was lost or moved."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from dataset_builder import EOT, TEXTS, build
from foreign import write_datatrove, write_llmc, write_llmc_folder, write_megatron
from hypothesis import given, settings
from hypothesis import strategies as st
from test_export import read_back

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import DatasetError
from tokenmill.formats import WRITABLE

PLAIN = [name for name, target in WRITABLE.items() if not target.keeps_documents]
WITH_TABLE = [name for name in WRITABLE if name not in PLAIN]


def texts_of(tokens):
    """The documents of a reader that splits at the end-of-text id, without the id."""
    edges = [*tokens.find_document_starts(np.array([0]), len(tokens)).tolist(), len(tokens)]
    ids = tokens[:].tolist()
    return [
        bytes(one for one in ids[low:high] if one != tokens.eot_id) for low, high in pairwise(edges)
    ]


@pytest.mark.parametrize("eot", ["after", "before"])
@pytest.mark.parametrize("to", PLAIN)
def test_readers_that_split_at_the_end_of_text_find_the_same_documents(tmp_path, to, eot):
    oracle = build(tmp_path / "data", eot=eot)
    made = tokenmill.export(tmp_path / "data", tmp_path / "out", to=to, tokens_per_shard=7)
    moved = WRITABLE[to].eot != eot
    assert any("and is now" in note for note in made.notes) == moved
    found = read_back(tmp_path / "out", to, TEXTS, EOT)
    for split, texts in TEXTS.items():
        tokens = found[split]
        assert texts_of(tokens) == [text.encode() for text in texts]
        assert made.documents[split] == len(texts)
        assert np.array_equal(np.sort(tokens[:]), np.sort(oracle[split]))
        if not moved:
            assert np.array_equal(tokens[:], oracle[split])


@settings(max_examples=40, deadline=None)
@given(
    ids=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    to=st.sampled_from(PLAIN),
    side=st.sampled_from(["after", "before"]),
)
def test_a_split_that_ends_within_a_document_keeps_its_documents(ids, to, side):
    """With any ids at both ends, and the end-of-text id on either side."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if side == "after":
            np.save(folder / "x.npy", np.array(ids))
            source = tokenmill.open(folder / "x.npy", eot_id=0, vocab_size=9)
        else:
            write_llmc(folder / "x.bin", ids)
            source = tokenmill.open(folder / "x.bin", eot_id=0, vocab_size=9)
        made = tokenmill.export(source, folder / "out", to=to)
        written = read_back(folder / "out", to, eot_id=0)["train"]
        texts = texts_of(source["train"])
        if made.documents["train"] is None:  # an empty text at one end, and no id at the other
            assert b"" in (texts[0], texts[-1])
            assert "cannot be separated" in made.notes[-1]
        else:
            assert texts_of(written) == texts
            assert made.documents["train"] == len(texts)


def test_an_exported_and_imported_dataset_has_the_same_documents(tmp_path):
    build(tmp_path / "data")
    tokenmill.export(tmp_path / "data", tmp_path / "out", to="llmc")
    tokenmill.import_dataset(tmp_path / "out", tmp_path / "back", tokenizer="bytes", eot_id=EOT)
    back = tokenmill.open(tmp_path / "back")
    assert back.manifest.eot == "before"
    for split, tokens in tokenmill.open(tmp_path / "data").items():
        assert back[split].documents.lengths.tolist() == tokens.documents.lengths.tolist()


@pytest.mark.parametrize("to", PLAIN)
def test_documents_without_an_id_between_them_are_reported_as_lost(tmp_path, to):
    build(tmp_path / "data", eot="none")
    made = tokenmill.export(tmp_path / "data", tmp_path / "out", to=to)
    assert made.documents == {"train": None, "val": None}
    assert "documents of split 'train' cannot be separated" in made.notes[0]
    if to == "nanogpt":  # the only one of them that stores the id
        assert tokenmill.open(tmp_path / "out").eot_id is None
    assert f"export to {', '.join(WITH_TABLE)}." in made.notes[0]
    write_megatron(tmp_path / "x", [[1, 2, 0], [3, 4], [5, 0]])
    made = tokenmill.export(tmp_path / "x", tmp_path / "out2", to=to, eot_id=0, vocab_size=9)
    assert made.documents == {"train": None}
    assert "the end-of-text id 0 is not after every document" in made.notes[-1]


def test_an_unexpected_end_of_text_id_is_reported(tmp_path):
    build(tmp_path / "data")
    made = tokenmill.export(tmp_path / "data", tmp_path / "out", to="llmc")
    assert "assume the end-of-text id 50256 by default" in made.notes[1]
    write_llmc_folder(tmp_path / "x", [[50256, 1, 2], [50256, 3]])
    made = tokenmill.export(tmp_path / "x", tmp_path / "out2", to="llmc")
    assert made.notes == ()
    assert made.documents == {"train": 1, "val": 1}


@pytest.mark.parametrize("to", WRITABLE)
@settings(max_examples=10, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=1, max_size=9),
    tokens_per_shard=st.integers(1, 12),
)
def test_empty_documents_are_kept_or_counted(to, documents, tokens_per_shard):
    documents = [[*document, 0] if document else [] for document in documents]
    if not any(documents):
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_datatrove(folder / "x.ds", documents)
        made = tokenmill.export(
            folder / "x.ds", folder / "out", to=to, tokens_per_shard=tokens_per_shard, eot_id=0
        )
        empty = documents.count([])
        tokens = read_back(folder / "out", to, eot_id=0)["train"]
        if to in WITH_TABLE and to != "mds":
            assert tokens.documents.lengths.tolist() == [len(one) for one in documents]
            assert made.documents == {"train": len(documents)}
            assert made.notes == ()
        else:
            assert made.documents == {"train": len(documents) - empty}
            notes = [note for note in made.notes if "empty" in note]
            assert [note.split()[0] for note in notes] == [str(empty)] * bool(empty)


def test_imported_empty_documents_are_in_the_ledger(tmp_path):
    write_megatron(tmp_path / "x", [[], [1, 2], [], [3], []])
    made = tokenmill.import_dataset(tmp_path / "x", tmp_path / "out", tokenizer="bytes")
    assert (made.ledger["documents_in"], made.ledger["documents_kept"]) == (5, 2)
    assert made.ledger["dropped"] == {"empty": {"documents": 3, "bytes": 0}}
    assert tokenmill.verify(tmp_path / "out") == []


def test_the_command_shows_documents_and_notes(tmp_path, capsys):
    build(tmp_path / "data")
    arguments = ["export", str(tmp_path / "data"), "--to", "llmc", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "5 documents, compared with the source" in out
    assert "note: the end-of-text id 256 was after each document and is now before each" in out


@pytest.mark.parametrize("to", WRITABLE)
@pytest.mark.parametrize("splits", [("train", "test"), ("val",), ("test",)])
def test_any_splits_are_exported_and_compared(tmp_path, to, splits):
    build(
        tmp_path / "data", {split: [f"{split} {number}" for number in range(9)] for split in splits}
    )
    if to == "nanogpt" and "train" not in splits:
        with pytest.raises(DatasetError, match="need a split named train"):
            tokenmill.export(tmp_path / "data", tmp_path / "out", to=to, tokens_per_shard=20)
        return
    made = tokenmill.export(tmp_path / "data", tmp_path / "out", to=to, tokens_per_shard=20)
    assert made.documents == dict.fromkeys(splits, 9)
