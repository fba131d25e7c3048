"""Rows, document starts and fingerprints equal NumPy's, however the tokens are sharded."""

from __future__ import annotations

import os
import pickle
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from dataset_builder import EOT, build
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.errors import DatasetError, UsageError
from tokenmill.formats.file_documents import DocumentStarts, FileDocuments
from tokenmill.store.casting import cast_rows
from tokenmill.store.gather import Gatherer, ShardFinder, find_distinct
from tokenmill.store.shards import FileShards
from tokenmill.store.tokens import Tokens

texts = st.lists(st.binary(max_size=30), min_size=1, max_size=12).filter(lambda some: any(some))


def naive_starts(begins, starts, length):
    return [
        row * length + place
        for row, start in enumerate(starts)
        for place in range(length)
        if start + place in begins
    ]


@settings(max_examples=60, deadline=None)
@given(
    texts=texts,
    shard_tokens=st.integers(1, 40),
    eot=st.sampled_from(["after", "before", "none"]),
    piece=st.sampled_from([1, 64, 1 << 18]),
    data=st.data(),
)
def test_rows_and_document_starts_equal_the_oracle(texts, shard_tokens, eot, piece, data):
    with tempfile.TemporaryDirectory() as folder:
        oracle = build(Path(folder), {"train": texts}, shard_tokens=shard_tokens, eot=eot)["train"]
        tokens = tokenmill.open(folder)["train"]
        length = data.draw(st.integers(1, len(oracle)))
        starts = data.draw(st.lists(st.integers(0, len(oracle) - length), max_size=40))
        expected = np.array([oracle[start : start + length] for start in starts]).reshape(
            len(starts), length
        )
        here = np.array(starts, np.int64)
        in_memory = tokens.in_memory()
        for some in (tokens, in_memory, Tokens.of(oracle), tokens.unmapped()):
            for start in starts:
                assert np.array_equal(some[start : start + length], oracle[start:][:length])
                assert some[start] == oracle[start]
                assert np.array_equal(some.read(start, start + length), oracle[start:][:length])
            rows = some.gather(here, length)
            assert rows.dtype == np.int64
            assert np.array_equal(rows, expected)
            assert np.array_equal(some.gather(here, length, np.uint16), expected)
            read, cut = some.find_rows(here, length), data.draw(st.integers(0, len(starts)))
            parts = read(0, cut), read(cut, len(starts))
            assert np.array_equal(np.concatenate(parts), expected)
            cast_rows(read, rows := np.empty_like(rows), some.dtype, piece)
            assert np.array_equal(rows, expected)
            wide = np.full((len(starts), 2 * length), -1, np.int32)
            assert some.gather(here, length, out=wide[:, ::2]).base is not None
            assert np.array_equal(wide[:, ::2], expected)
            assert (wide[:, 1::2] == -1).all()
        begins = {document.start for document in tokens.documents}
        for some in (tokens, in_memory):
            assert some.find_document_starts(here, length).tolist() == naive_starts(
                begins, starts, length
            )


@settings(max_examples=100, deadline=None)
@given(
    ids=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    eot=st.sampled_from(["after", "before"]),
    data=st.data(),
)
def test_document_starts_by_the_end_of_text_id_equal_the_oracle(ids, eot, data):
    length = data.draw(st.integers(1, len(ids)))
    starts = data.draw(st.lists(st.integers(0, len(ids) - length), max_size=20))
    shift = 1 if eot == "after" else 0
    begins = {0} | {place + shift for place, one in enumerate(ids) if one == 0}
    tokens = Tokens.of(ids, eot_id=0, eot=eot)
    here = np.array(starts, np.int64)
    found = tokens.find_document_starts(here, length)
    assert found.tolist() == naive_starts(begins, starts, length)


def test_document_starts_by_table_and_by_id_are_equal(tmp_path):
    build(tmp_path, {"train": ["some text", "b", "", "more of it"] * 5}, shard_tokens=7)
    tokens = tokenmill.open(tmp_path)["train"]
    starts = np.arange(len(tokens) - 20)
    by_id = Tokens.of(tokens[:], eot_id=EOT).find_document_starts(starts, 20)
    assert tokens.find_document_starts(starts, 20).tolist() == by_id.tolist()


