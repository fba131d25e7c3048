"""A reshard that leaves documents out has the bytes of a `prepare` that leaves them out."""

from __future__ import annotations

import json
import random
import signal

import numpy as np
import pytest
from dataset_builder import build
from foreign import write_llmc
from hypothesis import given, settings
from hypothesis import strategies as st
from test_export import contents, run_killed

import tokenmill
from tokenmill.convert.without import _ENTRY, RecordsWithout, Removed, TokensWithout
from tokenmill.errors import DatasetError, FolderError, UsageError
from tokenmill.preparation.exclusion import find_list
from tokenmill.progress import Nobody
from tokenmill.store.manifest import DOCUMENT_DTYPE
from tokenmill.store.tokens import Tokens

REPORT = "excluded.jsonl"


def prepare(folder, out, **options):
    texts = folder / "texts.jsonl"
    if not texts.exists():
        chance = random.Random(3)
        lines = [
            json.dumps({"text": f"Text {n}. Ünïcode" * chance.randint(1, 9)}) for n in range(90)
        ]
        texts.write_text("\n".join([*lines, "no json"]) + "\n")
    settings = {"tokenizer": "bytes", "val_fraction": 0.3, "workers": 1, "tokens_per_shard": 200}
    tokenmill.prepare(texts, out, **{**settings, **options})
    return out


def keys_of(folder):
    data = tokenmill.open(folder)
    return [document.key for split in data for document in data[split].documents]


def write_list(path, keys):
    path.write_text("".join(json.dumps({"key": key}) + "\n" for key in keys))
    return path


def lines_of(report):
    return sorted(report.read_text().splitlines())


def assert_same(one, other):
    mine, theirs = contents(one), contents(other)
    assert lines_of(one / REPORT) == lines_of(other / REPORT)
    mine.pop(REPORT), theirs.pop(REPORT)
    assert mine == theirs


@pytest.mark.parametrize("eot", ["after", "before", "none"])
def test_resharding_without_documents_equals_preparing_without_them(tmp_path, eot):
    data = prepare(tmp_path, tmp_path / "data", eot=eot)
    chance = random.Random(eot)
    for share in (0.02, 0.4, 0.97):
        gone = [key for key in keys_of(data) if chance.random() < share] or keys_of(data)[:1]
        listed = write_list(tmp_path / "list", [*gone, "0" * 32])
        for size in (7, 333, 10**6):
            want = tmp_path / f"want{share}-{size}"
            prepare(tmp_path, want, eot=eot, exclude=listed, tokens_per_shard=size)
            out = tmp_path / f"out{share}-{size}"
            tokenmill.reshard(data, out, tokens_per_shard=size, exclude=listed)
            assert_same(out, want)
            assert tokenmill.verify(out) == []


def test_compressed_copies_and_sources_are_the_same(tmp_path):
    data = prepare(tmp_path, tmp_path / "data", compress="zstd")
    write_list(find_list(data), keys_of(data)[::4])
    listed = find_list(data)
    want = prepare(tmp_path, tmp_path / "want", exclude=listed)
    tokenmill.reshard(data, tmp_path / "plain", compress="none")
    assert_same(tmp_path / "plain", want)
    packed = prepare(tmp_path, tmp_path / "packed", exclude=listed, compress="zstd")
    tokenmill.reshard(data, tmp_path / "out")
    assert_same(tmp_path / "out", packed)


def test_the_list_of_a_dataset_is_used_unless_refused(tmp_path):
    data = prepare(tmp_path, tmp_path / "data")
    before = contents(data)
    with pytest.raises(UsageError, match=r"nothing would change\. Pass `tokens_per_shard`"):
        tokenmill.reshard(data, tmp_path / "out")
    write_list(find_list(data), ["0" * 32])
    with pytest.raises(UsageError, match=r"nothing would change; no document of "):
        tokenmill.reshard(data, tmp_path / "out")
    write_list(find_list(data), keys_of(data)[:2])
    notes = []
    watcher = Nobody()
    watcher.note = notes.append
    made = tokenmill.reshard(data, tmp_path / "out", watcher=watcher)
    assert made.ledger["dropped"]["excluded"]["documents"] == 2
    assert "Leaving out 2 documents listed in" in notes[0]
    again = tokenmill.reshard(data, tmp_path / "out")
    assert again == made
    whole = tokenmill.reshard(data, tmp_path / "whole", tokens_per_shard=200, exclude=False)
    assert whole == tokenmill.open(data).manifest
    with pytest.raises(FolderError, match="another finished dataset"):
        tokenmill.reshard(data, tmp_path / "whole", tokens_per_shard=200)
    assert contents(data) == before
    # Leaving out more, step by step, gives the shards of one step.
    more = write_list(tmp_path / "more", keys_of(data)[2:5])
    last = tokenmill.reshard(tmp_path / "out", tmp_path / "last", exclude=more)
    assert last.ledger["dropped"]["excluded"]["documents"] == 5
    assert last.settings["exclude"]["keys"] == 3
    assert last.settings["exclude"]["earlier"] == made.settings["exclude"]
    one = tokenmill.reshard(data, tmp_path / "one", exclude=more)
    assert one.splits == last.splits
    assert lines_of(tmp_path / "one" / REPORT) == lines_of(tmp_path / "last" / REPORT)
    assert tokenmill.verify(tmp_path / "last") == []


