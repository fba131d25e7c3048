"""records.py against a split of the whole file, wherever blocks, fragments and parts end."""

from __future__ import annotations

import io
import re
import sys
import time
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.errors import TooLongError
from tokenmill.sources.records import Chunk, Cutter, find_border, overlaps_itself, split_records

sys.path.insert(0, str(Path(__file__).parents[1] / "preparation"))
from naive import split_text

LITERALS = [b"<|endoftext|>", b"\n", b"\n\n", b"#", b"a b", b"b\n", b" ", b"\r\n", b"\n---\n"]
OVERLAPPING = [b"aa", b"----", b"aba", b"\n\n", b" a "]
SEPARATORS: list[bytes | None] = [None, b"", *LITERALS, *OVERLAPPING]
PIECES = [
    b"a", b"b", b"a b", b"word", b" ", b"  ", b"\n", b"\n\n", b"\r\n", b"\r", b"\t", b" \n", b"-",
    b"1", b".", b"#", b"---", b"aa", b"aba", b"<|endoftext|>", b"<|endof", b"\n---\n", "é".encode(),
    "日本".encode(), "\u0958".encode(), "🙂".encode(), b"\xff", b"\xc3", b"\xe6\x97",
]  # fmt: skip
DATA = st.lists(st.sampled_from(PIECES), max_size=60).map(b"".join)
LONG = st.lists(st.sampled_from(PIECES), min_size=60, max_size=300).map(b"".join)


def cut_up(data: bytes, sizes: list[int]) -> list[bytes]:
    """Blocks of the given sizes, over and over."""
    blocks, place, turn = [], 0, 0
    while place < len(data):
        size = sizes[turn % len(sizes)]
        blocks.append(data[place : place + size])
        place, turn = place + size, turn + 1
    return blocks


def joined(chunks: list[Chunk]) -> list[tuple[int, bytes]]:
    """The documents of some chunks, with fragments joined."""
    found: list[tuple[int, bytes]] = []
    unfinished = False
    for chunk in chunks:
        assert chunk.continues == unfinished
        assert len(chunk.texts) == len(chunk.offsets)
        for i, (text, offset) in enumerate(zip(chunk.texts, chunk.offsets, strict=True)):
            if i == 0 and chunk.continues:
                start, before = found[-1]
                assert offset == start + len(before)
                found[-1] = (start, before + text)
            else:
                found.append((offset, text))
        unfinished = chunk.unfinished
    assert not unfinished
    return found


def check_cut(data: bytes, cut: int) -> None:
    """Check that a cut is after a letter that NFC does not split, and before a space or line end."""
    assert data[cut : cut + 1] in (b" ", b"\n") or data[cut : cut + 2] == b"\r\n"
    letter = data[:cut].decode("utf-8", "replace")[-1]
    assert letter.isalpha()
    assert unicodedata.normalize("NFC", letter)[-1].isalpha()


@settings(max_examples=300, deadline=None)
@given(
    data=DATA | LONG,
    separator=st.sampled_from(SEPARATORS),
    block=st.integers(1, 64),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    cuttable=st.booleans(),
)
def test_any_blocks_give_the_records_of_the_whole(data, separator, block, sizes, cuttable):
    cutter = Cutter() if cuttable else None
    blocks = iter(cut_up(data, sizes))
    chunks = list(split_records(blocks, 7, separator, cutter, block_bytes=block))
    assert joined(chunks) == [(7 + place, text) for place, text in split_text(data, separator)]
    assert sum(chunk.read for chunk in chunks) == len(data)
    assert sum(chunk.lines for chunk in chunks) == data.count(b"\n")
    assert all(text == data[at - 7 : at - 7 + len(text)] for at, text in joined(chunks))
    for chunk in chunks:
        assert cuttable or not (chunk.continues or chunk.unfinished)
        if chunk.unfinished:
            cut = chunk.offsets[-1] - 7 + len(chunk.texts[-1])
            check_cut(data, cut)
            assert chunk.mid_line == (data[cut : cut + 1] == b" ")


@settings(max_examples=300, deadline=None)
@given(
    data=LONG,
    separator=st.sampled_from([None, b"", *LITERALS]),
    step=st.integers(4, 200),
    block=st.integers(1, 64),
    cutter=st.sampled_from([None, Cutter(), Cutter(short_line=1), Cutter(short_line=5)]),
)
def test_parts_give_every_record_once_and_in_order(data, separator, step, block, cutter):
    if separator and overlaps_itself(separator):
        return  # such files are never cut
    file = io.BytesIO(data)
    chunks: list[Chunk] = []
    borders = []
    for start in range(0, len(data), step):
        end = min(start + step, len(data))
        first, whole = find_border(file, start, len(data), step, separator, cutter, block)
        last, complete = find_border(file, end, len(data), step, separator, cutter, block)
        assert start <= first <= last <= len(data)
        borders.append((first, whole))
        if first < last:
            chunks += split_records(
                iter(cut_up(data[first:last], [block])),
                first,
                separator,
                Cutter() if cutter else None,
                continues=not whole,
                unfinished=not complete,
                block_bytes=block,
            )
    assert joined(chunks) == split_text(data, separator)
    assert sum(chunk.lines for chunk in chunks) == data.count(b"\n")
    starts = {place for place, _ in split_text(data, separator)}
    for place, whole in borders:
        if whole:
            assert place in starts or place == len(data)
        else:
            check_cut(data, place)
            if cutter and cutter.short_line:
                line = data[:place].rpartition(b"\n")[2]
                assert len(line) < cutter.short_line
                assert line.isascii()
                assert data[place : place + 1] != b" "