@pytest.mark.parametrize("rows", [1, 40, 1000])
@pytest.mark.parametrize("shard_tokens", [7, 90, 300])
@pytest.mark.parametrize(("many", "few"), [(2, 1), (1000, 1), (1000, 1000)])
def test_rows_equal_the_oracle_however_many_shards_are_held(
    tmp_path, rows, shard_tokens, many, few
):
    random = np.random.default_rng(rows)
    oracle = build(tmp_path, {"train": [random.bytes(999)]}, shard_tokens=shard_tokens)["train"]
    starts = random.integers(0, len(oracle) - 20, rows)
    expected = np.lib.stride_tricks.sliding_window_view(oracle, 20)[starts]
    dataset = tokenmill.open(tmp_path)
    assert np.array_equal(dataset["train"].gather(starts, 20), expected)
    assert np.array_equal(dataset["train"].gather(starts, 20, dataset.dtype), expected)
    read = Gatherer(dataset.contents.splits["train"], many=many, few=few).find_rows(starts, 20)
    assert np.array_equal(read(0, rows), expected)
    parts = [read(0, 0), *(read(first, first + 7) for first in range(0, rows, 7))]
    assert np.array_equal(np.concatenate(parts), expected)


@pytest.mark.parametrize("dtype", [np.uint16, np.int64])
def test_no_rows_of_no_tokens(dtype):
    rows = Tokens.of(np.empty(0, np.uint16)).gather(np.empty(0, np.int64), 3, dtype)
    assert (rows.shape, rows.dtype) == ((0, 3), dtype)


@pytest.mark.parametrize(
    ("rows", "length", "dtype"),
    [(3, 70_001, "<u2"), (100, 4_097, "<u4"), (2, 262_147, "|u1"), (500, 1_025, "<u2")],
)
def test_few_long_rows_equal_the_oracle(rows, length, dtype):
    random = np.random.default_rng(length)
    oracle = random.integers(0, 250, 600_000).astype(dtype)
    starts = np.append(random.integers(0, len(oracle) - length, rows - 1), len(oracle) - length)
    expected = np.stack([oracle[start : start + length] for start in starts])
    assert np.array_equal(Tokens.of(oracle).gather(starts, length, dtype), expected)


@pytest.mark.parametrize("firsts", [[0, 2**64 - 1, 5], [5, 0, 9], [2**63, 3, 4], [9, 8, 7]])
def test_document_starts_out_of_order_are_refused_or_inside_the_rows(tmp_path, firsts):
    build(tmp_path, {"train": ["abc", "def", "gh"]}, shard_tokens=100)
    path = tmp_path / "train/shard_00000.docs.npy"
    table = np.load(path)
    table["first"] = firsts
    np.save(path, table)
    tokens = tokenmill.open(tmp_path)["train"]
    for start in range(len(tokens) - 4):
        with suppress(DatasetError):
            assert set(tokens.find_document_starts(np.array([start, 0]), 4).tolist()) <= set(
                range(8)
            )


class InMemory:
    """Where the documents of files start, from arrays."""

    def __init__(self, *starts):
        self.starts = starts
        self.counts = [len(one) - 1 for one in starts]

    def name(self, number):
        return f"file {number}"

    def read(self, number):
        return DocumentStarts(self.counts[number], lambda numbers: self.starts[number][numbers])


@settings(max_examples=60, deadline=None)
@given(
    files=st.lists(
        st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any), min_size=1, max_size=4
    ),
    data=st.data(),
)
def test_documents_of_foreign_files_equal_the_oracle(files, data):
    starts = [np.cumsum([0, *lengths]) for lengths in files]
    documents = FileDocuments(InMemory(*starts), [one[-1] for one in starts], "train")
    lengths = [length for file in files for length in file]
    firsts, total = np.cumsum([0, *lengths])[:-1].tolist(), sum(lengths)
    tokens = Tokens.of(np.zeros(total, np.uint16), documents=documents)
    found = [(one.start, one.length) for one in documents]
    assert found == list(zip(firsts, lengths, strict=True))
    holders = [documents.at(token).number for token in range(total)]
    assert holders == np.repeat(np.arange(len(lengths)), lengths).tolist()
    length = data.draw(st.integers(1, total))
    starts = data.draw(st.lists(st.integers(0, total - length), max_size=20))
    found = tokens.find_document_starts(np.array(starts, np.int64), length)
    begins = {first for first, size in zip(firsts, lengths, strict=True) if size}
    assert found.tolist() == naive_starts(begins, starts, length)


