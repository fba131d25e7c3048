"""A dataset is a mapping of splits; its documents are a sequence with starts and lengths."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from dataset_builder import TEXTS, build, edit_manifest, reseal
from foreign import (
    litdata_files,
    mds_files,
    write_datatrove,
    write_files,
    write_megatron,
    write_olmo,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.errors import DatasetError


def test_a_dataset_is_a_mapping_of_its_splits(tmp_path):
    build(tmp_path)
    data = tokenmill.open(tmp_path)
    assert list(data) == list(data.keys()) == ["train", "val"]
    assert len(data) == 2
    assert "val" in data
    assert "test" not in data
    assert dict(data) == {"train": data["train"], "val": data["val"]}
    assert [tokens.split for tokens in data.values()] == ["train", "val"]
    assert data.get("test") is None
    assert data.get("val") is data["val"]
    assert data in {data}
    assert data != tokenmill.open(tmp_path)


def test_reprs_show_sizes_and_formats(tmp_path):
    oracle = build(tmp_path)
    data = tokenmill.open(tmp_path)
    train, val = (len(oracle[split]) for split in ("train", "val"))
    expected = f"<Dataset '{tmp_path}': train {train} tokens, val {val} tokens; tokenmill, uint16>"
    assert repr(data) == expected
    assert repr(data["train"]) == f"<Tokens 'train': {train} tokens (uint16) in 7 shards>"
    assert repr(data["train"].documents) == "<Documents 'train': 5 documents>"
    write_megatron(tmp_path / "x", [[1]])
    tokens = tokenmill.open(tmp_path / "x")["train"]
    assert repr(tokens) == "<Tokens 'train': 1 token (uint16) in 1 shard>"
    assert repr(tokens.documents) == "<Documents 'train': 1 document>"


DOCUMENTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]
WRITERS = {
    "prepared": lambda folder: build(folder, {"train": ["abc", "", "de"]}, shard_tokens=2),
    "megatron": lambda folder: write_megatron(folder / "x", DOCUMENTS),
    "datatrove": lambda folder: write_datatrove(folder / "x.ds", DOCUMENTS),
    "olmo": lambda folder: write_olmo(folder / "x.npy", DOCUMENTS),
    "mds": lambda folder: write_files(folder, mds_files([DOCUMENTS[:2], DOCUMENTS[2:]])),
    "litdata": lambda folder: write_files(folder, litdata_files([DOCUMENTS[:2], DOCUMENTS[2:]])),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_documents_are_a_sequence_with_lengths(tmp_path, kind):
    folder = tmp_path / "data"
    folder.mkdir()
    WRITERS[kind](folder)
    wanted = [4, 1, 3] if kind == "prepared" else [len(one) for one in DOCUMENTS]
    documents = tokenmill.open(folder, **({"dtype": "u2"} if kind == "olmo" else {}))[
        "train"
    ].documents
    assert len(documents) == len(wanted)
    assert isinstance(documents.lengths, np.ndarray)
    assert documents.lengths.tolist() == wanted
    assert [document.length for document in documents] == wanted
    assert [document.number for document in documents] == list(range(len(wanted)))


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=4),
    data=st.data(),
)
def test_document_starts_and_counts_equal_the_oracle(lengths, data):
    with tempfile.TemporaryDirectory() as place:
        for number, file in enumerate(lengths):
            write_megatron(Path(place) / "m" / f"x_{number}", [[1] * length for length in file])
        flat = [length for file in lengths for length in file]
        if not sum(flat):
            return
        documents = tokenmill.open(Path(place) / "m")["train"].documents
        starts = np.cumsum([0, *flat]).tolist()
        first = data.draw(st.integers(0, len(flat)))
        last = data.draw(st.integers(first, len(flat)))
        assert documents.starts(first, last).tolist() == starts[first : last + 1]
        token = data.draw(st.integers(0, sum(flat)))
        assert documents.count_before(token) == sum(start < token for start in starts[:-1])


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.binary(max_size=9), min_size=1, max_size=9),
    shard_tokens=st.integers(1, 20),
    data=st.data(),
)
def test_document_starts_of_prepared_splits_equal_the_oracle(texts, shard_tokens, data):
    with tempfile.TemporaryDirectory() as place:
        build(Path(place), {"train": texts}, shard_tokens=shard_tokens)
        documents = tokenmill.open(place)["train"].documents
        starts = np.cumsum([0, *(len(text) + 1 for text in texts)]).tolist()
        first = data.draw(st.integers(0, len(texts)))
        last = data.draw(st.integers(first, len(texts)))
        assert documents.starts(first, last).tolist() == starts[first : last + 1]
        token = data.draw(st.integers(0, starts[-1]))
        assert documents.count_before(token) == sum(start < token for start in starts[:-1])


def test_lengths_of_documents_match_the_texts(tmp_path):
    build(tmp_path)
    for split, tokens in tokenmill.open(tmp_path).items():
        wanted = [len(text.encode()) + 1 for text in TEXTS[split]]
        assert tokens.documents.lengths.tolist() == wanted


@pytest.mark.parametrize("kind", WRITERS)
def test_a_number_out_of_range_is_refused_with_the_count(tmp_path, kind):
    folder = tmp_path / "data"
    folder.mkdir()
    WRITERS[kind](folder)
    tokens = tokenmill.open(folder, **({"dtype": "u2"} if kind == "olmo" else {}))["train"]
    documents, count, total = tokens.documents, len(tokens.documents), len(tokens)
    assert documents[-count].number == documents.at(-total).number == 0
    assert documents[-1].number == documents.at(-1).number == count - 1
    for number in (count, count + 9, -count - 1, 2**70):
        with pytest.raises(
            IndexError, match=f"^document {number} is out of range: there are {count}$"
        ):
            documents[number]
    for place in (total, total + 9, -total - 1, 2**70):
        with pytest.raises(IndexError, match=f"^token {place} is out of range: there are {total}$"):
            documents.at(place)
        with pytest.raises(IndexError, match=f"^token {place} is out of range: there are {total}$"):
            tokens[place]


def edit_table(folder, shard, field, values):
    """Change a table of documents and update all checksums, as an attacker would."""
    path = folder / "train" / f"shard_{shard:05}.docs.npy"
    table = np.load(path)
    table[field] = values
    np.save(path, table)
    reseal(folder)


def test_a_token_in_a_gap_between_documents_is_refused(tmp_path):
    build(tmp_path, {"train": ["abc", "de", "f"]}, shard_tokens=100)  # 4, 3 and 2 tokens
    edit_table(tmp_path, 0, "length", [2, 3, 1])
    documents = tokenmill.open(tmp_path)["train"].documents
    owners = [0, 0, None, None, 1, 1, 1, 2, None]
    for token, owner in enumerate(owners):
        if owner is not None:
            assert documents.at(token).number == owner
            continue
        with pytest.raises(DatasetError) as caught:
            documents.at(token)
        said = f"train/shard_00000.docs.npy is damaged: no document contains token {token} of split"
        assert str(caught.value).startswith(said)


def test_a_token_before_the_first_document_is_refused(tmp_path):
    build(tmp_path, {"train": ["abc", "de"]}, shard_tokens=100)
    edit_table(tmp_path, 0, "first", [1, 4])
    edit_table(tmp_path, 0, "length", [3, 3])
    documents = tokenmill.open(tmp_path)["train"].documents
    with pytest.raises(DatasetError, match="no document contains token 0 of split 'train'"):
        documents.at(0)
    assert [documents.at(token).number for token in (1, 3, 4, 6)] == [0, 0, 1, 1]


def test_a_split_without_any_document_is_refused(tmp_path):
    build(tmp_path, {"train": ["abc"]}, shard_tokens=100)
    path = tmp_path / "train" / "shard_00000.docs.npy"
    np.save(path, np.load(path)[:0])

    def edit(body):
        for one in (body["splits"]["train"], body["splits"]["train"]["shards"][0]):
            one["documents"] = 0

    edit_manifest(tmp_path, edit)
    with pytest.raises(DatasetError, match="no document contains token 2 of split 'train'"):
        tokenmill.open(tmp_path)["train"].documents.at(2)


def test_a_gap_across_shards_is_refused(tmp_path):
    build(tmp_path, {"train": ["abcdefgh", "i"]}, shard_tokens=4)  # 9 and 2 tokens in 3 shards
    edit_table(tmp_path, 0, "length", [6])
    documents = tokenmill.open(tmp_path)["train"].documents
    assert [documents.at(token).number for token in (0, 5, 9, 10)] == [0, 0, 1, 1]
    for token, shard in ((6, 1), (7, 1), (8, 2)):
        with pytest.raises(DatasetError, match=rf"shard_0000{shard}\.docs\.npy .* token {token} "):
            documents.at(token)


@pytest.mark.parametrize(
    ("field", "value"),
    [("first", 11), ("first", 2**63), ("length", 12), ("length", 2**64 - 1), ("source", 1)],
)
def test_a_document_beyond_the_split_is_refused(tmp_path, field, value):
    build(tmp_path, {"train": ["abcdefghij"]}, shard_tokens=100)
    edit_table(tmp_path, 0, field, np.array([value], np.uint64))
    documents = tokenmill.open(tmp_path)["train"].documents
    with pytest.raises(
        DatasetError, match="document 0 has a position or source that does not exist"
    ):
        documents[0]
