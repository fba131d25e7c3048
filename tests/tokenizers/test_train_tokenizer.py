"""Training a tokenizer: the same file every time, and the same ids in every library."""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vocabularies import TRICKY, make_reference, unflatten

import tokenizers
from tokenmill.cli import main
from tokenmill.errors import InputError, UsageError
from tokenmill.preparation.train_tokenizer import END_OF_TEXT, extract_text, train_tokenizer
from tokenmill.sources.find import find_files
from tokenmill.tokenizers import from_state, load_tokenizer


@pytest.fixture(scope="module")
def corpus(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for number, text in enumerate(texts):
        path = folder / f"part{number % 3}" / f"{number:03}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
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


def test_merges_equal_the_tokenizers_library(trained: Path, texts: list[str]) -> None:
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


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.txt.xz", "a.py"])
def test_every_kind_of_file_gives_the_merges_of_its_text(
    texts: list[str], trained: Path, tmp_path: Path, name: str
) -> None:
    half = len(texts) // 2
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "plain.rs").write_text("<|endoftext|>".join(texts[:half]))
    (tmp_path / "in" / "picture.png").write_bytes(bytes(100))
    path = tmp_path / "in" / name
    rows = [json.dumps({"body": text, "text": 5}) for text in texts[half:]]
    if name == "a.parquet":
        pq.write_table(pa.table({"body": texts[half:]}), path, row_group_size=7)
    elif "jsonl" in name:
        write_compressed(path, "\n".join([*rows, '{"body": null}', "no JSON"]))
    else:
        write_compressed(path, "<|endoftext|>".join(texts[half:]))
    out = tmp_path / "deep" / "folder" / "tokenizer.json"
    train_tokenizer(tmp_path / "in", vocab_size=3000, out=out, text_field="body")
    assert out.read_bytes() == trained.read_bytes()
    assert [path.name for path in out.parent.iterdir()] == ["tokenizer.json"]


def write_compressed(path: Path, text: str) -> None:
    compress = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(text.encode()))


def test_the_fragments_of_a_long_compressed_text_are_joined(
    texts: list[str], tmp_path: Path
) -> None:
    text = "".join(texts)[:300_000]
    write_compressed(tmp_path / "long.txt.gz", text)
    ((source,), _) = find_files([tmp_path / "long.txt.gz"])
    with (tmp_path / "extracted").open("wb") as file:
        extract_text(source, "text", file, block=1000)
    assert (tmp_path / "extracted").read_bytes() == (END_OF_TEXT + text).encode()
    for name in ("plain.txt", "packed.txt.gz"):
        write_compressed(tmp_path / name, text)
        train_tokenizer(tmp_path / name, vocab_size=1000, out=tmp_path / f"{name}.json")
    assert (tmp_path / "plain.txt.json").read_bytes() == (
        tmp_path / "packed.txt.gz.json"
    ).read_bytes()


def test_the_spelling_of_end_of_text_is_not_learned(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("<|endoftext|>" * 500 + "one one")
    tokenizer = train_tokenizer([text], vocab_size=300, out=tmp_path / "tokenizer.json")
    assert tokenizer.encode_batch([b"<|endoftext|>"])[0].tolist() == list(b"<|endoftext|>")


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"vocab_size": 256}, UsageError, "`vocab_size` is 256"),
        ({"vocab_size": -1}, UsageError, "`vocab_size` is -1"),
        ({"vocab_size": 10**9}, UsageError, "it must be from 257"),
        ({"out": "tokenizer.bin"}, UsageError, "it must end with .json"),
        ({"inputs": []}, UsageError, "name at least one text file"),
        ({"inputs": ["nothing/*.txt"]}, InputError, "Nothing matches 'nothing/"),
        ({"inputs": ["empty"]}, InputError, "No text was found in empty"),
        ({"inputs": ["empty.txt"]}, InputError, r"no text to train .* in empty\.txt"),
        ({"inputs": ["data.jsonl"]}, InputError, r"data\.jsonl: .*no field 'text'; it has body"),
        ({"inputs": ["a.txt", "damaged.txt.gz"]}, InputError, r"damaged\.txt\.gz: .*cut short"),
        ({"inputs": ["a.zip"]}, InputError, "Unpack it"),
        ({"inputs": ["a.tar"]}, InputError, r"a\.tar: the archive is damaged"),
    ],
)
def test_invalid_arguments_and_inputs_are_refused(
    changes: dict[str, Any],
    error: type[Exception],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("empty.txt").touch()
    Path("data.jsonl").write_text('{"body": "words"}')
    Path("damaged.txt.gz").write_bytes(gzip.compress(b"words and words")[:-4])
    Path("a.zip").write_bytes(bytes(1024))
    Path("a.tar").write_bytes(bytes(100))
    Path("a.txt").write_text("words and words")
    arguments = {"inputs": ["a.txt"], "vocab_size": 300, "out": "tokenizer.json", **changes}
    with pytest.raises(error, match=reason):
        train_tokenizer(arguments.pop("inputs"), **arguments)
    assert not list(tmp_path.rglob("*tokenizer*"))


def test_the_command_prints_its_result_and_the_next_command(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(corpus / "part1", "my texts")
    assert main(["tokenizer", "train", "my texts", "--vocab-size", "1000"]) == 0
    printed, errors = capfd.readouterr()
    assert load_tokenizer("tokenizer.json").vocab_size == 1_000
    assert printed == (
        "tokenizer.json: 1,000 ids; 256 is the end of text.\n"
        "\nNext:  tokenmill prepare 'my texts' --tokenizer tokenizer.json --out data/corpus\n"
    )
    assert errors == ""


def test_the_command_accepts_a_text_field_and_repeats_it_in_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text('{"the body": "words and words"}')
    arguments = ["tokenizer", "train", "a.jsonl", "--vocab-size", "260"]
    assert main(arguments) == 1
    assert "it has the body; name the field with --text-field NAME" in capfd.readouterr().err
    assert main([*arguments, "--text-field", "the body"]) == 0
    assert "prepare a.jsonl --text-field 'the body' --tokenizer" in capfd.readouterr().out


def test_the_command_reports_text_that_is_too_short(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "a.txt"
    text.write_text("ab ab")
    arguments = ["--vocab-size", "1000", "--out", str(tmp_path / "tokenizer.json")]
    assert main(["tokenizer", "train", str(text), *arguments]) == 0
    assert "too few different words for 1,000 ids" in capfd.readouterr().out


def test_the_command_without_inputs_is_wrong_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizer", "train", "--vocab-size", "1000"]) == 2
    assert "tokenizer train needs INPUT" in capfd.readouterr().err


def test_text_in_another_encoding_is_trained_on_as_text(tmp_path: Path) -> None:
    text = "größere Wörter und größere Größen " * 50
    made = []
    for encoding in ("utf-8", "utf-16"):
        (tmp_path / f"{encoding}.txt").write_text(text, encoding=encoding)
        out = tmp_path / f"{encoding}.json"
        train_tokenizer(tmp_path / f"{encoding}.txt", vocab_size=280, out=out)
        made.append(out.read_bytes())
    assert made[0] == made[1]
