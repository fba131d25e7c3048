"""Nested fields and templates: JSON lines and Parquet give the texts of a plain second implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import offsets_of, read, rejections_of, texts_of

from tokenmill.errors import TooLongError, UsageError
from tokenmill.preparation.settings import PrepareSettings
from tokenmill.sources.files import BadFileError
from tokenmill.sources.find import find_files
from tokenmill.sources.recognize import find_fault
from tokenmill.sources.records import Cutter

NAMES = ["text", "title", "meta", "meta.text", "a.b.c", "a"]
VALUES = st.none() | st.text(max_size=5) | st.integers(0, 9)
RECORDS = st.recursive(
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4),
    lambda inner: st.dictionaries(st.sampled_from([*NAMES, "b", "c"]), inner | VALUES, max_size=4),
    max_leaves=8,
)
FIELDS = ["text", "meta.text", "a.b.c", "title"]


def expect(record: Any, name: str, *, optional: bool) -> str | None:
    """The text of one field, read the long way; None if the record is to be rejected."""
    if name in record:
        found = record[name]
    else:
        found = record
        for part in name.split("."):
            if not isinstance(found, dict) or part not in found:
                return "" if optional else None
            found = found[part]
    if found is None and optional:
        return ""
    return found if isinstance(found, str) else None


def expect_template(record: Any, pieces: list[str | tuple[str, bool]]) -> str | None:
    texts = [
        piece if isinstance(piece, str) else expect(record, piece[0], optional=piece[1])
        for piece in pieces
    ]
    if None in texts:
        return None
    parts = [text for text, piece in zip(texts, pieces, strict=True) if not isinstance(piece, str)]
    return "".join(map(str, texts)) if any(parts) else ""


def write(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@settings(max_examples=200, deadline=None)
@given(
    st.lists(RECORDS, min_size=1, max_size=5),
    st.lists(
        st.sampled_from([" ", "\n", "é{}"]) | st.tuples(st.sampled_from(FIELDS), st.booleans()),
        min_size=1,
        max_size=4,
    ),
)
def test_any_template_on_any_records(
    tmp_path_factory: pytest.TempPathFactory, records: list[Any], pieces: list[Any]
) -> None:
    if not any(isinstance(piece, tuple) for piece in pieces):
        pieces = [*pieces, ("text", False)]
    template = "".join(
        piece.replace("{", "{{").replace("}", "}}").replace("\n", "\\n")
        if isinstance(piece, str)
        else f"{{{piece[0]}{'?' if piece[1] else ''}}}"
        for piece in pieces
    )
    path = write(tmp_path_factory.mktemp("fields") / "a.jsonl", records)
    chunks = read(path, text_field=template)
    expected = [expect_template(record, pieces) for record in records]
    assert [text.decode() for text in texts_of(chunks)] == [
        text for text in expected if text is not None
    ]
    assert len(rejections_of(chunks)) == expected.count(None)


@pytest.mark.parametrize("name", FIELDS)
def test_a_dot_leads_into_an_object_unless_a_field_has_the_whole_name(
    tmp_path: Path, name: str
) -> None:
    records = [{name: "whole"}, {"meta": {"text": "nested"}, "a": {"b": {"c": "deep"}}}, {name: 1}]
    chunks = read(write(tmp_path / "a.jsonl", records), text_field=name)
    expected = [expect(record, name, optional=False) for record in records]
    assert texts_of(chunks) == [text.encode() for text in expected if text is not None]


def test_rejections_name_the_place_where_the_path_ends(tmp_path: Path) -> None:
    records = [{"id": 1}, {"meta": {"url": "u"}}, {"meta": 3}, {"meta": {"text": []}}, [1]]
    path = write(tmp_path / "a.jsonl", records)
    for field in ("meta.text", "{meta.text}!"):
        reasons = [one.reason for chunk in read(path, text_field=field) for one in chunk.rejections]
        assert reasons == [
            "no field 'meta.text'; it has id",
            "no field 'meta.text'; 'meta' has url",
            "no field 'meta.text': 'meta' is a number, not an object",
            "field 'meta.text' is an array, not a string",
            "a JSON array, not an object",
        ]
    (source,), _ = find_files([path])
    fault = find_fault(source, "meta.text")
    assert fault == (
        "line 1: no field 'meta.text'; it has id; name the field with `text_field=NAME`"
    )


@pytest.mark.parametrize("template", ["{a}}", "{a} {", "}{a}"])
def test_a_single_brace_in_a_template_is_refused(template: str) -> None:
    with pytest.raises(UsageError, match="a template with a single"):
        PrepareSettings(text_field=template)


def test_braces_without_a_name_are_a_plain_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"{}": "a", "}": "b"}])
    assert texts_of(read(path, text_field="{}")) == [b"a"]
    assert texts_of(read(path, text_field="}")) == [b"b"]


TABLE = {
    "title": ["one", None, "three", None],
    "meta": [{"text": "a", "n": 1}, {"text": None, "n": 2}, None, {"text": "d" * 300, "n": 4}],
    "x.y": ["p", "q", "r", "s"],
    "x": [{"y": "never"}] * 4,
}


@pytest.mark.parametrize("kind", ["plain", "dictionary"])
@pytest.mark.parametrize(
    ("field", "pieces"),
    [
        ("meta.text", [("meta.text", False)]),
        ("x.y", [("x.y", False)]),
        ("{title}", [("title", False)]),
        ("{title?}", [("title", True)]),
        (r"{title?}\n\n{x.y}", [("title", True), "\n\n", ("x.y", False)]),
        ("{title?}{meta.text?}", [("title", True), ("meta.text", True)]),
        ("<{title?}|{meta.text?}>", ["<", ("title", True), "|", ("meta.text", True), ">"]),
        ("<{title}|{none?}>", ["<", ("title", False), "|", ("none", True), ">"]),
    ],
)
def test_parquet_gives_the_same_texts_as_json_lines(
    tmp_path: Path, field: str, pieces: list[Any], kind: str
) -> None:
    table = pa.table(TABLE)
    if kind == "dictionary":
        table = table.set_column(0, "title", table["title"].dictionary_encode())
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=3)
    expected = [expect_template(record, pieces) for record in pa.table(TABLE).to_pylist()]
    chunks = read(path, text_field=field, block=64, cutter=Cutter())
    texts: dict[int, bytes] = {}
    for chunk in chunks:
        for text, row in zip(chunk.texts, chunk.offsets, strict=True):
            texts[row] = texts.get(row, b"") + text
    assert texts == {row: text.encode() for row, text in enumerate(expected) if text is not None}
    assert [row for _, row, _ in rejections_of(chunks)] == [
        row for row, text in enumerate(expected) if text is None
    ]
    lines = write(tmp_path / "a.jsonl", pa.table(TABLE).to_pylist())
    assert texts_of(read(lines, text_field=field)) == [texts[row] for row in sorted(texts)]
    assert len(offsets_of(read(lines, text_field=field))) == len(texts)


def test_parquet_names_the_columns_inside_a_struct(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(TABLE), path)
    uses = "use `text_field='title'` or `text_field='meta.text'` or `text_field='x.y'`"
    for field, message in {
        "meta.body": f"no column 'meta.body'; 'meta' has text, n; {uses}",
        "{title} {meta.body}": f"no column 'meta.body'; 'meta' has text, n; {uses}",
        "title.x": f"no column 'title.x'; it has title, meta, x.y, x; {uses}",
        "{a?}{b?}": f"no column 'a'; it has title, meta, x.y, x; {uses}",
        "meta.n": "column 'meta.n' holds int64, not text",
    }.items():
        with pytest.raises(BadFileError) as refused:
            read(path, text_field=field)
        assert message in str(refused.value)


def test_a_joined_text_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": ["x", "a" * 3000], "b": ["y", "b" * 3000]}), path)
    assert len(texts_of(read(path, text_field="{a}{b}", hold_limit=1600))) == 2
    with pytest.raises(
        TooLongError, match=r"row 1 has 6,000 bytes|from row 0 on have 6,\d{3} bytes"
    ):
        read(path, text_field="{a}{b}", hold_limit=1400)
