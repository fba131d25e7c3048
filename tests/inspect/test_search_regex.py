"""Regular expressions, compared with Python's `re` on each decoded document."""

from __future__ import annotations

import re

import numpy as np
import pytest
from dataset_builder import build
from hypothesis import given, settings
from hypothesis import strategies as st
from search_oracle import SCRIPTS, places

import tokenmill
from tokenmill.inspect.search.regex import (
    Reader,
    compile_pattern,
    find_regex,
    find_required,
    find_text,
    search_documents,
)
from tokenmill.inspect.search.search import count_matches, search
from tokenmill.inspect.search.vocabulary import Vocabulary
from tokenmill.progress import Nobody
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers import load_tokenizer

PATTERNS = [
    *(
        r"\w+ing\b",
        r"error: \d+",
        "(brown|lazy) \\w+",
        "^The",
        r"园\w",
        "e\u0301+",
        r"(?i)THE q",
        "x*",
    ),
    *(r"^", r"(?<=the )\w+", r"[🎉🙂]+", r"\bdog\.$", r"(?m)^l\w+", "(a)(b)?", r"السلام \S+"),
]


def expect_regex(dataset, pattern, flags=0):
    found = []
    for split in dataset:
        tokens = dataset[split]
        for document in tokens.documents:
            ids = tokens[document.start : document.start + document.length]
            text = dataset.tokenizer.decode(ids)
            found += [
                (split, document.number, len(text[: match.start()].encode()))
                for match in re.finditer(pattern, text, flags)
                if match[0]
            ]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("regex")
    texts = [*SCRIPTS.values(), "error: 17\nline ab ab\nerror: none", "running, The dog."]
    build(where / "d", {"train": texts * 3, "val": texts[::-1]}, shard_tokens=50)
    return where / "d"


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("ignore_case", [False, True])
def test_matches_are_those_of_re(folder, pattern, ignore_case):
    dataset = tokenmill.open(folder)
    expected = expect_regex(dataset, pattern, re.IGNORECASE if ignore_case else 0)
    matches = list(search(dataset, pattern, regex=True, ignore_case=ignore_case))
    assert places(matches) == expected
    counts = count_matches(dataset, pattern, regex=True, ignore_case=ignore_case)
    assert sum(counts.values()) == len(expected)
    for match in matches:
        assert re.search(pattern, match.before + match.found + match.after, re.IGNORECASE)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(2, 12), st.integers(0, 1))
@settings(deadline=None, max_examples=150)
def test_windows_do_not_change_the_matches(ids, window, kind):
    """Documents longer than a window; no match here is longer than the overlap."""
    spellings = [b"ab", b"\xc3", b"\xa9b", " é".encode()]
    tokens = Tokens.of(np.array(ids, np.uint16))
    reader = Reader(vocabulary=Vocabulary(spellings), tokenizer=None)
    wanted = ["éb", "b a"][kind]
    text = b"".join(spellings[one] for one in ids).decode("utf-8", "replace")
    data = b"".join(spellings[one] for one in ids)
    finder = find_regex(re.compile(wanted)) if kind else find_text(wanted)
    found = search_documents(tokens, finder, reader, Nobody(), window=window, overlap=8)
    expected = [match.start() for match in re.finditer(wanted.encode(), data)]
    assert [match.byte for match in found] == expected
    assert len(expected) == text.count(wanted)


@pytest.mark.parametrize(
    ("pattern", "flags", "required"),
    [
        (r"\d+ errors?", 0, " error"),
        ("a|b", 0, None),
        ("(abc)+d", 0, "abc"),
        ("(abc)*d", 0, "d"),
        ("(?i:abc)de", 0, "de"),
        ("kelvin", re.IGNORECASE, "elv"),
        ("é", re.IGNORECASE, None),
        ("(?=abc)a", 0, "a"),
        ("x{3}", 0, "x"),
        ("(?x) a b c # comment", 0, "abc"),
        ("colou?r", 0, "colo"),
        (".*", 0, None),
    ],
)
def test_text_that_a_match_must_contain(pattern, flags, required):
    assert find_required(compile_pattern(pattern, ignore_case=bool(flags))) == required


@given(
    st.sampled_from([*PATTERNS, "(ab|cd)ef+", "a(?:bc)?d", "(?P<x>q)w(?P=x)", "[ab]c", "(?!a)bcd"]),
    st.text("abcdefqw 🎉园éTHE", max_size=20),
)
@settings(deadline=None)
def test_a_match_contains_the_required_text(pattern, text):
    compiled = compile_pattern(pattern, ignore_case=False)
    required = find_required(compiled)
    if required is not None and compiled.search(text):
        folded = compiled.flags & re.IGNORECASE
        assert required.lower() in text.lower() if folded else required in text


def test_text_that_is_not_utf8_is_searched_around(tmp_path):
    build(tmp_path / "d", {"train": [b"ab\xff\xc3 cd\xa9 needle 12"]})
    (match,) = search(tmp_path / "d", r"needle \d+", regex=True)
    assert match.byte == 9
    assert match.before == "ab\ufffd\ufffd cd\ufffd "
    assert match.token == 9


def test_foreign_tokens_are_searched_by_document(tmp_path):
    ids, _ = load_tokenizer("bytes").encode_terminated([b"one two", b"two one", b"one"])
    np.save(tmp_path / "x.npy", ids)
    for pattern in ("^one", "^(?:one)"):  # with and without a required text
        found = search(tmp_path / "x.npy", pattern, regex=True, tokenizer="bytes")
        assert [match.token for match in found] == [0, 16]
