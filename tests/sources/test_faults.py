"""find_fault: faults found in the first bytes of a file, against those found by reading it."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokenmill.sources.find import find_files
from tokenmill.sources.recognize import find_fault

COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def fault_of(path: Path, data: bytes, text_field: str = "text") -> str | None:
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(data))
    ((source,), _) = find_files([path])
    return find_fault(source, text_field)


def rows(*records: object) -> bytes:
    return "\n".join(map(json.dumps, records)).encode()


@pytest.mark.parametrize("suffix", ["", *COMPRESS])
def test_faults_are_seen_through_every_compression(tmp_path: Path, suffix: str) -> None:
    text, lines = tmp_path / f"a.txt{suffix}", tmp_path / f"a.jsonl{suffix}"
    assert fault_of(text, b"some text") is None
    assert fault_of(text, b"some text " * 100_000) is None
    assert fault_of(text, "some text".encode("utf-16")) is None
    assert "has id" in str(fault_of(lines, rows({"id": 1}).decode().encode("utf-16-le")))
    assert fault_of(lines, rows({"text": "a"})) is None
    assert fault_of(lines, rows({"id": 1}, {"text": "a"})) is None
    assert "it has id, body" in str(fault_of(lines, rows({"id": 1, "body": "a"}, {"id": 2})))
    assert "line 2: a JSON array" in str(fault_of(lines, b"\n" + rows([{"text": "a"}])))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_files_without_the_compression_of_their_name_have_a_fault(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"a.txt{suffix}"
    for data in (b"", b"plain text " * 10):
        path.write_bytes(data)
        ((source,), _) = find_files([path])
        assert find_fault(source, "text")


def test_lines_longer_than_the_head_are_judged_by_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert fault_of(path, rows({"body": "x" * 100_000})) is None
    assert "no field" in str(fault_of(path, rows({"id": 1}, {"body": "x" * 100_000})))
    assert fault_of(path, b"") is None


def test_parquet_is_judged_by_its_footer(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1], "body": ["a"]}), path)
    data = path.read_bytes()
    assert "it has id, body; use `text_field='body'`" in str(fault_of(path, data))
    assert fault_of(path, data, "body") is None
    assert "holds int64" in str(fault_of(path, data, "id"))
    assert "damaged" in str(fault_of(path, data[:-20], "body"))


def test_a_missing_file_has_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text")
    ((source,), _) = find_files([path])
    path.unlink()
    assert find_fault(source, "text") == "No such file or directory"
