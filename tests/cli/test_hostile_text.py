"""Text of strangers is shown harmlessly: it cannot move the cursor, recolour or turn around."""

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
    told = run(
        "prepare", folder / NAME, "--out", out, *QUICK, "--val-fraction", "0", "--no-normalize"
    )
    assert told.returncode == 0, told.stderr
    assert not BITES & set(told.stdout + told.stderr)
    return out


@pytest.mark.parametrize("options", [[], ["--ids"], ["--document", "1"], ["--split", HOSTILE]])
def test_peek_shows_it_harmlessly(data: Path, options: list[str]) -> None:
    told = run("peek", data, *options)
    assert not BITES & set(told.stdout + told.stderr)
    if not options:
        assert "[red]markup[/red] [/] :smile:" in told.stdout
        assert r"\x1b[31mred" in told.stdout
        assert r"\u202egnp.exe" in told.stdout


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_info_shows_it_harmlessly(data: Path, options: list[str]) -> None:
    told = run("info", data, *options)
    assert told.returncode == 0
    assert not BITES & set(told.stdout + told.stderr)
    if options:
        assert json.loads(told.stdout)["sources"][0]["path"].endswith(NAME)
    else:
        assert "[red]x[blue]" in told.stdout


def test_verify_shows_it_harmlessly(data: Path, tmp_path: Path) -> None:
    assert run("verify", data).returncode == 0
    copy = tmp_path / data.name
    shutil.copytree(data, copy)
    (copy / "train" / "shard_00000.bin").write_bytes(b"damaged")
    told = run("verify", copy)
    assert told.returncode == 1
    assert not BITES & set(told.stdout + told.stderr)


def test_errors_show_it_harmlessly(data: Path, tmp_path: Path) -> None:
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
        told = run(*command)
        assert told.returncode in (1, 2), (command, told.stdout)
        assert not BITES & set(told.stdout + told.stderr), command
        assert "Traceback" not in told.stderr


@pytest.mark.parametrize(
    "arguments", [[HOSTILE], ["info", "--" + HOSTILE], ["prepare", "--dedup", HOSTILE]]
)
def test_wrong_usage_shows_it_harmlessly(arguments: list[str]) -> None:
    told = run(*arguments)
    assert told.returncode == 2
    assert not BITES & set(told.stdout + told.stderr)
