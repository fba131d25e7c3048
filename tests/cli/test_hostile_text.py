"""Untrusted text is printed safely: it cannot move the cursor, change colours or reverse text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from shell import QUICK, run

HOSTILE = (
    "\x1b[31mred\x1b]0;title\x07 \x9b2J [red]markup[/red] [/] :smile: \u202egnp.exe\u2066 \x7f\x08"
)
BITES = set("\x1b\x07\x08\x7f\x9b\u202e\u2066\r")
NAME = "\x1b[31m [red]x[blue] \u202e.jsonl"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    records = [{"text": HOSTILE}, {"text": "plain"}, {HOSTILE: 1}]
    (folder / NAME).write_text("\n".join(map(json.dumps, records)) + "\n" + HOSTILE)
    out = folder / f"data {HOSTILE.replace('/', '')}"
    result = run(
        "prepare", folder / NAME, "--out", out, *QUICK, "--val-fraction", "0", "--no-normalize"
    )
    assert result.returncode == 0, result.stderr
    assert not BITES & set(result.stdout + result.stderr)
    return out


@pytest.mark.parametrize("options", [[], ["--ids"], ["--document", "1"], ["--split", HOSTILE]])
def test_peek_escapes_hostile_text(data: Path, options: list[str]) -> None:
    result = run("peek", data, *options)
    assert not BITES & set(result.stdout + result.stderr)
    if not options:
        assert "[red]markup[/red] [/] :smile:" in result.stdout
        assert r"\x1b[31mred" in result.stdout
        assert r"\u202egnp.exe" in result.stdout


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_info_escapes_hostile_text(data: Path, options: list[str]) -> None:
    result = run("info", data, *options)
    assert result.returncode == 0
    assert not BITES & set(result.stdout + result.stderr)
    if options:
        assert json.loads(result.stdout)["sources"][0]["path"].endswith(NAME)
    else:
        assert "[red]x[blue]" in result.stdout


def test_verify_escapes_hostile_text(data: Path, tmp_path: Path) -> None:
    assert run("verify", data).returncode == 0
    copy = tmp_path / data.name
    shutil.copytree(data, copy)
    (copy / "train" / "shard_00000.bin").write_bytes(b"damaged")
    result = run("verify", copy)
    assert result.returncode == 1
    assert not BITES & set(result.stdout + result.stderr)


def test_errors_escape_hostile_text(data: Path, tmp_path: Path) -> None:
    bad = tmp_path / f"{NAME}.gz"
    bad.write_bytes(b"no gzip at all")
    nothing = tmp_path / NAME
    nothing.write_text(json.dumps({HOSTILE: 1}))
    commands = [
        ["info", tmp_path / HOSTILE.replace("/", "")],
        ["prepare", tmp_path / HOSTILE.replace("/", ""), "--out", tmp_path / "a"],
        ["prepare", bad, "--out", tmp_path / "b", *QUICK],
        ["prepare", nothing, "--out", tmp_path / "c", *QUICK],
        ["prepare", nothing, "--out", tmp_path / "d", "--text-field", HOSTILE, *QUICK],
        ["prepare", nothing, "--out", data, *QUICK],
        ["prepare", nothing, "--out", tmp_path / "e", "--tokenizer", HOSTILE],
        ["prepare", nothing, "--out", tmp_path / "f", "--memory", HOSTILE],
        ["pretokenize", bad, "--tokenizer", "bytes"],
    ]
    for command in commands:
        result = run(*command)
        assert result.returncode in (1, 2), (command, result.stdout)
        assert not BITES & set(result.stdout + result.stderr), command
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments", [[HOSTILE], ["info", "--" + HOSTILE], ["prepare", "--dedup", HOSTILE]]
)
def test_usage_errors_escape_hostile_text(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert not BITES & set(result.stdout + result.stderr)