@settings(max_examples=200, deadline=None)
@given(data=LONG, separator=st.sampled_from(SEPARATORS), most=st.integers(1, 5))
def test_many_small_records_come_in_several_chunks(data, separator, most):
    blocks = iter(cut_up(data, [100]))
    chunks = list(split_records(blocks, 0, separator, Cutter(), most_records=most))
    assert joined(chunks) == split_text(data, separator)
    assert sum(chunk.lines for chunk in chunks) == data.count(b"\n")
    assert max(len(chunk.texts) for chunk in chunks) <= most


def test_a_document_without_a_place_to_cut_stays_whole():
    data = b"1234 5678\n" * 20
    (chunk,) = split_records(iter(cut_up(data, [8])), 0, None, Cutter(), block_bytes=8)
    assert chunk.texts == [data]
    assert not chunk.unfinished


def test_a_long_document_without_a_place_to_cut_takes_time_in_proportion():
    block = 1 << 12
    data = b"1234,5678\n" * 800_000
    start = time.process_time()
    for separator in (None, b"<|endoftext|>", b""):
        blocks = iter(cut_up(data, [block]))
        (chunk,) = split_records(blocks, 0, separator, Cutter(), block_bytes=block)
        assert chunk.texts == [data]
    # Copying what was read again with each of the 2,000 blocks would take minutes.
    assert time.process_time() - start < 30


def test_fragments_are_about_a_block_long():
    data = b"some words " * 200
    chunks = list(split_records(iter(cut_up(data, [64])), 0, None, Cutter(), block_bytes=64))
    assert len(chunks) > 10
    assert max(len(chunk.texts[0]) for chunk in chunks) <= 128
    assert b"".join(chunk.texts[0] for chunk in chunks) == data


def test_newlines_are_preferred_to_spaces_for_a_cut():
    data = b"one two\nthree four five"
    assert Cutter().last(data, 0, len(data)) == 7
    assert Cutter().first(data, 0, len(data)) == 7
    assert Cutter().first(data, 8, len(data)) == 13
    assert Cutter().last(b"one two\r\n 1", 0, 11) == 7
    assert Cutter().last(b"1 2\n.\n", 0, 6) == -1
    assert Cutter().first(b" one two", 0, 8) == 4


def test_a_line_end_is_preferred_to_any_other_place_without_a_letter():
    data = b"1.\n2, 3.\r\n4, 5"
    assert Cutter(anywhere=True).last(data, 0, len(data)) == 8
    assert Cutter(anywhere=True).last(data.replace(b"\n", b""), 0, 13) == 9


def test_no_cut_next_to_a_letter_that_cleaning_turns_into_a_letter_and_a_mark():
    # U+0958 is U+0915 U+093C in NFC; patterns such as cl100k's take the mark and a newline together
    data = "क\u0958\nक\u0958 क".encode()
    assert Cutter().first(data, 0, len(data)) == -1
    assert Cutter().last(data, 0, len(data)) == -1
    assert Cutter().first("é\nx".encode(), 0, 4) == 2


def test_lines_are_counted_from_the_start_of_the_block_of_a_chunk():
    data = b"a\nb\nc#d\n\ne#f#\n\n\ng\nlast words here and there\nmore of it\nend"
    lines = 0
    for chunk in split_records(iter(cut_up(data, [16])), 0, b"#", Cutter(), block_bytes=16):
        for offset in chunk.offsets:
            assert lines + chunk.line_of(offset) == data.count(b"\n", 0, offset)
        lines += chunk.lines
    assert lines == data.count(b"\n")


@pytest.mark.parametrize("separator", [b"aa", b"----", b"aba", b"ab ab", b"\n\n", b"##"])
def test_separators_that_overlap_themselves_are_known(separator):
    assert overlaps_itself(separator)


@pytest.mark.parametrize("separator", [b"a", b"\n", b"<|endoftext|>", b"\n---", b"ab"])
def test_other_separators_do_not_overlap_themselves(separator):
    assert not overlaps_itself(separator)


def test_long_runs_of_blank_lines_take_time_in_proportion():
    (chunk,) = split_records(iter([b"a" + b"\n \t\r" * 200_000]), 0, b"", None)
    assert chunk.texts == [b"a"]
    data = b"a" + b"\n \n" * 200_000 + b"b"
    found = joined(list(split_records(iter(cut_up(data, [100_000])), 0, b"", None)))
    assert found == [(0, b"a"), (len(data) - 1, b"b")]
    assert [text for _, text in split_text(data, b"")] == [b"a", b"b"]


def test_the_naive_split_of_the_oracle_agrees_with_a_regular_expression():
    for data in (b"a\n\nb", b"\n\na", b" \n \n b\n\n\tc", b"a\r\n\r\nb\r\n", b"a\n \t\n\n  b c\nd"):
        expected = re.split(rb"\n(?:[ \t\r]*\n)+(?=[ \t\r]*[^ \t\r\n])", data)
        assert [text for _, text in split_text(data, b"")] == expected
    assert split_text(b"a\n\n", b"") == [(0, b"a")]
    places = [place for place, _ in split_text(b"a\n\nb\n\nc", b"")]
    assert [b - a for a, b in pairwise(places)] == [3, 3]


def test_a_border_after_a_separator_at_the_start_of_a_file_is_found():
    file = io.BytesIO(b"#|one#|two")
    assert find_border(file, 1, 10, 4, b"#|", None) == (2, True)


def test_a_document_too_long_to_hold_is_refused_with_its_size():
    blocks = iter([b"9" * 16] * 10 + [b"9999 words #|999"])
    with pytest.raises(TooLongError, match=r"the 1[67]\d bytes from byte 0 on cannot be cut"):
        list(split_records(blocks, 0, b"#|", Cutter(), hold_limit=50, block_bytes=16))