def test_a_killed_reshard_resumes_to_the_same_bytes(tmp_path):
    data = prepare(tmp_path, tmp_path / "data")
    write_list(find_list(data), keys_of(data)[::3])
    tokenmill.reshard(data, tmp_path / "want", tokens_per_shard=333)
    for after in (1, 4400, 7000):  # 4320 bytes of document tables are read first
        out = tmp_path / f"out{after}"
        killed = run_killed("reshard", "reshard", data, out, after, "tokens_per_shard=333")
        assert killed.returncode == -signal.SIGKILL
        assert not (out / "dataset_metadata.json").exists()
        tokenmill.reshard(data, out, tokens_per_shard=333)
        assert contents(out) == contents(tmp_path / "want")
    out = tmp_path / "other"
    run_killed("reshard", "reshard", data, out, 7000, "tokens_per_shard=333")
    write_list(find_list(data), keys_of(data)[::2])
    with pytest.raises(FolderError, match="unfinished run with other settings: exclude was"):
        tokenmill.reshard(data, out, tokens_per_shard=333)


def test_what_cannot_be_left_out_is_refused(tmp_path):
    data = prepare(tmp_path, tmp_path / "data")
    write_list(find_list(data), keys_of(data))
    with pytest.raises(UsageError, match=r"All documents of .* nothing would be left"):
        tokenmill.reshard(data, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    find_list(data).write_text("not a list")
    with pytest.raises(DatasetError, match="line 1"):
        tokenmill.reshard(data, tmp_path / "out")
    write_llmc(tmp_path / "x.bin", [50256, 1])
    with pytest.raises(UsageError, match="tokenmill import"):
        tokenmill.reshard(tmp_path / "x.bin", tmp_path / "out", exclude=find_list(data))


def test_one_split_may_be_left_out_whole(tmp_path):
    build(tmp_path / "data")
    data = tokenmill.open(tmp_path / "data")
    gone = [document.key for document in data["val"].documents]
    listed = write_list(tmp_path / "list", gone)
    made = tokenmill.reshard(tmp_path / "data", tmp_path / "out", exclude=listed)
    assert made.splits["val"].tokens == 0
    copy = tokenmill.open(tmp_path / "out")
    assert copy.splits == ("train",)
    assert np.array_equal(copy["train"][:], data["train"][:])


def test_imported_documents_have_keys_of_their_ids(tmp_path):
    """The text of imported tokens is unknown, so its size in the ledger stays 0."""
    ids = np.array([5, 6, 0, 7, 0, 5, 6, 0, 9, 9, 0], np.uint16)
    np.save(tmp_path / "x.npy", ids)
    tokenmill.import_dataset(tmp_path / "x.npy", tmp_path / "data", eot_id=0, vocab_size=10)
    documents = list(tokenmill.open(tmp_path / "data")["train"].documents)
    listed = write_list(tmp_path / "list", [documents[0].key])
    made = tokenmill.reshard(tmp_path / "data", tmp_path / "out", exclude=listed)
    assert tokenmill.open(tmp_path / "out")["train"][:].tolist() == [7, 0, 9, 9, 0]
    assert made.ledger["dropped"]["excluded"] == {"documents": 2, "bytes": 0}
    assert tokenmill.verify(tmp_path / "out") == []


class Records:
    """The records of documents with these lengths."""

    def __init__(self, lengths):
        self.table = np.zeros(len(lengths), DOCUMENT_DTYPE)
        self.table["first"] = np.cumsum([0, *lengths[:-1]])
        self.table["length"] = lengths
        self.table["offset"] = np.arange(len(lengths))

    def read(self, start, stop):
        places = self.table["first"].astype(np.int64)
        some = self.table[(places >= start) & (places < stop)].copy()
        some["first"] -= np.uint64(start)
        for at in range(0, len(some), 3):
            yield some[at : at + 3]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=40), st.data())
def test_any_range_without_documents_equals_deleting_them(documents, data):
    lengths = [length for length, _ in documents]
    ids = np.arange(sum(lengths)) + 7
    whole = Records(lengths)
    gone = np.array([is_gone for _, is_gone in documents])
    entries = np.zeros(int(gone.sum()), _ENTRY)
    entries["start"] = whole.table["first"][gone]
    entries["stop"] = entries["start"] + np.array(lengths)[gone]
    entries["removed"] = np.cumsum(np.array(lengths)[gone])
    entries["place"] = entries["start"] - (entries["removed"] - np.array(lengths)[gone])
    removed = Removed(entries)
    kept = ids[~np.repeat(gone, lengths)]
    tokens = TokensWithout(Tokens.of(ids), removed)
    assert len(tokens) == len(kept)
    start = data.draw(st.integers(0, max(len(kept) - 1, 0)))
    stop = data.draw(st.integers(min(start + 1, len(kept)), len(kept)))
    assert tokens.read(start, stop).tolist() == kept[start:stop].tolist()
    if start == stop:
        return
    numbers = np.flatnonzero(~gone)
    firsts = np.cumsum([0, *(lengths[n] for n in numbers)])[:-1]
    want = [(n, f - start) for n, f in zip(numbers, firsts, strict=True) if start <= f < stop]
    found = list(RecordsWithout(whole, removed).read(start, stop))
    got = [(int(one["offset"]), int(one["first"])) for table in found for one in table]
    assert got == want


def test_documents_that_overlap_are_refused(tmp_path):
    build(tmp_path / "data")
    data = tokenmill.open(tmp_path / "data")
    keys = [document.key for document in data["train"].documents]
    path = tmp_path / "data" / "train" / "shard_00000.docs.npy"
    table = np.load(path)
    table["length"][0] += 1
    np.save(path, table)
    listed = write_list(tmp_path / "list", keys[:3])
    with pytest.raises(DatasetError, match="overlap"):
        tokenmill.reshard(tmp_path / "data", tmp_path / "out", exclude=listed)
