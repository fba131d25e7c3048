"""Parquet files as sources, against pyarrow: valid, odd and damaged."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reading import offsets_of, read, rejections_of, texts_of

from tokenmill.sources.files import BadFileError
from tokenmill.sources.parquet import measure_row_groups
from tokenmill.sources.records import Cutter

VALUES = ["first", None, "Grüße 🙂", "", "first", "a\nb\0c", None, "last"]
COLUMNS = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "dictionary of large": pa.dictionary(pa.int8(), pa.large_string()),
    "dictionary of binary": pa.dictionary(pa.int16(), pa.binary()),
}


def write_parquet(path: Path, kind: pa.DataType, values=VALUES, **options) -> None:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = "string" in str(plain)
    data = [value if value is None or is_text else value.encode() for value in values]
    column = pa.array(data, plain)
    if pa.types.is_dictionary(kind):
        column = column.dictionary_encode().cast(kind)
    numbers = pa.array(range(len(values)))
    pq.write_table(pa.table({"number": numbers, "text": column}), path, **options)


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("group", [2, 3, 100])
def test_parquet_columns_of_every_kind_of_text(tmp_path: Path, name: str, group: int) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, COLUMNS[name], row_group_size=group)
    chunks = read(path)
    rows = [(row, value) for row, value in enumerate(VALUES) if value is not None]
    assert offsets_of(chunks) == [row for row, _ in rows]
    assert texts_of(chunks) == [value.encode() for _, value in rows]
    nulls = [row for row, value in enumerate(VALUES) if value is None]
    assert [(row, kind) for _, row, kind in rejections_of(chunks)] == [
        (row, "field 'text' is not a string") for row in nulls
    ]


def test_parquet_row_groups_are_read_one_range_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = [f"row {n}" for n in range(50)]
    write_parquet(path, pa.string(), values, row_group_size=7)
    assert len(measure_row_groups(str(path))) == 8
    found = []
    for start, end in ((0, 1), (1, 4), (4, 4), (4, 8)):
        chunks = read(path, groups=(start, end), rows=3)
        found += zip(offsets_of(chunks), texts_of(chunks), strict=True)
    assert found == [(n, value.encode()) for n, value in enumerate(values)]


def test_long_texts_in_parquet_come_in_fragments(tmp_path: Path) -> None:
    values = ["short", "words and more words\n" * 30, "short again", "9" * 500, "the end"]
    path = tmp_path / "a.parquet"
    write_parquet(path, pa.string(), values)
    documents: list[tuple[int, bytes]] = []
    for chunk in read(path, cutter=Cutter(), block=64):
        for i, (text, row) in enumerate(zip(chunk.texts, chunk.offsets, strict=True)):
            if i == 0 and chunk.continues:
                documents[-1] = (row, documents[-1][1] + text)
            else:
                documents.append((row, text))
    assert documents == [(n, value.encode()) for n, value in enumerate(values)]
    assert texts_of(read(path, block=64)) == [value.encode() for value in values]


def test_parquet_without_the_column_lists_the_existing_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, pa.string())
    message = "no column 'body'; it has number, text; use `text_field='text'`"
    with pytest.raises(BadFileError, match=f"{message}$"):
        read(path, text_field="body")
    with pytest.raises(BadFileError, match="column 'number' holds int64, not text"):
        read(path, text_field="number")
    pq.write_table(pa.table({"id": [1], "n": [2]}), path)
    with pytest.raises(
        BadFileError, match=r"no column 'text'; it has id, n; none of them holds text$"
    ):
        read(path)


def test_a_small_footer_is_read_even_if_little_may_be_held(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["one"]}), path)
    assert texts_of(read(path, hold_limit=64)) == [b"one"]


def test_parquet_without_rows_has_no_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, pa.string(), [])
    assert texts_of(read(path)) == []
    with pq.ParquetWriter(path, pa.schema([("text", pa.string())])):
        pass
    assert texts_of(read(path)) == []


def test_parquet_columns_with_dots_and_nested_ones_beside(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table(
        {
            "meta": pa.array([{"text": "inner"}, {"text": "inner"}]),
            "a.b": pa.array(["one", "two"]),
            "text": pa.array(["outer one", "outer two"]),
        }
    )
    pq.write_table(table, path)
    assert texts_of(read(path)) == [b"outer one", b"outer two"]
    assert texts_of(read(path, text_field="a.b")) == [b"one", b"two"]
    with pytest.raises(BadFileError, match="holds struct"):
        read(path, text_field="meta")


def test_damaged_parquet_is_bad_never_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = [f"row {n} " * 20 for n in range(300)]
    write_parquet(path, pa.string(), values, row_group_size=100, write_page_checksum=True)
    data = path.read_bytes()
    for end in [0, 1, 3, 4, 8, 100, *range(200, len(data), 997), len(data) - 8, len(data) - 1]:
        path.write_bytes(data[:end])
        assert measure_row_groups(str(path)) == []
        with pytest.raises(BadFileError, match="Parquet"):
            read(path)
    path.write_bytes(data[:2000] + b"\xff" * 300 + data[2300:])
    try:
        texts = texts_of(read(path))
    except BadFileError:
        texts = []
    assert all(text.decode() in values for text in texts)


def test_two_columns_of_one_name_are_named_unless_they_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = [pa.array(["a"]), pa.array(["b"]), pa.array(["c"])]
    pq.write_table(pa.table(columns, names=["text", "id", "text"]), path)
    with pytest.raises(BadFileError, match="2 columns are named 'text'; rename"):
        read(path)
    pq.write_table(pa.table(columns, names=["id", "text", "id"]), path)
    assert texts_of(read(path)) == [b"b"]
