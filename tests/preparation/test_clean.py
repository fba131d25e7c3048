"""clean.py against a slow implementation of docs/cleaning.md, one rule per line."""

import itertools
import re
import sysconfig
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokenmill.preparation.clean import clean, clean_block


def reference(text: str) -> str:
    text = "".join(
        c for c in text if c != "\ufeff" and (c in "\t\n\r\x85" or unicodedata.category(c) != "Cc")
    )
    text = re.sub("\r?\x85|\r\n|\r", "\n", text)
    text = unicodedata.normalize("NFC", text)
    text = "\n".join(line.rstrip(" \t") for line in text.split("\n"))
    text = re.sub("(?<=[^ \t\n])  +", " ", text)
    text = re.sub("\n\n\n+", "\n\n", text)
    return text.lstrip("\n").rstrip(" \t\n")


SPECIAL = (
    " \t\n\r\x85\ufeff\x01\x0b\x1f\x7f\x80\x9f"  # white space, controls and their neighbours
    "\xa0\xc0\xadae.<\u2000\u2001\u2002\u2028\u3000\u200b"
    "\u0300\u0301\u0323\u0338\u0327\u0344\u0345\u0f71\u0f72\u0f73\u0f74\u0f75\u0f80\u0f81"
    "\u1100\u1161\u11a8\uac00\uac01\u0915\u093c\u0958\u09c7\u09be\u0dd9\u0dcf\u0dca"
    "\ufb1d\ufb2a\u212b\u2126\u1e9b\u0374\u037e\uf900\ufebe\uff00\u4e00\u304b\u3099"
    "\U0001d15e\U0001d165\U0001d16e\U0002f800\U0001f600\U000e0100\U0010ffff"
)
PIECES = st.one_of(
    st.sampled_from(SPECIAL),
    st.sampled_from([" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "a", " \t", "\n \n"]),
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
)
TEXTS = st.lists(PIECES, max_size=40).map("".join)
BLANKS = st.text(alphabet="a \t\n", max_size=60)
DOCUMENTS = st.lists(st.one_of(TEXTS, BLANKS), min_size=1, max_size=6)


def test_each_rule_by_example() -> None:
    for dirty, expected in [
        ("a\ufeffb\ufeff", "ab"),
        ("a\r\nb\rc\x85d", "a\nb\nc\nd"),
        ("a\x00\x1f\x7f\x80b\tc", "ab\tc"),
        ("e\u0301", "\u00e9"),
        ("a \t\nb  ", "a\nb"),
        ("a   b\n    c\t  d", "a b\n    c\t  d"),
        ("a\n\n\n\nb", "a\n\nb"),
        ("\n \n  a\n \n", "  a"),
    ]:
        assert clean(dirty) == expected


def test_rules_apply_together() -> None:
    for dirty, expected in [
        ("a\r\ufeff\nb", "a\nb"),
        ("a\r\x85b", "a\nb"),
        ("a\r\x01\x00\nb", "a\nb"),
        ("e\x02\u0301", "\u00e9"),
        ("e\ufeff\u0301", "\u00e9"),
        ("e \u0301", "e \u0301"),
        ("e  \u0301", "e \u0301"),
        ("a\n\u0301b", "a\n\u0301b"),
        ("a  \tb", "a \tb"),
        ("a \ufeff b", "a b"),
        ("a\n \n\t\n \nb", "a\n\nb"),
        ("\ufeff  a", "  a"),
        (" \x01\n \t", ""),
        ("\u2000a", "\u2002a"),
    ]:
        assert clean(dirty) == expected


@settings(max_examples=1000, deadline=None)
@given(DOCUMENTS)
@example(["", "\n", "a ", "", " ", "\n"])
def test_block_equals_the_rules_document_by_document(documents: list[str]) -> None:
    block = "\0".join(documents).encode()
    assert clean_block(block).decode().split("\0") == [reference(d) for d in documents]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["a", "\0", " ", "\0", "\n"]), max_size=30).map("".join))
def test_separators_are_preserved(text: str) -> None:
    assert clean_block(text.encode()).count(b"\0") == text.count("\0")


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet=st.sampled_from(SPECIAL + "\0"), max_size=60))
def test_cleaning_twice_changes_nothing(text: str) -> None:
    once = clean(text)
    assert once == reference(text)
    assert clean(once) == once
    assert unicodedata.is_normalized("NFC", once)


