"""The index of words: results equal those of a scan, whatever happens to the index."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from dataset_builder import build
from hypothesis import given, settings
from hypothesis import strategies as st
from search_oracle import SCRIPTS, expect, places

import tokenmill
from tokenmill.inspect.kept import find_kept
from tokenmill.inspect.search import word_index
from tokenmill.inspect.search.search import count_matches, search
from tokenmill.inspect.search.word_index import WordIndex
from tokenmill.inspect.search.words import find_words, list_words


class Notes:
    """A watcher that keeps messages."""

    def __init__(self):
        self.notes = []

    def begin(self, *_, **__): ...
    def advance(self, *_, **__): ...

    def note(self, text):
        self.notes.append(text)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """About 60 pieces, of which few contain a given word, in several scripts."""
    folder = tmp_path_factory.mktemp("index") / "d"
    rng = np.random.default_rng(0)
    words = np.array([f"word{number}" for number in range(3000)])
    texts = [" ".join(rng.choice(words, 900)) for _ in range(30)]
    for number, script in enumerate(SCRIPTS.values()):
        texts[5 * number] += script + "Lighthouse keepers' " + "x" * 100 + "tail"
    build(folder, {"train": texts, "val": texts[:4]}, shard_tokens=70_000)
    tokenmill.index(folder)
    return folder


WANTED = [
    *(
        "word17",
        "word17 ",
        " word17 ",
        "ord29",
        "rd2999 w",
        "Lighthouse",
        "ighthouse keep",
        "ighthouse",
    ),
    *(
        "公园看花",
        "今天",
        "السلام عليكم",
        "🎉🎉",
        "cafe\u0301",
        "\u0301",
        "xxxxtail",
        "xx",
        "tail<|end",
    ),
    *("keepers' xxx", "no such words", "fox jumps over the lazy dog. Naïve café", "'", "zebra"),
]


@pytest.mark.parametrize("wanted", WANTED)
def test_results_equal_those_of_a_scan(folder, wanted):
    expected = expect(tokenmill.open(folder), wanted)
    assert places(search(folder, wanted)) == expected
    assert places(search(folder, wanted, use_index=False)) == expected
    assert count_matches(folder, wanted) == count_matches(folder, wanted, use_index=False)
    for ignore_case in (False, True):
        options = {"regex": True, "ignore_case": ignore_case}
        pattern = wanted.replace("|", "[|]") + "(?:.|$)"
        scanned = places(search(folder, pattern, use_index=False, **options))
        assert places(search(folder, pattern, **options)) == scanned
    upper = places(search(folder, wanted.upper(), ignore_case=True, use_index=False))
    assert places(search(folder, wanted.upper(), ignore_case=True)) == upper


def test_the_index_is_used_and_says_so(folder):
    notes = Notes()
    assert list(search(folder, "Lighthouse keepers", watcher=notes))
    assert "Using the index" in notes.notes[0]
    narrowed = WordIndex.find(tokenmill.open(folder)).narrow("Lighthouse keepers", "train")
    assert 0 < narrowed.pieces < narrowed.of / 4
    notes = Notes()
    assert list(search(folder, "Lighthouse keepers", watcher=notes, use_index=False))
    assert notes.notes == []


@given(st.text("ab é我🙂\u0301م\u3000,A0_", max_size=12), st.data())
@settings(deadline=None, max_examples=300)
def test_a_text_contains_the_words_of_each_of_its_parts(text, data):
    start = data.draw(st.integers(0, len(text)))
    part = text[start : data.draw(st.integers(start, len(text)))]
    words = list_words(text.encode()).split()
    for word in find_words(part):
        fits = {
            "whole": lambda one, other=word.text: one == other,
            "start": lambda one, other=word.text: one.startswith(other),
            "end": lambda one, other=word.text: one.endswith(other),
            "part": lambda one, other=word.text: other in one,
        }[word.kind]
        assert any(map(fits, words)), (words, word)


def test_a_page_of_results_is_followed_by_the_next(folder, monkeypatch):
    monkeypatch.setattr(word_index, "_PAGE", 2)
    dataset = tokenmill.open(folder)
    assert places(search(folder, "word17 ")) == expect(dataset, "word17 ")


def make(tmp_path, number=1):
    words = [f"w{place * number % 9973}" for place in range(60_000)]
    build(tmp_path / "d", {"train": [" ".join(words), "the end"]}, shard_tokens=1 << 17)
    return tmp_path / "d"


def test_a_killed_build_leaves_no_index_and_is_resumed(tmp_path, monkeypatch):
    data = make(tmp_path)
    dataset = tokenmill.open(data)
    kept = find_kept(dataset)
    slow = (
        "import os, sys, time, tokenmill\n"
        "from tokenmill.inspect.search import word_index as w\n"
        "w._COMMIT, w._BLOCK_BYTES = 8, 1\n"
        "before, done = w.list_words, []\n"
        "def list_words(text):\n"
        "    done.append(1)\n"
        "    if len(done) > 40:\n"
        "        print('there', flush=True)\n"
        "        time.sleep(60)\n"
        "    return before(text)\n"
        "w.list_words = list_words\n"
        "tokenmill.index(sys.argv[1])\n"
    )
    with subprocess.Popen([sys.executable, "-c", slow, data], stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"there\n"
        os.kill(child.pid, signal.SIGKILL)
    assert not (kept / "words").exists()
    assert (kept / "words.part").exists()
    assert WordIndex.find(dataset) is None
    expected = expect(dataset, "w4711 ")
    assert places(search(data, "w4711 ")) == expected
    seen = []
    monkeypatch.setattr(word_index, "list_words", lambda text: seen.append(1) or list_words(text))
    report = tokenmill.index(data)
    assert len(seen) == -(-len(dataset["train"]) // word_index.PIECE) - 40
    assert report.text_bytes == len(dataset.tokenizer.decode(dataset["train"][:]))
    assert not (kept / "words.part").exists()
    assert places(search(data, "w4711 ")) == expected
    assert tokenmill.index(data).seconds == 0


@pytest.mark.parametrize("damage", ["cut", "missing", "facts", "garbage"])
def test_a_damaged_index_is_not_used(tmp_path, damage):
    data = make(tmp_path)
    dataset = tokenmill.open(data)
    folder = tokenmill.index(data).folder
    path = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    elif damage == "missing":
        path.unlink()
    elif damage == "facts":
        (folder / "tokenmill_index.json").write_text("{")
    else:
        for one in folder.iterdir():
            if one.name != "tokenmill_index.json":
                one.write_bytes(b"\xa5" * one.stat().st_size)
    notes = Notes()
    expected = expect(dataset, "w4711 ")
    assert places(search(data, "w4711 ", watcher=notes)) == expected
    assert "tokenmill index" in notes.notes[0]
    if damage != "garbage":  # found by size or form alone, so it is built again
        tokenmill.index(data)
        notes = Notes()
        assert places(search(data, "w4711 ", watcher=notes)) == expected
        assert "Using the index" in notes.notes[0]


def test_an_index_of_other_data_is_not_used(tmp_path):
    data = make(tmp_path)
    folder = tokenmill.index(data).folder
    make(tmp_path, number=7)  # other tokens in the same place
    dataset = tokenmill.open(data)
    other = find_kept(dataset, make=True)
    assert other != folder.parent
    notes = Notes()
    assert places(search(data, "w4711 ", watcher=notes)) == expect(dataset, "w4711 ")
    assert notes.notes == []
    folder.rename(other / "words")  # even if it is moved there
    assert places(search(data, "w4711 ", watcher=notes)) == expect(dataset, "w4711 ")
    assert "not used" in notes.notes[0]


def test_a_damaged_unfinished_index_is_started_again(tmp_path):
    data = make(tmp_path)
    partial = find_kept(tokenmill.open(data), make=True) / "words.part"
    partial.mkdir()
    (partial / "meta.json").write_text("nonsense")
    tokenmill.index(data)
    assert places(search(data, "w4711 ")) == expect(tokenmill.open(data), "w4711 ")


HOSTILE = {
    "a pipe for the facts": lambda folder, _: (
        (folder / "tokenmill_index.json").unlink(missing_ok=True),
        os.mkfifo(folder / "tokenmill_index.json"),
    ),
    "a link to large facts": lambda folder, outside: (
        (folder / "tokenmill_index.json").unlink(missing_ok=True),
        (outside / "large").touch(),
        os.truncate(outside / "large", 1 << 40),
        (folder / "tokenmill_index.json").symlink_to(outside / "large"),
    ),
    "large facts": lambda folder, _: os.truncate(folder / "tokenmill_index.json", 1 << 40),
    "a link for the lock of readers": lambda folder, outside: (
        (folder / ".tantivy-meta.lock").unlink(missing_ok=True),
        (folder / ".tantivy-meta.lock").symlink_to(outside / "made"),
    ),
    "a link for the lock of writers": lambda folder, outside: (
        (folder / ".tantivy-writer.lock").unlink(missing_ok=True),
        (folder / ".tantivy-writer.lock").symlink_to(outside / "made"),
    ),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_strangers_index_neither_hangs_nor_leads_outside(tmp_path, change):
    data = make(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = tokenmill.index(data).folder
    change(folder, outside)
    expected = expect(tokenmill.open(data), "w4711 ")
    code = (
        "import sys, tokenmill\n"
        "print(sum(1 for _ in tokenmill.search(sys.argv[1], 'w4711 ')))\n"
        "tokenmill.index(sys.argv[1])\n"
    )

    def run():  # in a process, because reading a pipe could not be ended otherwise
        command = [sys.executable, "-c", code, data]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stdout) == (0, f"{len(expected)}\n"), done.stderr
        assert not (outside / "made").exists()

    run()
    partial = folder.with_name("words.part")  # an unfinished build that a stranger left
    folder.rename(partial)
    facts = json.loads((partial / "tokenmill_index.json").read_text())
    unfinished = {**facts, "files": {}, "text_bytes": 0}
    (partial / "tokenmill_index.json").write_text(json.dumps(unfinished))
    pieces = sum(-(-length // word_index.PIECE) for length in facts["splits"].values())
    progress = {"pieces": pieces, "text_bytes": facts["text_bytes"]}
    (partial / "progress.json").write_text(json.dumps(progress))
    change(partial, outside)
    run()
    assert sorted(path.name for path in outside.iterdir()) in ([], ["large"])


def test_two_builds_at_once_are_refused(tmp_path):
    data = make(tmp_path)
    kept = find_kept(tokenmill.open(data), make=True)
    code = (
        "import sys, time, pathlib\n"
        "from tokenmill.storage.lock import FileLock\n"
        "lock = FileLock(pathlib.Path(sys.argv[1]))\n"
        "assert lock.acquire()\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(kept / "words.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"locked\n"
        with pytest.raises(tokenmill.TokenmillError, match=f"another process .*{child.pid}"):
            tokenmill.index(data)
        child.stdin.close()
    tokenmill.index(data)


def test_foreign_tokens_are_indexed_in_the_cache(tmp_path):
    dataset = tokenmill.open(make(tmp_path))
    np.save(tmp_path / "x.npy", dataset["train"][:])
    report = tokenmill.index(tmp_path / "x.npy", tokenizer="bytes")
    assert report.folder.is_relative_to(tmp_path / "home") or report.folder.is_relative_to(
        tmp_path / "cache"
    )
    notes = Notes()
    found = list(search(tmp_path / "x.npy", "w4711 ", tokenizer="bytes", watcher=notes))
    assert [match.byte for match in found] == [place for _, _, place in expect(dataset, "w4711 ")]
    assert "Using the index" in notes.notes[0]


def test_without_tantivy_the_error_says_what_to_install(tmp_path):
    data = make(tmp_path)
    code = (
        "import sys; sys.modules['tantivy'] = None\n"
        "from tokenmill.cli import main; sys.exit(main(['index', sys.argv[1]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, data], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'tokenmill[search]'" in done.stderr
