"""MDS shards: their columns, compressions and samples, valid and inconsistent."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
import zstandard
from document_checks import DOCUMENTS, IDS, check_documents, edit, overwrite, refused
from foreign import mds_files, write_files

import tokenmill
from tokenmill.dataset.verify import examine
from tokenmill.errors import UsageError
from tokenmill.formats.base import OpenRequest
from tokenmill.formats.mds import Mds

WINDOWS = [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9]]]


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("more", [(), [("a", "bytes", None, b"123")]])
def test_mds_samples_of_one_length_are_cuts_through_a_stream(tmp_path, compression, more):
    kind = {"compression": compression, "more": more}
    write_files(tmp_path / "a", mds_files(WINDOWS, encoding="ndarray:uint16:3", **kind))
    write_files(tmp_path / "b", mds_files(WINDOWS, encoding="bytes", dtype="<i8", **kind))
    write_files(tmp_path / "c", mds_files([DOCUMENTS], encoding="bytes", dtype="<i8", **kind))
    options = {"column": "tokens", "eot_id": 5}
    for name, dtype in (("a", None), ("b", "int64")):
        tokens = tokenmill.open(tmp_path / name, dtype=dtype, **options)["train"]
        assert tokens[:].tolist() == list(range(1, 10))
        assert tokens.documents is None
        assert tokens.find_document_starts(np.array([0]), 9).tolist() == [0, 5]
        assert tokens.gather(np.arange(7), 3).tolist() == [[n, n + 1, n + 2] for n in range(1, 8)]
    check_documents(tokenmill.open(tmp_path / "c", dtype="int64", **options)["train"], DOCUMENTS)
    refused(tmp_path / "b", "such as `dtype='int64'`")
    with pytest.raises(UsageError, match="Omit `dtype`"):
        tokenmill.open(tmp_path / "a", dtype="int64")


def test_a_decompressed_mds_shard_is_used_in_place_of_the_compressed_one(tmp_path):
    zipped = mds_files([DOCUMENTS], compression="zstd")
    write_files(tmp_path, {**mds_files([DOCUMENTS]), "index.json": zipped["index.json"]})
    refused(tmp_path, r"shard\.00000\.mds is 2 bytes too short")  # its config says "null"
    raw = zstandard.decompress(zipped["shard.00000.mds.zstd"])
    (tmp_path / "shard.00000.mds").write_bytes(raw)
    check_documents(tokenmill.open(tmp_path)["train"], DOCUMENTS)


def test_mds_documents_of_any_length_are_read(tmp_path):
    documents = [list(range(n)) for n in (255, 256, 257, 65535, 65536)]
    write_files(tmp_path, mds_files([documents[:3], documents[3:]]))
    tokens = tokenmill.open(tmp_path)["train"]
    assert tokens[:].tolist() == [one for document in documents for one in document]
    assert [one.length for one in tokens.documents] == list(map(len, documents))


def test_mds_splits_have_one_dtype(tmp_path):
    write_files(tmp_path / "train", mds_files([DOCUMENTS]))
    write_files(tmp_path / "val", mds_files([DOCUMENTS], encoding="ndarray:uint32", dtype="<u4"))
    refused(tmp_path, "different dtypes: uint16 and uint32")


def open_keeping(folder, kept_bytes):
    contents = Mds(kept_bytes=kept_bytes).read(OpenRequest(path=folder))
    return tokenmill.open(folder).with_contents(contents)["train"]


def test_few_mds_shards_stay_in_memory(tmp_path):
    shards = [[list(range(n, n + 500)), [n]] for n in range(40)]
    write_files(tmp_path, mds_files(shards))
    tokens = open_keeping(tmp_path, 3000)
    assert tokens._gatherer._map.cache_info().maxsize == 2
    expected = [one for shard in shards for sample in shard for one in sample]
    assert tokens[:].tolist() == expected
    assert tokens._gatherer._map.cache_info().currsize == 2


def test_rows_of_many_mds_shards_hold_few_of_them(tmp_path):
    shards = [[list(range(n, n + 25_000))] * 2 for n in range(30)]
    write_files(tmp_path, mds_files(shards))
    tokens = open_keeping(tmp_path, 200_000)
    starts = np.random.default_rng(0).integers(0, len(tokens) - 10, 1_000)
    expected = tokens[:][starts[:, None] + np.arange(10)]
    tracemalloc.start()
    try:
        rows = tokens.gather(starts, 10, tokens.dtype)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.array_equal(rows, expected)
    assert peak < 8 * tokens.dtype.itemsize * 50_000  # of 30 shards


MDS = mds_files([DOCUMENTS, [[1]]])
ZIPPED = mds_files([DOCUMENTS], compression="zstd")
FIRST = "shard.00000.mds"
SAMPLES = MDS[FIRST].index(b"}") + 1


def raw_data(**changes):
    entry = json.loads(MDS["index.json"])["shards"][0]["raw_data"]
    return edit(MDS, raw_data={**entry, **changes})


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (raw_data(basename="../shard.00000.mds"), "leads out of the folder"),
        (raw_data(bytes=2**40), "samples cannot fit in"),
        (raw_data(bytes=9), "samples cannot fit in"),
        (raw_data(bytes=300), "bytes too"),
        (edit(MDS, format="json"), "only mds"),
        (edit(MDS, samples=3), "has 4 samples, expected 3 according to the index"),
        (edit(MDS, samples=2**50), "samples cannot fit in"),
        (edit(MDS, column_names=["a"]), "different values of 'column_names'"),
        (edit(MDS, shards=[]), "no shards"),
        (edit(MDS, shards=[5]), "only mds|damaged"),
        (overwrite(MDS, FIRST, 4, b"\0\0\0"), "out of order"),
        (overwrite(MDS, FIRST, 8, b"\xff\xff"), "out of order"),
        (overwrite(MDS, FIRST, 8, MDS[FIRST][4:8]), "too short for the sizes"),
        (overwrite(MDS, FIRST, SAMPLES, b"\xff\xff\xff\xff"), "longer or shorter than its columns"),
        (overwrite(MDS, FIRST, SAMPLES + 4, b"\x08"), "in several dimensions"),
        (
            overwrite(MDS, FIRST, SAMPLES + 4, b"\x05"),
            "not a multiple|length differs from the length in its header",
        ),
        (overwrite(MDS, FIRST, SAMPLES + 4, b"\x07"), "without a shape"),
        (
            overwrite(MDS, FIRST, SAMPLES + 5, b"\x02"),
            "length differs from the length in its header",
        ),
        ({**MDS, FIRST: MDS[FIRST][:-1]}, "1 bytes too short"),
        ({**MDS, FIRST: b""}, "too short"),
        (edit(ZIPPED, compression="snappy"), "is not supported"),
        (overwrite(ZIPPED, f"{FIRST}.zstd", 0, b"abcd"), "cannot be decompressed"),
        ({**ZIPPED, f"{FIRST}.zstd": ZIPPED[f"{FIRST}.zstd"][:-9]}, "decompressed"),
        ({**ZIPPED, f"{FIRST}.zstd": zstandard.compress(bytes(1 << 28))}, "has over 252 bytes"),
    ],
)
def test_inconsistent_mds_is_refused_in_little_memory(tmp_path, files, says):
    write_files(tmp_path, files)
    tracemalloc.start()
    try:
        refused(tmp_path, says)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"column_encodings": ["str"]}, "tokens as 'str'"),
        ({"column_encodings": ["ndarray"]}, "tokens as 'ndarray'"),
        ({"column_encodings": ["ndarray:float32"]}, "float32"),
        ({"column_encodings": ["ndarray:uint16:3"]}, "6 bytes per sample"),
        ({"column_encodings": ["ndarray:uint16:0"], "column_sizes": [0]}, "0 bytes per sample"),
        ({"column_encodings": ["ndarray:uint16:x"]}, "an invalid shape"),
        ({"column_sizes": [8]}, "fixed size"),
        ({"column_sizes": [-1]}, "lacks a name, an encoding or a valid size"),
        ({"column_sizes": [1 << 32]}, "lacks a name, an encoding or a valid size"),
        ({"column_sizes": []}, "lacks a name, an encoding or a valid size"),
        ({"column_names": ["text"], "column_encodings": ["str"]}, "tokens as 'str'"),
    ],
)
def test_mds_columns_without_tokens_are_refused(tmp_path, changes, says):
    index = json.loads(MDS["index.json"])
    index["shards"] = [{**entry, **changes} for entry in index["shards"]]
    write_files(tmp_path, {**MDS, "index.json": json.dumps(index).encode()})
    refused(tmp_path, says)


def test_an_ambiguous_mds_column_must_be_named(tmp_path):
    more = [("b", "ndarray:uint16", None, bytes([4, 1, 9, 0]))]
    files = mds_files([DOCUMENTS], more=more)
    for name in files:
        files[name] = files[name].replace(b'"tokens"', b'"zzzzzz"')
    write_files(tmp_path, files)
    refused(tmp_path, "columns b, zzzzzz.*column=")
    refused(tmp_path, "columns b, zzzzzz", column="c")
    assert tokenmill.open(tmp_path, column="zzzzzz")["train"][:].tolist() == IDS
    assert tokenmill.open(tmp_path, column="b")["train"][:].tolist() == [9] * 4


def test_a_given_byte_order_applies_only_to_mds_bytes(tmp_path):
    """As in MosaicML Streaming, whose array encodings have no byte order."""
    write_files(tmp_path / "bytes", mds_files([DOCUMENTS], encoding="bytes", dtype=">u2"))
    dataset = tokenmill.open(tmp_path / "bytes", dtype=">u2")
    check_documents(dataset["train"], DOCUMENTS)
    assert dataset["train"].gather(np.arange(3), 3).tolist() == [[1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert examine(tmp_path / "bytes", dtype=">u2", vocab_size=11).problems == []
    assert tokenmill.open(tmp_path / "bytes", dtype="<u2")["train"][:2].tolist() == [256, 512]
    tokenmill.export(dataset, tmp_path / "out", to="npy")
    assert np.load(tmp_path / "out" / "train.npy").tolist() == IDS
    write_files(tmp_path / "array", mds_files([DOCUMENTS]))
    with pytest.raises(UsageError, match=r"`dtype` is >u2, but .* has uint16"):
        tokenmill.open(tmp_path / "array", dtype=">u2")
    for encoding in ("ndarray:>u2", "ndarray:>u2:3", "ndarray:<u2", "ndarray:u2"):
        write_files(tmp_path / "named", mds_files([[[1, 2, 3]]], encoding=encoding, dtype=">u2"))
        refused(tmp_path / "named", f"tokens as '{encoding}'")
