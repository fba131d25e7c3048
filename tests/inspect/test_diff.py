"""`tokenmill.diff`: compared with multisets of texts in plain Python."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_builder import build, edit_manifest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import DatasetError
from tokenmill.inspect.diff.diff import compare, diff
from tokenmill.inspect.diff.matching import ENTRY, Tally, reduce_entries
from tokenmill.inspect.diff.partitions import divide
from tokenmill.progress import Nobody

Texts = dict[str, list[str]]


def tokens_of(text: str) -> int:
    return len(text.encode()) + 1


def check(found: Any, one: Texts, other: Texts) -> None:
    """Compare with `Counter`s, whose difference is that of multisets."""
    before = {split: Counter(texts) for split, texts in one.items()}
    after = {split: Counter(texts) for split, texts in other.items()}
    splits = {*before, *after}
    same = sum(((before.get(s, Counter()) & after.get(s, Counter())) for s in splits), Counter())
    whole, theirs = sum(before.values(), Counter()), sum(after.values(), Counter())

    def total(texts: Counter[str]) -> tuple[int, int]:
        return texts.total(), sum(tokens_of(text) * n for text, n in texts.items())

    removed, added = whole - theirs, theirs - whole
    assert (found.same.documents, found.same.tokens) == total(same)
    assert (found.removed.documents, found.removed.tokens) == total(removed)
    assert (found.added.documents, found.added.tokens) == total(added)
    moved = (whole & theirs) - same
    assert found.moved_documents == moved.total()
    assert sum(move.tokens for move in found.moved) == total(moved)[1]
    for move in found.moved:
        assert move.before != move.after
        gone, come = before[move.before], after[move.after]
        assert 0 < move.documents <= min((gone & moved).total(), (come & moved).total())
    assert found.is_same == (before == after)
    for source in found.sources:
        assert source.path == "texts/a.txt"
        assert (source.removed, source.added) == (found.removed, found.added)
    for kind, texts in (("removed", removed), ("added", added), ("moved", moved)):
        shown = [example.text for example in found.examples if example.kind == kind]
        assert {*shown} <= {*texts}
        assert bool(shown) == bool(texts)


TEXT = st.sampled_from(["a", "bb", "ccc", "dd\nd", "é", "f" * 30])
SPLITS = st.fixed_dictionaries(
    {"train": st.lists(TEXT, min_size=1, max_size=12)},
    optional={"val": st.lists(TEXT, min_size=1, max_size=6), "test": st.lists(TEXT, min_size=1)},
)


@settings(max_examples=30, deadline=None)
@given(one=SPLITS, other=SPLITS, limit=st.sampled_from([2, 8, 1000]))
def test_documents_are_compared_as_multisets(one: Texts, other: Texts, limit: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder / "a", one, shard_tokens=9)
        build(folder / "b", other, shard_tokens=50)
        opened = tokenmill.open(folder / "a"), tokenmill.open(folder / "b")
        check(compare(*opened, Nobody(), limit), one, other)


@settings(max_examples=100, deadline=None)
@given(
    documents=st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 1), st.integers(0, 2), st.integers(0, 2)
        ),  # key, side, split, source
        max_size=40,
    )
)
def test_documents_of_the_same_source_are_matched_first(documents: list[Any]) -> None:
    entries = np.zeros(len(documents), ENTRY)
    for entry, (key, side, split, source) in zip(entries, documents, strict=True):
        entry["key"] = key, 5
        entry["side"], entry["split"], entry["source"] = side, split, source
        entry["count"], entry["tokens"] = 1, 10 + key
    tally = Tally(splits=3, sources=3)
    tally.add(entries)
    # In plain Python: match one pair after the other, in three rounds.
    left: list[list[Any]] = [[d for d in documents if d[1] == side] for side in (0, 1)]
    moved = 0
    for length in (3, 2, 1):
        for document in list(left[0]):
            fit = (document[0], *document[2:])[:length]
            for match in left[1]:
                if (match[0], *match[2:])[:length] == fit:
                    left[0].remove(document)
                    left[1].remove(match)
                    moved += length == 1
                    break
    assert tally.moved[:, :, 0].sum() == moved
    for number, columns in enumerate((tally.removed, tally.added)):
        assert columns.sum(axis=0).tolist() == [
            len(left[number]),
            sum(10 + document[0] for document in left[number]),
        ]
    assert tally.same[0] == len([d for d in documents if not d[1]]) - len(left[0]) - moved


@pytest.mark.parametrize("same_key", [False, True])
def test_partitions_keep_equal_keys_together(same_key: bool) -> None:
    rng = np.random.default_rng(1)
    entries = np.zeros(5000, ENTRY)
    entries["key"] = 7 if same_key else rng.integers(0, 900, (5000, 1))
    entries["side"], entries["count"] = rng.integers(0, 2, 5000), 1
    parts = list(divide(np.split(entries, 50), 5000, Nobody(), limit=64))
    keys = [{row.tobytes() for row in part["key"]} for part in parts]
    assert sum(map(len, keys)) == len(set().union(*keys))
    assert np.array_equal(reduce_entries(np.concatenate(parts)), reduce_entries(entries))
    if same_key:
        assert max(map(len, parts)) <= 64  # equal entries are joined


def test_prepared_datasets_differ_by_file(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("a", "b", "c"):
        (texts / f"{name}.txt").write_text("<|endoftext|>".join(f"{name} {n}" for n in range(100)))
    for out, options in (("one", {"workers": 1}), ("two", {"tokens_per_shard": 100, "workers": 2})):
        tokenmill.prepare(texts, tmp_path / out, tokenizer="bytes", val_fraction=0.1, **options)
    found = tokenmill.diff(tmp_path / "one", tmp_path / "two")
    assert found.is_same
    assert [(one.before, one.after) for one in found.settings] == [("100,000,000", "100")]
    assert [one.name for one in found.settings] == ["tokens_per_shard"]
    (texts / "b.txt").unlink()
    (texts / "d.txt").write_text("a 7<|endoftext|>new")
    tokenmill.prepare(texts, tmp_path / "three", tokenizer="gpt2", val_fraction=0.9)
    found = tokenmill.diff(tmp_path / "one", tmp_path / "three")
    assert found.compared_by == "keys"
    assert (found.removed.documents, found.added.documents) == (100, 1)
    assert found.same.documents + found.moved_documents == 200
    assert [move.before for move in found.moved] == ["train"]
    by_name = {Path(one.path).name: one for one in found.sources}
    assert {
        name: (one.removed.documents, one.added.documents) for name, one in by_name.items()
    } == {
        "b.txt": (100, 0),
        "d.txt": (0, 1),
    }
    (new,) = (one for one in found.examples if one.kind == "added")
    assert (new.text, Path(new.source).name, new.offset) == ("new", "d.txt", 16)
    assert {"tokenizer", "tokenizer fingerprint", "val_fraction"} <= {
        one.name for one in found.settings
    }
    assert not found.is_same


def test_foreign_tokens_are_compared_by_their_ids(tmp_path: Path) -> None:
    one = {"train": ["first", "second", "second", "third"]}
    other = {"train": ["third", "second", "fourth"]}
    for name, texts in (("a", one), ("b", other)):
        ids = build(tmp_path / name, texts)["train"]
        np.save(tmp_path / f"{name}.npy", ids.astype(np.int32 if name == "a" else np.uint16))
        tokenmill.import_dataset(tmp_path / f"{name}.npy", tmp_path / f"{name}i", tokenizer="bytes")
    for before in ("a", "a.npy", "ai"):
        for after in ("b", "b.npy", "bi"):
            found = diff(tmp_path / before, tmp_path / after, tokenizer="bytes")
            assert (found.same.documents, found.removed.documents, found.added.documents) == (
                2,
                2,
                1,
            ), (before, after)
            assert found.compared_by == ("keys" if before + after == "ab" else "tokens")
            assert bool(found.notes) == (before + after != "ab")
            shown = {example.text for example in found.examples}
            assert shown == {"first", "second", "fourth"}


def test_ids_of_other_tokenizers_are_not_compared(tmp_path: Path) -> None:
    ids = build(tmp_path / "a")["train"]
    np.save(tmp_path / "b.npy", ids)
    with pytest.raises(DatasetError, match="different tokenizers"):
        diff(tmp_path / "a", tmp_path / "b.npy", tokenizer="gpt2")
    with pytest.raises(DatasetError, match="eot_id"):
        diff(tmp_path / "b.npy", tmp_path / "b.npy")
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b.npy"), "--tokenizer", "gpt2"]) == 2
    found = diff(tmp_path / "b.npy", tmp_path / "b.npy", eot_id=256)
    assert found.is_same
    assert found.examples == ()


def test_the_command_prints_what_differs(tmp_path: Path, capsys: Any) -> None:
    build(tmp_path / "a", {"train": ["kept", "gone \x1b[2J"], "val": ["moving"]})
    build(tmp_path / "b", {"train": ["moving", "kept", "new <b>"], "val": ["v"]})
    one, other = str(tmp_path / "a"), str(tmp_path / "b")
    assert main(["diff", one, one]) == 0
    assert "The datasets have the same documents." in capsys.readouterr().out
    assert main(["diff", one, other]) == 1
    out = capsys.readouterr().out
    for part in (
        "The datasets differ in 4 documents: 1 removed, 2 added, 1 moved to another split.",
        "removed                          1      10",
        "moved from val to train          1       7",
        "texts/a.txt",
        "Examples: removed",
        r"'gone \x1b[2J'",
        f"tokenmill peek {one} --split train --token 5",
    ):
        assert part in out, part
    assert "\x1b" not in out
    assert main(["diff", one, other, "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert body["is_same"] is False
    assert body["added"] == {"documents": 2, "tokens": 10}
    assert main(["diff", one, str(tmp_path / "nothing")]) == 2
    shown = diff(one, other)
    assert "<b>" not in shown._repr_html_().replace("<b>/", "")
    assert len(repr(shown)) < 500


def test_only_documents_decide_the_exit_status(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "a.txt").write_text("one<|endoftext|>two<|endoftext|>three")
    (tmp_path / "list.jsonl").write_text('{"key": "' + "0f" * 16 + '"}\n')
    options: dict[str, Any] = {"val_fraction": 0, "workers": 1}
    tokenmill.prepare(tmp_path / "a.txt", tmp_path / "a", tokenizer="bytes", **options)
    options |= {"exclude": tmp_path / "list.jsonl", "normalize": False, "dtype": "uint32"}
    tokenmill.prepare(tmp_path / "a.txt", tmp_path / "b", tokenizer="gpt2", **options)
    tokenmill.export(tmp_path / "a", tmp_path / "c", to="megatron")
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    out = capsys.readouterr().out
    assert "The datasets have the same documents, but other settings.\n" in out
    rows = [line.split(maxsplit=2) for line in out.splitlines()]
    for row in (["normalize", "yes", "no"], ["tokenizer", "bytes", "gpt2"]):
        assert row in rows
    assert not {"'", "{", "[", "True"} & set(out.partition("Settings")[2].partition("\n\n")[0])
    assert re.search(r"^  exclude +none +keys: 1, xxh3_128: [0-9a-f]{32}$", out, re.MULTILINE)
    (bin_file,) = (tmp_path / "c").glob("*train*.bin")
    assert main(["diff", str(tmp_path / "a"), str(bin_file), "--tokenizer", "bytes"]) == 0
    out = capsys.readouterr().out
    assert "The datasets have the same documents, but other settings.\n" in out
    shown = [line.split() for line in out.partition("Settings")[2].splitlines()]
    assert ["format", "tokenmill", "megatron"] in shown
    assert "none" not in out


def test_a_shard_of_another_size_is_named(tmp_path: Path, capsys: Any) -> None:
    for name, frame in (("a", None), ("b", None), ("c", 4)):
        build(tmp_path / name, frame_tokens=frame)
    with (tmp_path / "b/train/shard_00002.bin").open("r+b") as file:
        file.truncate(6)
    (compressed,) = (tmp_path / "c/val").glob("shard_00001.bin*")
    compressed.unlink()
    for name, said in (
        ("b", "train/shard_00002.bin is 14 bytes too short: expected 20"),
        ("c", f"val/{compressed.name} is missing"),
    ):
        for pair in (("a", name), (name, "a")):
            assert main(["diff", *(str(tmp_path / one) for one in pair)]) == 2
            assert said in capsys.readouterr().err


def test_impossible_sources_are_errors(tmp_path: Path) -> None:
    build(tmp_path / "a")
    build(tmp_path / "b")
    table = np.load(tmp_path / "b/val/shard_00000.docs.npy")
    table["source"] = 3
    np.save(tmp_path / "b/val/shard_00000.docs.npy", table)
    with pytest.raises(DatasetError, match="tokenmill verify"):
        diff(tmp_path / "a", tmp_path / "b")


def test_settings_of_strangers_are_short(tmp_path: Path) -> None:
    build(tmp_path / "a")
    build(tmp_path / "b")
    edit_manifest(
        tmp_path / "b", lambda body: body["settings"].update({"x" * 9999: ["<b>" * 9999] * 99})
    )
    found = diff(tmp_path / "a", tmp_path / "b")
    assert max(len(one.name) + len(one.after or "") for one in found.settings) < 500