@settings(max_examples=500, deadline=None)
@given(TEXTS, TEXTS)
def test_cleaned_fragments_give_the_cleaned_whole(before: str, after: str) -> None:
    text = f"{before}a\n{after}b {after}"
    whole = reference(text)
    cuts = [
        i
        for i in range(1, len(text))
        if text[i] in "\n " and unicodedata.category(text[i - 1]).startswith("L")
    ]
    for cut in cuts:
        head = clean_block(text[:cut].encode(), unfinished=True)
        tail = clean_block(text[cut:].encode(), continues=True)
        assert (head + tail).decode() == whole
    edges = [0, *cuts, len(text)]
    parts = [
        clean_block(text[a:b].encode(), continues=a > 0, unfinished=b < len(text))
        for a, b in itertools.pairwise(edges)
    ]
    assert b"".join(parts).decode() == whole


@settings(max_examples=500, deadline=None)
@given(DOCUMENTS, st.integers(1, 9))
def test_cutting_inside_changes_nothing(documents: list[str], size: int) -> None:
    block = "\0".join(documents).encode()
    cleaned = clean_block(block, window=size).decode()
    assert cleaned.split("\0") == [reference(d) for d in documents]


def test_every_character_alone_and_after_others() -> None:
    codes = [*range(0xA0, 0xD800), *range(0xE000, 0x30000), *range(0x30000, 0x110000, 97)]
    everything = [chr(code) for code in codes if code != 0xFEFF]
    for before in ("a", "a\u0301", "\u0915\u094d", "\uac00", "\U0001d157", "\U000e0100"):
        text = "\n".join(f"{before}{character}." for character in everything)
        assert clean(text) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    "marks", ["\u0301\u0323", "\u0f73\u0f71", "\u0344\u0327", "\U0001d165\u0f74"]
)
def test_long_runs_of_marks_are_put_in_order(marks: str) -> None:
    text = f"e{marks * 700}x{marks[::-1] * 40}\u1161"
    assert clean(text) == reference(text)


def test_flags_reach_only_the_first_and_last_document() -> None:
    block = b"\n\n\n  one \0 \n two \0  x"
    assert clean_block(block, continues=True) == b"\n\n  one\0 two\0  x"
    assert clean_block(b"   a\0 b  c", continues=True, unfinished=True) == b" a\0 b c"


def test_the_standard_library_in_one_block() -> None:
    folder = Path(sysconfig.get_path("stdlib"))
    texts = [p.read_bytes().decode("utf-8", "ignore") for p in sorted(folder.glob("*.py"))]
    texts = [t.replace("\0", "") for t in texts]
    texts += [t.replace("\n", " \r\n") for t in texts[:20]]
    block = "\0".join(texts).encode()
    assert len(block) > 2_000_000
    cleaned = clean_block(block)
    assert cleaned.decode().split("\0") == [reference(t) for t in texts]
    assert clean_block(cleaned) == cleaned


MILLION = 1_000_000


@pytest.mark.parametrize(
    ("dirty", "expected"),
    [
        (" \t" * MILLION, ""),
        ("a" + " \t" * MILLION + "b", "a" + " \t" * MILLION + "b"),
        ("a" + "\n" * MILLION + "b", "a\n\nb"),
        ("a" + "\r" * MILLION + "\nb", "a\n\nb"),
        ("\n \n" * MILLION, ""),
        ("a" + " " * MILLION + "b", "a b"),
        (" " * MILLION + "b", " " * MILLION + "b"),
        ("a\n" + (" " * 1000 + "x\n") * 1000, ("a\n" + (" " * 1000 + "x\n") * 1000).rstrip()),
        ("a  " * MILLION, ("a " * MILLION).rstrip()),
        ("\0" * MILLION, ""),
        ("\x01" * MILLION, ""),
        ("\u6f22" * MILLION, "\u6f22" * MILLION),
        ("e\u0301" * MILLION, "\u00e9" * MILLION),
        ("e" + "\u0301\u0323" * MILLION, "\u1eb9" + "\u0323" * (MILLION - 1) + "\u0301" * MILLION),
    ],
    ids=lambda text: ascii(text[:4]),
)
def test_long_monotonous_text(dirty: str, expected: str) -> None:
    assert clean(dirty) == expected
