"""CSV and TSV rows: compared with pyarrow, with `csv.writer`, and with a reader of whole files."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import pyarrow.csv as pa_csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import source_of

from tokenmill.errors import TooLongError
from tokenmill.sources.csv_kind import choose_csv_kind, note_plain_csv
from tokenmill.sources.csv_rows import read_csv
from tokenmill.sources.files import BadFileError
from tokenmill.sources.find import find_files
from tokenmill.sources.read import Reading, read_range
from tokenmill.sources.recognize import find_fault
from tokenmill.sources.records import Chunk, Cutter

CELLS = st.text(st.sampled_from('a,;\t"\r\n é\u2028😀'), max_size=6)


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def texts_of(chunks: list[Chunk]) -> list[bytes]:
    return [text for chunk in chunks for text in chunk.texts]


def rejections_of(chunks: list[Chunk]) -> list[tuple[int, int, str]]:
    """The line (from 1), the offset and the kind of each rejection."""
    found, lines = [], 0
    for chunk in chunks:
        found += [(lines + (one.line or 0) + 1, one.offset, one.kind) for one in chunk.rejections]
        lines += chunk.lines
    return found


def read_file(path: Path, **how: Any) -> list[Chunk]:
    (source,), _ = find_files([path])
    source = choose_csv_kind(source, "text", "records")
    assert source.kind == "csv"
    return list(read_range(source, 0, source.size, Reading(**how)))


def fault_of(path: Path, text_field: str = "text") -> str | None:
    (source,), _ = find_files([path])
    return find_fault(choose_csv_kind(source, text_field, "records"), text_field)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=8),
    st.sampled_from([",", "\t", ";"]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.integers(1, 30),
)
def test_any_written_rows_are_read_again(
    rows: list[tuple[str, str, str]], delimiter: str, end: str, quoting: Any, size: int
) -> None:
    if any(sign in cell for sign in "\r\n" for row in rows for cell in row):
        quoting = csv.QUOTE_ALL  # the writer quotes only the line ends that it writes itself
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerow(["id", "text", "more"])
    starts = []
    for row in rows:
        starts.append(len(file.getvalue().encode()))
        writer.writerow(row)
    data = file.getvalue().encode()
    name = "a.tsv.gz" if delimiter == "\t" else "a.csv"
    chunks = list(read_csv(cut(data, size), name, "text", None, block_bytes=size))
    assert texts_of(chunks) == [row[1].encode() for row in rows]
    assert [offset for chunk in chunks for offset in chunk.offsets] == starts
    assert sum(chunk.lines for chunk in chunks) == data.count(b"\n")
    assert sum(chunk.read for chunk in chunks) == len(data)
    options = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    if end != "\r" and not any("\r" in cell for row in rows for cell in row):
        convert = pa_csv.ConvertOptions(column_types={"text": "string"}, strings_can_be_null=False)
        table = pa_csv.read_csv(io.BytesIO(data), parse_options=options, convert_options=convert)
        assert texts_of(chunks) == [text.encode() for text in table["text"].to_pylist()]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([b'"', b",", b"\n", b"\r\n", b"a", b"\xff"]), max_size=20),
    st.integers(1, 6),
)
def test_broken_rows_never_depend_on_the_blocks(pieces: list[bytes], size: int) -> None:
    """Whatever the bytes are: every row of the plain reader is a text or a rejection."""

    def result(blocks: list[bytes]) -> Any:
        try:
            chunks = list(read_csv(blocks, "a.csv", "text", None, block_bytes=size))
        except BadFileError as error:
            return error.reason
        return texts_of(chunks), rejections_of(chunks)

    data = b"text,id\n" + b"".join(pieces)
    found = result(cut(data, size))
    assert found == result([data])
    reader = csv.reader(
        io.StringIO(data.decode("utf-8", "surrogateescape"), newline=""), strict=True
    )
    rows, errors = [], 0
    while True:
        try:
            rows.append(next(reader))
        except StopIteration:
            break
        except csv.Error as error:
            if "unexpected end" in str(error):
                assert "is never closed" in found
                return
            errors += 1
    kept = [row[0].encode("utf-8", "surrogateescape") for row in rows[1:] if len(row) == 2]
    wrong = [row for row in rows[1:] if row and len(row) != 2]
    assert found[0] == kept
    assert len(found[1]) == len(wrong) + errors


def test_records_lines_and_reasons(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        b'\xef\xbb\xbf\n"text",id\r\n"two\nlines, ""quoted""",1\n\n\xff bad,2\nx\n"a"b,3\ny,4,5\nz,6'
    )
    chunks = read_file(path)
    assert texts_of(chunks) == [b'two\nlines, "quoted"', b"\xff bad", b"z"]
    data = path.read_bytes()
    assert [data[place : place + 2] for place in chunks[0].offsets] == [b'"t', b"\xff ", b"z,"]
    assert [(line, kind) for line, _, kind in rejections_of(chunks)] == [
        (7, "wrong number of fields"),
        (8, "not CSV"),
        (9, "wrong number of fields"),
    ]
    assert chunks[0].bad_bytes == {data.index(b"\xff bad"): data.index(b"\xff bad")}
    assert chunks[0].line_of(data.index(b"\xff bad")) == 5
    compressed = tmp_path / "a.csv.gz"
    compressed.write_bytes(gzip.compress(data))
    assert texts_of(read_file(compressed)) == texts_of(chunks)


