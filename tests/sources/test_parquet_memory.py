"""Parquet files that claim, or decode to, far more than they have bytes, read within a limit."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_bytes import (
    DELTA,
    DELTA_LENGTH,
    PLAIN,
    make_dictionary_page,
    make_file,
    make_list,
    make_page,
    make_repeated_dictionary,
    varint,
    with_footer,
    zigzag,
)
from reading import read, source_of, texts_of

from tokenmill.errors import TooLongError
from tokenmill.sources.files import BadFileError
from tokenmill.sources.parquet import measure_row_groups
from tokenmill.sources.read import Reading, read_range
from tokenmill.sources.records import PARSED, Cutter

LIMIT = 2 << 20  # bytes of one document; 64 MB in all

# Reads two chunks in a process of its own, and prints what they are and how much memory that took.
CHILD = """
import json, resource, sys
from itertools import islice
import pyarrow.compute, pyarrow.parquet
from tokenmill.errors import TokenmillError
from tokenmill.sources.files import SourceFile
from tokenmill.sources.read import Reading, read_range
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
memory = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
path, limit, before = sys.argv[1], int(sys.argv[2]), memory()
source = SourceFile(path=path, kind="parquet", compression=None, size=100, modified=0)
try:
    chunks = list(islice(read_range(source, 0, 100, Reading(hold_limit=limit)), 2))
    found = [sum(map(len, chunk.texts)) for chunk in chunks]
except TokenmillError as error:
    found = str(error)
print(json.dumps([found, memory() - before]))
"""


def read_in_child(path: Path, limit: int = LIMIT) -> tuple[list[int] | str, int]:
    """The bytes of the first chunks, or the error, and the memory that it took."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, path, str(limit)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    found, memory = json.loads(done.stdout)
    return found, memory


def test_one_long_text_in_every_row_is_decoded_a_few_rows_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    text = pa.array(["a" * 8_000_000])
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), text)
    pq.write_table(pa.table({"text": column}), path, compression="zstd")
    assert path.stat().st_size < 1000
    found, memory = read_in_child(path)
    assert found == [8_000_000] * 2
    assert memory < 100_000_000


@pytest.mark.parametrize("size", [8_000_000, 40_000_000])
def test_sizes_in_the_footer_are_not_believed(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(make_repeated_dictionary(size, 20_000))
    found, memory = read_in_child(path)
    if size == 8_000_000:
        assert found == [size] * 2
    else:
        assert found == "the dictionary of the texts from row 0 on has 40,000,004 bytes"
    assert memory < 100_000_000


BOMBS = {
    "one value": (struct.pack("<I", 90_000_000) + bytes(90_000_000), 1, PLAIN, None),
    "claimed bytes": (b"", 9, PLAIN, (1 << 31) - 1),
    "claimed lengths": (varint(128) + varint(4) + varint(1 << 30), 1 << 30, DELTA_LENGTH, None),
    "claimed prefixes": (varint(128) + varint(4) + varint(1 << 30), 1 << 30, DELTA, None),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_page_that_does_not_fit_is_refused_before_it_is_read(tmp_path: Path, name: str) -> None:
    content, values, encoding, size = BOMBS[name]
    path = tmp_path / "a.parquet"
    path.write_bytes(make_file(make_page(content, values, encoding, size=size), values))
    found, memory = read_in_child(path)
    assert "the largest page of the texts from row 0 on has " in str(found)
    assert memory < 30_000_000


def test_a_text_too_long_to_hold_is_refused_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = ["short"] * 40 + ["a" * 9_000_000] + ["short"] * 40
    pq.write_table(pa.table({"text": texts}), path)
    with pytest.raises(TooLongError, match="the text in row 40 has 9,000,000 bytes"):
        read(path, hold_limit=LIMIT)
    assert texts_of(read(path, hold_limit=2 * LIMIT)) == [text.encode() for text in texts]


def test_footers_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    # One row group whose list of columns claims a million entries.
    path.write_bytes(with_footer(b"", 0, make_list([b"\x19" + make_list([], claimed=999_999)])))
    found, memory = read_in_child(path)
    assert "the Parquet file is damaged" in str(found)
    assert memory < 30_000_000
    # A row group with 100,000 columns of 3 bytes.
    columns = make_list([b"\x26" + zigzag(0) + b"\0"] * 100_000)
    group = b"\x19" + columns + b"\x16" + zigzag(0) + b"\x16" + zigzag(0) + b"\0"
    path.write_bytes(with_footer(b"", 0, make_list([group] * 2)))
    found, memory = read_in_child(path)
    assert found == "the footer has 600,053 bytes"
    assert memory < 30_000_000
    assert measure_row_groups(str(path), LIMIT) == []
    assert len(measure_row_groups(str(path))) == 2


def test_damaged_page_headers_are_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    good = make_file(make_dictionary_page(struct.pack("<I", 1) + b"a", 1), 3)
    path.write_bytes(good)
    with pytest.raises(BadFileError, match="expected 3 rows, found 0"):
        read(path)
    for place in range(4, 20):
        for byte in (0, 0x0B, 0x7F, 0xFF):
            path.write_bytes(good[:place] + bytes([byte]) + good[place + 1 :])
            with pytest.raises((BadFileError, TooLongError)):
                read(path, hold_limit=LIMIT)


def test_every_encoding_is_read_within_the_smallest_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = [f"text {n} " * (n % 90) for n in range(2000)] + [None, "", "again"] * 50
    table = pa.table({"text": values})
    for options in (
        {"use_dictionary": True, "dictionary_pagesize_limit": 2000},
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_LENGTH_BYTE_ARRAY"}},
        {"use_dictionary": False, "data_page_version": "2.0", "compression": "gzip"},
    ):
        pq.write_table(table, path, data_page_size=3000, row_group_size=700, **options)
        source = source_of(path, kind="parquet", size=path.stat().st_size)
        how = Reading(hold_limit=1 << 20, block=4096, cutter=Cutter())
        texts = texts_of(list(read_range(source, 0, 99, how)))
        assert texts == [value.encode() for value in values if value is not None]


def test_texts_of_exactly_the_most_bytes_are_read(tmp_path: Path) -> None:
    for length in range(1_000_000, 1_000_000 + PARSED):
        table = pa.table({"text": ["x" * length]})
        pq.write_table(table, tmp_path / "x.parquet", compression="none", use_dictionary=False)
        column = pq.read_metadata(tmp_path / "x.parquet").row_group(0).column(0)
        if column.total_uncompressed_size % PARSED == 0:
            break
    limit = column.total_uncompressed_size // PARSED
    assert texts_of(read(tmp_path / "x.parquet", hold_limit=limit)) == [b"x" * length]
    with pytest.raises(TooLongError, match="bytes on average"):
        read(tmp_path / "x.parquet", hold_limit=limit - 1)