@settings(max_examples=60, deadline=None)
@given(
    starts=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9), min_size=2, max_size=6)
)
def test_impossible_document_starts_are_refused(starts):
    sound = starts == sorted(starts) and (starts[0], starts[-1]) == (0, 9)
    documents = FileDocuments(InMemory(np.array(starts)), [9], "train")
    if sound:
        assert [one.length for one in documents] == np.diff(starts).tolist()
        return
    for use in (list, lambda all: all.at(4), lambda all: all.find_starts(np.array([2]), 3)):
        with pytest.raises(DatasetError, match="file 0"):
            use(documents)


def test_the_error_for_unknown_document_starts_names_the_cure():
    with pytest.raises(DatasetError, match="eot_id="):
        Tokens.of([1, 2, 3]).find_document_starts(np.array([0]), 2)


@pytest.mark.parametrize("start", [-1, 8, 2**62, -(2**63)])
@pytest.mark.parametrize("parts", [1, 4])
def test_rows_outside_the_tokens_are_refused(tmp_path, start, parts):
    build(tmp_path, {"train": [bytes(9)]}, shard_tokens=10 // parts)
    tokens = tokenmill.open(tmp_path)["train"]
    for use in (tokens.gather, tokens.find_document_starts):
        with pytest.raises(IndexError, match=f"from token {start} on"):
            use(np.array([0, start]), 3)
    with pytest.raises(IndexError):
        tokens.gather(np.array([0]), 11)


def test_invalid_arguments_are_refused():
    tokens = Tokens.of([1, 2, 3])
    with pytest.raises(UsageError, match="integers in one dimension"):
        tokens.gather(np.array([0.5]), 1)
    with pytest.raises(UsageError, match="integers in one dimension"):
        tokens.gather(np.array([[0]]), 1)
    with pytest.raises(UsageError, match="1 token or more"):
        tokens.gather(np.array([0]), 0)
    with pytest.raises(UsageError, match="but the rows have the shape"):
        tokens.gather(np.array([0]), 2, out=np.empty((2, 2), np.int64))
    with pytest.raises(UsageError, match="integers"):
        tokens.gather(np.array([0]), 2, dtype=np.float32)
    for wrong in ([[1]], [1.5], ["a"]):
        with pytest.raises(UsageError, match="one dimension"):
            Tokens.of(wrong)


def test_an_id_that_the_dtype_cannot_hold_is_refused_not_wrapped():
    tokens = Tokens.of(np.array([1, 2**31, 3], np.uint32))
    assert tokens.gather(np.array([1]), 2).tolist() == [[2**31, 3]]
    assert tokens.gather(np.array([2]), 1, np.int32).tolist() == [[3]]
    with pytest.raises(DatasetError, match="2147483648"):
        tokens.gather(np.array([0]), 2, np.int32)
    with pytest.raises(DatasetError, match="-1"):
        Tokens.of([5, -1]).gather(np.array([0]), 2, np.uint16)


@settings(max_examples=30, deadline=None)
@given(data=st.binary(min_size=1, max_size=300), shard_tokens=st.integers(1, 60))
def test_the_fingerprint_depends_only_on_the_content(data, shard_tokens):
    with tempfile.TemporaryDirectory() as folder:
        oracle = build(Path(folder), {"train": [data]}, shard_tokens=shard_tokens)["train"]
        sharded = tokenmill.open(folder)["train"].fingerprint
    assert sharded == Tokens.of(oracle.astype(np.int32)).fingerprint
    changed = oracle.copy()
    changed[len(data) // 2] ^= 1
    assert sharded != Tokens.of(changed).fingerprint
    assert sharded != Tokens.of(oracle[:-1]).fingerprint


def test_the_fingerprint_stays_the_same_between_versions():
    ids = np.arange(1_000_000, dtype=np.uint32) * 7919 % 50257
    assert Tokens.of(ids).fingerprint == "fe815bbcb64a49c73cdcc2a81722e97c"
    assert Tokens.of(ids[:0]).fingerprint == "2c0a8a99dc147d5445c3b49d035665b2"


def test_tokens_of_an_array_pickle_and_are_shared_by_threads():
    ids = np.arange(1000, dtype=np.uint16)
    tokens = pickle.loads(pickle.dumps(Tokens.of(ids, split="val", eot_id=3)))
    assert (tokens.split, tokens.eot_id, tokens[:].tolist()) == ("val", 3, ids.tolist())
    with ThreadPoolExecutor(8) as pool:
        for n, rows in pool.map(lambda n: (n, tokens.gather(np.array([n, 0]), 9)), range(500)):
            assert rows.tolist() == [list(range(n, n + 9)), list(range(9))]


def test_reading_ahead_changes_nothing(tmp_path):
    ids = np.random.default_rng(0).integers(0, 60_000, 3_000_000).astype(np.uint16)
    np.save(tmp_path / "ids.npy", ids)
    held_out = tokenmill.open(tmp_path / "ids.npy", val_fraction=0.3)
    starts = np.array([1_000_000, 5, 1_000_900, 2_099_000])
    for tokens, whole in (
        (held_out["train"], ids[:2_100_000]),
        (held_out["val"], ids[2_100_000:]),
        (Tokens.of(ids), ids),
    ):
        some = starts % (len(whole) - 100)
        tokens.read_ahead(some, 100)
        expected = np.stack([whole[start : start + 100] for start in some])
        assert np.array_equal(tokens.gather(some, 100), expected)
        assert np.array_equal(tokens[:], whole)


@given(
    counts=st.lists(st.one_of(st.just(0), st.integers(0, 9), st.integers(0, 10**12)), min_size=1),
    data=st.data(),
)
def test_shards_match_a_search(counts, data):
    starts = np.append(0, np.cumsum(counts)).astype(np.int64)
    end = int(starts[-1])
    places = data.draw(st.lists(st.integers(0, end - 1))) if end else []
    near = [place for start in starts.tolist() for place in (start - 1, start) if 0 <= place < end]
    numbers = np.array(places + near, np.int64)
    expected = starts[:-1].searchsorted(numbers, "right") - 1
    assert ShardFinder(starts).find(numbers).tolist() == expected.tolist()


@pytest.mark.parametrize("sizes", ["equal", "any", "tiny and huge"])
def test_shards_of_many_tokens(sizes):
    random = np.random.default_rng(5)
    counts = {
        "equal": np.append(np.full(1_999, 10_000), 17),
        "any": random.integers(0, 20_000, 2_000),
        "tiny and huge": (10 ** random.uniform(0, 7, 2_000)).astype(np.int64),
    }[sizes]
    starts = np.append(0, np.cumsum(counts))
    numbers = random.integers(0, starts[-1], 50_000)
    found = ShardFinder(starts).find(numbers)
    assert ((starts[found] <= numbers) & (numbers < starts[found + 1])).all()


@given(numbers=st.lists(st.integers(0, 40), min_size=1), more=st.integers(0, 100))
def test_distinct_numbers_equal_numpy(numbers, more):
    array = np.array(numbers, np.int64)
    found = find_distinct(array, int(array.max()) + 1 + more)
    expected = np.unique(array, return_inverse=True)
    assert [part.tolist() for part in found] == [part.tolist() for part in expected]


def test_a_file_that_is_cut_after_its_size_was_checked_is_an_error(tmp_path):
    path = tmp_path / "x.bin"
    np.arange(5_000, dtype="<u2").tofile(path)
    shards = FileShards(
        folder=tmp_path,
        names=["x.bin"],
        dtype=np.dtype("<u2"),
        counts=np.array([5_000]),
        offsets=np.array([0]),
        sizes=np.array([10_000]),
        check=lambda *_: os.truncate(path, 4_100),  # runs after the check of the size
    )
    tokens = Tokens(shards, "train").unmapped()
    for start in (2_000, 3_000):  # across the new end, and behind it
        np.arange(5_000, dtype="<u2").tofile(path)
        with pytest.raises(DatasetError, match=r"x\.bin is 5,900 bytes too short"):
            tokens.gather(np.array([0, start]), 100)
