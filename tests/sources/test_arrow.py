"""Arrow IPC files and streams as sources, against pyarrow: valid, odd, hostile and damaged."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import source_of, texts_of

from tokenmill.errors import TooLongError
from tokenmill.sources.arrow import measure_batches
from tokenmill.sources.files import BadFileError
from tokenmill.sources.find import find_files
from tokenmill.sources.read import Reading, read_range
from tokenmill.sources.recognize import find_fault
from tokenmill.sources.records import Chunk, Cutter

VALUES = ["first", None, "Grüße 🙂, longer than a view", "", "first", "a\nb\0c", None, "last"]
KINDS = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "dictionary of large": pa.dictionary(pa.uint8(), pa.large_string()),
    "dictionary of binary": pa.dictionary(pa.int16(), pa.binary()),
}


def make_column(values: list[str | None], kind: pa.DataType) -> pa.Array:
    is_dictionary = pa.types.is_dictionary(kind)
    plain = kind.value_type if is_dictionary else kind
    data = [v if v is None or "string" in str(plain) else v.encode() for v in values]
    column = pa.array(data, plain)
    return column.dictionary_encode().cast(kind) if is_dictionary else column


def make_table(values: list[str | None], kind: pa.DataType = KINDS["string"]) -> pa.Table:
    """The texts between columns of every layout, whose buffers have to be counted."""
    count = len(values)
    union = pa.UnionArray.from_sparse(
        pa.array([0] * count, pa.int8()), [pa.array([1] * count), pa.array(["u"] * count)]
    )
    dense = pa.UnionArray.from_dense(
        pa.array([0] * count, pa.int8()),
        pa.array(range(count), pa.int32()),
        [pa.array([1] * count)],
    )
    runs = pa.RunEndEncodedArray.from_arrays([count], ["r"]) if count else None
    columns = {
        "list": pa.array([[1, 2]] * count, pa.list_(pa.int64())),
        "struct": pa.array([{"a": 1, "b": "x"}] * count, pa.struct({"a": "int8", "b": "string"})),
        "fixed": pa.array([[1.0, 2.0]] * count, pa.list_(pa.float32(), 2)),
        "map": pa.array([[("k", 1)]] * count, pa.map_(pa.string(), pa.int32())),
        "view": pa.array(["a view that is long"] * count, pa.string_view()),
        "views": pa.array([["b"]] * count, pa.list_view(pa.string())),
        "null": pa.nulls(count),
        "word": pa.array(["w"] * count, pa.string()).dictionary_encode(),
        "union": union,
        "dense": dense,
        **({"runs": runs} if runs is not None else {}),
        "text": make_column(values, kind),
        "after": pa.array(range(count)),
    }
    return pa.table(columns)


def write(table: pa.Table, *, stream: bool, rows: int = 3, codec: str | None = None) -> bytes:
    target = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(target, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return target.getvalue()


def read(path: Path, start: int = 0, end: int = 1 << 60, **how: Any) -> list[Chunk]:
    source = source_of(path, kind="arrow", size=path.stat().st_size)
    return list(read_range(source, start, end, Reading(**how)))


def rows_of(chunks: list[Chunk]) -> list[tuple[int, bytes | None]]:
    """Each row with its text; None for a null."""
    found: list[tuple[int, bytes | None]] = []
    for chunk in chunks:
        found += zip(chunk.offsets, chunk.texts, strict=True)
        found += [(one.offset, None) for one in chunk.rejections]
    return sorted(found, key=lambda one: one[0])


def expected_rows(values: list[str | None]) -> list[tuple[int, bytes | None]]:
    return [(row, None if v is None else v.encode()) for row, v in enumerate(values)]


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_columns_of_every_kind_of_text(
    tmp_path: Path, name: str, stream: bool, codec: str | None
) -> None:
    path = tmp_path / "a.arrow"
    for values in (VALUES, VALUES * 30, VALUES[:1], []):
        path.write_bytes(write(make_table(values, KINDS[name]), stream=stream, codec=codec))
        assert rows_of(read(path, block=16)) == expected_rows(values)


@given(
    st.lists(st.none() | st.text(max_size=40), max_size=40),
    st.sampled_from(sorted(KINDS)),
    st.booleans(),
    st.sampled_from([None, "lz4", "zstd"]),
    st.integers(1, 9),
    st.integers(1, 60),
)
def test_any_texts_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    values: list[str | None],
    name: str,
    stream: bool,
    codec: str | None,
    rows: int,
    block: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.arrow"
    table = pa.table({"text": make_column(values, KINDS[name])})
    path.write_bytes(write(table, stream=stream, rows=rows, codec=codec))
    assert rows_of(read(path, block=block)) == expected_rows(values)


@pytest.mark.parametrize("stream", [False, True])
def test_batches_are_read_one_range_at_a_time(tmp_path: Path, stream: bool) -> None:
    path = tmp_path / "a.arrow"
    values = [f"row {n}" for n in range(50)]
    path.write_bytes(write(pa.table({"text": values}), stream=stream, rows=7))
    assert [rows for _, rows in measure_batches(str(path))] == [7] * 7 + [1]
    found = []
    for start, end in ((0, 1), (1, 4), (4, 4), (4, 8)):
        found += rows_of(read(path, start, end))
    assert found == expected_rows([*values])


def test_feather_files_are_found_and_read(tmp_path: Path) -> None:
    path = tmp_path / "a.feather"
    pyarrow.feather.write_feather(pa.table({"text": VALUES}), path)
    ((source,), _) = find_files([tmp_path])
    assert (source.kind, source.unit, find_fault(source, "text")) == ("arrow", "row", None)
    assert rows_of(list(read_range(source, 0, 9, Reading()))) == expected_rows(VALUES)
    path.write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    with pytest.raises(BadFileError, match="Feather file of version 1"):
        read(path)


@pytest.mark.parametrize("stream", [False, True])
def test_dictionaries_that_grow_or_are_replaced(tmp_path: Path, stream: bool) -> None:
    path = tmp_path / "a.arrow"
    kind = pa.dictionary(pa.int8(), pa.string())
    grown = [["a", "b"], ["a", "b", "c"], ["a", "b", "c", None]]
    replaced = [["a", "b"], ["x", "y"], ["z"]]
    for dictionaries in (grown, replaced) if stream else (grown,):
        target = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        new = pa.ipc.new_stream if stream else pa.ipc.new_file
        expected = []
        with new(target, pa.schema({"text": kind}), options=options) as writer:
            for values in dictionaries:
                indices = pa.array([len(values) - 1, 0, None], pa.int8())
                column = pa.DictionaryArray.from_arrays(indices, pa.array(values, pa.string()))
                writer.write_batch(pa.record_batch({"text": column}))
                expected += [values[-1], values[0], None]
        path.write_bytes(target.getvalue())
        assert rows_of(read(path)) == expected_rows(expected)
        # A worker may begin anywhere.
        found = [one for n in (2, 0, 1) for one in rows_of(read(path, n, n + 1))]
        assert sorted(found, key=lambda one: one[0]) == expected_rows(expected)


def test_long_texts_come_in_fragments(tmp_path: Path) -> None:
    values = ["short", "words and more words\n" * 30, "short again", "9" * 500, "the end"]
    path = tmp_path / "a.arrow"
    path.write_bytes(write(pa.table({"text": values}), stream=True))
    documents: list[tuple[int, bytes]] = []
    for chunk in read(path, cutter=Cutter(), block=64):
        for i, (text, row) in enumerate(zip(chunk.texts, chunk.offsets, strict=True)):
            if i == 0 and chunk.continues:
                documents[-1] = (row, documents[-1][1] + text)
            else:
                documents.append((row, text))
    assert documents == [(n, value.encode()) for n, value in enumerate(values)]


def test_columns_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    path.write_bytes(write(pa.table({"id": [1], "body": ["x"]}), stream=False))
    with pytest.raises(
        BadFileError, match="no column 'text'; it has id, body; use `text_field='body'`"
    ):
        read(path)
    with pytest.raises(BadFileError, match="column 'id' holds integers, not text"):
        read(path, text_field="id")
    twice = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    path.write_bytes(write(twice, stream=True))
    with pytest.raises(BadFileError, match="2 columns are named 'text'"):
        read(path)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("codec", [None, "lz4"])
def test_damaged_files_are_bad_never_a_crash(
    tmp_path: Path, stream: bool, codec: str | None
) -> None:
    path = tmp_path / "a.arrow"
    for kind in ("string", "string_view", "dictionary"):
        data = write(make_table(VALUES, KINDS[kind]), stream=stream, codec=codec)
        random = Random(1)
        for place in [*range(60), *random.sample(range(len(data)), 120)]:
            changed = bytearray(data)
            changed[place] ^= random.choice([1, 0x80, 0xFF])
            path.write_bytes(changed)
            measure_batches(str(path))
            try:
                found = rows_of(read(path, hold_limit=1 << 20))
            except (BadFileError, TooLongError):
                continue
            assert all(text is None or len(text) < 1000 for _, text in found)
        for end in [*range(0, len(data) - 10, 211), len(data) - 9]:
            path.write_bytes(data[:end])
            try:
                found = rows_of(read(path))
            except BadFileError:
                continue
            assert stream  # a stream may end after any message
            assert found == expected_rows(VALUES)[: len(found)]


def test_a_stream_that_is_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    data = write(pa.table({"text": ["some text " * 50]}), stream=True)
    path.write_bytes(data[:-100])
    with pytest.raises(BadFileError, match="cut short"):
        read(path)
    path.write_bytes(b"")
    with pytest.raises(BadFileError, match="the file is empty"):
        read(path)


# Reads in a process of its own, and prints what it found and how much memory that took.
CHILD = """
import json, resource, sys
import pyarrow
from tokenmill.errors import TokenmillError
from tokenmill.sources.files import SourceFile
from tokenmill.sources.read import Reading, read_range
memory = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
source = SourceFile(path=sys.argv[1], kind="arrow", compression=None, size=100, modified=0)
before = memory()
try:
    found = 0
    for chunk in read_range(source, 0, 100, Reading(hold_limit=2 << 20)):
        found += sum(map(len, chunk.texts))
