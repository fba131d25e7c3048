"""`tokenmill.exclude`: documents are found, listed once, and removed from the list again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from xxhash import xxh3_128_hexdigest

import tokenmill
from tokenmill.errors import DatasetError, FolderError, UsageError
from tokenmill.preparation.edit_exclusions import add_exclusions, remove_exclusions
from tokenmill.preparation.exclusion import Exclusion, find_list, read_exclusions, read_list

TEXTS = [f"Document {n} has some words" + " and more" * (n % 3) for n in range(40)]


def key_of(text: str) -> str:
    return xxh3_128_hexdigest(text.encode())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "a.txt").write_text("\n".join(TEXTS[:20]) + "\n" + TEXTS[3])
    lines = [json.dumps({"text": text}) for text in TEXTS[20:]]
    (folder / "b.jsonl").write_text("\n".join(lines))
    how = {"tokenizer": "bytes", "documents": "line", "val_fraction": 0.2, "workers": 1}
    tokenmill.prepare([folder / "a.txt", folder / "b.jsonl"], folder / "data", **how)
    return folder / "data"


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    return tmp_path / "list.jsonl"


def keys_in(path: Path) -> list[str]:
    return [json.loads(line)["key"] for line in path.read_text().splitlines()]


def test_documents_are_named_by_key_place_number_file_and_text(data, listed):
    made = tokenmill.exclude(data, key_of(TEXTS[5]), key_of(TEXTS[6])[:10].upper(), out=listed)
    assert (made.path, made.added, made.known) == (listed, 2, 0)
    assert keys_in(listed) == [key_of(TEXTS[5]), key_of(TEXTS[6])]
    made = tokenmill.exclude(data, "a.txt:6", "b.jsonl:1", because="bad", out=listed)
    assert (made.added, made.known) == (1, 1)
    assert keys_in(listed)[2:] == [key_of(TEXTS[20])]
    made = tokenmill.exclude(data, "a.txt:21", out=listed)  # the copy of line 4
    assert keys_in(listed)[3:] == [key_of(TEXTS[3])]
    first = tokenmill.open(data)["train"].documents[1]
    tokenmill.exclude(data, "document=1", out=listed)
    assert first.key in keys_in(listed)
    before = keys_in(listed)
    made = tokenmill.exclude(data, "b.jsonl", out=listed)
    assert set(keys_in(listed)) == {*before, *map(key_of, TEXTS[20:])}
    assert len(keys_in(listed)) == len(set(keys_in(listed)))
    wanted = [text for text in TEXTS if "and more and more" in text]
    made = tokenmill.exclude(data, search="and more and more", out=listed)
    assert made.added + made.known == len(wanted)
    assert {key_of(text) for text in wanted} <= set(keys_in(listed))
    made = tokenmill.exclude(data, search=r"\b(7|8) has", regex=True, out=listed)
    assert made.added + made.known == 2


def test_an_entry_says_where_the_document_is_and_why_it_is_listed(data, listed):
    made = tokenmill.exclude(data, "a.txt:2", because="an advert", out=listed)
    (entry,) = made
    assert made.examples == (entry,)
    document = tokenmill.open(data)[entry.split].documents[entry.document]
    assert entry.key == document.key == key_of(TEXTS[1])
    assert entry.source == str(data.parent / "a.txt")
    assert entry.offset == len(TEXTS[0]) + 1
    assert entry.beginning == TEXTS[1][:40]
    assert entry.because == "an advert"
    assert made.tokens == document.length
    again = json.loads(listed.read_text())
    assert list(again) == ["key", "split", "document", "source", "offset", "beginning", "because"]


def test_entries_are_removed_by_key(data, listed):
    tokenmill.exclude(data, *(f"a.txt:{n}" for n in range(1, 6)), out=listed)
    lines = listed.read_text().splitlines(keepends=True)
    gone = tokenmill.exclude(data, undo=[key_of(TEXTS[1]), key_of(TEXTS[3])[:8]], out=listed)
    assert gone.removed == 2
    assert listed.read_text() == lines[0] + lines[2] + lines[4]
    with pytest.raises(UsageError, match="does not list the key"):
        tokenmill.exclude(data, undo=key_of(TEXTS[1]), out=listed)
    with pytest.raises(UsageError, match="not a key"):
        tokenmill.exclude(data, undo="a.txt:1", out=listed)
    add_exclusions(listed, [Exclusion(key="ab" * 15 + "00"), Exclusion(key="ab" * 15 + "01")])
    with pytest.raises(UsageError, match="beginning of 2 keys"):
        tokenmill.exclude(data, undo="abababab", out=listed)


def test_the_list_is_beside_the_dataset_which_does_not_change(data):
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    made = tokenmill.exclude(f"{data}/", "a.txt:1")
    assert made.path == find_list(data) == data.parent / "data.exclude.jsonl"
    assert {path: path.read_bytes() for path in before} == before
    assert [entry.key for entry in tokenmill.exclude(data)] == [key_of(TEXTS[0])]
    assert tokenmill.verify(data) == []
    made.path.unlink()
    assert sorted(path.name for path in data.parent.iterdir()) == ["a.txt", "b.jsonl", "data"]
    assert list(tokenmill.exclude(data)) == []


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nothing.txt", "neither a key nor a source"),
        ("a.tx:1", r"Did you mean .*a\.txt"),
        ("a.txt:99", "a.txt"),
        ("0" * 32, 'no document of .* has the key .*{"key":"0000'),
        ("000000", "no document of .* has the key 000000"),
        ("document=999", "has no document 999"),
        ("some words", "search=TEXT"),
    ],
)
def test_what_is_not_a_document_is_refused_and_nothing_is_written(data, listed, what, message):
    with pytest.raises(UsageError, match=message):
        tokenmill.exclude(data, "a.txt:1", what, out=listed)
    assert not listed.exists()


def test_a_number_is_refused_if_the_training_split_is_empty(tmp_path):
    (tmp_path / "a.txt").write_text("some words")
    tokenmill.prepare(tmp_path / "a.txt", tmp_path / "d", tokenizer="bytes", val_fraction=0.999999)
    with pytest.raises(UsageError, match=r"it has 0 documents.*give its key"):
        tokenmill.exclude(tmp_path / "d", "document=0")


def test_wrong_arguments_are_refused(data, listed):
    with pytest.raises(UsageError, match="not both"):
        tokenmill.exclude(data, "a.txt:1", undo="000000", out=listed)
    with pytest.raises(UsageError, match="needs `search`"):
        tokenmill.exclude(data, "a.txt:1", regex=True, out=listed)
    with pytest.raises(UsageError, match="every document"):
        tokenmill.exclude(data, search="", out=listed)
    np.save(data.parent / "x.npy", np.array([1, 2, 3], np.uint16))
    with pytest.raises(DatasetError, match="tokenmill import"):
        tokenmill.exclude(data.parent / "x.npy", search="a")
    (data.parent / "x.npy").unlink()
    listed.symlink_to(data / "tokenizer_state.json")
    with pytest.raises(FolderError, match="symbolic link"):
        tokenmill.exclude(data, "a.txt:1", out=listed)


def test_text_that_is_not_utf_8_is_a_clear_error(data, listed):
    with pytest.raises(UsageError, match="is neither a key nor a source"):
        tokenmill.exclude(data, "a\udcff", out=listed)
    with pytest.raises(UsageError, match="is neither a key nor a source"):
        tokenmill.exclude(data, "x\udcff:byte=3", out=listed)
    with pytest.raises(UsageError, match=r"`because` is '\\udcff', which is not valid UTF-8"):
        tokenmill.exclude(data, "document=1", because="\udcff", out=listed)
    assert not listed.exists()
    for what in ("a\udcff", "x\udcff:byte=3"):
        with pytest.raises(UsageError, match="is not valid UTF-8"):
            tokenmill.where(data, what)


def test_a_list_needs_a_name_and_a_dataset(data, listed, monkeypatch):
    monkeypatch.chdir(listed.parent)
    for out in ("", ".", "..", "/"):
        with pytest.raises(UsageError, match=r"`out` is .* names no file"):
            tokenmill.exclude(data, "document=1", out=out)
    with pytest.raises(DatasetError, match="nope does not exist"):
        tokenmill.exclude("nope")
    assert list(tokenmill.exclude(data, out=listed)) == []
    add_exclusions(listed, [Exclusion(key="0" * 32)])
    assert [one.key for one in tokenmill.exclude("nope", out=listed)] == ["0" * 32]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_not_a_file_is_no_list_and_stays(data, listed, make):
    make(listed)
    for call in (
        lambda: tokenmill.exclude(data, "a.txt:1", out=listed),
        lambda: tokenmill.exclude(data, undo="000000", out=listed),
        lambda: list(tokenmill.exclude(data, out=listed)),
        lambda: read_exclusions(listed),
    ):
        with pytest.raises(
            UsageError, match=r"list\.jsonl is (not a regular file|a folder)\. Move"
        ):
            call()
    assert not listed.is_file()
    own = find_list(data)
    make(own)
    try:
        with pytest.raises(UsageError, match="Move it away"):
            tokenmill.exclude(data, "a.txt:1")
        with pytest.raises(UsageError, match="Move it away"):
            tokenmill.reshard(data, listed.parent / "copy")
    finally:
        own.rmdir() if own.is_dir() else own.unlink()


def test_a_folder_that_cannot_be_written_to_names_the_cure(data, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(FolderError, match="out=FILE"):
        tokenmill.exclude(data, "a.txt:1", out=tmp_path / "list")


def test_lines_of_other_programs_stay_as_they_are(data, listed):
    lines = [
        '{"key": "' + "AB" * 16 + '", "score": [0.5]}',
        '{"document":"x","key":"' + "0" * 32 + '"}',
    ]
    listed.write_text("\r\n".join(lines))
    tokenmill.exclude(data, "a.txt:1", out=listed)
    assert listed.read_text().splitlines()[:2] == lines
    assert add_exclusions(listed, [Exclusion(key="ab" * 16)]) == []
    assert [entry.document for entry in read_list(listed)] == [None, None, 0]
    assert len(remove_exclusions(listed, ["ab" * 16])) == 1
    assert len(read_exclusions(listed)) == 2


PROGRAM = """
import sys
from pathlib import Path
from tokenmill.preparation.edit_exclusions import add_exclusions, remove_exclusions
from tokenmill.preparation.exclusion import Exclusion
path, name, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
for n in range(count):
    keys = [f"{name:016x}{2 * n + more:016x}" for more in (0, 1)]
    add_exclusions(path, [Exclusion(key=key, because="x" * 300) for key in keys])
    remove_exclusions(path, keys[1:])
    print(n, flush=True)
"""


def start(path: Path, name: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(path), str(name), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_change_a_list_at_once_lose_nothing(listed):
    count = 60
    running = [start(listed, name, count) for name in range(3)]
    for process in running:
        process.communicate(timeout=100)
        assert process.returncode == 0
    wanted = {f"{name:016x}{2 * n:016x}" for name in range(3) for n in range(count)}
    assert sorted(keys_in(listed)) == sorted(wanted)
    assert [path.name for path in listed.parent.iterdir()] == [listed.name]


def test_a_killed_change_leaves_a_whole_list(listed):
    for delay in (0.0, 0.004, 0.011, 0.03):
        process = start(listed, 7, 10_000)
        assert process.stdout is not None
        while process.stdout.readline() not in ("2\n", ""):
            pass
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        keys = keys_in(listed)  # every line is whole
        assert len(keys) == len(set(keys)) >= 3
        add_exclusions(listed, [Exclusion(key=f"{delay!r:f>32}".replace(".", "0"))])
        assert [path.name for path in listed.parent.iterdir()] == [listed.name]
