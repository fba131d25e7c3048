"""Damaged and malicious files raise only tokenmill's own errors, in little memory."""

from __future__ import annotations

import gzip
import json
import os
import re
import resource
import struct
import tempfile
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import zstandard
from foreign import (
    flat,
    litdata_files,
    llmc_bytes,
    mds_files,
    megatron_bytes,
    olmo_table,
    write_files,
    write_llmc_folder,
    write_raw,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.dataset.verify import examine
from tokenmill.errors import DatasetError, TokenmillError
from tokenmill.formats.npy import parse_header

IDS = np.arange(40, dtype=np.uint16)


def npy_bytes(ids):
    with tempfile.TemporaryFile() as file:
        np.save(file, ids)
        file.seek(0)
        return file.read()


NPY, LLMC = npy_bytes(IDS), llmc_bytes(IDS)


def use(path, **options):
    """Open and read everything; only tokenmill's errors may be raised."""
    with suppress(TokenmillError):
        dataset = tokenmill.open(path, **options)
        for split in dataset.splits:
            tokens = dataset[split]
            assert len(tokens[:]) == len(tokens)
            tokens.gather(np.arange(len(tokens)), 1, tokens.dtype)
            assert tokens.fingerprint
            if tokens.documents is not None:
                assert sum(one.length for one in tokens.documents) == len(tokens)
                tokens.find_document_starts(np.arange(len(tokens)), 1)
        examine(path, **options)


WORDS = [
    struct.pack(f"<{kind}", number)
    for kind, numbers in (
        ("I", (0, 1, 5, 100, 2**31 - 1, 2**31, 2**32 - 1)),
        ("Q", (0, 1, 5, 100, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)),
    )
    for number in numbers
]


@st.composite
def damaged(draw, data):
    """Bytes that were changed, truncated or extended."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(0, 4))):
        if changed:
            # Damage matters most in headers: the first bytes are changed as often as all others.
            end = draw(st.sampled_from([min(len(changed), 140), len(changed)]))
            place = draw(st.integers(0, end - 1))
            other = draw(st.binary(min_size=1, max_size=1) | st.sampled_from(WORDS))
            changed[place : place + len(other)] = other[: len(changed) - place]
    kept = draw(st.sampled_from([len(changed), draw(st.integers(0, len(changed)))]))
    return bytes(changed[:kept]) + draw(st.binary(max_size=9))


@settings(max_examples=250, deadline=None)
@given(content=damaged(NPY) | damaged(LLMC) | st.binary(max_size=200), data=st.data())
def test_damaged_files_are_read_or_refused(content, data):
    ending = data.draw(st.sampled_from([".npy", ".bin", ""]))
    dtype = data.draw(st.sampled_from([None, "uint16", "uint32"]))
    format = data.draw(st.sampled_from([None, "npy", "llmc", "raw", "nanogpt", "tokenmill"]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x{ending}"
        path.write_bytes(content)
        use(path, dtype=dtype, format=format)


@settings(max_examples=60, deadline=None)
@given(
    contents=st.lists(damaged(LLMC), min_size=1, max_size=4),
    name=st.sampled_from(["s_{}.bin", "s_val_{}.bin", "{}", "train.bin", "val{}.bin"]),
    meta=st.binary(max_size=40) | st.sampled_from([b'{"dtype": "uint32"}', b'{"dtype": []}']),
)
def test_damaged_folders_are_read_or_refused(contents, name, meta):
    with tempfile.TemporaryDirectory() as folder:
        for number, content in enumerate(contents):
            (Path(folder) / name.format(number)).write_bytes(content)
        (Path(folder) / "meta.json").write_bytes(meta)
        use(folder)
        use(folder, dtype="uint16")


DOCUMENTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]
MEGATRON = dict(zip((".bin", ".idx"), megatron_bytes(DOCUMENTS), strict=True))
DATATROVE = {
    ".ds": flat(DOCUMENTS, "<u2"),
    ".ds.index": struct.pack("<4Q", 3, 4, 6, 10),
    ".ds.metadata": b"gpt2|2\n10\n10 T",
}
OLMO = {".npy": flat(DOCUMENTS, "<u2"), ".csv.gz": olmo_table(DOCUMENTS)}


@settings(max_examples=300, deadline=None)
@given(sound=st.sampled_from([MEGATRON, DATATROVE, OLMO]), data=st.data())
def test_damaged_pairs_of_files_are_read_or_refused(sound, data):
    with tempfile.TemporaryDirectory() as folder:
        for ending, content in sound.items():
            if data.draw(st.booleans()):
                if ending == ".csv.gz" and data.draw(st.booleans()):
                    content = gzip.compress(data.draw(damaged(gzip.decompress(content))))
                else:
                    content = data.draw(damaged(content))
            (Path(folder) / f"x{ending}").write_bytes(content)
        dtype = "uint16" if sound is OLMO else None
        use(folder, dtype=dtype)
        use(Path(folder) / f"x{next(iter(sound))}", dtype=dtype)


FOLDERS = [
    litdata_files([DOCUMENTS, [[1]]]),
    mds_files([DOCUMENTS, [[1]]]),
    mds_files([DOCUMENTS], compression="zstd"),
    mds_files([[[1, 2], [3, 4]]], encoding="ndarray:uint16:2", more=[("a", "bytes", None, b"1")]),
    mds_files([[[1, 2], [3, 4, 5]]], encoding="bytes"),
]


@settings(max_examples=300, deadline=None)
@given(sound=st.sampled_from(FOLDERS), data=st.data())
def test_damaged_folders_with_an_index_are_read_or_refused(sound, data):
    with tempfile.TemporaryDirectory() as folder:
        for name, content in sound.items():
            changed = data.draw(damaged(content)) if data.draw(st.booleans()) else content
            if name.endswith(".zstd") and data.draw(st.booleans()):
                changed = zstandard.compress(data.draw(damaged(zstandard.decompress(content))))
            if name == "index.json" and data.draw(st.booleans()):
                changed = data.draw(renumbered(content))
            (Path(folder) / name).write_bytes(changed)
        use(folder, dtype=data.draw(st.sampled_from([None, "uint16"])))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_damaged_records_are_read_or_refused(data):
    module = pytest.importorskip("array_record.python.array_record_module")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.array_record"
        writer = module.ArrayRecordWriter(str(path), "group_size:1")
        for document in DOCUMENTS:
            writer.write(np.asarray(document, "<u2").tobytes())
        writer.close()
        content = bytearray(path.read_bytes())
        used = np.flatnonzero(np.frombuffer(content, np.uint8))  # most of it is filled with zeros
        for _ in range(data.draw(st.integers(0, 4))):
            place = data.draw(st.sampled_from(used) | st.integers(0, len(content) - 9))
            other = data.draw(st.binary(min_size=1, max_size=1) | st.sampled_from(WORDS))
            content[place : place + len(other)] = other
        cut = data.draw(st.none() | st.integers(0, len(content)))
        path.write_bytes(content[:cut] + data.draw(st.binary(max_size=9)))
        use(path, dtype="uint16")


@st.composite
def renumbered(draw, data):
    """Valid JSON with one of its numbers or words changed."""
    places = list(re.finditer(rb'(?<=[ \[])(\d+|null|"[^"]*")(?=[,}\]])', data))
    match = draw(st.sampled_from(places))
    other = st.sampled_from([b"-1", b"0", b"1", b"7", b"null", b'"x"', b"[]", b"{}", b"9" * 30])
    return data[: match.start()] + draw(other) + data[match.end() :]


@settings(max_examples=300, deadline=None)
@given(content=damaged(NPY))
def test_a_damaged_header_is_parsed_as_numpy_does_or_refused(content):
    try:
        count, dtype, offset = parse_header("x.npy", content)
    except DatasetError:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        path.write_bytes(content[:offset] + bytes(count * dtype.itemsize if count < 1000 else 0))
        if count < 1000:
            expected = np.load(path, allow_pickle=False)
            assert (expected.shape, expected.dtype) == ((count,), dtype)


def claim(header: str) -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    "start",
    [
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1),
        b"\x93NUMPY\x03\x00" + struct.pack("<I", 2**32 - 1),
        claim("{'descr': '<u2', 'fortran_order': False, 'shape': (4611686018427387904,), }"),
        claim("{'descr': '<u2', 'fortran_order': False, 'shape': (-1,), }"),
        claim("{'descr': '<u2', 'fortran_order': False, 'shape': (True,), }"),
        # More than 4,300 decimal digits, which Python refuses to print.
        claim("{'descr': '<u2', 'fortran_order': False, 'shape': (0x" + "F" * 4000 + ",), }"),
        claim("{'descr': '<u2', 'fortran_order': False, 'shape': (-0x" + "F" * 4000 + ", 1), }"),
        claim("{'descr': '|O', 'fortran_order': False, 'shape': (9,), }"),
        claim("{'descr': '<u2', 'fortran_order': False, 'shape': " + "(" * 9000),
        claim("__import__('os').abort()"),
        struct.pack("<3i", 20240520, 1, -1),
        struct.pack("<3i", 20240520, 1, 2**31 - 1),
        struct.pack("<3i", 20240801, 7, 2**31 - 1),
    ],
)
def test_claims_of_a_large_file_cost_no_memory(tmp_path, start):
    path = tmp_path / "x.npy"
    path.write_bytes(start)
    os.truncate(path, 1 << 33)  # sparse
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError):
            tokenmill.open(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "beside", "head"),
    [
        ("x.idx", "x.bin", struct.pack("<9sQBQQ", b"MMIDIDX", 1, 8, (2**33 - 34 - 8) // 12, 1)),
        ("x.idx", "x.bin", struct.pack("<9sQBQQ", b"MMIDIDX", 1, 8, 2**63, 2**63)),
        ("x.ds.index", "x.ds", b""),
    ],
)
def test_claims_of_a_large_index_cost_no_memory(tmp_path, name, beside, head):
    (tmp_path / name).write_bytes(head)
    os.truncate(tmp_path / name, 1 << 33)  # sparse
    (tmp_path / beside).write_bytes(b"1234")
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError):
            tokenmill.open(tmp_path)["train"].gather(np.array([0]), 1)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("digits", ["²", "٣", "9" * 5000])
def test_digits_that_are_not_ascii_or_too_many_are_refused(tmp_path, digits):
    litdata, mds = litdata_files([[[1]]]), mds_files([[[1]]], encoding="ndarray:uint16:1")
    for number, (files, place, value) in enumerate(
        [
            (litdata, ("config", "data_format"), [f"no_header_tensor:{digits}"]),
            (mds, ("shards", 0, "column_encodings"), [f"ndarray:uint16:{digits}"]),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        index = json.loads(files["index.json"])
        inner = index
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        for name, data in (files | {"index.json": json.dumps(index).encode()}).items():
            (folder / name).write_bytes(data)
        with pytest.raises(DatasetError):
            tokenmill.open(folder, eot_id=0)


@pytest.mark.parametrize("kind", ["mds", "mds-fixed", "litdata"])
def test_claims_of_very_many_samples_cost_no_memory(tmp_path, kind):
    size, count = 2**32 - 4, 2**28
    begin, encoding = (
        4 * (count + 2),
        "ndarray:uint16:1" if kind == "mds-fixed" else "ndarray:uint16",
    )
    files = litdata_files([[[1]]]) if kind == "litdata" else mds_files([[[1]]], encoding=encoding)
    name = next(iter(files))
    index = json.loads(files["index.json"])
    if kind == "litdata":
        index["chunks"][0] |= {"chunk_bytes": size, "chunk_size": count, "dim": (size - begin) // 2}
    else:
        index["shards"][0] |= {"samples": count}
        index["shards"][0]["raw_data"]["bytes"] = size
    (tmp_path / "index.json").write_text(json.dumps(index))
    with (tmp_path / name).open("wb") as file:  # sparse
        file.write(struct.pack("<2I", count, begin))
        file.seek(begin - 4)
        file.write(struct.pack("<I", size))
        file.truncate(size)
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError, match=name):
            tokenmill.open(tmp_path, eot_id=0)["train"].find_document_starts(np.array([0]), 1)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def litdata_with(**values):
    """A LitData folder with other values in its configuration or its only chunk."""
    files = litdata_files([DOCUMENTS])
    index = json.loads(files["index.json"])
    for name, value in values.items():
        (index["config"] if name in index["config"] else index["chunks"][0])[name] = value
    return {**files, "index.json": json.dumps(index).encode()}


def mds_with(**values):
    """An MDS folder of samples of two tokens, with other values for its only shard."""
    files = mds_files([[[1, 2], [3, 4]]], encoding="ndarray:uint16:2")
    index = json.loads(files["index.json"])
    index["shards"][0] |= values
    return {**files, "index.json": json.dumps(index).encode()}


HUGE = {"chunk_bytes": 2**55 + 12, "chunk_size": 1, "dim": 2**55}
UINT8 = {"compression": None, "encryption": None, "data_format": ["no_header_numpy:4"]}
HOSTILE = {
    "digits that int refuses": litdata_with(data_format=["no_header_numpy:²"]),
    "digits of another script": litdata_with(data_format=["no_header_numpy:٥"]),
    "a name of 10 kB": litdata_with(filename="x" * 10_000),
    "half a character": litdata_with(filename="\ud800"),
    "above the folder": litdata_with(filename="../x.bin"),
    "another root": litdata_with(filename="/etc/passwd"),
    "negative": litdata_with(dim=-1),
    "over 64 bits": litdata_with(dim=2**70),
    "1e308": litdata_with(dim=1e308),
    "NaN": {
        **litdata_with(),
        "index.json": litdata_with()["index.json"].replace(b'"dim": 10', b'"dim": NaN'),
    },
    "deep": {**litdata_with(), "index.json": b'{"chunks": ' + b"[" * 5000 + b"]" * 5000 + b"}"},
    "more tokens than 64 bits can count": {
        "index.json": json.dumps(
            {"chunks": [{**HUGE, "filename": f"{n}.bin"} for n in range(256)], "config": UINT8}
        ).encode()
    },
    "a shape that int refuses": mds_with(column_encodings=["ndarray:uint16:²"]),
    "a shape in another script": mds_with(column_encodings=["ndarray:uint16:٢"]),
    "samples beyond the file": mds_with(samples=2**31),
    "a shard of 2 GB": mds_with(raw_data={"basename": "shard.00000.mds", "bytes": 2**31}),
    "a method that is a list": mds_with(
        raw_data={"basename": "none", "bytes": 1}, zip_data={"basename": "x"}, compression=["gz"]
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_index_is_refused(tmp_path, case):
    write_files(tmp_path, HOSTILE[case])
    with pytest.raises(DatasetError, match=r"index\.json|\.mds|x{80}"):
        tokenmill.open(tmp_path)["train"].gather(np.array([0]), 1)


@pytest.mark.parametrize("dtype", ["9" * 5000, "(" * 9000, "u2," * 9000, "O", "", [], {"a": 1}])
def test_a_dtype_that_numpy_cannot_parse_is_refused(tmp_path, dtype):
    write_files(
        tmp_path, {"train.bin": b"1234", "meta.json": json.dumps({"dtype": dtype}).encode()}
    )
    with pytest.raises(DatasetError, match=r"meta\.json cannot be used: `dtype` is"):
        tokenmill.open(tmp_path)


def test_an_index_of_millions_of_values_costs_little_memory(tmp_path):
    """A list of empty lists takes 20 times its size in memory."""
    index = b'{"chunks": [' + b"[]," * 5_000_000 + b"[]]}"
    write_files(tmp_path, {**litdata_with(), "index.json": index})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DatasetError, match="more than 4,194,304 values"):
        tokenmill.open(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000


@pytest.mark.parametrize("ending", [".npy", ".bin", ".ds", ".idx", ".mds", ".array_record"])
@pytest.mark.parametrize(
    "names",
    [
        ["shard_١٢٣", "shard_²"],
        ["x_²-of-²", "x_2-of-١"],
        ["train_1", "train_" + "9" * 200],
        ["x_1-of-" + "9" * 200, "x_2-of-" + "9" * 200],
        [os.fsdecode(b"train_\xff1"), os.fsdecode(b"train_\xff2")],
        ["a\nb_1", "a\nb_2"],
    ],
)
def test_hostile_file_names_are_read_or_refused(tmp_path, names, ending):
    for name in names:
        (tmp_path / f"{name}{ending}").write_bytes(NPY if ending == ".npy" else b"1234")
    use(tmp_path)
    use(tmp_path, dtype="uint16")


def test_verify_reads_a_large_file_in_little_memory(tmp_path):
    path = tmp_path / "x.bin"
    path.touch()
    os.truncate(path, 100 << 20)
    tracemalloc.start()
    try:
        found = examine(path, dtype="uint16", vocab_size=5)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert (found.problems, found.tokens) == ([], 50 << 20)


def test_verify_names_the_file_and_place_of_ids_beyond_the_vocabulary(tmp_path):
    write_llmc_folder(tmp_path, [[1, 2], [3, 50257], [4]])
    (problem,) = examine(tmp_path).problems
    assert problem.file == "edu_fineweb_train_000002.bin"
    assert "id 50257 at token 1" in problem.what
    np.save(tmp_path / "x.npy", np.array([1, -1, 9]))
    assert "id -1 at token 1" in examine(tmp_path / "x.npy").problems[0].what
    assert "vocabulary size is unknown" in examine(tmp_path / "x.npy").notes[0]
    assert len(examine(tmp_path / "x.npy", vocab_size=9).problems) == 2


def test_verify_continues_after_a_damaged_shard(tmp_path):
    write_llmc_folder(tmp_path, [[number] for number in range(1, 6)])
    for number in (2, 3):
        path = tmp_path / f"edu_fineweb_train_00000{number}.bin"
        path.write_bytes(bytes(12) + path.read_bytes()[12:])
    found = examine(tmp_path)
    assert [problem.file[-5:] for problem in found.problems] == ["2.bin", "3.bin"]
    assert found.shards == 5


def test_verify_counts_documents_by_the_end_of_text_id(tmp_path):
    write_llmc_folder(tmp_path / "a", [[50256, 1, 50256], [50256]])
    assert examine(tmp_path / "a").documents == 3
    write_raw(tmp_path / "x.bin", [1, 2])
    assert examine(tmp_path / "x.bin", dtype="uint16").documents is None
