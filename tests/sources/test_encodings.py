"""encodings.py: wide text is certain, everything else a guess, and UTF-8 is left alone."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.sources.encodings import find_wide_encoding, guess_encoding

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
