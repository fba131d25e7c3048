"""lines.py against an implementation that sees the whole document at once."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import remove_lines

from tokenmill.preparation.clean import clean_block
from tokenmill.preparation.key_files import Marks
from tokenmill.preparation.lines import LineRemover, line_keys
from tokenmill.preparation.scan_lines import _line_keys
from tokenmill.preparation.texts import Texts
from tokenmill.sources.records import Chunk, Cutter, split_records

LINES = [
    "", "a", "b c", "the same line", "another line", "a line of words", "12345", "1234567890",
    "ends with 1", "    indented code", "        ", "\t\t\t\t\t", "日本語", "日本語日本語", "ééééé", "éé",
]  # fmt: skip
DOCUMENTS = st.lists(
    st.lists(st.sampled_from(LINES), max_size=25).map("\n".join).filter(bool), max_size=6
)


def cut_into_fragments(
    text: bytes, block: int, part_steps: list[int], min_line: int
) -> list[list[tuple[bytes, bool, bool, bool]]]:
    """A document as it arrives: for each part, the fragments with their flags."""
    border_cutter, parts, start, continues = Cutter(short_line=min_line), [], 0, False
    borders = []
    for step in part_steps:
        cut = border_cutter.first(text, start + step, len(text))
        if cut >= 0:
            borders.append(cut)
            start = cut
    start = 0
    for border in [*borders, len(text)]:
        part = text[start:border]
        blocks = [part[i : i + block] for i in range(0, len(part), block)]
        unfinished = border < len(text)
        chunks = split_records(
            iter(blocks),
            start,
            None,
            Cutter(),
            continues=continues,
            unfinished=unfinished,
            block_bytes=block,
        )
        parts.append(
            [
                (chunk.texts[0], chunk.continues, chunk.unfinished, chunk.mid_line)
                for chunk in chunks
            ]
        )
        start, continues = border, unfinished
    return parts


def remove_everywhere(
    parts: list[list[tuple[bytes, bool, bool, bool]]], min_line: int, tidy: bool
) -> tuple[list[bytes], int]:
    """The texts of all fragments without repeated lines, found with a set of keys."""
    seen: set[bytes] = set()
    results, removed = [], 0
    for part in parts:
        keys = b"".join(
            line_keys(text, min_line, continues=continues, mid_line=mid_line)
            for text, continues, _, mid_line in part
        )
        flags = []
        for i in range(0, len(keys), 16):
            flags.append(keys[i : i + 16] in seen)
            seen.add(keys[i : i + 16])
        remover = LineRemover(Marks([np.array(flags, np.uint8)]), min_line, tidy=tidy)
        for text, continues, unfinished, mid_line in part:
            (result,) = remover.remove(
                [text], continues=continues, unfinished=unfinished, mid_line=mid_line
            )
            if not continues:
                results.append([])
            results[-1].append(result)
        removed += remover.removed
    return results, removed


@settings(max_examples=400, deadline=None)
@given(
    documents=DOCUMENTS,
    block=st.integers(4, 80),
    steps=st.lists(st.integers(1, 60), max_size=3),
    min_line=st.integers(2, 12),
    tidy=st.booleans(),
    crlf=st.booleans(),
)
def test_documents_in_fragments_lose_the_same_lines_as_whole_ones(
    documents, block, steps, min_line, tidy, crlf
):
    seen: set[str] = set()
    expected, expected_removed, parts = [], 0, []
    for document in documents:
        raw = document.replace("\n", "\r\n") if crlf else document
        fragments = cut_into_fragments(raw.encode(), block, steps, min_line)
        if any(fragment[3] for part in fragments for fragment in part):
            continue  # a line longer than a block was cut; see test_half_a_line_never_counts
        if tidy:
            fragments = [
                [(clean_block(f[0], continues=f[1], unfinished=f[2]), *f[1:]) for f in part]
                for part in fragments
            ]
            raw = clean_block(raw.encode()).decode()
        text, count = remove_lines(raw, seen, min_line, tidy=tidy)
        expected.append(text.encode())
        expected_removed += count
        for i, part in enumerate(fragments):
            if i or not parts:
                parts.append([])
            parts[-1] += part
    results, removed = remove_everywhere(parts, min_line, tidy)
    assert [b"".join(result) for result in results] == expected
    assert removed == expected_removed


def mark(texts: list[str], min_line: int) -> list[bool]:
    keys = b"".join(line_keys(text.encode(), min_line) for text in texts)
    flags, seen = [], set()
    for i in range(0, len(keys), 16):
        flags.append(keys[i : i + 16] in seen)
        seen.add(keys[i : i + 16])
    return flags


@pytest.mark.parametrize(
    ("line", "min_line", "counts"),
    [
        ("ééééé", 5, True),
        ("ééééé", 6, False),
        ("日本", 3, False),
        ("🙂🙂🙂", 3, True),
        ("🙂🙂", 3, False),
        ("abcde", 5, True),
        ("abcd", 5, False),
        ("        ", 2, False),
        ("", 1, False),
        ("\t \t \t", 1, False),
    ],
)
def test_a_line_counts_if_it_is_long_enough_and_not_blank(line, min_line, counts):
    assert len(mark([line], min_line)) == counts
    assert len(mark([f"é\n{line}\nx"], min_line)) - len(mark(["é\nx"], min_line)) == counts


def test_the_first_of_equal_lines_stays():
    texts = ["one line here\nshort\nanother one", "short\none line here\nthe third\none line here"]
    flags = mark(texts, 6)
    remover = LineRemover(Marks([np.array(flags, np.uint8)]), 6, tidy=True)
    left = remover.remove(
        [text.encode() for text in texts], continues=False, unfinished=False, mid_line=False
    )
    assert left == [b"one line here\nshort\nanother one", b"short\nthe third"]
    assert remover.removed == 2


def test_half_a_line_never_counts():
    text = b"a line that is longer than a block"
    assert len(line_keys(text, 3, continues=False, mid_line=False)) == 16
    assert line_keys(text, 3, continues=False, mid_line=True) == b""
    assert line_keys(b" rest of it", 3, continues=True, mid_line=False) == b""
    assert len(line_keys(b" rest\nnext line", 3, continues=True, mid_line=False)) == 16


def test_the_line_end_at_the_border_of_a_part_is_kept():
    remover = LineRemover(Marks([np.zeros(1, np.uint8)]), 3, tidy=True)
    text = b"\nnext line"
    assert remover.remove([text], continues=True, unfinished=False, mid_line=False) == [text]


@settings(max_examples=300, deadline=None)
@given(documents=DOCUMENTS.filter(bool), min_line=st.integers(1, 12), tidy=st.booleans())
def test_a_block_of_documents_loses_the_lines_that_they_lose_one_by_one(documents, min_line, tidy):
    block = "\0".join(documents).encode()
    if tidy:
        block = clean_block(block)
    texts = block.split(b"\0")
    keys = line_keys(block, min_line, block=True)
    assert keys == b"".join(line_keys(text, min_line) for text in texts)
    seen: set[bytes] = set()
    flags = []
    for i in range(0, len(keys), 16):
        flags.append(keys[i : i + 16] in seen)
        seen.add(keys[i : i + 16])
    at_once, one_by_one = (
        LineRemover(Marks([np.array(flags, np.uint8)]), min_line, tidy=tidy) for _ in range(2)
    )
    expected = one_by_one.remove(texts, continues=False, unfinished=False, mid_line=False)
    assert at_once.remove_from_block(block).split(b"\0") == expected
    assert at_once.removed == one_by_one.removed == sum(flags)


def test_only_the_first_text_of_a_chunk_continues_and_only_the_last_is_cut():
    texts = [
        b"end of a line\nwhole line one",
        b"whole line two\nwhole line three",
        b"whole line four\ncut",
    ]
    sizes = np.array([len(text) for text in texts])
    made = Texts.of(texts, [0, 100, 200], sizes, None)
    chunk = Chunk(texts, [0, 100, 200], continues=True, unfinished=True, mid_line=True)
    whole = [b"whole line one", b"whole line two", b"whole line three", b"whole line four"]
    assert _line_keys(made, chunk, 1) == b"".join(map(xxhash.xxh3_128_digest, whole))
