"""The commands `tokenmill search` and `tokenmill index`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dataset_builder import build

import tokenmill
from tokenmill.cli import main

TEXTS = {"train": ["Hello, world!\n", "", "a hello\tand hello", "Hello"], "val": ["Oh hello."]}


@pytest.fixture
def folder(tmp_path):
    build(tmp_path / "data", TEXTS)
    return tmp_path / "data"


def test_occurrences_are_shown_with_their_documents(folder, capsys):
    assert main(["search", str(folder), "hello"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "train, document 2: texts/a.txt, byte 16\n"
        "    a hello\\tand hello<|endoftext|>\n"
        "    a hello\\tand hello<|endoftext|>\n"
        "val, document 0: texts/a.txt, byte 40\n"
        "    Oh hello.<|endoftext|>\n"
        "\n3 occurrences\n"
    ), out
    assert f"tokenmill peek {folder} --split val --token" in out
    assert f"tokenmill index {folder}" in out


def test_counts_limits_and_splits(folder, capsys):
    assert main(["search", str(folder), "hello", "--count"]) == 0
    assert capsys.readouterr().out == "train: 2\nval: 1\n"
    assert main(["search", str(folder), "hello", "--count", "--json", "--split", "val"]) == 0
    assert json.loads(capsys.readouterr().out) == {"val": 1}
    assert main(["search", str(folder), "hello", "--limit", "1"]) == 0
    assert "1 occurrence, and maybe more" in capsys.readouterr().out
    assert main(["search", str(folder), "hello", "--ignore-case", "--count"]) == 0
    assert capsys.readouterr().out == "train: 4\nval: 1\n"
    assert main(["search", str(folder), "H.l+", "--regex", "--count"]) == 0
    assert capsys.readouterr().out == "train: 2\nval: 0\n"
    assert main(["search", str(folder), "--tokens", "108, 108,111", "--count"]) == 0
    assert capsys.readouterr().out == "train: 4\nval: 1\n"


def test_nothing_found_has_status_1(folder, capsys):
    assert main(["search", str(folder), "zebra"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "'zebra' does not occur in train or val.\n"
    assert main(["search", str(folder), "zebra", "--count"]) == 1
    assert main(["search", str(folder), "--tokens", "1,2", "--split", "val"]) == 1
    assert "The sequence of ids 1,2 does not occur in val." in capsys.readouterr().err


def test_errors_have_status_2(folder, tmp_path, capsys):
    plain = tmp_path / "plain.npy"  # without a tokenizer
    np.save(plain, np.arange(10, dtype=np.uint16))
    for wrong, said in (
        ([str(tmp_path / "nothing"), "a"], "does not exist"),
        ([str(folder), "a", "--split", "nope"], "has no split 'nope'"),
        ([str(folder), "a", "--tokenizer", str(tmp_path / "missing.json")], "missing.json"),
        ([str(plain), "a"], "--tokenizer NAME"),
    ):
        for counting in ([], ["--count"]):
            assert main(["search", *wrong, *counting]) == 2
            captured = capsys.readouterr()
            assert said in captured.err
            assert captured.out == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_has_status_2(folder):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "tokenmill.cli", "search", folder, "hello"]
        assert subprocess.run(command, stdout=full, stderr=subprocess.PIPE).returncode == 2


def test_wrong_usage_has_status_2(folder, capsys):
    for wrong in (
        [],
        ["a", "--tokens", "1"],
        ["--tokens", "x"],
        ["(", "--regex"],
        ["a", "--limit", "0"],
    ):
        assert main(["search", str(folder), *wrong]) == 2
        assert "tokenmill" in capsys.readouterr().err


def test_json_has_a_line_for_each_occurrence(folder, capsys):
    assert main(["search", str(folder), "hello", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [json.loads(line) for line in lines]
    assert [one["split"] for one in found] == ["train", "train", "val"]
    assert found[0]["byte"] == 2
    assert found[0]["document"]["number"] == 2
    assert found[0]["document"]["source"]["path"] == "texts/a.txt"
    assert all(line.isascii() for line in lines)


@pytest.fixture
def mixture(folder, tmp_path):
    """Two datasets as the command and the function take them."""
    build(tmp_path / "other", {"train": ["Why hello there"]})
    return [f"main={folder}:0.7", f"more={tmp_path / 'other'}:0.3"]


def test_several_datasets_are_searched_and_named(mixture, folder, tmp_path, capsys):
    other = tmp_path / "other"
    assert main(["search", *mixture, "hello"]) == 0
    out = capsys.readouterr().out
    assert "main, val, document 0: texts/a.txt, byte 40\n" in out
    assert "more, train, document 0: texts/a.txt, byte 0\n    Why hello there" in out
    assert "\n4 occurrences\n" in out
    assert f"tokenmill peek {other} --token 4\n" in out
    assert f"tokenmill index {' '.join(mixture)}\n" in out
    assert main(["search", *mixture, "hello", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["name"], one["split"]) for one in lines] == [
        ("main", "train"), ("main", "train"), ("main", "val"), ("more", "train"),
    ]  # fmt: skip
    assert main(["search", mixture[1], "hello"]) == 0
    assert capsys.readouterr().out.startswith("more, train, document 0: ")
    found = [(one.name, one.token) for one in tokenmill.search(mixture, "hello", limit=4)]
    assert found[-1] == ("more", 4)
    opened = {"a": tokenmill.open(folder), "b": tokenmill.open(other)}
    assert [one.name for one in tokenmill.search(opened, "hello")] == ["a", "a", "a", "b"]
    assert [one.name for one in tokenmill.search(folder, "hello")] == ["", "", ""]


def test_occurrences_are_counted_for_each_dataset(mixture, capsys):
    for wanted in (["hello"], ["--tokens", "104,101,108,108,111"]):
        assert main(["search", *mixture, *wanted, "--count"]) == 0
        assert capsys.readouterr().out == "main, train: 2\nmain, val: 1\nmore, train: 1\n"
    assert main(["search", *mixture, "hello", "--count", "--json", "--split", "val"]) == 0
    assert json.loads(capsys.readouterr().out) == {"main": {"val": 1}}
    assert main(["search", *mixture, "there", "--split", "val"]) == 1
    assert capsys.readouterr().err == "'there' does not occur in val of main or more.\n"
    assert main(["search", *mixture, "hello", "--split", "test"]) == 2
    assert "has no split 'test'" in capsys.readouterr().err


def test_texts_without_quotes_and_datasets_without_names_are_explained(mixture, folder, capsys):
    for wrong, said in (
        ([str(folder), "hello", "and"], "Put a TEXT of several words in quotes"),
        ([str(folder), mixture[1], "hello"], "Give each of several datasets a name"),
        ([mixture[0], mixture[0], "hello"], "two of the datasets are named 'main'"),
        ([str(folder), "hello", "--tokens", "1"], "TEXT or as --tokens, not as both"),
        ([str(folder), "hello", "--nonsense"], "--nonsense"),
        ([str(folder)], "either TEXT or --tokens"),
        ([], "search needs DATA"),
    ):
        assert main(["search", *wrong]) == 2
        assert said in capsys.readouterr().err
    assert main(["search", str(folder), "-hello"]) == 1
    assert "'-hello' does not occur" in capsys.readouterr().err


def test_each_dataset_of_a_mixture_is_indexed(mixture, tmp_path, capsys):
    assert main(["index", *mixture]) == 0
    out = capsys.readouterr().out
    for name, path in (("main", "data"), ("more", "other")):
        assert f"{name}: indexed " in out
        assert f"{name}: index: {tmp_path / path}/.tokenmill/" in out
    assert f"tokenmill search {' '.join(mixture)} 'WORDS'" in out
    assert main(["search", *mixture, "hello "]) == 0
    captured = capsys.readouterr()
    assert "tokenmill index" not in captured.out
    report = tokenmill.index(mixture)
    assert [*report.parts] == ["main", "more"]
    assert report.folder is None
    assert report.bytes == sum(one.bytes for one in report.parts.values())


def test_control_characters_are_escaped(tmp_path, capsys):
    build(tmp_path / "d", {"train": ["\x1b[31mred \x07 needle [bold]x \u202e\x7f"]})
    for extra in ([], ["--json"]):
        assert main(["search", str(tmp_path / "d"), "needle", *extra]) == 0
        out = capsys.readouterr().out
        assert not {"\x1b", "\x07", "\u202e", "\x7f"} & set(out)
        assert "[bold]x" in out


def test_a_terminal_shows_the_match_highlighted(folder):
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-m", "tokenmill.cli", "search", str(folder), "world"],
        stdout=follower, stderr=follower, env=environment,
    ) as child:  # fmt: skip
        os.close(follower)
        shown = b""
        while True:
            try:
                block = os.read(leader, 4096)
            except OSError:
                break
            shown += block
            if not block:
                break
    os.close(leader)
    assert child.returncode == 0
    assert b"Hello, \x1b[1;31mworld\x1b[0m!" in shown


def test_piped_results_are_whole_with_a_terminal_for_progress(folder):
    """A display on stderr must not swallow what is written to a pipe."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "tokenmill.cli", "search", str(folder), "hello", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=follower) as child:
        os.close(follower)
        out = child.stdout.read()
    os.close(leader)
    assert [json.loads(line)["split"] for line in out.splitlines()] == ["train", "train", "val"]


def test_index_reports_its_size_and_search_says_that_it_is_used(tmp_path, capsys):
    words = " ".join(f"w{number}" for number in range(30_000))
    build(tmp_path / "d", {"train": [words]}, shard_tokens=1 << 17)
    data = str(tmp_path / "d")
    assert main(["index", data]) == 0
    out = capsys.readouterr().out
    assert "indexed" in out
    assert "% of the text" in out
    assert f"tokenmill search {data}" in out
    assert main(["search", data, "w4711 "]) == 0
    captured = capsys.readouterr()
    assert "Using the index: 1 of " in captured.err
    assert "tokenmill index" not in captured.out
    assert main(["search", data, "w4711 ", "--no-index"]) == 0
    assert "Using" not in capsys.readouterr().err
    assert main(["index", data]) == 0
    assert "indexed already" in capsys.readouterr().out


def test_searching_imports_no_index_library(folder):
    code = (
        "import sys\nfrom tokenmill.cli import main\nmain(['search', sys.argv[1], 'hello'])\n"
        "assert not {'tantivy', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, folder], check=True, stdout=subprocess.PIPE)
    assert tokenmill.search is not None