def test_templates_over_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("title,a.b,body\none,1,x\n,2,\n")
    assert texts_of(read_file(path, text_field=r"{title?}\n{body}")) == [b"one\nx", b""]
    assert texts_of(read_file(path, text_field="<{a.b}{none?}>")) == [b"<1>", b"<2>"]
    assert texts_of(read_file(path, text_field="a.b")) == [b"1", b"2"]


def test_wrong_columns_are_named_with_those_there_are(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,body,body\n1,2,3\n" * 9000)
    cure = "name the column of text with `text_field=NAME`"
    for field, reason in {
        "text": f"no column 'text'; it has id, body, body; {cure}",
        "{id} {x}": f"no column 'x'; it has id, body, body; {cure}",
        "{x?}": f"no column 'x'; it has id, body, body; {cure}",
        "body": "2 columns are named 'body'; rename all but the one to read",
    }.items():
        with pytest.raises(BadFileError) as refused:
            read_file(path, text_field=field)
        assert refused.value.reason == reason == fault_of(path, field)
    assert fault_of(path, "id") is None
    path.write_text("\n\n")
    assert fault_of(path) == "the file has no header, which names the columns"


def test_a_quote_that_is_never_closed_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,id\nfine,1\n"never,2\nmore,3\n')
    with pytest.raises(BadFileError, match="a quote in the row at byte 15 is never closed"):
        read_file(path)
    assert "never closed" in str(fault_of(path))
    path.write_text('text,id\nfine,1\n"' + "long " * 20_000 + '",2\n')
    assert fault_of(path) is None  # its head ends within quotes
    assert len(texts_of(read_file(path))[1]) == 100_000


def test_long_rows_are_refused_by_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,id\na,1\n"' + b"words\n" * 500_000 + b'",2\n')
    with pytest.raises(TooLongError, match=r"the row at byte 12 has at least 2,\d{3},\d{3} bytes"):
        read_file(path, hold_limit=1 << 20)
    path.write_bytes(b"text,id\na,1\n" + b"a" * 3_000_000 + b",2\n")
    with pytest.raises(TooLongError, match="the row at byte 12 has at least 2,"):
        read_file(path, hold_limit=1 << 20, block=1 << 16)
    path.write_bytes(b"text,id\na,1\n" + b"a," * 900_000 + b"2\n")
    with pytest.raises(TooLongError, match="the row at byte 12 has at least 900,000 fields"):
        read_file(path, hold_limit=1 << 20)


def test_long_texts_come_in_fragments(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text\nshort\n"' + "many words,\n" * 100 + '"\nend\n')
    chunks = read_file(path, block=64, cutter=Cutter())
    assert sum(chunk.continues for chunk in chunks) > 10
    assert b"".join(texts_of(chunks)) == b"short" + b"many words,\n" * 100 + b"end"


@pytest.mark.parametrize(
    ("name", "field", "mode", "kind"),
    [
        ("a.csv", "text", "auto", "text"),
        ("a.csv", "body", "auto", "csv"),
        ("a.csv", "{id}: {body}", "auto", "csv"),
        ("a.csv", "none", "auto", "text"),
        ("a.csv", "none", "records", "csv"),
        ("a.csv", "body", "text", "text"),
        ("a.txt", "body", "records", "text"),
    ],
)
def test_when_a_file_is_read_as_records(
    tmp_path: Path, name: str, field: str, mode: Any, kind: str
) -> None:
    path = tmp_path / name
    path.write_text("id,text,body\n1,2,3\n")
    source = source_of(path)
    assert choose_csv_kind(source, field, mode).kind == kind
    notes = note_plain_csv([choose_csv_kind(source, field, mode)], field)
    assert bool(notes) == (kind == "text" and name == "a.csv" and mode == "auto") or mode == "text"
