"""`tokenmill.stats`: compared with plain Python over all ids, documents and characters."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_builder import build, edit_manifest, write_sources

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import DatasetError, UsageError
from tokenmill.inspect.kept import identify
from tokenmill.inspect.stats.stats import read_stats, stats

WORDS = ["hello", "world", "многие", "слова", "中文字", "テスト", "مرحبا", "x = 1", "été", "🙂"]


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep results about data in other formats in a folder of the test."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    rng = np.random.default_rng(5)
    for name, count in (("a.txt", 90), ("b.txt", 30), ("c.txt", 7)):
        documents = []
        for number in range(count):
            lines = [
                f"{name} {number} " + " ".join(rng.choice(WORDS, rng.integers(1, 30)).tolist())
                for _ in range(rng.integers(1, 5))
            ]
            lines += ["this line is the same in many documents"] * int(rng.integers(0, 3))
            documents.append("\n".join(lines))
        (folder / name).write_text("<|endoftext|>".join(documents))
    return folder


@pytest.fixture(scope="module", params=["bytes", "gpt2"])
def made(request: pytest.FixtureRequest, texts: Path, tmp_path_factory: Any) -> Path:
    out = tmp_path_factory.mktemp("data") / "data"
    tokenmill.prepare(
        texts,
        out,
        tokenizer=request.param,
        tokens_per_shard=3000,
        val_fraction=0.2,
        compress="zstd" if request.param == "gpt2" else "none",
    )
    return out


def documents_of(folder: Path) -> list[tuple[Any, np.ndarray]]:
    data = tokenmill.open(folder)
    return [
        (document, tokens[document.start : document.start + document.length])
        for tokens in data.values()
        for document in tokens.documents
    ]


def test_counts_equal_those_of_all_ids(made: Path) -> None:
    found = stats(made, fresh=True)
    data = tokenmill.open(made)
    counts = Counter(number for tokens in data.values() for number in tokens[:].tolist())
    assert {n: c for n, c in enumerate(found.counts.tolist()) if c} == counts
    assert found.tokens == counts.total() == found.sample.tokens
    assert found.sample.is_all
    best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:1000]
    assert [(one.id, one.count) for one in found.frequent] == best
    assert found.frequent[0].share == best[0][1] / counts.total()
    assert found.frequent[0].text == data.tokenizer.decode([best[0][0]])
    assert found.unused.count == data.vocab_size - len(counts)
    assert found.unused.share == found.unused.count / data.vocab_size
    assert not counts.keys() & {one.id for one in found.unused.examples}


def test_sources_have_their_tokens_and_bytes(made: Path) -> None:
    found = stats(made, fresh=True)
    eot = tokenmill.open(made).eot_id
    decode = tokenmill.open(made).tokenizer.decode
    tokens, documents, size = Counter(), Counter(), Counter()
    for document, ids in documents_of(made):
        tokens[document.source.path] += len(ids)
        documents[document.source.path] += 1
        size[document.source.path] += len(decode(ids[ids != eot]).encode())
    assert [(one.path, one.tokens, one.documents) for one in found.sources] == [
        (path, number, documents[path]) for path, number in tokens.most_common()
    ]
    for one in found.sources:
        assert one.bytes_per_token == size[one.path] / one.tokens
    assert found.bytes_per_token == sum(size.values()) / found.tokens
    rest = found.sources.fold(1)
    assert rest.path == "2 more sources"
    assert rest.tokens == sum(one.tokens for one in found.sources[1:])


@pytest.mark.parametrize("seq_len", [1, 7, 64, 1024])
def test_lengths_and_cuts_equal_those_of_each_document(made: Path, seq_len: int) -> None:
    found = stats(made, seq_len=seq_len, fresh=True)
    places = [(document.start, document.length) for document, _ in documents_of(made)]
    lengths = np.array([length for _, length in places])
    assert (found.lengths.documents, found.lengths.tokens) == (len(lengths), lengths.sum())
    assert (found.lengths.shortest, found.lengths.longest) == (lengths.min(), lengths.max())
    for one in found.lengths.bins:
        inside = lengths[(lengths >= one.first) & (lengths <= one.last)]
        assert (one.documents, one.tokens) == (len(inside), inside.sum())
    for one in found.lengths.quantiles:
        assert one.length == np.quantile(lengths, one.share, method="inverted_cdf")
    cut = found.cut(seq_len)
    rows = [(start // seq_len, (start + length - 1) // seq_len) for start, length in places]
    is_cut = [first != last for first, last in rows]
    assert cut.documents_cut == sum(is_cut)
    assert cut.tokens_of_cut == lengths[is_cut].sum()
    assert cut.tokens_without_start == sum(
        token // seq_len != start // seq_len
        for start, length in places
        for token in range(start, start + length)
    )


def test_lengths_beyond_two_thousand_tokens_are_nearly_exact(tmp_path: Path) -> None:
    lengths = [1, 2047, 2048, 2049, 5000, 70_001]
    build(tmp_path / "d", {"train": ["x" * (n - 1) for n in lengths]}, shard_tokens=10_000)
    found = stats(tmp_path / "d")
    for one in found.lengths.quantiles:
        exact = np.quantile(lengths, one.share, method="inverted_cdf")
        assert exact * 0.999 <= one.length <= exact
    assert found.lengths.longest == 70_001


def script_of(letter: str) -> str:
    """The script by the Unicode name, for the few scripts of these tests."""
    if unicodedata.category(letter)[0] not in "LM":
        return ""
    first = unicodedata.name(letter).split()[0]
    known = {"CJK": "Han", "KATAKANA-HIRAGANA": "", "COMBINING": ""}
    return known.get(first, first.title())


def test_scripts_equal_those_of_each_character(made: Path) -> None:
    found = stats(made, fresh=True)
    tokenizer, eot = tokenmill.open(made).tokenizer, tokenmill.open(made).eot_id
    text = "".join(tokenizer.decode(ids[ids != eot]) for _, ids in documents_of(made))
    scripts = Counter(map(script_of, text))
    assert found.scripts.is_decoded  # many characters take several tokens
    assert found.scripts.characters == len(text)
    shared = scripts.pop("", 0)
    assert found.scripts.letters == len(text) - shared
    assert {one.script: one.letters for one in found.scripts.scripts} == scripts
    assert found.scripts.scripts[0].share == max(scripts.values()) / found.scripts.letters


def test_scripts_are_counted_by_token_if_characters_are_whole(tmp_path: Path) -> None:
    text = "Plain letters, a café and 12 of these: " * 50 + "ρ"
    (tmp_path / "a.txt").write_text(text)
    tokenmill.prepare(tmp_path / "a.txt", tmp_path / "d", tokenizer="gpt2", val_fraction=0)
    found = stats(tmp_path / "d").scripts
    whole = Counter(map(script_of, text.strip()))
    assert not found.is_decoded
    assert 0 <= found.split_share <= 0.005
    assert [(one.script, one.letters) for one in found.scripts] == [("Latin", whole["Latin"])]


def test_repeated_lines_equal_a_set_of_all_lines(made: Path) -> None:
    found = stats(made, fresh=True).lines
    tokenizer, eot = tokenmill.open(made).tokenizer, tokenmill.open(made).eot_id
    lines = [
        line
        for _, ids in documents_of(made)
        for line in tokenizer.decode(ids[ids != eot]).split("\n")
        if len(line) >= 20 and not line.isspace()
    ]
    assert (found.lines, found.repeated) == (len(lines), len(lines) - len(set(lines)))
    assert not found.is_sample


@pytest.mark.parametrize("eot", ["after", "before", "none"])
def test_blocks_do_not_change_the_result(
    tmp_path: Path, eot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"train": [f"document {n}\n" + "same old line of text\n" * (n % 4) for n in range(60)]}
    texts["val"] = ["a line that is in val, and long " * 9, "", "é"]
    build(tmp_path / "d", texts, shard_tokens=77, eot=eot)
    whole = stats(tmp_path / "d", fresh=True)
    monkeypatch.setattr("tokenmill.inspect.stats.tokens.BLOCK", 64)
    monkeypatch.setattr("tokenmill.inspect.stats.tokens.read_blocks.__defaults__", (64,))
    monkeypatch.setattr("tokenmill.inspect.stats.documents.BLOCK", 3)
    monkeypatch.setattr("tokenmill.inspect.stats.texts.BLOCK", 100)
    assert stats(tmp_path / "d", fresh=True) == whole


def test_foreign_tokens_show_what_they_know(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    ids = rng.integers(1, 300, 50_000).astype(np.uint16)
    ids[rng.integers(0, len(ids), 500)] = 0
    np.save(tmp_path / "x.npy", ids)
    found = stats(tmp_path / "x.npy", eot_id=0, seq_len=100)
    ends = np.append(np.flatnonzero(ids == 0) + 1, len(ids))
    lengths = np.diff(np.unique(np.append(0, ends)))
    assert found.documents == found.lengths.documents == len(lengths)
    assert found.lengths.longest == lengths.max()
    assert found.counts.tolist() == np.bincount(ids).tolist()
    missing = {one.part for one in found.omitted}
    assert {"sources", "unused ids"} <= missing
    assert found.scripts is found.lines is found.bytes_per_token is None
    assert found.frequent[0].text is None
    without = stats(tmp_path / "x.npy")
    assert without.lengths is None
    assert without.cuts == ()
    assert any("eot_id=ID" in one.reason for one in without.omitted)
    assert read_stats(tokenmill.open(tmp_path / "x.npy")) == without
    assert read_stats(tokenmill.open(tmp_path / "x.npy", eot_id=0)) is None
    known = stats(tmp_path / "x.npy", tokenizer="gpt2", eot_id=0)
    assert known.unused.count == 50_257 - len(np.unique(ids))
    assert known.lines is not None


def test_a_sample_is_evenly_spaced_and_always_the_same(tmp_path: Path) -> None:
    ids = np.arange(8 << 20, dtype=np.uint32) // (1 << 20)
    np.save(tmp_path / "x.npy", ids)
    found = stats(tmp_path / "x.npy", sample=3 << 20)
    assert found.counts.tolist() == [1 << 20, 0, 0, 1 << 20, 0, 0, 0, 1 << 20]
    assert (found.sample.tokens, found.sample.is_all) == (3 << 20, False)
    assert found == stats(tmp_path / "x.npy", sample=3 << 20, fresh=True)
    whole = stats(tmp_path / "x.npy", sample="all")
    assert whole.counts.tolist() == [1 << 20] * 8
    assert stats(tmp_path / "x.npy", sample=3 << 20) == whole  # the better one was kept


def test_results_are_kept_and_damage_is_not_read(tmp_path: Path) -> None:
    build(tmp_path / "d")
    data = tokenmill.open(tmp_path / "d")
    assert read_stats(data) is None
    found = stats(tmp_path / "d", seq_len=5)
    for again in (read_stats(data), stats(data, seq_len=5)):
        assert again == found
        assert again.counts.tolist() == found.counts.tolist()
    assert stats(data, seq_len=6).cut(5) == found.cut(5)
    assert stats(data, split="val").tokens == 29
    assert read_stats(data, "val").tokens == 29
    (folder,) = (tmp_path / "d" / ".tokenmill").iterdir()
    for path in folder.glob("statistics.*"):
        good = path.read_bytes()
        for bad in (b"", good[:-1], good[:-9] + b"x" + good[-8:], b"null", b"[" * 99_999):
            path.write_bytes(bad)
            assert read_stats(data) is None, (path, bad[:20])
        path.write_bytes(good)
        assert read_stats(data) is not None
    assert tokenmill.verify(tmp_path / "d") == []


def test_a_watcher_can_cancel_and_nothing_is_kept(tmp_path: Path) -> None:
    build(tmp_path / "d")

    class Cancelled(Exception):
        pass

    class Watcher:
        def begin(self, *_: Any) -> None: ...
        def note(self, _: str) -> None: ...
        def advance(self, amount: int, **_: int) -> None:
            raise Cancelled

    with pytest.raises(Cancelled):
        stats(tmp_path / "d", watcher=Watcher())
    assert read_stats(tokenmill.open(tmp_path / "d")) is None


def test_impossible_ids_and_sources_are_errors(tmp_path: Path) -> None:
    build(tmp_path / "d")
    np.full(10, 60_000, "<u2").tofile(tmp_path / "d/train/shard_00001.bin")
    with pytest.raises(DatasetError, match="has the id 60000, but the vocabulary has only 257"):
        stats(tmp_path / "d")
    np.save(tmp_path / "x.npy", np.array([1, 2**31], np.int64))
    with pytest.raises(DatasetError, match="has the id 2147483648; statistics support ids from 0"):
        stats(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.array([1, -5], np.int64))
    with pytest.raises(DatasetError, match="has the id -5"):
        stats(tmp_path / "x.npy")
    build(tmp_path / "e")
    table = np.load(tmp_path / "e/val/shard_00000.docs.npy")
    table["source"] = 7
    np.save(tmp_path / "e/val/shard_00000.docs.npy", table)
    with pytest.raises(DatasetError, match="names source 7, but the dataset has 1"):
        stats(tmp_path / "e")


def test_a_budget_means_epochs_of_each_source(tmp_path: Path) -> None:
    web, code = tmp_path / "web", tmp_path / "code"
    build(web, {"train": ["w" * 999]})
    build(code, {"train": ["c" * 99]})
    data = [f"web={web}:0.75", f"code={code}:0.25"]
    found = stats(data, budget=4000, seq_len=10)
    assert [(one.name, one.trained, one.available) for one in found.budget] == [
        ("web", 3000, 1000),
        ("code", 1000, 100),
    ]
    assert found.budget[0].epochs == 3000 / 990
    assert found.budget[1].epochs == 1000 / 90
    assert [one.has_many_epochs for one in found.budget] == [False, True]
    assert found.parts["web"].tokens == 1000
    assert found.tokens == 1100
    # The rows that a loader reads of this mixture.
    opened = {
        name: (tokenmill.open(folder)["train"], weight)
        for name, folder, weight in (("web", web, 0.75), ("code", code, 0.25))
    }
    loader = tokenmill.Loader(
        tokenmill.Mixture(opened, block=100), batch_size=400, seq_len=10, seed=0, limit_rows=400
    )
    rows = Counter(row[3].item() for batch in loader for row in batch.inputs)
    assert rows[ord("w")] * 10 == found.budget[0].trained
    with pytest.raises(UsageError, match="too short for a row of 4,096"):
        stats(data, budget=4000, seq_len=4096)


@pytest.mark.parametrize(
    "wrong", [{"seq_len": 0}, {"sample": 0}, {"budget": 0}, {"split": "nonsense"}]
)
def test_wrong_settings_are_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    build(tmp_path / "d")
    with pytest.raises(
        (UsageError, DatasetError), match="nonsense" if "split" in wrong else next(iter(wrong))
    ):
        stats(tmp_path / "d", **wrong)


def test_the_command_prints_tables_and_json(made: Path, capsys: Any) -> None:
    assert main(["stats", str(made), "--budget", "10M", "--top", "2"]) == 0
    output = capsys.readouterr()
    out = output.out
    for part in (
        "Sources (3)",
        "1 more source",
        "Lengths of documents",
        "Frequent tokens",
        "Never used: ",
        "Latin",
        "Repeated lines: ",
        "Budget",
    ):
        assert part in out
    assert "warning: " in output.err
    assert out.endswith(f"tokenmill stats {made} --budget 10B\n")
    assert main(["stats", str(made), "--json"]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    body = json.loads(out)
    found = stats(made)
    assert body["tokens"] == found.tokens
    assert len(body["sources"]) == 3
    assert body["sample"]["is_all"]
    assert math.isclose(body["bytes_per_token"], found.bytes_per_token)


def test_ids_that_are_not_text_are_shown_by_their_bytes(tmp_path: Path, capsys: Any) -> None:
    build(tmp_path / "d", {"train": [bytes(set(range(128)) - {38, 39}).decode() + "é" * 200]})
    assert main(["stats", str(tmp_path / "d"), "--top", "5"]) == 0
    out = capsys.readouterr().out
    assert "\ufffd" not in out
    unused = "38 '&', 39 \"'\", 128 bytes 80, 129 bytes 81, 130 bytes 82."
    assert out.count(f"of the vocabulary, such as {unused}") == 1
    assert re.search(r"^ *169 +bytes a9 +200 ", out, re.MULTILINE)
    found = stats(tmp_path / "d")
    assert found.unused is not None
    assert [(one.id, one.bytes) for one in found.unused.examples[1:3]] == [(39, None), (128, "80")]
    assert "bytes c3" in found._repr_html_()


def test_an_empty_split_has_a_cure_for_the_command_line(tmp_path: Path, capsys: Any) -> None:
    build(tmp_path / "d", {"train": ["text"], "val": []})
    np.save(tmp_path / "x.npy", np.arange(10, dtype=np.uint16))
    for name, command in (("d", "prepare TEXTS"), ("x.npy", f"import {tmp_path / 'x.npy'}")):
        assert main(["stats", str(tmp_path / name), "--split", "val"]) == 1
        said = capsys.readouterr().err
        assert "Splits with tokens: train. Use one of these." in said
        assert f"tokenmill {command} --out FOLDER --val-fraction 0.1" in said


def test_hostile_names_and_texts_are_escaped(tmp_path: Path, capsys: Any) -> None:
    build(tmp_path / "d", {"train": ["\x1b[2J" * 30]})
    source = {"path": "a\x1b[2J\n<script>", "bytes": 9, "unit": "byte"}
    edit_manifest(
        tmp_path / "d", lambda body: body.update(sources=write_sources(tmp_path / "d", [source]))
    )
    assert main(["stats", str(tmp_path / "d")]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"a\x1b[2J\n<script>" in out
    shown = stats(tmp_path / "d")._repr_html_()
    assert "<script>" not in shown
    assert "\x1b" not in shown


def test_an_empty_split_is_omitted(tmp_path: Path) -> None:
    build(tmp_path / "d", {"train": ["text"], "val": []})
    assert [one.name for one in stats(tmp_path / "d").splits] == ["train"]


def test_statistics_that_cannot_be_kept_are_returned(tmp_path: Path) -> None:
    build(tmp_path / "d")
    data = tokenmill.open(tmp_path / "d")
    (tmp_path / "d/.tokenmill").mkdir()
    (tmp_path / "d/.tokenmill" / identify(data)).write_text("not a folder")
    assert stats(data).tokens == 97
    assert read_stats(data) is None
    (tmp_path / "d/.tokenmill" / identify(data)).unlink()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "d/.tokenmill" / identify(data)).symlink_to(tmp_path / "elsewhere")
    assert stats(data).tokens == 97
    assert not [*(tmp_path / "elsewhere").iterdir()]
