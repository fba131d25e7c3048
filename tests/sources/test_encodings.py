"""encodings.py: wide text is certain, everything else a guess, and UTF-8 is left alone."""

from __future__ import annotations

import codecs
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenmill
from tokenmill.errors import InputError, UsageError
from tokenmill.preparation.plan import Limits, make_plan
from tokenmill.preparation.prepare import run_plan
from tokenmill.preparation.settings import PrepareSettings
from tokenmill.progress import Nobody
from tokenmill.sources.encodings import (
    choose_encoding,
    convert,
    find_wide_encoding,
    guess_encoding,
    name_encoding,
)

TEXTS = {
    "German": "Die Straße führt über die Brücke. Größe und Höhe ändern sich jährlich.\n",
    "French": "L'été dernier, nous avons visité la forêt près du château où il est né.\n",
    "Polish": "Zażółć gęślą jaźń. Wczoraj poszliśmy na długi spacer wzdłuż rzeki.\n",
    "Russian": "Привет, как дела? Завтра будет хорошая погода в Москве.\n",
    "Greek": "Η ζωή είναι ωραία. Σήμερα ο καιρός είναι πολύ καλός.\n",
    "Korean": "안녕하세요. 오늘은 날씨가 매우 좋습니다. 우리는 공원에 갔습니다.\n",
    "Japanese": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    "Chinese": "我们的生活充满阳光。今天天气很好，大家一起去公园散步。",
    "Taiwanese": "我們的生活充滿陽光。今天天氣很好，大家一起去公園散步。",
}


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"])
@pytest.mark.parametrize("copies", [1, 500])
def test_wide_text_is_recognized_with_and_without_a_mark(
    language: str, encoding: str, copies: int
) -> None:
    data = (TEXTS[language] * copies).encode(encoding)
    assert find_wide_encoding(data) == encoding
    assert find_wide_encoding("\ufeff".encode(encoding) + data) == encoding[:6]


@given(st.text())
def test_utf_8_is_never_detected_as_wide_text(text: str) -> None:
    data = text.encode()
    if b"\0" not in data:
        assert find_wide_encoding(data) is None


@pytest.mark.parametrize(
    "data",
    [
        b"some text with a stray\0 byte in it, as editors leave them",
        b"abcdefgh\0\0\0\0\0\0\0\0" * 99,  # fields padded with zeros
        bytes(4096),
        bytes(range(256)) * 16,
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0\x80\x24\0\0\0\0\0\0",
        b"",
    ],
)
def test_other_bytes_are_not_wide_text(data: bytes) -> None:
    assert find_wide_encoding(data) is None


@pytest.mark.parametrize(
    ("language", "encoding"),
    [
        ("German", "WINDOWS-1252"),
        ("French", "WINDOWS-1252"),
        ("Polish", "WINDOWS-1250"),
        ("Russian", "WINDOWS-1251"),
        ("Russian", "KOI8-R"),
        ("Greek", "WINDOWS-1253"),
        ("Korean", "EUC-KR"),
        ("Japanese", "SHIFT_JIS"),
        ("Japanese", "EUC-JP"),
        ("Chinese", "GB18030"),
        ("Taiwanese", "BIG5"),
    ],
)
def test_the_likely_encoding_is_named_as_iconv_calls_it(language: str, encoding: str) -> None:
    data = (TEXTS[language] * 5).encode(encoding)
    assert find_wide_encoding(data) is None
    guess = guess_encoding(data)
    assert guess == encoding
    assert codecs.lookup(guess).decode(data)[0] == TEXTS[language] * 5


def test_short_text_gives_no_guess() -> None:
    assert guess_encoding(b"caf\xe9") is None
    assert guess_encoding(b"") is None


CODECS = [
    *("cp1252", "cp1251", "koi8-r", "mac-roman", "shift_jis", "euc-jp", "iso2022_jp", "gb18030"),
    *("big5", "euc-kr", "hz", "utf-16", "utf-16-be", "utf-32-le", "utf-8-sig", "cp037"),
]