except TokenmillError as error:
    found = str(error)
print(json.dumps([found, memory() - before]))
"""


def read_in_child(path: Path) -> tuple[int | str, int]:
    done = subprocess.run([sys.executable, "-c", CHILD, path], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    found, memory = json.loads(done.stdout)
    return found, memory


def test_memory_is_bounded_by_what_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    path.write_bytes(write(pa.table({"text": ["a" * 4_000_000] * 15}), stream=True, rows=15))
    found, memory = read_in_child(path)
    assert found == 60_000_000
    assert memory < 40_000_000

    bomb = pa.table({"text": ["a" * 4_000_000] * 50})
    path.write_bytes(write(bomb, stream=False, rows=50, codec="zstd"))
    assert path.stat().st_size < 200_000
    found, memory = read_in_child(path)
    assert "the compressed texts from row 0 on have 200," in str(found)
    assert memory < 30_000_000

    # Many views of one text of a megabyte: a chunk at a time.
    views = pa.Array.from_buffers(
        pa.string_view(),
        100,
        [
            None,
            pa.py_buffer(struct.pack("<i4sii", 1 << 20, b"aaaa", 0, 0) * 100),
            pa.py_buffer(b"a" * (1 << 20)),
        ],
    )
    path.write_bytes(write(pa.table({"text": views}), stream=True, rows=100))
    found, memory = read_in_child(path)
    assert found == 100 << 20
    assert memory < 40_000_000


def test_a_size_that_a_buffer_claims_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    text = "some text " * 200
    data = write(pa.table({"text": [text]}), stream=True, codec="zstd")
    frame = b"\x28\xb5\x2f\xfd"
    claimed = struct.pack("<q", len(text)) + frame
    assert data.count(claimed) == 1
    path.write_bytes(data.replace(claimed, struct.pack("<q", 1 << 40) + frame))
    with pytest.raises(TooLongError, match="the compressed texts from row 0 on have 1,099,"):
        read(path, hold_limit=2 << 20)
    for wrong in (len(text) - 1, len(text) + 1, -2):
        path.write_bytes(data.replace(claimed, struct.pack("<q", wrong) + frame))
        with pytest.raises(BadFileError, match="a compressed buffer has"):
            read(path)


def test_compressed_arrow_is_refused_or_passed_over(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "a.arrow.gz"
    path.write_bytes(gzip.compress(write(pa.table({"text": ["a"]}), stream=True)))
    (tmp_path / "b.txt").write_text("text")
    sources, passed_over = find_files([tmp_path])
    assert [source.path for source in sources] == [str(tmp_path / "b.txt")]
    assert [entry.reason for entry in passed_over] == ["compressed Arrow"]
    assert texts_of(list(read_range(sources[0], 0, 4, Reading()))) == [b"text"]
