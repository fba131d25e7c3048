"""`verify` reports every kind of damage with the name of the file and a cure."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from dataset_builder import build, edit_manifest, key_of, reseal
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.cli import main
from tokenmill.dataset.verify import examine, verify
from tokenmill.dataset.verify_split import Limits, find_keys
from tokenmill.errors import DatasetError, TokenmillError
from tokenmill.progress import Nobody


@pytest.fixture
def folder(tmp_path):
    """A small sound dataset with several shards, and documents that span them."""
    build(tmp_path / "data")
    return tmp_path / "data"


BIN, TABLE = "train/shard_00001.bin", "train/shard_00001.docs.npy"


def files_of(problems):
    return {problem.file for problem in problems}


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.binary(max_size=30), max_size=12),
    shard_tokens=st.integers(1, 40),
    eot=st.sampled_from(["after", "before", "none"]),
    chunk=st.integers(1, 9),
)
def test_sound_datasets_have_no_problems_for_any_chunk_size(texts, shard_tokens, eot, chunk):
    split = {"train": [b"t" + text for text in texts], "val": [b"v" + text for text in texts[:3]]}
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder), split, shard_tokens=shard_tokens, eot=eot)
        limits = Limits(chunk=48 * chunk, keys=2 * chunk)
        assert examine(folder, limits=limits).problems == []


class Counter(Nobody):
    """Counts what is done."""

    total = done = 0

    def begin(self, stage, total, done=0, unit="bytes"):
        self.total, self.done = total, done

    def advance(self, amount, *_):
        self.done += amount


def test_findings_have_counts_and_progress_ends_at_the_total(folder):
    seen = Counter()
    findings = examine(folder, watcher=seen)
    assert findings.problems == []
    assert findings.notes == []
    assert (findings.shards, findings.tokens, findings.documents) == (10, 97, 7)
    assert seen.done == seen.total == findings.bytes


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    "name", [BIN, TABLE, "sources.jsonl", "tokenizer_state.json", "dataset_metadata.json"]
)
@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_a_changed_truncated_or_missing_file_is_named(folder, name, damage):
    damage(folder / name)
    if damage is Path.unlink and name == "dataset_metadata.json":
        with pytest.raises(DatasetError, match="not a finished dataset"):
            verify(folder)
        return
    problems = verify(folder)
    assert files_of(problems) == {name}
    assert all(problem.cure for problem in problems)


def test_all_damage_is_reported_at_once(folder):
    names = {BIN, TABLE, "val/shard_00000.bin", "tokenizer_state.json"}
    for name in names:
        cut(folder / name)
    assert files_of(verify(folder)) == names


def test_swapped_shards_are_named(folder):
    a, b = folder / BIN, folder / "train/shard_00002.bin"
    a.rename(folder / "x")
    b.rename(a)
    (folder / "x").rename(b)
    assert files_of(verify(folder)) == {BIN, "train/shard_00002.bin"}


def test_an_id_outside_the_vocabulary_is_named_with_its_place(folder):
    ids = np.fromfile(folder / BIN, "<u2")
    ids[3] = 999
    ids.tofile(folder / BIN)
    reseal(folder)
    (problem,) = verify(folder)
    assert problem.file == BIN
    assert "id 999 at token 3" in problem.what


@pytest.mark.parametrize(
    ("column", "change", "says"),
    [
        ("first", lambda value: value + 1, "do not start where the previous document ends"),
        ("first", lambda value: value + 1000, "do not start in the shard"),
        ("first", lambda value: value * 0 + (2**64 - 1), "do not start in the shard"),
        ("length", lambda value: value + 1, "do not start where the previous document ends"),
        ("length", lambda value: value * 0, "empty or longer"),
        ("length", lambda value: value * 0 + (2**64 - 1), "empty or longer"),
        ("key", lambda value: value * 0, "without a key"),
        ("source", lambda value: value + 1, "source is not one of the 1 sources"),
    ],
)
def test_an_edited_table_with_a_right_checksum_is_named(folder, column, change, says):
    table = np.load(folder / TABLE)
    table[column] = change(table[column])
    np.save(folder / TABLE, table)
    reseal(folder)
    problems = verify(folder)
    assert any(says in problem.what for problem in problems)
    assert any(problem.file.endswith(".docs.npy") for problem in problems)


def test_documents_that_end_before_the_tokens_are_reported(folder):
    last = sorted((folder / "train").glob("*.docs.npy"))[-1]
    table_path = next(
        p for p in sorted((folder / "train").glob("*.docs.npy"))[::-1] if len(np.load(p))
    )
    table = np.load(table_path)
    table["length"][-1] -= 1
    np.save(table_path, table)
    reseal(folder)
    (problem,) = verify(folder)
    assert problem.file == f"train/{last.name}"
    assert "ends its last document at token" in problem.what


@pytest.mark.parametrize("eot", ["after", "before"])
@pytest.mark.parametrize("shard_tokens", [1, 2, 3, 7, 1000])
def test_each_missing_end_of_text_is_reported(tmp_path, eot, shard_tokens):
    oracle = build(tmp_path / "sound", eot=eot, shard_tokens=shard_tokens)["train"]
    for number, place in enumerate(np.flatnonzero(oracle == 256)):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "sound", folder)
        path = folder / f"train/shard_{place // shard_tokens:05d}.bin"
        ids = np.fromfile(path, "<u2")
        ids[place % shard_tokens] = 7
        ids.tofile(path)
        reseal(folder)
        (problem,) = verify(folder)
        assert problem.file.startswith("train/shard_")
        assert "end-of-text id" in problem.what


def test_a_document_in_two_splits_is_named(tmp_path):
    build(tmp_path, {"train": [f"text {n}" for n in range(9)], "val": ["other", "text 7"]})
    (problem,) = verify(tmp_path)
    assert problem.file == "train/shard_00004.docs.npy"
    assert "split 'val'" in problem.what
    assert "{:016x}{:016x}".format(*key_of(b"text 7")) in problem.what


@settings(max_examples=40, deadline=None)
@given(
    small=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=20),
    large=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=20),
)
def test_keys_are_compared_in_full(small, large):
    held = np.array(sorted(small), np.uint64).T
    found = find_keys(held, np.array(large, np.uint64).T)
    assert found.tolist() == [key in set(small) for key in large]


def test_links_that_leave_the_folder_are_named(folder, tmp_path):
    (folder / BIN).rename(tmp_path / "outside.bin")
    (folder / BIN).symlink_to(tmp_path / "outside.bin")
    (folder / "extra").symlink_to("/")
    assert files_of(verify(folder)) == {BIN, "extra"}


def test_a_path_that_leaves_the_folder_is_named(folder):
    def edit(body):
        body["splits"]["train"]["shards"][0]["path"] = "../x.bin"

    edit_manifest(folder, edit)
    (problem,) = verify(folder)
    assert problem.file == "dataset_metadata.json"
    assert "'../x.bin' leads out of the folder" in problem.what


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda ledger: ledger.update(documents_in=4), "does not add up"),
        (lambda ledger: ledger.update(bytes_kept=4), "does not add up"),
        (lambda ledger: ledger["dropped"].pop("too_short"), "does not add up"),
        (lambda ledger: ledger["dropped"].update(x=None), "no count 'documents'"),
        (lambda ledger: ledger.update(tokens=4), "says 4 tokens"),
        (lambda ledger: ledger.pop("tokens"), "no count 'tokens'"),
        (lambda ledger: ledger.update(dropped=[]), "no 'dropped'"),
        (lambda ledger: ledger.clear(), "no 'dropped'"),
        (lambda ledger: ledger.update(characters=10**9), "more characters than bytes"),
    ],
)
def test_a_ledger_that_does_not_add_up_is_reported(folder, edit, says):
    edit_manifest(folder, lambda body: edit(body["ledger"]))
    problems = verify(folder)
    assert files_of(problems) == {"dataset_metadata.json"}
    assert any(says in problem.what for problem in problems)


def test_uneven_shards_and_shards_named_twice_are_reported(tmp_path):
    build(tmp_path, {"train": ["abc", "defghi"]}, shard_tokens=4)

    def swap(body):
        shards = body["splits"]["train"]["shards"]
        shards.append(shards[0])
        body["splits"]["train"]["tokens"] += shards[0]["tokens"]
        body["splits"]["train"]["documents"] += shards[0]["documents"]

    edit_manifest(tmp_path, swap)
    problems = verify(tmp_path)
    assert any("only the last shard may have fewer" in problem.what for problem in problems)
    assert any("named more than once" in problem.what for problem in problems)


@pytest.mark.parametrize(
    ("where", "value"),
    [("tokenizer", {"name": "bytes", "fingerprint": "x"}), ("vocab_size", 300)],
)
def test_another_tokenizer_is_reported(folder, where, value):
    edit_manifest(folder, lambda body: body.update({where: value}))
    assert files_of(verify(folder)) == {"tokenizer_state.json"}


def test_unknown_files_are_notes_not_problems(folder):
    (folder / "rejected.jsonl").write_text("{}\n")
    (folder / "repaired.jsonl").write_text("{}\n")
    (folder / "README.md").write_text("mine")
    (folder / "train" / "shard_00000.bin.tmp").write_text("")
    (folder / ".work" / "deep").mkdir(parents=True)
    findings = examine(folder)
    assert findings.problems == []
    assert [note.split()[0] for note in findings.notes] == [
        ".work",
        "README.md",
        "train/shard_00000.bin.tmp",
    ]


def test_few_problems_of_one_file_are_listed(tmp_path):
    build(tmp_path, {"train": ["long " * 100]}, shard_tokens=1000)
    np.full(501, 999, "<u2").tofile(tmp_path / "train/shard_00000.bin")
    problems = examine(tmp_path, limits=Limits(chunk=48)).problems
    assert files_of(problems) == {"train/shard_00000.bin"}
    assert len(problems) == 6
    assert "more problems like these" in problems[-1].what


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound") / "data"
    build(folder)
    return folder


@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_a_changed_byte_anywhere_is_reported_and_raises_nothing_else(sound, data):
    names = sorted(str(path.relative_to(sound)) for path in sound.rglob("*") if path.is_file())
    name = data.draw(st.sampled_from(names))
    content = bytearray((sound / name).read_bytes())
    if not content:
        return
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "data"
        shutil.copytree(sound, folder)
        (folder / name).write_bytes(bytes(content))
        problems = verify(folder)
        # Only white space in the tokenizer's JSON may change without a problem.
        same = name == "tokenizer_state.json" and not problems
        if same:
            assert json.loads(bytes(content)) == json.loads((sound / name).read_bytes())
        else:
            assert files_of(problems) == {name}
        try:
            dataset = tokenmill.open(folder)
            dataset.tokenizer.decode(dataset["train"][:])
            list(dataset["train"].documents)
            for token in range(len(dataset["train"])):
                dataset["train"].documents.at(token)
        except TokenmillError:
            assert not same


def test_memory_does_not_grow_with_the_shard(tmp_path):
    import tracemalloc

    rng = np.random.default_rng(0)
    text = rng.integers(0, 256, 16_000_000, np.uint8).tobytes()
    build(tmp_path, {"train": [text]}, shard_tokens=1 << 30)
    del text
    verify(tmp_path)
    tracemalloc.start()
    assert verify(tmp_path) == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16_000_000


def test_the_command_prints_sound_or_the_damaged_file(folder, capsys):
    assert main(["verify", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("sound: 10 shards, 97 tokens, 7 documents")
    cut(folder / BIN)
    (folder / "x\x1b[31m").write_text("")
    assert main(["verify", str(folder)]) == 1
    out = capsys.readouterr().out
    assert BIN in out
    assert "--restart" in out
    assert "\x1b" not in out
    assert main(["verify", str(folder / "nothing")]) == 1
