"""`tokenmill info`, for people and for programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))

from dataset_builder import build, edit_manifest, write_sources

from tokenmill.cli import main
from tokenmill.inspect.info import describe


@pytest.fixture
def folder(tmp_path):
    """A small sound dataset with several shards, and documents that span them."""
    build(tmp_path / "data")
    return tmp_path / "data"


def test_info_is_plain_data_from_the_manifest(folder):
    for split in ("train", "val"):
        (folder / split).rename(folder / f"{split}.away")  # no shard is needed for it
    found = describe(folder)
    assert (found.tokens, found.documents) == (97, 7)
    assert [(one.name, one.tokens, one.documents, one.shards) for one in found.splits] == [
        ("train", 68, 5, 7),
        ("val", 29, 2, 3),
    ]
    assert found.splits[0].bytes == 68 * 2 + 5 * 48
    assert {one.reason: one.documents for one in found.dropped} == {"duplicate": 2, "too_short": 1}
    assert found.characters_per_token == 97 / 97
    assert found.tokenizer == "bytes"


def test_the_command_prints_aligned_text_and_what_to_type_next(folder, capsys):
    assert main(["info", str(folder)]) == 0
    out = capsys.readouterr().out
    for part in ("97 tokens of 7 documents", "256 after each document", "dropped: duplicate"):
        assert part in out
    assert "  train      68          5       7  376 bytes\n" in out
    assert f"tokenmill peek {folder}" in out
    assert out.endswith(f"tokenmill verify {folder}\n")


def test_the_command_counts_removed_lines(folder, capsys):
    for lines, shown in (
        (0, ""),
        (1, "1 repeated line removed.\n"),
        (2, "2 repeated lines removed.\n"),
    ):
        edit_manifest(folder, lambda body, n=lines: body["ledger"].update(duplicate_lines=n))
        assert main(["info", str(folder)]) == 0
        out = capsys.readouterr().out
        assert ("repeated" in out) == (lines > 0)
        assert shown in out


def test_json_is_for_programs(folder, capsys):
    assert main(["info", str(folder), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["tokens"] == 97
    assert body["splits"][1]["name"] == "val"
    assert body["sources"] == [{"path": "texts/a.txt", "bytes": 127, "unit": "byte"}]


def test_long_source_lists_are_cut_and_unsafe_names_escaped(folder, capsys):
    def edit(body):
        sources = [
            {"path": f"a\x1b[2J\n[red]{n}", "bytes": 10**9, "unit": "row"} for n in range(25)
        ]
        body["sources"] = write_sources(folder, sources)
        body["ledger"]["set_aside"] = [{"source": "bad.gz", "reason": "cut short"}]

    edit_manifest(folder, edit)
    assert main(["info", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"a\x1b[2J\n[red]9" in out
    assert "… and 15 more" in out
    assert "Sources (25): 25.0 GB" in out
    assert "cut short" in out


def test_an_unusual_ledger_is_not_an_error(folder, capsys):
    edit_manifest(
        folder, lambda body: body.update(ledger={"dropped": [], "set_aside": 3, "tokens": "x"})
    )
    assert main(["info", str(folder)]) == 0
    assert describe(folder).characters_per_token is None


def test_errors_have_no_traceback(tmp_path, capsys):
    assert main(["info", str(tmp_path)]) == 1
    assert "not a finished dataset" in capsys.readouterr().err