@given(st.text(max_size=300), st.sampled_from(CODECS), st.integers(1, 40), st.integers(1, 40))
def test_text_is_converted_as_python_converts_it(
    text: str, codec: str, size: int, block: int
) -> None:
    data = text.encode(codec, "ignore")
    blocks = [data[i : i + size] for i in range(0, len(data), size)]
    converted = list(convert(blocks, codec, 4 * block))
    assert b"".join(converted) == data.decode(codec).encode()
    assert all(len(one) <= max(16, 4 * block) for one in converted)


@given(st.binary(max_size=200), st.sampled_from(CODECS), st.integers(1, 40))
def test_every_invalid_byte_is_invalid_in_utf_8_too(data: bytes, codec: str, size: int) -> None:
    codec = choose_encoding(data, codec) or "utf-8"
    blocks = [data[i : i + size] for i in range(0, len(data), size)]
    converted = b"".join(convert(blocks, codec, 1000))
    try:
        expected = data.decode(codec)
    except UnicodeDecodeError:
        with pytest.raises(UnicodeDecodeError):
            converted.decode()
    else:
        assert converted.decode() == expected


def test_names_of_encodings() -> None:
    assert [name_encoding(name) for name in ("Windows-1252", "SJIS", "latin1", "UTF-8")] == [
        *("cp1252", "shift_jis", "iso8859-1", "utf-8")
    ]
    for name in ("rot13", "base64", "utf-7", "punycode", "unicode_escape", "no such", "a\0", ""):
        assert name_encoding(name) is None
    with pytest.raises(UsageError, match="`encoding` is 'cp99999'"):
        PrepareSettings(encoding="cp99999")


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize(
    ("codec", "options"),
    [("utf-16", {}), ("utf-16-le", {}), ("utf-32-be", {}), ("cp1252", {"encoding": "latin-1"})],
)
def test_a_converted_file_gives_the_dataset_of_the_utf_8_file(
    tmp_path: Path, name: str, codec: str, options: dict[str, str]
) -> None:
    texts = [f"Größe {n} und Höhe {n * n}." for n in range(200)]
    text = "<|endoftext|>".join(texts)
    if "jsonl" in name:
        text = "".join(json.dumps({"text": one}, ensure_ascii=False) + "\n" for one in texts)
    wide, plain = tmp_path / "wide" / name, tmp_path / "plain" / name
    for path, data in ((wide, text.encode(codec)), (plain, text.encode())):
        path.parent.mkdir()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    limits = Limits(part_bytes=1000, block_bytes=100)
    made = {}
    for path, more in ((wide, options), (plain, {})):
        out = tmp_path / f"out-{path.parent.name}"
        plan = make_plan(path, out, limits=limits, tokenizer="bytes", workers=1, **more)
        run_plan(plan, out, Nobody())
        data = tokenmill.open(out)
        made[path.parent.name] = [
            (data[split][:].tolist(), [one.offset for one in data[split].documents])
            for split in data
        ]
        assert sum(len(one) for _, one in made[path.parent.name]) == 200
    assert made["wide"] == made["plain"]  # the same tokens, and offsets in UTF-8


def test_invalid_bytes_follow_on_bad_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9<|endoftext|>bad \x81 byte<|endoftext|>more \xfc")
    options = {"tokenizer": "bytes", "workers": 1, "val_fraction": 0, "encoding": "cp1252"}
    report = tokenmill.prepare(path, tmp_path / "repair", **options)
    text = tokenmill.open(tmp_path / "repair").tokenizer.decode(
        tokenmill.open(tmp_path / "repair")["train"][:]
    )
    assert "café" in text
    assert "bad \ufffd byte" in text
    assert "more ü" in text
    assert report.manifest.ledger["repaired_documents"] == 1
    report = tokenmill.prepare(path, tmp_path / "drop", on_bad_text="drop", **options)
    assert report.manifest.ledger["dropped"]["invalid UTF-8"]["documents"] == 1
    with pytest.raises(InputError, match="invalid UTF-8 at byte"):
        tokenmill.prepare(path, tmp_path / "refuse", on_bad_text="refuse", **options)
    assert report.manifest.settings["encoding"] == "cp1252"
