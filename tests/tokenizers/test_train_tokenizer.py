"""Training: the same file every time, the same ids in every library, and clear refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from vocabularies import TRICKY, make_reference, unflatten

import tokenizers
from tokenmill.cli import main
from tokenmill.errors import InputError, UsageError
from tokenmill.tokenizers import from_state, load_tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def corpus(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for number, text in enumerate(texts):
        path = folder / f"part{number % 3}" / f"{number:03}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / "notes.md").write_text("not a .txt file", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "tokenizer.json"
    train_tokenizer([corpus], vocab_size=3000, out=path)
    return path


def test_ids_are_the_same_here_and_in_the_tokenizers_library(
    trained: Path, texts: list[str]
) -> None:
    tokenizer = load_tokenizer(trained)
    batch = [*texts[::3], *TRICKY]
    reference = make_reference(json.loads(trained.read_text(encoding="utf-8")))
    expected = [reference.encode(text, add_special_tokens=False).ids for text in batch]
    assert unflatten(*tokenizer.encode_batch([text.encode() for text in batch])) == expected
    from_file = tokenizers.Tokenizer.from_file(str(trained))
    assert from_file.token_to_id("<|endoftext|>") == tokenizer.eot_id == 256
    assert from_file.get_vocab_size() == tokenizer.vocab_size == 3000
    assert from_file.decode(expected[0]) == tokenizer.decode(expected[0]) == batch[0]
    assert tokenizer.cuttable
    assert from_state(tokenizer.state()).fingerprint == tokenizer.fingerprint


def test_merges_are_those_that_the_tokenizers_library_learns(
    trained: Path, texts: list[str]
) -> None:
    reference = tokenizers.Tokenizer(tokenizers.models.BPE())
    reference.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=3000,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    reference.train_from_iterator(texts, trainer)
    expected = json.loads(reference.to_str())["model"]["merges"]
    found = json.loads(trained.read_text(encoding="utf-8"))["model"]["merges"]
    assert found == expected


def test_the_same_files_give_the_same_bytes(corpus: Path, trained: Path, tmp_path: Path) -> None:
    parts = sorted(map(str, corpus.glob("part*")), reverse=True)
    for number, inputs in enumerate([parts, [corpus, *parts], [str(corpus / "*" / "*.txt")]]):
        out = tmp_path / f"{number}.json"
        train_tokenizer(inputs, vocab_size=3000, out=out)
        assert out.read_bytes() == trained.read_bytes()


def test_a_text_file_of_any_name_may_be_named(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "folder" / "tokenizer.json"
    tokenizer = train_tokenizer(corpus / "notes.md", vocab_size=260, out=out)
    assert tokenizer.vocab_size == 260
    assert [path.name for path in out.parent.iterdir()] == ["tokenizer.json"]


def test_the_spelling_of_end_of_text_is_not_learned(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("<|endoftext|>" * 500)
    tokenizer = train_tokenizer([text], vocab_size=300, out=tmp_path / "tokenizer.json")
    assert 256 not in tokenizer.encode_batch([b"<|endoftext|>"])[0]


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"vocab_size": 256}, UsageError, "256 ids cannot be"),
        ({"vocab_size": -1}, UsageError, "-1 ids cannot be"),
        ({"vocab_size": 10**9}, UsageError, "ids cannot be"),
        ({"out": "tokenizer.bin"}, UsageError, "written to a .json file"),
        ({"inputs": []}, UsageError, "name at least one text file"),
        ({"inputs": ["nothing/*.txt"]}, InputError, "no text file at 'nothing/"),
        ({"inputs": ["empty"]}, InputError, "no text file in the folder"),
        ({"inputs": ["empty.txt"]}, InputError, "no text in 1 files"),
        ({"inputs": ["data.jsonl"]}, InputError, "is not plain text"),
    ],
)
def test_what_cannot_be_is_refused(
    changes: dict[str, Any],
    error: type[Exception],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("empty.txt").touch()
    Path("data.jsonl").write_text("{}")
    Path("a.txt").write_text("words and words")
    arguments = {"inputs": ["a.txt"], "vocab_size": 300, "out": "tokenizer.json", **changes}
    with pytest.raises(error, match=reason):
        train_tokenizer(arguments.pop("inputs"), **arguments)
    assert not list(tmp_path.rglob("*tokenizer*"))


def test_the_command_prints_what_it_made_and_what_to_type_next(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(corpus / "part1", "my texts")
    assert main(["tokenizer", "train", "my texts", "--vocab-size", "1000"]) == 0
    printed, errors = capfd.readouterr()
    fingerprint = load_tokenizer("tokenizer.json").fingerprint
    assert printed == (
        f"tokenizer.json: 1,000 ids, end of text 256, fingerprint {fingerprint}\n"
        "Next: tokenmill prepare 'my texts' --tokenizer tokenizer.json --out data/corpus\n"
    )
    assert errors == ""


def test_the_command_says_where_text_was_too_short(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "a.txt"
    text.write_text("ab ab")
    arguments = ["--vocab-size", "1000", "--out", str(tmp_path / "tokenizer.json")]
    assert main(["tokenizer", "train", str(text), *arguments]) == 0
    assert "too few words for the 1,000 ids" in capfd.readouterr().out


def test_the_command_without_inputs_is_wrong_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizer", "train", "--vocab-size", "1000"]) == 2
    assert "name at least one text file" in capfd.readouterr().err
