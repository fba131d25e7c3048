"""`verify` on tokens in other formats checks where every document is."""

from __future__ import annotations

import gzip
import struct

import pytest
from document_checks import DOCUMENTS, refused
from foreign import flat, litdata_files, mds_files, megatron_bytes, olmo_table, write_files

from tokenmill.dataset.verify import examine


def sound_files(format):
    """Two files with documents in a format, and the options to open them."""
    more, options = [[11], [12, 13]], {}
    ids, index = megatron_bytes(DOCUMENTS), megatron_bytes(more)
    files = {"x_0.bin": ids[0], "x_0.idx": ids[1], "x_1.bin": index[0], "x_1.idx": index[1]}
    if format == "datatrove":
        files = {
            "0_x.ds": flat(DOCUMENTS, "<u2"),
            "0_x.ds.index": struct.pack("<4Q", 3, 4, 6, 10),
            "1_x.ds": flat(more, "<u2"),
            "1_x.ds.index": struct.pack("<2Q", 1, 3),
        }
    if format == "olmo":
        files = {
            "p-0.npy": flat(DOCUMENTS, "<u2"),
            "p-0.csv.gz": olmo_table(DOCUMENTS),
            "p-1.npy": flat(more, "<u2"),
            "p-1.csv.gz": olmo_table(more),
        }
        options = {"dtype": "uint16"}
    if format == "litdata":
        files = litdata_files([DOCUMENTS, more])
    if format == "mds":
        files = mds_files([DOCUMENTS, more])
    return files, options


def word(number):
    return struct.pack("<I", number)


BROKEN = [
    # documents that end before they start, in the first file
    (
        "megatron",
        "x_0.idx",
        lambda data: data[:-24] + struct.pack("<3q", 3, 2, 4),
        "before it starts",
    ),
    ("datatrove", "0_x.ds.index", lambda data: struct.pack("<4Q", 3, 7, 6, 10), "before it starts"),
    ("litdata", "chunk-0-0.bin", lambda data: data[:8] + word(40) + data[12:], "before it starts"),
    ("olmo", "p-0.csv.gz", lambda data: gzip.compress(b"0,3\n3,2\n2,10\n", mtime=0), "line 2"),
    ("mds", "shard.00000.mds", lambda data: data[:8] + word(1 << 20) + data[12:], "out of order"),
    # that begin beyond the file
    ("megatron", "x_0.idx", lambda data: data[:-16] + struct.pack("<2q", 9, 4), "does not exist"),
    (
        "datatrove",
        "0_x.ds.index",
        lambda data: struct.pack("<4Q", 3, 4, 1 << 40, 10),
        "before it starts",
    ),
    (
        "litdata",
        "chunk-0-0.bin",
        lambda data: data[:16] + word(1 << 30) + data[20:],
        "before it starts",
    ),
    ("olmo", "p-0.csv.gz", lambda data: gzip.compress(b"0,3\n3,11\n", mtime=0), "within 10"),
    # that do not add up to the file's tokens
    ("olmo", "p-0.csv.gz", lambda data: gzip.compress(b"0,3\n", mtime=0), "token 3, expected 10"),
    (
        "megatron",
        "x_0.idx",
        lambda data: data[:-8] + struct.pack("<q", 3),
        "at sequence 3, expected 4",
    ),
]


@pytest.mark.parametrize("format", ["megatron", "datatrove", "olmo", "litdata", "mds"])
def test_verify_counts_sound_documents(tmp_path, format):
    files, options = sound_files(format)
    write_files(tmp_path, files)
    found = examine(tmp_path, **options)
    assert (found.problems, found.documents, found.tokens) == ([], 6, 13)


@pytest.mark.parametrize(("format", "name", "damage", "says"), BROKEN)
def test_verify_names_the_file_whose_documents_do_not_fit(tmp_path, format, name, damage, says):
    files, options = sound_files(format)
    write_files(tmp_path, {**files, name: damage(files[name])})
    if format == "mds":  # opening checks its samples
        refused(tmp_path, says)
        return
    (problem,) = examine(tmp_path, **options).problems
    assert problem.file == name
    assert says in problem.what


def test_verify_reports_every_file_whose_documents_do_not_fit(tmp_path):
    files, options = sound_files("olmo")
    write_files(tmp_path, {**files, "p-0.csv.gz": b"", "p-1.csv.gz": b"x"})
    found = examine(tmp_path, vocab_size=12, **options)
    assert [one.file for one in found.problems] == ["p-0.csv.gz", "p-1.csv.gz", "p-1.npy"]
    assert found.documents is None
