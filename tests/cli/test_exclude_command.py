"""`tokenmill exclude`, and the flags of `prepare` and `reshard` that use its lists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import QUICK, run

import tokenmill
from tokenmill.cli import main

TEXTS = ["first text", "spam: buy now", "third \x1b[31mtext\u202e", "spam: buy more"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"text": text}) for text in TEXTS]
    Path("a.jsonl").write_text("\n".join(lines))
    options = {"tokenizer": "bytes", "val_fraction": 0, "workers": 1, "normalize": False}
    tokenmill.prepare("a.jsonl", "data", **options)
    return Path("data")


def text_of(folder: str) -> list[str]:
    opened = tokenmill.open(folder)
    return opened.tokenizer.decode(opened["train"][:]).split("<|endoftext|>")[:-1]


def test_a_user_excludes_documents_and_makes_a_dataset_without_them(data: Path) -> None:
    made = run("exclude", "data", "--search", "spam:", "--because", "spam")
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("Added 2 documents (29 tokens) to data.exclude.jsonl.\n")
    assert '"spam: buy now"  (spam)' in made.stdout
    assert "tokenmill reshard data --out data-clean\n" in made.stdout
    again = run("exclude", "data", "--search", "spam:")
    assert again.stdout == "Added 0 documents to data.exclude.jsonl; 2 already listed.\n"
    copied = run("reshard", "data", "--out", "data-clean")
    assert copied.returncode == 0, copied.stderr
    assert (
        "Leaving out 2 documents listed in data.exclude.jsonl; --no-exclude keeps" in copied.stderr
    )
    assert text_of("data-clean") == [TEXTS[0], TEXTS[2]]
    prepared = run(
        "prepare", "a.jsonl", "--out", "data", *QUICK, "--val-fraction", "0", "--no-normalize"
    )
    assert prepared.returncode == 0, prepared.stderr
    assert "tokenmill reshard data --out NEW, or add --restart" in prepared.stderr
    assert "already finished; nothing was changed" in prepared.stdout
    repeated = run(
        "prepare",
        "a.jsonl",
        "--out",
        "data",
        *QUICK,
        "--val-fraction",
        "0",
        "--no-normalize",
        "--restart",
    )
    assert repeated.returncode == 0, repeated.stderr
    assert "4 in, 2 kept, 2 dropped (excluded)" in repeated.stdout
    assert "Excluded documents are listed in data/excluded.jsonl" in repeated.stdout


def test_flags_choose_the_lists(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exclude", "data", "a.jsonl:1", "--out", "one"]) == 0
    assert main(["exclude", "data", "a.jsonl:2", "--out", "two"]) == 0
    out = capsys.readouterr().out
    assert "tokenmill reshard data --out data-clean --exclude two\n" in out
    assert "--undo" in out
    assert "--list --out two" in out
    assert main(["exclude", "data", "a.jsonl:4"]) == 0
    both = ["--exclude", "one", "--exclude=two"]
    assert main(["reshard", "data", "--out", "a", *both]) == 0
    assert text_of("a") == [TEXTS[2]]
    assert main(["reshard", "data", "--out", "b"]) == 0
    assert text_of("b") == TEXTS[:3]
    assert main(["reshard", "data", "--out", "c", "--no-exclude", "--compress", "zstd"]) == 0
    assert text_of("c") == TEXTS
    assert main(["reshard", "data", "--out", "d", "--no-exclude"]) == 2
    how = [*QUICK, "--val-fraction", "0", "--no-normalize"]
    assert main(["prepare", "a.jsonl", "--out", "e", *how, *both]) == 0
    assert text_of("e") == TEXTS[2:]
    capsys.readouterr()
    assert main(["prepare", "a.jsonl", "--out", "data", *how, "--exclude", "one"]) == 1
    error = capsys.readouterr().err
    assert "exclude was None, is {'keys': 2" in error
    assert main(["prepare", "a.jsonl", "--dry-run", *how, "--exclude", "nothing"]) == 2
    error = capsys.readouterr().err
    assert (
        "There is no list nothing. Make one with: tokenmill exclude DATA KEY --out nothing" in error
    )


def test_the_list_is_shown_and_entries_are_removed(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["exclude", "data", "--list"]) == 0
    assert capsys.readouterr().out == "data.exclude.jsonl lists 0 documents.\n"
    assert main(["exclude", "data", "a.jsonl:1", "a.jsonl:3"]) == 0
    capsys.readouterr()
    assert main(["exclude", "data", "--list"]) == 0
    shown = capsys.readouterr().out
    assert "data.exclude.jsonl lists 2 documents." in shown
    assert "tokenmill exclude data --list" not in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert main(["exclude", "data", "--list", "--json"]) == 0
    printed = capsys.readouterr().out
    assert printed.isascii()
    found = json.loads(printed)
    assert [one["beginning"] for one in found["documents"]] == [TEXTS[0], TEXTS[2]]
    key = found["documents"][0]["key"]
    assert main(["exclude", "data", "--undo", key[:8], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["removed"], len(found["documents"])) == (1, 1)
    assert main(["exclude", "data", "--undo", key[:8]]) == 2
    assert f"data.exclude.jsonl does not list the key {key[:8]}" in capsys.readouterr().err
    assert main(["exclude", "data", "--list", "--json", "--out", "empty"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == []


def test_errors_name_flags(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["data", "b.jsonl:1"], "use --search TEXT"),
        (["data", "a.jsonl:1", "--regex"], "--regex needs --search"),
        (["data", "a.jsonl:1", "--undo", "000000"], "or --undo, not both"),
        (["data", "a.jsonl:1", "--list"], "--list shows the list"),
        ([], "exclude needs DATA"),
    ):
        assert main(["exclude", *arguments]) == 2
        assert message in capsys.readouterr().err
    Path("data.exclude.jsonl").write_text('{"key": "\x1b]0;x"}\n')
    assert main(["reshard", "data", "--out", "out"]) == 1
    error = capsys.readouterr().err
    assert "line 1" in error
    assert "\x1b" not in error
