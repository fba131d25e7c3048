"""`contaminated` finds what sets of n-grams find, in datasets of every format."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

import tokenmill
from tokenmill.cli import main
from tokenmill.inspect import contaminated as module

sys.path.insert(0, str(Path(__file__).parents[1] / "contamination"))
from plain_words import all_units, find_units, units_of, words_of

WORDS = "the mill, grinds Corn and the miller’s wheel don't stop 東京 turning—at night".split()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[str]]:
    """A folder with a dataset `data`, evaluation texts, and the documents."""
    folder, chance = tmp_path_factory.mktemp("contaminated"), random.Random(3)
    texts = [" ".join(chance.choices(WORDS, k=chance.randrange(2, 30))) for _ in range(30)]
    documents = [" ".join(chance.choices([*WORDS, "\n", "x", "y"], k=80)) for _ in range(200)]
    for number, text in enumerate(texts):
        documents[7 * number % 200 // 2] += f"\n{text.upper()}, "
    (folder / "eval.jsonl").write_text("".join(json.dumps({"q": text}) + "\n" for text in texts))
    (folder / "a.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in documents)
    )
    tokenmill.prepare(folder / "a.jsonl", folder / "data", val_fraction=0, workers=1)
    for name in ("npy", "llmc"):
        tokenmill.export(folder / "data", folder / name, to=name)
    return folder, texts, documents


@pytest.mark.parametrize("window", [1 << 19, 64])
@pytest.mark.parametrize("name", ["data", "npy", "llmc"])
def test_every_format_gives_the_hits_of_sets(
    made: tuple[Path, list[str], list[str]], name: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, texts, documents = made
    monkeypatch.setattr(module, "_WINDOW", window)
    monkeypatch.setattr(module, "_BLOCK", window)
    known = {} if name == "data" else {"tokenizer": "gpt2"}
    found = tokenmill.contaminated(
        folder / name, folder / "eval.jsonl", text_field="q", words=8, **known
    )
    units = all_units(texts, 8)
    expected = {n for n, text in enumerate(documents) if find_units(text, units)}
    rows = list(found)
    assert {one.document for one in rows} == expected
    assert (found.documents, found.contaminated) == (200, len(expected))
    assert found.too_short == sum(not units_of(text, 8) for text in texts) > 0
    tokens = tokenmill.open(folder / name, **known)["train"]
    for one in rows:
        assert one.words in " ".join(words_of(documents[one.document]))
        assert one.words in " ".join(words_of(texts[one.record - 1]))
        ids = tokens[one.token : one.token + 30]
        begins = words_of(tokenmill.load_tokenizer("gpt2").decode(ids[ids != 50256]))
        assert begins[:3] == words_of(documents[one.document])[:3]
        assert (one.key is None) == (name != "data")


def test_common_ngrams_are_counted_in_all_documents(tmp_path: Path) -> None:
    text = "one two three four five six"
    (tmp_path / "eval.txt").write_text(text)
    for copies, contaminated in ((5, 5), (6, 0)):
        (tmp_path / "a.txt").write_text("\n".join(f"{text} {text} {n}" for n in range(copies)))
        out = tmp_path / str(copies)
        tokenmill.prepare(tmp_path / "a.txt", out, tokenizer="bytes", documents="line")
        found = tokenmill.contaminated(out, [tmp_path / "eval.txt"], common=5)
        assert (found.contaminated, found.common_ngrams) == (contaminated, int(not contaminated))
        assert found.documents == copies


def test_the_command_answers_and_its_json_is_a_list_to_exclude(
    made: tuple[Path, list[str], list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, _, _ = made
    given = [str(folder / "eval.jsonl"), "--text-field", "q", "--words", "8"]
    before = {path: path.read_bytes() for path in (folder / "data").rglob("*") if path.is_file()}
    assert main(["contaminated", str(folder / "data"), *given]) == 0
    assert "Next:  tokenmill contaminated" in capsys.readouterr().out
    assert main(["contaminated", str(folder / "data"), *given, "--json"]) == 0
    listed = tmp_path / "found.jsonl"
    listed.write_text(capsys.readouterr().out)
    keys = {json.loads(line)["key"] for line in listed.read_text().splitlines()}
    clean = tokenmill.reshard(folder / "data", tmp_path / "clean", exclude=listed)
    assert clean.ledger["dropped"]["excluded"]["documents"] == len(keys)
    assert main(["contaminated", str(tmp_path / "clean"), *given]) == 1
    assert main(["contaminated", str(folder / "data"), "missing.jsonl"]) == 2
    assert "missing.jsonl" in capsys.readouterr().err
    after = {path: path.read_bytes() for path in (folder / "data").rglob("*") if path.is_file()}
    assert after == before
