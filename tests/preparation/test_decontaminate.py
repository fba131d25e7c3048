"""Decontaminating: the same as judging whole documents with sets of n-grams, in one process."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from inputs import make_inputs
from naive import END, Expected, check_dataset, encode_bytes, make_expected, read_documents
from preparing import InProcessEngine, assert_same_files, make, make_in_workers, small

import tokenmill
from tokenmill.cli import main
from tokenmill.contamination import protected
from tokenmill.contamination.cutting import cut_protected
from tokenmill.contamination.evaluation import Matching, read_protected
from tokenmill.dataset.verify import verify
from tokenmill.errors import FolderError, InputError, UsageError, WorkError
from tokenmill.preparation.clean import clean
from tokenmill.preparation.engine import Progress, Task
from tokenmill.preparation.grind import GrindPart

sys.path.insert(0, str(Path(__file__).parents[1] / "contamination"))
from plain_words import all_units, find_units, words_of

REASON = "contains evaluation text"
TEXT = "The mill grinds the corn, the corn becomes flour, and the flour of the mill becomes bread."


def write_texts(path: Path, texts: Sequence[str], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def take_passages(paths: Sequence[Path], chance: random.Random) -> list[str]:
    """Some passages of the documents, in other case and punctuation."""
    documents = read_documents(paths, END, Expected())
    words = [words_of(clean(one.raw.decode("utf-8", "replace"))) for one in documents]
    texts = ["never found in any of these documents at all"]
    for some in chance.sample([one for one in words if len(one) > 6], k=min(3, len(words) // 4)):
        first = chance.randrange(len(some) - 5)
        texts.append(" - ".join(some[first : first + chance.randrange(5, 20)]).title())
    return texts


@pytest.mark.parametrize("action", ["drop", "report", "cut"])
@pytest.mark.parametrize("seed", range(8))
def test_the_result_is_that_of_sets_of_ngrams(tmp_path: Path, seed: int, action: str) -> None:
    chance = random.Random(seed)
    (tmp_path / "in").mkdir()
    paths = sorted(make_inputs(tmp_path / "in", chance, short_lines=True))
    paths.append(tmp_path / "z.txt")
    paths[-1].write_text("is kept")
    texts = take_passages(paths, chance)
    evaluation = write_texts(tmp_path / "eval.jsonl", texts)
    options = {"dedup": chance.choice(["documents", "lines", "none"])}
    limits = small(part=chance.choice([100, 900, 1 << 20]), block=chance.choice([64, 300, 1 << 20]))
    if action == "cut":  # a document in fragments is not cut
        limits = small()
    more = {"decontaminate_words": chance.choice([6, 8, 13]), "decontaminate_common": 10**6}
    out = tmp_path / "out"
    make(
        paths,
        out,
        limits=limits,
        decontaminate=evaluation,
        decontaminate_action=action,
        **options,
        **more,
    )
    units = all_units(texts, more["decontaminate_words"], 10**6)
    table = read_protected(evaluation, Matching(size=more["decontaminate_words"], common=10**6))
    found: list[str] = []

    def judge(text: bytes) -> str | bytes:
        if not find_units(text.decode(), units):
            return text
        left = cut_protected(text, table) if action == "cut" else text
        found.append(xxhash.xxh3_128_hexdigest(left or text))
        return REASON if action == "drop" or not left else left

    expected = make_expected(paths, encode=encode_bytes, eot_id=256, judge=judge, **options)
    manifest = check_dataset(out, expected, paths, 100_000_000)
    lines = read_lines(out / "contaminated.jsonl")
    assert {line["key"] for line in lines} == set(found)
    assert manifest["ledger"].get("counts", {}).get("contaminated_documents", 0) == len(found)
    for line in lines:
        assert line["words"] in " ".join(words_of(texts[line["record"] - 1]))


def test_workers_and_parts_change_nothing_not_even_for_documents_that_span_parts(
    tmp_path: Path,
) -> None:
    chance = random.Random(7)
    text = tmp_path / "a.txt"
    documents = [" ".join(chance.choices(TEXT.split(), k=30)) for _ in range(300)]
    long = "some other words on every line\n" * 400
    documents[7] = long[:4000] + TEXT.upper() + long
    documents[8] = long + TEXT.replace(" ", "\n")
    documents[9] = long
    documents[150] += f" ({TEXT})"
    text.write_text("<|endoftext|>".join(documents))
    evaluation = write_texts(tmp_path / "eval.jsonl", [TEXT, "who grinds the corn in the mill"])
    for out, limits, workers in (
        ("one", small(part=4000, block=512), 1),
        ("two", small(part=4000, block=700), 3),
    ):
        make_in_workers(
            [text], tmp_path / out, limits=limits, workers=workers, decontaminate=evaluation
        )
    assert_same_files(tmp_path / "one", tmp_path / "two")
    lines = read_lines(tmp_path / "one" / "contaminated.jsonl")
    keys = {xxhash.xxh3_128_hexdigest(clean(documents[i]).encode()) for i in (7, 8, 150)}
    assert {line["key"] for line in lines} == keys
    for line in lines:
        assert text.read_text()[line["offset"] :].startswith(("some other words", documents[150]))
    ledger = json.loads((tmp_path / "one" / "dataset_metadata.json").read_bytes())["ledger"]
    assert ledger["dropped"][REASON]["documents"] == 3
    assert verify(tmp_path / "one") == []
    where = tokenmill.where(tmp_path / "one", f"{text}:byte={lines[0]['offset']}")
    assert [one.reason for one in where.absences] == [REASON]
    assert str(evaluation) in where.absences[0].detail


def test_ngrams_in_many_documents_do_not_count(tmp_path: Path) -> None:
    licence = "permission is hereby granted free of charge to any person obtaining a copy of this"
    texts = [
        f"{licence} {TEXT}",
        f"{licence} but nothing else that is found anywhere in the corpus",
    ]
    documents = [f"{n} {licence} {n}" for n in range(20)]
    documents += [f"{documents[0]} {TEXT}", *documents[:10], *[f"{TEXT} again"] * 10, "clean"]
    corpus = write_texts(tmp_path / "a.jsonl", documents)
    evaluation = write_texts(tmp_path / "eval.jsonl", texts)
    report = make(corpus, tmp_path / "out", decontaminate=evaluation, decontaminate_common=19)
    ledger = report.manifest.ledger
    assert ledger["dropped"][REASON]["documents"] == 11
    assert ledger["evaluation"] == {"texts": 2, "too_short": 0, "templates": 0, "common_ngrams": 3}
    kept = make(corpus, tmp_path / "all", decontaminate=evaluation, decontaminate_common=21)
    assert kept.manifest.ledger["dropped"][REASON]["documents"] == 41
    few = make(corpus, tmp_path / "few", decontaminate=evaluation, decontaminate_common=1)
    # Two copies of a document in a part count once; both texts have the words of the licence.
    assert few.manifest.ledger["dropped"].get(REASON) is None


def test_evaluation_texts_of_every_kind(tmp_path: Path) -> None:
    words = {"text": "plain", "rows": "parquet", "json": "lines", "made": "dataset"}
    texts = {name: f"{TEXT} This one is from the {kind} file." for name, kind in words.items()}
    (tmp_path / "text.txt").write_text(f"short\n{texts['text']}\n")
    pq.write_table(pa.table({"question": ["a b", texts["rows"]]}), tmp_path / "rows.parquet")
    write_texts(tmp_path / "json.jsonl", ["", texts["json"]], "question")
    make(write_texts(tmp_path / "b.jsonl", [texts["made"]]), tmp_path / "made", val_fraction=0)
    tokenmill.export(tmp_path / "made", tmp_path / "other", to="npy")
    given = [tmp_path / name for name in ("text.txt", "rows.parquet", "json.jsonl", "made")]
    read = read_protected(given, Matching(field="question"))
    assert read.texts == 7
    assert [read.name_text(n) for n in range(4)] == [
        {"evaluation": str(given[0]), "record": 2, "unit": "line"},
        {"evaluation": str(given[1]), "record": 1, "unit": "row"},
        {"evaluation": str(given[2]), "record": 2, "unit": "line"},
        {"evaluation": f"{given[3]}, train", "record": 0, "unit": "document"},
    ]
    corpus = write_texts(tmp_path / "a.jsonl", [*texts.values(), "clean"])
    out = tmp_path / "out"
    make(corpus, out, decontaminate=given, decontaminate_field="question")
    found = {line["evaluation"] for line in read_lines(out / "contaminated.jsonl")}
    assert found == {*map(str, given[:3]), f"{given[3]}, train"}
    assert tokenmill.open(out).manifest.ledger["documents_kept"] == 1


def test_texts_that_cannot_be_protected_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    corpus = write_texts(tmp_path / "a.jsonl", ["one two"])
    wrong = write_texts(tmp_path / "wrong.jsonl", [TEXT], "question")

    def refuse(given: Any, **options: Any) -> str:
        with pytest.raises((InputError, UsageError)) as caught:
            make(corpus, tmp_path / "out", decontaminate=given, **options)
        assert not (tmp_path / "out").exists()
        return str(caught.value)

    assert "line 1: no field 'text'; it has question" in refuse(wrong)
    assert "`decontaminate_field=NAME`" in refuse(wrong)
    assert "long enough" in refuse(write_texts(tmp_path / "short.jsonl", ["too short"]))
    assert "`decontaminate_words` is 4" in refuse(wrong, decontaminate_words=4)
    assert "`decontaminate_action` needs evaluation" in refuse(None, decontaminate_action="cut")
    assert "no-such" in refuse(tmp_path / "no-such.jsonl")
    monkeypatch.setattr(protected, "MOST_WORDS", 10)
    assert "more than 10 words" in refuse(wrong, decontaminate_field="question")


class Stopping(InProcessEngine):
    """Stops after two parts were tokenized, as a kill would."""

    def run(self, tasks: Sequence[Task], progress: Progress) -> Iterator[tuple[int, Any]]:
        done = 0
        for result in super().run(tasks, progress):
            yield result
            done += isinstance(tasks[result[0]], GrindPart)
            if done == 2:
                raise WorkError("stopped")


def test_a_resumed_run_has_the_same_bytes_and_refuses_other_texts(tmp_path: Path) -> None:
    corpus = tmp_path / "a.txt"
    corpus.write_text("<|endoftext|>".join(f"{TEXT[n:]} {n}" * (1 + n % 3) for n in range(40)))
    evaluation = write_texts(tmp_path / "eval.jsonl", [TEXT])
    options: dict[str, Any] = {"limits": small(part=400, block=200), "decontaminate": evaluation}
    make(corpus, tmp_path / "whole", **options)
    with pytest.raises(WorkError):
        make(corpus, tmp_path / "out", start=Stopping, **options)
    evaluation.write_text(json.dumps({"text": TEXT + " More."}))
    with pytest.raises(FolderError, match="decontaminate"):
        make(corpus, tmp_path / "out", **options)
    write_texts(evaluation, [TEXT])
    report = make(corpus, tmp_path / "out", **options)
    assert 0 < report.parts_done_before < report.parts
    assert_same_files(tmp_path / "out", tmp_path / "whole")
    assert make(corpus, tmp_path / "out", **options).was_finished


def test_the_command_takes_several_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_texts(tmp_path / "a.jsonl", [TEXT, "clean", f"{TEXT[::-1]} again"])
    first = write_texts(tmp_path / "first.jsonl", [TEXT])
    second = write_texts(tmp_path / "second.jsonl", ["short", TEXT[::-1]])
    names = ["prepare", str(corpus), "--tokenizer", "bytes", "--val-fraction", "0"]
    given = ["--decontaminate", str(first), str(second), "--out", str(tmp_path / "out")]
    assert main([*names, *given, "--workers", "1"]) == 0
    shown = capsys.readouterr().out
    assert "3 in, 1 kept, 2 dropped (contains evaluation text)" in shown
    assert "Not looked for: 1 evaluation text, too short." in shown
    found = {line["evaluation"] for line in read_lines(tmp_path / "out" / "contaminated.jsonl")}
    assert found == {str(first), str(second)}
