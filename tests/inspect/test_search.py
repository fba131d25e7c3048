"""`tokenmill search` finds every occurrence, compared with Python's `find` on each document."""

from __future__ import annotations

import re

import numpy as np
import pytest
from dataset_builder import build
from hypothesis import given, settings
from hypothesis import strategies as st
from search_oracle import SCRIPTS, expect, find_all, places

import tokenmill
from tokenmill.errors import DatasetError, TokenizerError, UsageError
from tokenmill.inspect.search.matches import CONTEXT, Describer
from tokenmill.inspect.search.pattern import CORE, IdFinder, TextPattern
from tokenmill.inspect.search.scan import scan
from tokenmill.inspect.search.search import count_matches, search
from tokenmill.inspect.search.vocabulary import Vocabulary
from tokenmill.progress import Nobody
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers import Tokenizer, load_tokenizer, register_tokenizer

EOT = 0
LETTERS = "ab é我🙂\u0301م"


def found_in(tokens, vocabulary, wanted, *, chunk=None, ignore_case=False):
    """All matches, found with chunks of a given size."""
    pattern = TextPattern(vocabulary, wanted, ignore_case=ignore_case)
    describer = Describer(tokens, vocabulary)
    return [
        describer.describe(found, number)
        for found in scan(tokens, pattern, Nobody(), chunk=chunk)
        for number in range(len(found.hits))
    ]


@st.composite
def token_cases(draw):
    """A vocabulary of random byte strings, documents of random ids, and a text to find."""
    pieces = st.text(LETTERS, min_size=1, max_size=4).map(str.encode)
    cut = st.binary(min_size=1, max_size=2) | pieces.map(lambda piece: piece[:1])
    spellings = [b"<|eot|>", *draw(st.lists(pieces | cut, min_size=1, max_size=12))]
    spellings += draw(st.sampled_from([[], [None], [b""], [None, b""]]))
    ids = draw(st.lists(st.integers(0, len(spellings) - 1), max_size=60))
    wanted = draw(st.text(LETTERS, min_size=1, max_size=5)).encode()
    joined = b"".join(spellings[one] or b"" for one in ids)
    if joined and draw(st.booleans()):  # something that is there, even a part of a character
        start = draw(st.integers(0, len(joined) - 1))
        wanted = joined[start : start + draw(st.integers(1, 12))]
    return spellings, ids, wanted


