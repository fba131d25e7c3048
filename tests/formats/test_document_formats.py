"""Formats with documents: ids and document starts are those that were written."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from document_checks import DOCUMENTS, IDS, check_documents, edit, overwrite, refused
from foreign import (
    flat,
    litdata_files,
    mds_files,
    megatron_bytes,
    olmo_table,
    write_datatrove,
    write_files,
    write_litdata,
    write_llmc,
    write_megatron,
    write_olmo,
    write_raw,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.dataset.verify import examine
from tokenmill.errors import DatasetError, UsageError
from tokenmill.formats.file_documents import BLOCK

LITDATA = {
    "no_header_tensor:16": "<i4",
    "no_header_tensor:18": "<i8",
    "no_header_tensor:20": "<u2",
    "no_header_numpy:4": "|u1",
    "no_header_numpy:6": "<u4",
}
document = st.lists(st.integers(0, 250), min_size=1, max_size=6)
files = st.lists(st.lists(document, min_size=1, max_size=6), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None)
@given(files=files, data=st.data())
def test_documents_are_read_as_written(files, data):
    empty = data.draw(st.booleans())
    dtype = data.draw(st.sampled_from(["|u1", "<u2", "<i4", "<i8"]))
    wide = data.draw(st.sampled_from(["<u2", "<u4"]))
    documents = [one for file in files for one in file]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for number, file in enumerate(files):
            sequences = [data.draw(st.integers(1, len(one))) for one in file]
            write_megatron(
                folder / "m" / f"web_{number}",
                file,
                dtype=dtype,
                sequences=sequences,
                modes=data.draw(st.booleans()),
            )
            write_datatrove(folder / "d" / f"{number:05}_web.ds", file, dtype=wide)
            write_olmo(folder / "o" / f"part-{number}.npy", file, dtype=wide)
            hollow = [[], *file, []] if empty else file
            write_megatron(folder / "e" / f"web_{number}", hollow, dtype=dtype)
        kind, dtype = data.draw(st.sampled_from(sorted(LITDATA.items())))
        write_litdata(folder / "l", files, kind=kind, dtype=dtype)
        more = [("a", "bytes", None, b"12345"), ("id", "int", 8, bytes(8)), ("z", "str", None, b"")]
        for name, options in (
            ("v", {}),
            ("w", {"encoding": "ndarray:int32", "dtype": "<i4", "more": more}),
            ("z", {"compression": "zstd:3", "more": data.draw(st.sampled_from([more, more[1:2]]))}),
        ):
            write_files(folder / name, mds_files(files, **options))
        prints = set()
        for name, format, options in (
            ("m", "megatron", {}),
            ("d", "datatrove", {}),
            ("o", "olmo", {"dtype": np.dtype(wide)}),
            ("l", "litdata", {}),
            ("v", "mds", {}),
            ("w", "mds", {}),
            ("z", "mds", {}),
        ):
            dataset = tokenmill.open(folder / name, **options)
            assert (dataset.format, dataset.splits) == (format, ("train",))
            check_documents(dataset["train"], documents)
            check_documents(pickle.loads(pickle.dumps(dataset["train"])), documents)
            prints.add(dataset["train"].fingerprint)
            assert examine(folder / name, **options).problems == []
        assert len(prints) == 1
        hollow = [one for file in files for one in ([[], *file, []] if empty else file)]
        check_documents(tokenmill.open(folder / "e")["train"], hollow)


@settings(max_examples=60, deadline=None)
@given(file=st.lists(document, min_size=2, max_size=8), fraction=st.floats(0.1, 0.9))
def test_documents_are_cut_where_the_end_is_held_out(file, fraction):
    total = sum(map(len, file))
    place = int(total * (1 - fraction))
    if not 0 < place < total:
        return
    sides = {"train": [], "val": []}
    done = 0
    for one in file:
        cut = min(max(place - done, 0), len(one))
        sides["train"] += [one[:cut]] if cut else []
        sides["val"] += [one[cut:]] if cut < len(one) else []
        done += len(one)
    with tempfile.TemporaryDirectory() as folder:
        write_megatron(Path(folder) / "x", file)
        dataset = tokenmill.open(Path(folder) / "x", val_fraction=fraction)
        for split, documents in sides.items():
            check_documents(dataset[split], documents)
            assert dataset[split].documents.at(0).split == split


def test_a_megatron_pair_opens_by_prefix_and_by_either_file(tmp_path):
    write_megatron(tmp_path / "web_text_document", DOCUMENTS, dtype="<i4")
    for name in ("web_text_document", "web_text_document.bin", "web_text_document.idx"):
        dataset = tokenmill.open(tmp_path / name)
        assert (dataset.format, dataset.dtype) == ("megatron", np.dtype("<i4"))
        check_documents(dataset["train"], DOCUMENTS)
    with pytest.raises(UsageError, match="int32"):
        tokenmill.open(tmp_path / "web_text_document", dtype="uint16")
    raw = tokenmill.open(tmp_path / "web_text_document.bin", dtype="int32", format="raw")
    assert raw["train"].documents is None


def test_handwritten_megatron_bytes_are_read(tmp_path):
    index = bytes.fromhex(
        "4d4d494449445800000100000000000000080300000000000000030000000000000002000000010000"
        "000100000000000000000000000400000000000000060000000000000000000000000000000200000000"
        "0000000300000000000000"
    )
    (tmp_path / "x.idx").write_bytes(index)
    (tmp_path / "x.bin").write_bytes(bytes([1, 0, 2, 0, 3, 0, 4, 1]))
    check_documents(tokenmill.open(tmp_path / "x")["train"], [[1, 2, 3], [260]])


def test_megatron_folders_are_split_by_name_and_must_be_pairs(tmp_path):
    write_megatron(tmp_path / "web_train_0", DOCUMENTS)
    write_megatron(tmp_path / "web_train_1", [[11], [12]])
    write_megatron(tmp_path / "web_val_0", [[13]])
    dataset = tokenmill.open(tmp_path)
    check_documents(dataset["train"], [*DOCUMENTS, [11], [12]])
    check_documents(dataset["val"], [[13]])
    (tmp_path / "web_train_1.bin").rename(tmp_path / "away")
    refused(tmp_path, "web_train_1.*not both")
    refused(tmp_path / "web_train_1", r"web_train_1\.bin is missing")
    (tmp_path / "web_train_1.idx").unlink()
    write_megatron(tmp_path / "web_train_1", [[1]], dtype="<i4")
    refused(tmp_path, "int32")


def damage_index(**changes):
    """A sound index of DOCUMENTS with some fields changed."""
    _, index = megatron_bytes(DOCUMENTS)
    changed = bytearray(index)
    places = {"version": (9, "<Q"), "code": (17, "<B"), "sequences": (18, "<Q")}
    places |= {"borders": (26, "<Q"), "length": (38, "<i"), "pointer": (58, "<q")}
    places |= {"border": (34 + 48 + 8, "<q"), "last": (34 + 48 + 32, "<q")}
    for field, value in changes.items():
        place, kind = places[field]
        struct.pack_into(kind, changed, place, value)
    return bytes(changed)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (damage_index(version=2), "version 2"),
        (damage_index(code=7), "float32 values, but tokens are integers"),
        (damage_index(code=9), "dtype code 9"),
        (damage_index(code=4), "ends its last sequence at byte 28"),
        (damage_index(sequences=2**60), "according to its header"),
        (damage_index(borders=0), "according to its header"),
        (damage_index(length=-1), "sequence 1 of -1 tokens"),
        (damage_index(length=2), "not where the previous one ends"),
        (damage_index(pointer=-6), "sequence 1"),
        (damage_index(pointer=2**62), "sequence 1"),
        (damage_index(border=9), "a document with a sequence that does not exist"),
        (damage_index(border=-1), "a document with a sequence that does not exist"),
        (damage_index(border=4), "before it starts"),
        (damage_index(last=3), "ends its last document at sequence 3"),
        (damage_index()[:-1], "has 121 bytes"),
        (damage_index() + b"\0", "has 123 bytes"),
        (damage_index()[:20], "start with Megatron's header"),
    ],
)
def test_an_inconsistent_megatron_index_is_refused(tmp_path, index, says):
    (tmp_path / "x.bin").write_bytes(flat(DOCUMENTS, "<u2"))
    (tmp_path / "x.idx").write_bytes(damage_index())
    check_documents(tokenmill.open(tmp_path / "x")["train"], DOCUMENTS)
    (tmp_path / "x.idx").write_bytes(index)
    assert "x" in refused(tmp_path / "x", says)


def test_tokens_with_an_inconsistent_index_are_not_read(tmp_path):
    write_megatron(tmp_path / "x", DOCUMENTS)
    (tmp_path / "x.idx").write_bytes(damage_index(length=2))
    tokens = tokenmill.open(tmp_path / "x")["train"]
    with pytest.raises(DatasetError, match=r"x\.idx"):
        tokens.gather(np.array([0]), 2)
    assert [problem.file for problem in examine(tmp_path / "x").problems] == ["x.idx"]


def test_a_truncated_megatron_bin_is_refused(tmp_path):
    write_megatron(tmp_path / "x", DOCUMENTS)
    os.truncate(tmp_path / "x.bin", 18)
    refused(tmp_path / "x", "the .bin has 18")
    os.truncate(tmp_path / "x.bin", 17)
    refused(tmp_path / "x", "not a multiple of the size of uint16")


def test_disorder_beyond_the_first_block_is_found(tmp_path):
    count = BLOCK + 10
    write_raw(tmp_path / "x.ds", range(count), "<u4")
    ends = np.arange(1, count + 1, dtype="<u8")
    (tmp_path / "x.ds.index").write_bytes(ends.tobytes())
    assert tokenmill.open(tmp_path / "x.ds")["train"].documents.at(count - 1).number == count - 1
    ends[BLOCK + 2] = BLOCK
    (tmp_path / "x.ds.index").write_bytes(ends.tobytes())
    with pytest.raises(DatasetError, match="ends document 262,146 before it starts"):
        tokenmill.open(tmp_path / "x.ds")["train"].documents.at(0)


def test_datatrove_width_comes_from_metadata_index_or_user(tmp_path):
    for dtype in ("<u2", "<u4"):
        for beside in (("index", "metadata"), ("index",), ("metadata",)):
            folder = tmp_path / f"{dtype[1:]}{len(beside)}{beside[0]}"
            write_datatrove(folder / "x.ds", DOCUMENTS, dtype=dtype, beside=beside)
            for path in (folder, folder / "x.ds"):
                dataset = tokenmill.open(path)
                assert (dataset.format, dataset.dtype) == ("datatrove", np.dtype(dtype))
                assert dataset["train"][:].tolist() == IDS
                assert (dataset["train"].documents is not None) == ("index" in beside)
            with pytest.raises(UsageError, match="Omit `dtype`"):
                tokenmill.open(folder, dtype="int64")
    write_datatrove(tmp_path / "x.ds", DOCUMENTS, beside=())
    refused(tmp_path / "x.ds", "gives its dtype; pass `dtype`")
    assert tokenmill.open(tmp_path / "x.ds", dtype="uint16")["train"][:].tolist() == IDS


def test_datatrove_names_a_tokenizer_only_if_it_is_known(tmp_path):
    write_datatrove(tmp_path / "a" / "x.ds", DOCUMENTS, tokenizer="openai-community/gpt2")
    assert tokenmill.open(tmp_path / "a").tokenizer.name == "gpt2"
    write_datatrove(tmp_path / "b" / "x.ds", DOCUMENTS, tokenizer="../tokenizer.json|x")
    assert tokenmill.open(tmp_path / "b").contents.tokenizer is None


def test_datatrove_files_that_contradict_each_other_are_refused(tmp_path):
    write_datatrove(tmp_path / "00000_a.ds", DOCUMENTS)
    write_datatrove(tmp_path / "00001_a.ds", [[1]], dtype="<u4")
    refused(tmp_path, "different sizes")
    write_datatrove(tmp_path / "00001_a.ds", [[1]])
    path = tmp_path / "00001_a.ds"
    for ending, content, says in (
        ("", b"123", r"00001_a\.ds has 3 bytes"),
        (".metadata", b"gpt2|3\n1\n1", r"TOKENIZER\|4"),
        (".metadata", b"gpt2", r"TOKENIZER\|4"),
        (".metadata", b"gpt2|2\nx", r"TOKENIZER\|4"),
        (".metadata", b"gpt2|2\n7", "7 tokens of 2"),
        (".metadata", b"gpt2|4\n-1", "size of an id"),
        (".index", b"1234567", "has 7 bytes"),
        (".index", struct.pack("<Q", 2**63 + 1), "2 or 4 bytes"),
    ):
        changed = path.with_name(path.name + ending)
        before = changed.read_bytes()
        changed.write_bytes(content)
        refused(tmp_path, says)
        changed.write_bytes(before)
    path.with_name(path.name + ".index").write_bytes(struct.pack("<QQ", 2**64 - 1, 1))
    refused(tmp_path, "before it starts")


def test_olmo_files_need_a_dtype_and_keep_their_documents(tmp_path):
    write_olmo(tmp_path / "part-0.npy", DOCUMENTS)
    refused(tmp_path / "part-0.npy", "OLMo")
    dataset = tokenmill.open(tmp_path / "part-0.npy", dtype="uint16")
    assert dataset.format == "olmo"
    check_documents(dataset["train"], DOCUMENTS)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (olmo_table(DOCUMENTS[:-1]), "ends its last document at token 6, expected 10"),
        (olmo_table([*DOCUMENTS, [1]]), "line 5"),
        (gzip.compress(b"0,3,a\n4,10,b\n", mtime=0), "line 2"),
        (gzip.compress(b"0,0,a\n0,10,b\n", mtime=0), "line 1"),
        (gzip.compress(b"start,end\n", mtime=0), "does not start line 1 with two numbers"),
        (gzip.compress(b"-1,3\n", mtime=0), "with two numbers"),
        (gzip.compress(b"0," + b"9" * 5000 + b"\n", mtime=0), "with two numbers"),
        (gzip.compress(bytes(1 << 22), mtime=0), "line of over"),
        (b"", "ends its last document at token 0"),
        (olmo_table(DOCUMENTS)[:-9], "cannot be decompressed"),
        (b"plain text", "cannot be decompressed"),
    ],
)
def test_an_inconsistent_olmo_table_is_refused_and_the_ids_open_as_raw(tmp_path, table, says):
    write_olmo(tmp_path / "x.npy", DOCUMENTS)
    (tmp_path / "x.csv.gz").write_bytes(table)
    assert "x.csv.gz" in refused(tmp_path / "x.npy", says, dtype="uint16")
    raw = tokenmill.open(tmp_path / "x.npy", dtype="uint16", format="raw")
    assert raw["train"][:].tolist() == IDS


def test_an_llmc_shard_next_to_an_unrelated_idx_opens(tmp_path):
    write_llmc(tmp_path / "x.bin", IDS)
    (tmp_path / "x.idx").write_bytes(b"something else")
    assert tokenmill.open(tmp_path / "x.bin").format == "llmc"
    assert tokenmill.open(tmp_path).format == "llmc"


def test_litdata_splits_may_be_subfolders(tmp_path):
    write_litdata(tmp_path / "train", [DOCUMENTS])
    write_litdata(tmp_path / "val", [[[5]]])
    dataset = tokenmill.open(tmp_path)
    assert (dataset.format, dataset.splits) == ("litdata", ("train", "val"))
    check_documents(dataset["train"], DOCUMENTS)
    check_documents(dataset["val"], [[5]])
    write_litdata(tmp_path / "val", [[[5]]], kind="no_header_tensor:16", dtype="<i4")
    refused(tmp_path, "different dtypes")


SOUND = litdata_files([DOCUMENTS, [[1]]])


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (edit(SOUND, filename="../chunk-0-0.bin"), "leads out of the folder"),
        (edit(SOUND, filename="/etc/passwd"), "not a file in the folder"),
        (edit(SOUND, filename="a\x1b[31m"), "not a file in the folder"),
        (edit(SOUND, filename=7), "'filename' has the wrong type: '7'"),
        (edit(SOUND, filename="chunk-0-9.bin"), "chunk-0-9.bin is missing"),
        (edit(SOUND, dim=11), "must have 46 bytes, not 44"),
        (edit(SOUND, dim=-1), "'dim' is out of range: -1"),
        (edit(SOUND, dim=True), "'dim' has the wrong type: 'True'"),
        (edit(SOUND, chunk_size=2**70), "'chunk_size'"),
        (edit(SOUND, compression="zstd"), "uses compression"),
        (edit(SOUND, encryption={}, data_format=["jpeg"]), "not tokens"),
        (edit(SOUND, data_format=["no_header_tensor:0"]), "not tokens"),
        (edit(SOUND, data_format=["no_header_numpy:5"] * 2), "not tokens"),
        (edit(SOUND, chunks=[]), "no tokens"),
        (edit(SOUND, chunks=[3]), "damaged"),
        (overwrite(SOUND, "chunk-0-0.bin", 0, b"\3"), "but its header says"),
        (overwrite(SOUND, "chunk-0-0.bin", 4, b"\3"), "but its header says"),
        (overwrite(SOUND, "chunk-0-0.bin", 8, b"\x1b"), "in the middle of an id"),
        (overwrite(SOUND, "chunk-0-0.bin", 8, b"\xf8"), "before it starts"),
        ({**SOUND, "chunk-0-0.bin": SOUND["chunk-0-0.bin"][:-1]}, "1 bytes too short"),
    ],
)
def test_inconsistent_litdata_is_refused(tmp_path, files, says):
    write_files(tmp_path, files)
    refused(tmp_path, says)
