"""wording.py: characters that control a terminal, hide or reorder text are printed as escapes."""

from __future__ import annotations

import unicodedata

import pytest

from tokenmill.wording import harmless, one_line

# Format characters that are drawn: signs of numbers and verses, and an abbreviation mark.
DRAWN = set(
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)
INVISIBLE = (
    "\u034f\u115f\u1160\u17b4\u180b\u3164\uffa0\ufe00\ufe0f\ufffe\U000e0100\U000e0041\U0001fffe"
)


def test_no_control_or_format_character_is_printed_as_it_is() -> None:
    kinds = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    unsafe = {one for one in map(chr, range(0x110000)) if unicodedata.category(one) in kinds}
    unsafe = unsafe - DRAWN - set("\t\n") | set(INVISIBLE)
    assert {"\u061c", "\u2028", "\u2029", "\u200b", "\u202e", "\ud800", "\U000e0020"} <= unsafe
    assert [one for one in unsafe if one in harmless(f"a{one}b")] == []


def test_escapes_show_the_code_of_the_character() -> None:
    assert harmless("pay\u200bpal \u202egnp\ud800") == r"pay\u200bpal \u202egnp\ud800"
    assert harmless("tag \U000e0041") == r"tag \U000e0041"


def test_visible_text_stays() -> None:
    visible = {
        one
        for one in map(chr, range(0x20, 0x110000))
        if unicodedata.category(one)[0] in "LNPSZ" and unicodedata.category(one) not in ("Zl", "Zp")
    } - set(INVISIBLE)
    assert [one for one in visible if harmless(f"a{one}b") != f"a{one}b"] == []


@pytest.mark.parametrize(
    "text",
    [
        "👨\u200d👩\u200d👧",
        "❤\ufe0f\u200d🔥",
        "1\ufe0f\u20e3",
        "می\u200cخواهم",
        "क्\u200dष",
        "tab\t\nline",
    ],
)
def test_joiners_stay_where_spelling_and_emoji_need_them(text: str) -> None:
    assert harmless(text) == text


@pytest.mark.parametrize(
    "text", ["a\u200cb", "é\u200d\u200dé", "x\ufe0fy", "é\ufe0f\ufe0f", "é\u200d: x"]
)
def test_joiners_are_shown_where_they_only_hide(text: str) -> None:
    assert harmless(text) != text


def test_a_name_stays_in_its_line() -> None:
    assert one_line("a\nb\tc\r\u2028d") == r"a\nb\tc\r\u2028d"
