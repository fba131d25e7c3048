"""read.py against the standard library and zstandard: valid, odd and damaged files."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import random
import re
from pathlib import Path

import pytest
import zstandard
from reading import offsets_of, read, rejections_of, source_of, texts_of

from tokenmill.errors import InputError
from tokenmill.sources.files import BadFileError
from tokenmill.sources.json_lines import read_json_lines
from tokenmill.sources.read import Reading, read_range
from tokenmill.sources.records import MOST_RECORDS, Cutter, is_utf8


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}


def test_json_lines_keep_valid_records_and_explain_the_others(tmp_path: Path) -> None:
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
        ({"half \ud800": 1}, "half \\ud800"),
        ({"a\nb\u200b": 1}, "a\\nb\\u200b"),
    ],
)
def test_a_record_without_the_field_lists_the_fields_it_has(
    tmp_path: Path, record: dict[str, object], listed: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(record))
    (rejection,) = (rejection for chunk in read(path) for rejection in chunk.rejections)
    assert rejection.kind == "no field 'text'"
    assert rejection.reason == f"no field 'text'; it has {listed}"


@pytest.mark.parametrize("cutter", [None, Cutter()])
@pytest.mark.parametrize("block", [64, 1 << 20])
def test_the_first_byte_that_is_not_utf_8_is_recorded_for_every_such_record(
    tmp_path: Path, cutter: Cutter | None, block: int
) -> None:
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
        for chunk in read(path, cutter=cutter, block=block)
        for text, offset in zip(chunk.texts, chunk.offsets, strict=True)
        if not is_utf8(text)
    }
    assert [data[place : place + 1] for place in found.values()] == [b"\xff", b"\xe9", b"\xc3"]
    assert list(found) == [data.rfind(b"\n", 0, place) + 1 for place in found.values()]
    assert found.get(data.rfind(b"\n", 0, data.index(b"\xe9")) + 1) == data.index(b"\xe9")


def test_many_short_json_lines_come_in_several_chunks() -> None:
    # Each line takes up to 1 kB of memory on its way, so a block of them would exceed any limit.
    lines = [b'{"text":"a"}', b"1", b""] * MOST_RECORDS
    chunks = list(read_json_lines([b"\n".join(lines)], 0, "text", None))
    assert all(chunk.lines <= MOST_RECORDS for chunk in chunks)
    assert sum(chunk.lines for chunk in chunks) == len(lines) - 1  # the last line has no line end
    offsets = [offset for chunk in chunks for offset in chunk.offsets]
    assert offsets == list(range(0, 16 * MOST_RECORDS, 16))
    rejected = [rejection.offset for chunk in chunks for rejection in chunk.rejections]
    assert rejected == [offset + 13 for offset in offsets]


def test_json_lines_with_a_byte_order_mark_keep_their_first_record(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "first"}\n{"text": "second"}\n')
    chunks = read(path)
    assert texts_of(chunks) == [b"first", b"second"]
    assert rejections_of(chunks) == []


def test_json_lines_in_any_blocks_are_the_same(tmp_path: Path) -> None:
    chance = random.Random(3)
    rows = [
        json.dumps({"text": "word " * chance.randrange(60), "n": n}) if n % 7 else "broken {"
        for n in range(80)
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(rows))
    whole = read(path)
    for block in (1, 7, 64, 200):
        for cutter in (None, Cutter()):
            chunks = read(path, cutter=cutter, block=block)
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
            assert cutter or not any(chunk.unfinished for chunk in chunks)


def test_a_json_line_of_many_blocks_is_joined_once(tmp_path: Path) -> None:
    text = "a word " * 100_000
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": text}))
    counts, document = read(path, block=64)  # none for the blocks before the line's end
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
def test_an_empty_compressed_file_has_no_documents(tmp_path: Path, suffix: str) -> None:
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
def test_junk_after_a_compressed_stream_is_bad(tmp_path: Path, suffix: str, junk: bytes) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](TEXT) + junk)
    with pytest.raises(BadFileError):
        read(path)


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("zeros", [1, 512, 200_000])
def test_zeros_after_a_compressed_stream_are_padding(
    tmp_path: Path, suffix: str, zeros: int
) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](TEXT[:100]) + COMPRESS[suffix](TEXT[100:]) + bytes(zeros))
    assert texts_of(read(path)) == DOCUMENTS


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("zeros", [1, 64, 200_000])
def test_a_compressed_file_of_zeros_is_bad(tmp_path: Path, suffix: str, zeros: int) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(bytes(zeros))  # as a power failure may leave it
    with pytest.raises(BadFileError):
        read(path)


def zstd_long(data: bytes, window_log: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(
        window_log=window_log, enable_ldm=False, write_content_size=False, compression_level=1
    )
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("before", [b"", zstd(b"a frame before<|endoftext|>")])
@pytest.mark.parametrize("window_log", [28, 30, 31])
def test_zstd_with_a_long_window_is_read_where_memory_allows(
    tmp_path: Path, window_log: int, before: bytes
) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(before + zstd_long(TEXT, window_log))
    chunks = read(path, window=1 << window_log)
    assert texts_of(chunks)[bool(before) :] == DOCUMENTS
    with pytest.raises(InputError, match="window of") as refused:
        read(path, window=(1 << window_log) - 1)
    assert not isinstance(refused.value, BadFileError)  # or skip_bad_files would skip it
    assert f"`memory={(1 << window_log) + (128 << 20)}`" in str(refused.value)
    assert str(path) in str(refused.value)


def test_bytes_after_a_zstd_frame_are_damage_and_no_header_of_a_window(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstd(TEXT) + b"junk\0" + bytes([20 << 3]) + b"junk" * 5)
    with pytest.raises(BadFileError):
        read(path)


def test_a_single_segment_zstd_frame_needs_a_window_as_large_as_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    for size in (100, 300, 70_000):
        parameters = zstandard.ZstdCompressionParameters(window_log=20)
        data = zstandard.ZstdCompressor(compression_params=parameters).compress(b"w " * size)
        path.write_bytes(data)
        assert sum(map(len, texts_of(read(path, window=1 << 18)))) == 2 * size


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_file_that_is_not_compressed_at_all_is_bad(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(TEXT)
    with pytest.raises(BadFileError):
        read(path)


def test_a_missing_file_is_bad_not_a_crash(tmp_path: Path) -> None:
    for kind, compression in (("text", None), ("jsonl", None), ("text", "gzip"), ("parquet", None)):
        source = source_of(tmp_path / "gone.txt", kind=kind, compression=compression)
        with pytest.raises(BadFileError, match=r"gone\.txt"):
            list(read_range(source, 0, 10, Reading()))


@pytest.mark.parametrize("size", [0, 10])
def test_a_missing_empty_file_is_bad_too(tmp_path: Path, size: int) -> None:
    with pytest.raises(BadFileError, match=r"gone\.txt"):
        list(read_range(source_of(tmp_path / "gone.txt", size=size), 0, size, Reading()))


def test_a_file_that_became_shorter_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"some text")
    with pytest.raises(BadFileError, match="shorter"):
        list(read_range(source_of(path, size=100), 0, 100, Reading()))


def test_the_error_travels_between_processes(tmp_path: Path) -> None:
    error = pickle.loads(pickle.dumps(BadFileError("a.txt", "it is bad")))
    assert (error.source, error.reason, str(error)) == ("a.txt", "it is bad", "a.txt: it is bad")
