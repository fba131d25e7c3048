"""A `.json` file with one array is read element by element, like the standard library reads it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.errors import TooLongError
from tokenmill.sources.files import BadFileError
from tokenmill.sources.find import find_files
from tokenmill.sources.json_array import read_json_array
from tokenmill.sources.read import Reading, read_range
from tokenmill.sources.recognize import find_fault
from tokenmill.sources.records import Chunk, Cutter

TRICKY = st.text(st.sampled_from('a"\\[]{},: \né\u2028'), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TRICKY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TRICKY, inner, max_size=3),
    max_leaves=6,
)
ELEMENTS = (
    TRICKY
    | VALUES
    | st.fixed_dictionaries({"text": TRICKY | VALUES}, optional={"meta": VALUES, '"': VALUES})
)


def expect(element: Any) -> bytes | None:
    if isinstance(element, dict) and isinstance(element.get("text"), str):
        return element["text"].encode()
    return element.encode() if isinstance(element, str) else None


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def read_file(path: Path, **how: Any) -> list[Chunk]:
    (source,), _ = find_files([path])
    assert source.kind == "json"
    return list(read_range(source, 0, source.size, Reading(**how)))


def found_in(chunks: list[Chunk]) -> tuple[list[bytes], list[int], list[int]]:
    return (
        [text for chunk in chunks for text in chunk.texts],
        [offset for chunk in chunks for offset in chunk.offsets],
        [one.offset for chunk in chunks for one in chunk.rejections],
    )


@settings(max_examples=300, deadline=None)
@given(
    st.lists(ELEMENTS, max_size=8),
    st.booleans(),
    st.sampled_from([None, 1, 4]),
    st.sampled_from([(",", ":"), (" ,\n", " : ")]),
    st.integers(1, 40),
)
def test_any_array_in_any_blocks_gives_what_the_standard_library_gives(
    elements: list[Any], ascii: bool, indent: int | None, separators: Any, size: int
) -> None:
    text = json.dumps(elements, ensure_ascii=ascii, indent=indent, separators=separators)
    data = f" {text}\n\n".encode()
    texts, offsets, refused = found_in(
        list(read_json_array(cut(data, size), "a.json", "text", None))
    )
    expected = [expect(element) for element in elements]
    assert texts == [one for one in expected if one is not None]
    assert len(refused) == expected.count(None)
    decoder = json.JSONDecoder()
    for place in [*offsets, *refused]:
        value, _ = decoder.raw_decode(data[place:].decode())
        assert (expect(value) is None) == (place in refused)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from('[]{}",\\:1 a\n'), max_size=30), st.integers(1, 8))
def test_broken_arrays_never_depend_on_the_blocks(text: str, size: int) -> None:
    """Broken text is refused, or gives the same records however it arrives."""

    def result(blocks: list[bytes]) -> Any:
        chunks = []
        try:
            for chunk in read_json_array(blocks, "a.json", "text", None):
                chunks.append(chunk)
        except BadFileError as error:
            return found_in(chunks), error.reason
        return found_in(chunks), None

    data = b"[" + text.encode()
    assert result(cut(data, size)) == result([data])


def test_records_lines_and_reasons(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(
        b'\n[{"text": "a"},\n{"body": "b"},\n 3, {"text": "\xff"}, {"text": NaN},\n,"s",'
        b'{"text": "\\ud800"}, {bad},\n{"text": "z"}, ]\n'
    )
    chunks = read_file(path)
    texts, offsets, _ = found_in(chunks)
    assert texts == [b"a", b"\xff", b"s", b"z"]
    data = path.read_bytes()
    assert [data[place : place + 1] for place in offsets] == [b"{", b"{", b'"', b"{"]
    assert chunks[1].bad_bytes == {offsets[1]: data.index(b"\xff")}
    lines, refused = 0, []
    for chunk in chunks:
        refused += [(lines + (one.line or 0) + 1, one.reason) for one in chunk.rejections]
        lines += chunk.lines
    assert lines == 6 - 1  # up to the end of the array
    assert refused == [
        (3, "no field 'text'; it has body"),
        (4, "a JSON number, not an object"),
        (4, "field 'text' is a number, not a string"),
        (5, "not JSON: no value before a comma or the end of the array"),
        (5, "field 'text' holds a lone surrogate"),
        (
            5,
            "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        (6, "not JSON: no value before a comma or the end of the array"),
    ]


@pytest.mark.parametrize("compress", [False, True])
def test_a_truncated_array_names_the_place(tmp_path: Path, compress: bool) -> None:
    whole = json.dumps([{"text": "words, \\ and [more]"}] * 3, indent=1).encode()
    path = tmp_path / ("a.json.gz" if compress else "a.json")
    for end in (1, 30, 60, len(whole) - 1):
        data = whole[:end]
        path.write_bytes(gzip.compress(data) if compress else data)
        with pytest.raises(BadFileError, match=f"is cut short: it ends at byte {end}, in the"):
            read_file(path)
        (source,), _ = find_files([path])
        assert f"it ends at byte {end}" in str(find_fault(source, "text"))


def test_more_after_the_array_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for more in (b"x", b"\n\n[]", b", 1"):
        path.write_bytes(b'[\n"a",\n"b"]' + more)
        place = len(b'[\n"a",\n"b"]') + len(more) - len(more.lstrip())
        with pytest.raises(BadFileError, match=f"ends before byte {place}, but"):
            read_file(path, block=4)


def test_long_and_deep_elements_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'["a",  {"text": "' + b"a" * 3_000_000 + b'"}, "z"]')
    with pytest.raises(TooLongError, match=r"the record at byte 7 has 3,000,012 bytes"):
        read_file(path, hold_limit=1 << 16, block=1 << 14)
    path.write_bytes(b'["a", ' + b'{"a":[' * 300_000 + b"]}" * 300_000 + b', "z"]')
    chunks = read_file(path, hold_limit=8 << 20)
    texts, _, refused = found_in(chunks)
    assert (texts, refused) == ([b"a", b"z"], [6])
    many = b",".join([b"{}"] * 1_000_000)
    path.write_bytes(b'["a", [' + many + b"]]")
    with pytest.raises(TooLongError, match=r"the record at byte 6 has 2,000,000 values"):
        read_file(path, hold_limit=1 << 20)


def test_long_texts_come_in_fragments(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(["short", "many words " * 100, "end"]))
    chunks = read_file(path, block=64, cutter=Cutter())
    assert sum(chunk.continues for chunk in chunks) > 10
    assert b"".join(found_in(chunks)[0]) == b"short" + b"many words " * 100 + b"end"


def test_a_wrong_field_is_named_with_the_fields_there_are(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"id": 1, "body": "b"}] * 9000, indent=2))
    (source,), _ = find_files([path])
    assert find_fault(source, "text") == (
        "line 2: no field 'text'; it has id, body; name the field with `text_field=NAME`"
    )
    assert find_fault(source, "body") is None
