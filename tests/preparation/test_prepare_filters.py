"""`prepare --filter`: dropped documents are counted and shown, for any cut of the input."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from naive import check_dataset, encode_bytes, make_expected
from plain_filters import MEASURES
from preparing import assert_same_files, make, make_in_workers, python_sources, small

from tokenmill.cli import main
from tokenmill.errors import FolderError, UsageError
from tokenmill.inspect.where.where import where
from tokenmill.preparation.filters.rules import parse_filters, split_list

FILTERS = [
    "gopher,gopher.min_words=20",
    "gopher.max_hashes=off",
    "max_bytes=40000",
    "fineweb.max_newlines=9",
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Documents of all sizes, some of them longer than a part."""
    chance = random.Random(4)
    pieces = [text[: chance.randrange(50, 6000)] for text in python_sources(700_000)]
    words = " ".join(pieces).split()
    chance.shuffle(words)
    prose = " ".join(words)
    pieces += [prose[i : i + chance.randrange(20, 900)] for i in range(0, 60_000, 700)]
    pieces += [prose[:50_000], "again and again.\n" * 2500, pieces[3]]
    chance.shuffle(pieces)
    path = tmp_path / "in.txt"
    path.write_text("<|endoftext|>".join(pieces))
    return path


def judge(text: bytes) -> str | bytes:
    rules = parse_filters(split_list(FILTERS))
    for rule in sorted(rules, key=lambda rule: rule.repeats):
        measured = MEASURES[rule.measure](text.decode())
        if measured < rule.threshold if rule.is_least else measured > rule.threshold:
            return f"filter {rule.name}"
    return text


def test_filters_decide_about_whole_documents(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    make(source, out, limits=small(part=20_000, block=3000), filter=FILTERS)
    expected = make_expected([source], encode=encode_bytes, eot_id=256, judge=judge)
    manifest = check_dataset(out, expected, [source], 100_000_000)
    assert len(expected.dropped) > 5
    assert manifest["settings"]["filter"] == list(split_list(FILTERS))
    make_in_workers(
        source, tmp_path / "other", limits=small(part=90_000), filter=FILTERS, workers=3
    )
    assert_same_files(out, tmp_path / "other")


MODULE = "def keep(texts):\n    return [len(text) > 1000 for text in texts]\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    path = tmp_path / "own_rules.py"
    path.write_text(
        MODULE + "def share(texts):\n    return [text.count('e') / len(text) for text in texts]\n"
    )
    monkeypatch.chdir(tmp_path)
    yield path
    sys.modules.pop("own_rules", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


def test_functions_of_the_user(tmp_path: Path, source: Path, module: Path) -> None:
    filters = ["own_rules:keep", "own_rules:share<=0.09"]
    make_in_workers(source, tmp_path / "out", filter=filters, workers=2)

    def decide(text: bytes) -> str | bytes:
        string = text.decode()
        if len(string) <= 1000:
            return f"filter {filters[0]}"
        return text if string.count("e") / len(string) <= 0.09 else f"filter {filters[1]}"

    expected = make_expected([source], encode=encode_bytes, eot_id=256, judge=decide)
    check_dataset(tmp_path / "out", expected, [source], 100_000_000)
    assert {f"filter {one}" for one in filters} <= expected.dropped.keys()


def test_a_changed_function_is_noticed(tmp_path: Path, source: Path, module: Path) -> None:
    make(source, tmp_path / "out", filter="own_rules:keep")
    module.write_text(MODULE.replace("1000", "1001"))
    sys.modules.pop("own_rules")
    with pytest.raises(FolderError, match="filter_functions"):
        make(source, tmp_path / "out", filter="own_rules:keep")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("[1.0 for text in texts]", "must return True"),
        ("[True]", "returned bool of shape"),
        ("texts[-1:0] + 3", "failed: TypeError"),
    ],
)
def test_wrong_functions_are_named(
    tmp_path: Path, source: Path, module: Path, returned: str, message: str
) -> None:
    module.write_text(f"def keep(texts):\n    return {returned}\n")
    with pytest.raises(UsageError, match=message):
        make(source, tmp_path / "out", filter="own_rules:keep")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("gofer", "not a filter"),
        ("min_words=many", "not a number"),
        ("gopher.min_bytes=3", "the rules of gopher are"),
        ("script=Elvish:0.5", "the scripts are Latin"),
        ("no_such_module:f", "importing no_such_module failed"),
        ("json:nothing", "has no function nothing"),
        ("sys:exit", "is not a file"),
        (3, "must be text"),
    ],
)
def test_unknown_filters_are_refused(
    tmp_path: Path, source: Path, wrong: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        make(source, tmp_path / "out", filter=wrong)


def test_a_run_without_filters_is_described_as_before(tmp_path: Path, source: Path) -> None:
    make(source, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "dataset_metadata.json").read_bytes())
    assert not {"filter", "filter_functions"} & manifest["settings"].keys()
    assert "counts" not in manifest["ledger"]
    assert not (tmp_path / "out" / "dropped.jsonl").exists()


def test_a_dry_run_shows_what_each_rule_would_drop(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["prepare", str(source), "--dry-run", "--filter", "min_words=60,max_bytes=3000"]) == 0
    )
    shown = capsys.readouterr().out
    report = make(source, tmp_path / "out", filter="min_words=60")
    alone = report.manifest.ledger["dropped"]["filter min_words"]["documents"]
    row = next(line for line in shown.splitlines() if "filter min_words" in line)
    assert row.split()[2] == str(alone)
    both = make(source, tmp_path / "both", filter="min_words=60,max_bytes=3000", dedup="none")
    ledger = both.manifest.ledger
    empty = ledger["dropped"]["empty"]["documents"]
    dropped = sum(one["documents"] for one in ledger["dropped"].values()) - empty
    found = re.search(r"would drop (\d+) of (\d+) documents", shown)
    assert found is not None
    assert found.groups() == (str(dropped), str(ledger["documents_in"] - empty))


def test_where_names_the_rule(tmp_path: Path) -> None:
    texts = ["one two three " * n + str(n) for n in range(1, 60)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    make(path, tmp_path / "out", filter="min_words=20,max_words=100")
    for line in (1, 5, 40, 50):
        (absence,) = where(tmp_path / "out", f"{path}:{line}").absences
        assert absence.reason == ("filter min_words" if line < 10 else "filter max_words")
        assert f"its measure is {3 * line + 1}" in absence.detail