@given(
    token_cases(),
    st.sampled_from(["<u2", "<u4", "<i8", ">u2"]),
    st.integers(1, 40),
    st.sampled_from(["after", "before", None]),
    st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_every_occurrence_is_found_in_any_tokenization(case, dtype, chunk, eot, ignore_case):
    spellings, ids, wanted = case
    tokens = Tokens.of(
        np.array(ids, dtype), eot_id=None if eot is None else EOT, eot=eot or "after"
    )
    matches = found_in(tokens, Vocabulary(spellings), wanted, chunk=chunk, ignore_case=ignore_case)
    expected = []
    start = 0
    for number in range(1, len(ids) + 1):
        ends = number == len(ids) or (
            ids[number - 1] == EOT if eot == "after" else eot == "before" and ids[number] == EOT
        )
        if not ends:
            continue
        # Ids without a spelling are shown, but nothing is found in them.
        parts = [spellings[one] for one in ids[start:number]]
        text = b"".join("\ufffd".encode() if part is None else part for part in parts)
        hidden = b"".join(b"\xff\xff\xff" if part is None else part for part in parts)
        if ignore_case:
            hidden, wanted = hidden.lower(), wanted.lower()
        bounds = np.cumsum([0, *(3 if part is None else len(part) for part in parts)])
        for byte in find_all(hidden, wanted):
            token = start + int(bounds.searchsorted(byte, "right")) - 1
            expected.append((token, byte, text[byte : byte + len(wanted)].decode(errors="replace")))
        start = number
    assert [(match.token, match.byte, match.found) for match in matches] == expected


@pytest.fixture(scope="module")
def texts():
    mixed = list(SCRIPTS.values())
    return [
        *(script * 3 for script in mixed),
        "".join(mixed),
        "aaaa aaaa",
        "",
        "control \x00\x1b[31m\x7f end",
        *(f"Document {number}: " + mixed[number % 5][number % 7 :] for number in range(40)),
    ]


@pytest.fixture(scope="module")
def folder(texts, tmp_path_factory):
    """A dataset of GPT-2 ids in several scripts."""
    import json

    where = tmp_path_factory.mktemp("search")
    lines = [json.dumps({"text": text}) for text in texts]
    (where / "texts.jsonl").write_text("\n".join(lines))
    tokenmill.prepare(where / "texts.jsonl", where / "data", val_fraction=0.2, workers=1)
    return where / "data"


@pytest.fixture(scope="module")
def dataset(folder):
    return tokenmill.open(folder)


WANTED = [
    *(
        "the",
        "quick brown",
        "e",
        " ",
        "aa",
        "aaaa",
        "ocument 1",
        "fox jumps over the l",
        "é",
        "e\u0301",
    ),
    *(
        "我们",
        "公园看花，",
        "园",
        "السلام",
        "لام ع",
        "م",
        "🙂",
        "🎉",
        "🎉🎉",
        "👨‍👩‍👧",
        "\u200d",
        "\u0301",
    ),
    *("<|endoftext|>", "\x1b[31m", "\x00", "no such text", "Straße. The"),
]


@pytest.mark.parametrize("wanted", WANTED)
def test_every_occurrence_in_a_dataset_is_found(dataset, wanted):
    expected = expect(dataset, wanted)
    matches = list(search(dataset, wanted))
    assert places(matches) == expected
    assert count_matches(dataset, wanted) == {
        split: sum(place[0] == split for place in expected) for split in dataset
    }
    for match in matches[:50]:
        document = match.document
        tokens = dataset[match.split]
        assert document == tokens.documents[document.number]
        whole = tokens[document.start : document.start + document.length]
        text = dataset.tokenizer.decode(whole).encode()
        assert match.found == wanted
        # The token is the one that holds the first byte.
        before = dataset.tokenizer.byte_lengths()[whole].cumsum()
        assert match.token - document.start == int(before.searchsorted(match.byte, "right"))
        assert text[: match.byte].endswith(match.before.encode())
        assert text[match.byte + len(wanted.encode()) :].startswith(match.after.encode())
        assert len(match.before.encode()) <= CONTEXT


def test_texts_longer_than_the_table_are_compared_as_text(tmp_path):
    text = "".join(f"{number}," for number in range(400))
    build(tmp_path / "d", {"train": [text, text[1:], text.replace("399", "398")]})
    dataset = tokenmill.open(tmp_path / "d")
    for wanted in (text, text[:CORE], text[: CORE + 1], text[5:], text[5:] + "<|endoftext|>"):
        assert places(search(dataset, wanted)) == expect(dataset, wanted)
    assert places(search(dataset, text.replace("1", "l"))) == []


@pytest.mark.parametrize("frame_tokens", [None, 16])
@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_every_storage_gives_the_same_matches(tmp_path, dtype, frame_tokens):
    texts = {"train": [*SCRIPTS.values(), ""], "val": list(SCRIPTS.values())[::-1]}
    build(tmp_path / "d", texts, shard_tokens=23, dtype=dtype, frame_tokens=frame_tokens)
    dataset = tokenmill.open(tmp_path / "d")
    for wanted in ("the", "去公园", "o", "🎉 done"):
        assert places(search(dataset, wanted)) == expect(dataset, wanted)


def test_foreign_tokens_are_searched_up_to_the_end_of_text(tmp_path):
    tokenizer = load_tokenizer("bytes")
    ids, _ = tokenizer.encode_terminated([b"one two", b"two one", b"one"])
    np.save(tmp_path / "x.npy", ids)
    found = list(search(tmp_path / "x.npy", "one", tokenizer="bytes"))
    assert [(match.token, match.byte, match.document) for match in found] == [
        (0, 0, None), (12, 4, None), (16, 0, None)
    ]  # fmt: skip
    assert found[1].before == "two "
    assert found[1].after == "<|endoftext|>"
    assert not list(search(tmp_path / "x.npy", "<|endoftext|>two", tokenizer="bytes"))
    with pytest.raises(TokenizerError, match="tokenizer"):
        search(tmp_path / "x.npy", "one")


def test_ids_without_documents_are_one_long_text(tmp_path):
    np.save(tmp_path / "x.npy", np.frombuffer(b"abcabc", np.uint8).astype(np.uint16))
    register_tokenizer(Plain)
    found = list(search(tmp_path / "x.npy", "ca", tokenizer=Plain()))
    assert [(match.token, match.byte, match.before) for match in found] == [(2, 2, "ab")]


def test_sequences_of_ids_are_found(dataset):
    ids = dataset["train"][:]
    for start, length in ((0, 1), (5, 2), (30, 7)):
        wanted = ids[start : start + length].tolist()
        found = [match.token for match in search(dataset, tokens=wanted, split="train")]
        table = dataset["train"].documents
        expected = [
            place
            for place in range(len(ids) - length + 1)
            if ids[place : place + length].tolist() == wanted
            and table.at(place) == table.at(place + length - 1)
        ]
        assert found == expected
        assert count_matches(dataset, tokens=wanted, split="train") == {"train": len(expected)}


def test_ids_are_found_without_a_tokenizer(tmp_path):
    np.save(tmp_path / "x.npy", np.array([7, 8, 9, 8, 9]))
    (one, two) = search(tmp_path / "x.npy", tokens=[8, 9])
    assert (one.token, one.before, one.found, one.after) == (1, "7 ", "8 9", " 8 9")
    assert two.token == 3
    assert list(search(tmp_path / "x.npy", tokens=[9, 7])) == []


@pytest.mark.parametrize("wanted", ["THE QUICK", "CAFé", "straßE", "ok 🎉", "NAÏVE"])
def test_case_is_ignored_on_request(dataset, wanted):
    expected = []
    for split in dataset:
        for document in dataset[split].documents:
            ids = dataset[split][document.start : document.start + document.length]
            text = dataset.tokenizer.decode(ids)
            for match in re.finditer(re.escape(wanted), text, re.IGNORECASE):
                byte = len(text[: match.start()].encode())
                expected.append((split, document.number, byte))
    assert expected
    assert places(search(dataset, wanted, ignore_case=True)) == expected


class Plain(Tokenizer):
    """One id per byte, with the bytes of each id known."""

    kind, name, vocab_size = "tests.plain", "plain", 256

    def encode(self, text):
        return list(text)

    def decode(self, ids):
        return bytes(np.asarray(ids).tolist()).decode("utf-8", "replace")

    def settings(self):
        return {}

    def spellings(self):
        return [bytes([value]) for value in range(256)]


class Reversing(Tokenizer):
    """Its text is not the joined text of its ids: words are stored backwards."""

    kind, name, vocab_size, eot_id = "tests.reversing", "reversing", 257, 256

    def encode(self, text):
        return list(b" ".join(word[::-1] for word in text.split(b" ")))

    def decode(self, ids):
        text = bytes(one for one in np.asarray(ids).tolist() if one < 256)
        return b" ".join(word[::-1] for word in text.split(b" ")).decode("utf-8", "replace")

    def settings(self):
        return {}


def test_a_tokenizer_that_only_decodes_is_searched_by_decoding(tmp_path):
    register_tokenizer(Reversing)
    (tmp_path / "a.txt").write_text("stop the pots, tops and spots")
    tokenmill.prepare(
        tmp_path / "a.txt", tmp_path / "d", tokenizer=Reversing(), val_fraction=0, workers=1
    )
    dataset = tokenmill.open(tmp_path / "d")
    for wanted in ("stop", "pots", "t", "tops and", "zzz", " "):
        assert places(search(dataset, wanted)) == expect(dataset, wanted)
    with pytest.raises(TokenizerError, match="spellings"):
        tokenmill.index(dataset)


def test_nothing_is_found_across_two_documents(tmp_path):
    build(tmp_path / "d", {"train": ["abc", "def", "", "abc"]}, eot="none")
    assert not list(search(tmp_path / "d", "cd"))
    assert not list(search(tmp_path / "d", tokens=[99, 100]))
    assert len(list(search(tmp_path / "d", "c"))) == 2


def test_matches_come_before_everything_is_read(tmp_path):
    """A damaged last shard is only noticed when the search gets there."""
    build(tmp_path / "d", {"train": ["needle " + "hay " * 100_000]}, shard_tokens=100_000)
    (tmp_path / "d" / "train" / "shard_00004.bin").write_bytes(b"cut")
    matches = search(tmp_path / "d", "needle")
    assert next(matches).token == 0
    with pytest.raises(DatasetError, match="shard_00004"):
        list(matches)


@pytest.mark.parametrize("share", [0, 1e-5, 1e-4, 1e-3, 1e-2, 0.5])
def test_all_places_of_ids_are_found_however_many_there_are(share):
    rng = np.random.default_rng(7)
    ids = rng.integers(0, 1000, 400_003).astype(np.uint16)
    ids[rng.random(len(ids)) < share] = 2000
    ids[: len(ids) // 2][rng.random(len(ids) // 2) < share / 50] = 2001
    for wanted in ([2000], [2000, 2001], [2001, *range(3000, 3030)]):
        found = IdFinder(np.array(wanted), 1 << 16).find(ids)
        assert np.array_equal(found, np.flatnonzero(np.isin(ids, wanted)))


def test_a_change_of_the_data_changes_the_anchor():
    """What is rare at first is everywhere later; results stay complete."""
    ids = np.concatenate((np.tile([1, 2, 2, 2], 50_000), np.tile([2, 1, 1, 1], 200_000)))
    vocabulary = Vocabulary([b"", b"a", b"b"])
    tokens = Tokens.of(ids.astype(np.uint16))
    pattern = TextPattern(vocabulary, b"bab")
    found = list(scan(tokens, pattern, Nobody(), chunk=100_000))
    text = bytes(np.frombuffer(b"-ab", np.uint8)[ids])
    assert [one for some in found for one in some.hits.first.tolist()] == list(
        find_all(text, b"bab")
    )


def test_many_occurrences_in_each_token_are_found_piece_by_piece(monkeypatch):
    monkeypatch.setattr("tokenmill.inspect.search.pattern._ENTRIES", 100)
    tokens = Tokens.of(np.tile(np.array([1, 2], np.uint16), 50))
    vocabulary = Vocabulary([b"", b" " * 30, b" x "])
    pattern = TextPattern(vocabulary, b"  ")
    for with_ids in (True, False):
        found = list(scan(tokens, pattern, Nobody(), chunk=64, with_ids=with_ids))
        assert len(found) > 10
        assert max(len(one.hits) for one in found) < 200
        hits = [
            place
            for one in found
            for place in zip(one.hits.first.tolist(), one.hits.skip.tolist(), strict=True)
        ]
        bounds = np.cumsum([0, *[30, 3] * 50])
        places = list(find_all((b" " * 30 + b" x ") * 50, b"  "))
        assert [int(bounds[token]) + skip for token, skip in hits] == places


def test_a_limit_ends_the_search(dataset):
    everything = list(search(dataset, "e"))
    assert list(search(dataset, "e", limit=3)) == everything[:3]


def test_wrong_requests_are_refused(dataset):
    for wrong, message in (
        ({"text": ""}, "from 1 to"),
        ({"text": "x" * 70_000}, "from 1 to"),
        ({"text": "\udc80"}, "not valid UTF-8"),
        ({"text": "a", "tokens": [1]}, "what to find"),
        ({}, "what to find"),
        ({"tokens": []}, "from 1 to"),
        ({"tokens": [50257]}, "not an id"),
        ({"tokens": [-1]}, "not an id"),
        ({"text": "a", "limit": 0}, "1 or more"),
        ({"text": "(", "regex": True}, "not a regular expression"),
    ):
        with pytest.raises(UsageError, match=message):
            search(dataset, **wrong)
    with pytest.raises(DatasetError, match="no split 'test'"):
        search(dataset, "a", split="test")


def test_bytes_before_a_match_are_counted_over_chunks(tmp_path):
    text = "é" * 300_000 + "needle" + "x" * 200_000 + "needle"
    build(tmp_path / "d", {"train": ["first", text]}, shard_tokens=1 << 20)
    dataset = tokenmill.open(tmp_path / "d")
    assert places(search(dataset, "needle")) == [("train", 1, 600_000), ("train", 1, 800_006)]


def test_no_dataset_is_an_error():
    with pytest.raises(UsageError, match="has no dataset to search"):
        tokenmill.search({}, "x", split="train")
