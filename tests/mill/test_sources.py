"""sources.py against the standard library, zstandard and pyarrow: sound, odd and damaged files."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import random
import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tokenmill.mill import records, sources
from tokenmill.mill.records import Chunk, Cutter
from tokenmill.mill.sources import BadFileError, count_row_groups, is_utf8, read_piece


@dataclass
class Origin:
    path: str
    kind: str
    compression: str | None
    size: int


COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}


def read(
    path: Path,
    *,
    text_field: str = "text",
    separator: bytes | None = b"<|endoftext|>",
    cutter: Cutter | None = None,
    groups: tuple[int, int] | None = None,
) -> list[Chunk]:
    compression = COMPRESSIONS.get(path.suffix)
    inner = path.with_suffix("").suffix if compression else path.suffix
    kind = {".jsonl": "jsonl", ".parquet": "parquet"}.get(inner, "text")
    size = path.stat().st_size
    start, end = groups or (0, size)
    return list(
        read_piece(
            Origin(str(path), kind, compression, size),
            start,
            end,
            1 << 20,
            separator=separator,
            text_field=text_field,
            cutter=cutter,
            border_cutter=cutter,
        )
    )


def texts_of(chunks: list[Chunk]) -> list[bytes]:
    return [text for chunk in chunks for text in chunk.texts]


def offsets_of(chunks: list[Chunk]) -> list[int]:
    return [offset for chunk in chunks for offset in chunk.offsets]


def rejections_of(chunks: list[Chunk]) -> list[tuple[int | None, int, str]]:
    found, lines = [], 0
    for chunk in chunks:
        for rejection in chunk.rejections:
            line = None if rejection.line is None else lines + rejection.line
            found.append((line, rejection.offset, rejection.kind))
        lines += chunk.lines
    return found


def test_json_lines_keep_what_can_be_kept_and_tell_why_not(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines: list[tuple[bytes, bytes | str | None]] = [
        (b'{"text": "plain"}', b"plain"),
        (b'{"text": "Gr\\u00fc\\u00dfe \\ud83d\\ude42"}', "Grüße 🙂".encode()),
        (b'{"id": NaN, "text": "beside NaN", "more": [Infinity, -Infinity]}', b"beside NaN"),
        (b'{"id": 123456789012345678901234567890, "text": "huge"}', b"huge"),
        (b'{"text": "lone \\ud800 surrogate"}', "lone surrogate"),
        (b'{"text": "bad \xff\xfe bytes"}', b"bad \xff\xfe bytes"),
        (b'{"other": "\xff", "text": "bad bytes beside"}', b"bad bytes beside"),
        (b'{"other": 1}', "no field 'text'"),
        (b'{"text": 5}', "field 'text' is not a string"),
        (b'{"text": null}', "field 'text' is not a string"),
        (b'{"text": ["a"]}', "field 'text' is not a string"),
        (b'["text"]', "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"17", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"text": "cut', "not JSON"),
        (b"<html>", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"n": ' + b"9" * 5000 + b', "text": "digits"}', "not JSON"),
        (b"", None),
        (b"  \t", None),
        (b'{"text": ""}', b""),
        (b'{"text": "a", "text": "the last of two"}', b"the last of two"),
        (b'{"text": "with CRLF"}\r', b"with CRLF"),
        (b"\r", None),
        (b'{"text": "a\\nb\\u0000c"}', b"a\nb\0c"),
        (b'  {"text": "indented"}  ', b"indented"),
        (b'{"text": "no line end"}', b"no line end"),
    ]
    path.write_bytes(b"\n".join(line for line, _ in lines))
    chunks = read(path)
    places, place = [], 0
    for line, _ in lines:
        places.append(place)
        place += len(line) + 1
    kept = [
        (at, text) for at, (_, text) in zip(places, lines, strict=True) if isinstance(text, bytes)
    ]
    found = list(zip(offsets_of(chunks), texts_of(chunks), strict=True))
    # Python may read integers of any length or refuse very long ones; both are right.
    digits = [entry for entry in found if entry[1] == b"digits"]
    assert [entry for entry in found if entry not in digits] == kept
    refused = [
        (number, at, kind)
        for number, (at, (_, kind)) in enumerate(zip(places, lines, strict=True))
        if isinstance(kind, str) and not (digits and at == digits[0][0])
    ]
    assert rejections_of(chunks) == refused
    assert sum(chunk.read for chunk in chunks) == path.stat().st_size + 1
    for chunk in chunks:
        for rejection in chunk.rejections:
            assert rejection.size == len(lines[rejection.line][0])


@pytest.mark.parametrize(
    ("record", "listed"),
    [
        ({"id": 1, "body": "x"}, "id, body"),
        ({}, "none"),
        ({f"{n}": n for n in range(30)}, f"{', '.join(map(str, range(20)))}, …"),
        ({"k" * 1000: 1}, "k" * 40 + "…"),
        ({"half \ud800": 1}, "half ?"),
    ],
)
def test_a_record_without_the_field_is_told_with_those_it_has(
    tmp_path: Path, record: dict[str, object], listed: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(record))
    (rejection,) = (rejection for chunk in read(path) for rejection in chunk.rejections)
    assert rejection.kind == "no field 'text'"
    assert rejection.reason == f"no field 'text'; it has {listed}"


@pytest.mark.parametrize("cutter", [None, Cutter()])
@pytest.mark.parametrize("block", [64, 1 << 20])
def test_the_first_byte_that_is_no_utf_8_is_known_of_every_such_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cutter: Cutter | None, block: int
) -> None:
    monkeypatch.setattr(sources, "BLOCK", block)
    monkeypatch.setattr(records, "BLOCK", block)
    path = tmp_path / "a.jsonl"
    long = b"words and words " * 50
    lines = [
        b'\xef\xbb\xbf{"text": "a mark before \xff"}',
        b'{"text": "sound"}',
        b'{"text": "escapes \\u00e9\\n and \xe9t\xe9"}',
        b'{"text": "' + long + b"\xc3 " + long + b'"}',
    ]
    data = b"\n".join(lines)
    path.write_bytes(data)
    found = {
        offset: chunk.bad_bytes[offset]
        for chunk in read(path, cutter=cutter)
        for text, offset in zip(chunk.texts, chunk.offsets, strict=True)
        if not is_utf8(text)
    }
    assert [data[place : place + 1] for place in found.values()] == [b"\xff", b"\xe9", b"\xc3"]
    assert list(found) == [data.rfind(b"\n", 0, place) + 1 for place in found.values()]
    assert found.get(data.rfind(b"\n", 0, data.index(b"\xe9")) + 1) == data.index(b"\xe9")


def test_json_lines_with_a_byte_order_mark_keep_their_first_record(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "first"}\n{"text": "second"}\n')
    chunks = read(path)
    assert texts_of(chunks) == [b"first", b"second"]
    assert rejections_of(chunks) == []


def test_json_lines_in_any_blocks_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(3)
    rows = [
        json.dumps({"text": "word " * chance.randrange(60), "n": n}) if n % 7 else "broken {"
        for n in range(80)
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(rows))
    whole = read(path)
    for block in (1, 7, 64, 200):
        monkeypatch.setattr(sources, "BLOCK", block)
        monkeypatch.setattr(records, "BLOCK", block)
        for cutter in (None, Cutter()):
            chunks = read(path, cutter=cutter)
            documents: list[tuple[int, bytes]] = []
            for chunk in chunks:
                for i, (text, at) in enumerate(zip(chunk.texts, chunk.offsets, strict=True)):
                    if i == 0 and chunk.continues:
                        assert documents[-1][0] == at
                        documents[-1] = (at, documents[-1][1] + text)
                    else:
                        documents.append((at, text))
            assert documents == list(zip(offsets_of(whole), texts_of(whole), strict=True))
            assert rejections_of(chunks) == rejections_of(whole)
            assert cutter or not any(chunk.goes_on for chunk in chunks)


def test_a_json_line_of_many_blocks_is_put_together_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BLOCK", 64)
    monkeypatch.setattr(records, "BLOCK", 64)
    text = "a word " * 100_000
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": text}))
    counts, document = read(path)  # none for the blocks before the line's end
    assert (document.texts, document.offsets) == ([text.encode()], [0])
    assert (counts.lines, counts.read) == (1, path.stat().st_size + 1)


TEXT = (b"The first document.<|endoftext|>" + "Das zweite: Grüße.\n".encode() * 40) * 5
DOCUMENTS = TEXT.split(b"<|endoftext|>")
ROWS = b"".join(json.dumps({"text": f"row {n}"}).encode() + b"\n" for n in range(50))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_every_compression_gives_the_text_that_went_in(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](TEXT))
    chunks = read(path)
    assert texts_of(chunks) == DOCUMENTS
    for text, offset in zip(texts_of(chunks), offsets_of(chunks), strict=True):
        assert TEXT[offset : offset + len(text)] == text
    assert sum(chunk.read for chunk in chunks) == path.stat().st_size
    path = tmp_path / f"b.jsonl{suffix}"
    path.write_bytes(COMPRESS[suffix](ROWS))
    assert texts_of(read(path)) == [b"row %d" % n for n in range(50)]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_members_one_after_another_are_all_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    members = [TEXT[:100], b"", TEXT[100:101], TEXT[101:]]
    path.write_bytes(b"".join(map(COMPRESS[suffix], members)))
    assert texts_of(read(path)) == DOCUMENTS


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_file_of_nothing_has_no_documents(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](b""))
    assert texts_of(read(path)) == []
    path.write_bytes(b"")
    with pytest.raises(BadFileError, match="empty"):
        read(path)


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("inner", [".txt", ".jsonl"])
def test_a_compressed_file_cut_short_anywhere_is_bad(
    tmp_path: Path, suffix: str, inner: str
) -> None:
    path = tmp_path / f"a{inner}{suffix}"
    first = COMPRESS[suffix](TEXT if inner == ".txt" else ROWS)
    data = first + COMPRESS[suffix](b"second member\n")
    for end in range(1, len(data)):
        if end == len(first):
            continue  # a whole file in itself
        path.write_bytes(data[:end])
        with pytest.raises(BadFileError, match=re.escape(str(path))) as caught:
            read(path)
        assert caught.value.source == str(path)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    data = COMPRESS[suffix](TEXT[:1000]) + COMPRESS[suffix](TEXT[1000:])
    reasons = []
    for place in range(len(data)):
        for bit in (0, 3, 7):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                assert texts_of(read(path)) == DOCUMENTS, (place, bit)
            except BadFileError as error:
                reasons.append(error.reason)
    assert len(reasons) > 2 * len(data)
    assert all("damaged" in reason or "cut short" in reason for reason in reasons)


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("junk", [b"junk behind the end", b"\0\1"])
def test_junk_behind_a_compressed_stream_is_bad(tmp_path: Path, suffix: str, junk: bytes) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](TEXT) + junk)
    with pytest.raises(BadFileError):
        read(path)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_file_that_is_not_compressed_at_all_is_bad(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(TEXT)
    with pytest.raises(BadFileError):
        read(path)


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz", "a.jsonl.xz"])
def test_utf16_is_refused_and_told_how_to_convert(tmp_path: Path, name: str, mark: bytes) -> None:
    path = tmp_path / name
    compress = COMPRESS.get(path.suffix, bytes)
    path.write_bytes(compress(mark + '{"text": "wide"}\n'.encode("utf-16-le")))
    with pytest.raises(BadFileError, match="iconv -f UTF-16"):
        read(path)


def test_a_missing_file_is_bad_not_a_crash(tmp_path: Path) -> None:
    origin = Origin(str(tmp_path / "gone.txt"), "text", None, 10)
    for kind, compression in (("text", None), ("jsonl", None), ("text", "gzip"), ("parquet", None)):
        origin.kind, origin.compression = kind, compression
        with pytest.raises(BadFileError, match=r"gone\.txt"):
            list(
                read_piece(
                    origin,
                    0,
                    10,
                    10,
                    separator=None,
                    text_field="text",
                    cutter=None,
                    border_cutter=None,
                )
            )


def test_a_file_that_became_shorter_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"some text")
    origin = Origin(str(path), "text", None, 100)
    with pytest.raises(BadFileError, match="shorter"):
        list(
            read_piece(
                origin,
                0,
                100,
                100,
                separator=None,
                text_field="text",
                cutter=None,
                border_cutter=None,
            )
        )


def test_the_error_travels_between_processes(tmp_path: Path) -> None:
    error = pickle.loads(pickle.dumps(BadFileError("a.txt", "it is bad")))
    assert (error.source, error.reason, str(error)) == ("a.txt", "it is bad", "a.txt: it is bad")


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


def test_parquet_row_groups_are_read_one_range_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_ROWS", 3)
    path = tmp_path / "a.parquet"
    values = [f"row {n}" for n in range(50)]
    write_parquet(path, pa.string(), values, row_group_size=7)
    assert len(count_row_groups(str(path))) == 8
    found = []
    for start, end in ((0, 1), (1, 4), (4, 4), (4, 8)):
        chunks = read(path, groups=(start, end))
        found += zip(offsets_of(chunks), texts_of(chunks), strict=True)
    assert found == [(n, value.encode()) for n, value in enumerate(values)]


def test_long_texts_in_parquet_come_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BLOCK", 64)
    monkeypatch.setattr(records, "BLOCK", 64)
    values = ["short", "words and more words\n" * 30, "short again", "9" * 500, "the end"]
    path = tmp_path / "a.parquet"
    write_parquet(path, pa.string(), values)
    documents: list[tuple[int, bytes]] = []
    for chunk in read(path, cutter=Cutter()):
        for i, (text, row) in enumerate(zip(chunk.texts, chunk.offsets, strict=True)):
            if i == 0 and chunk.continues:
                documents[-1] = (row, documents[-1][1] + text)
            else:
                documents.append((row, text))
    assert documents == [(n, value.encode()) for n, value in enumerate(values)]
    assert texts_of(read(path)) == [value.encode() for value in values]


def test_parquet_without_the_column_names_those_there_are(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, pa.string())
    told = "no column 'body'; it has number, text; say --text-field text"
    with pytest.raises(BadFileError, match=f"{told}$"):
        read(path, text_field="body")
    with pytest.raises(BadFileError, match="column 'number' holds int64, not text"):
        read(path, text_field="number")
    pq.write_table(pa.table({"id": [1], "n": [2]}), path)
    with pytest.raises(BadFileError, match=r"no column 'text'; it has id, n, none with text$"):
        read(path)


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
        assert count_row_groups(str(path)) == []
        with pytest.raises(BadFileError, match="Parquet"):
            read(path)
    path.write_bytes(data[:2000] + b"\xff" * 300 + data[2300:])
    try:
        texts = texts_of(read(path))
    except BadFileError:
        texts = []
    assert all(text.decode() in values for text in texts)
