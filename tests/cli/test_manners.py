"""How the command behaves: statuses, plain output, unusual paths, closed pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from shell import COMMAND, QUICK, prepared, run

USAGE = {
    "unknown command": (["nonsense"], "Available commands"),
    "unknown option": (["prepare", "x", "--out", "o", "--wrokers", "3"], "Did you mean --workers?"),
    "no input": (["prepare", "--out", "o"], "needs INPUT"),
    "no output": (["prepare", "x"], "--out DIR"),
    "not a choice": (["prepare", "x", "--out", "o", "--dedup", "words"], "documents"),
    "no number": (["prepare", "x", "--out", "o", "--workers", "two"], "--workers"),
    "too small": (["prepare", "x", "--out", "o", "--workers", "0"], "at least 1"),
    "out of range": (["prepare", "x", "--out", "o", "--val-fraction", "1"], "below 1"),
    "no size": (["prepare", "x", "--out", "o", "--memory", "lots"], "such as 2GB"),
    "too little memory": (["prepare", "x", "--out", "o", "--memory", "1MB"], "fewer --workers"),
    "over 64 bits": (["prepare", "x", "--out", "o", "--tokens-per-shard", "9" * 25], "2**62"),
    **{
        f"{command[0]}, over 64 bits": (
            [*command, "--out", "o", "--tokens-per-shard", "9" * 25],
            "--tokens-per-shard is 9999999999999999999999999; it must be positive, and below 2**62",
        )
        for command in (["export", "x", "--to", "npy"], ["import", "x"], ["reshard", "x"])
    },
    "a line over 64 bits": (["prepare", "x", "--out", "o", "--min-line", "9" * 25], "2**62"),
    "not UTF-8": (["prepare", "x", "--out", "o", "--text-field", "\udcff"], "not valid Unicode"),
    "a separator, not UTF-8": (
        ["prepare", "x", "--out", "o", "--documents", "\udcff"],
        "not valid Unicode",
    ),
    "no dtype": (["info", "x", "--dtype", "9" * 5000], "it must be one of"),
    "no dataset given": (["info"], "needs PATH"),
    "no file given": (["pretokenize"], "needs FILE"),
    "one file for two texts": (["pretokenize", "a.txt", "a.md"], "a.npy"),
}


@pytest.mark.parametrize("case", USAGE)
def test_wrong_usage_has_status_2_and_a_hint(tmp_path: Path, case: str) -> None:
    arguments, hint = USAGE[case]
    for name in ("x", "a.txt", "a.md"):
        (tmp_path / name).write_text("text")
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert hint in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["a.md", "a.txt", "x"]


FAILURES = {
    "no such dataset": ["info", "nowhere"],
    "no such dataset to look into": ["peek", "nowhere"],
    "no such dataset to check": ["verify", "nowhere"],
    "not a dataset": ["info", "folder"],
    "a file instead": ["info", "file"],
    "no such input": ["prepare", "nowhere", "--out", "o"],
    "nothing matches": ["prepare", "*.nothing", "--out", "o"],
    "an empty folder": ["prepare", "folder", "--out", "o"],
    "an empty file": ["prepare", "empty", "--out", "o"],
    "no such tokenizer": ["prepare", "file", "--out", "o", "--tokenizer", "nowhere.json"],
    "no tokenizer": ["prepare", "file", "--out", "o", "--tokenizer", "file"],
    "a folder to pretokenize": ["pretokenize", "folder"],
    "a name too long": ["prepare", "file", "--out", "o" * 300],
    "an input name too long": ["prepare", "i" * 300, "--out", "o"],
    "a folder with other things": ["prepare", "file", "--out", "foreign"],
}


@pytest.mark.parametrize("case", FAILURES)
def test_failure_has_status_1_and_no_traceback(tmp_path: Path, case: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").write_text("text")
    (tmp_path / "file").write_text("text")
    (tmp_path / "empty").touch()
    result = run(*FAILURES[case], cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    assert result.stderr.startswith("tokenmill: ")
    assert "Traceback" not in result.stderr
    assert "failed unexpectedly" not in result.stderr


LOCALES = [
    {},
    {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
]


@pytest.mark.parametrize("environment", LOCALES)
def test_output_is_plain_outside_a_terminal_in_any_locale(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    data = tmp_path / "dätä"
    text = tmp_path / "tëxt – 文.txt"
    text.write_text("Grüße 世界 🙂<|endoftext|>\ufeffmore — text", encoding="utf-8")
    commands = [
        ["prepare", text, "--dry-run", *QUICK],
        ["prepare", text, "--out", data, *QUICK, "--val-fraction", "0"],
        ["info", data],
        ["info", data, "--json"],
        ["peek", data],
        ["peek", data, "--ids"],
        ["verify", data],
        ["pretokenize", text, "--tokenizer", "bytes"],
        ["prepare", "--help"],
    ]
    for command in commands:
        result = run(*command, environment=environment)
        assert result.returncode == 0, result.stderr
        for output in (result.stdout, result.stderr):
            assert not set(output) & {"\x1b", "\r", "\b"}
            assert "Traceback" not in output
            assert not environment or output.isascii()
    for command in (["info", tmp_path / "nö"], ["prepare", tmp_path / "nö", "--out", data]):
        result = run(*command, environment=environment)
        assert result.returncode == 1
        assert result.stderr.startswith("tokenmill: ")


@pytest.mark.parametrize("command", ["peek --ids", "info --json", "--help"])
def test_a_pipe_that_closes_early_is_not_an_error(tmp_path: Path, command: str) -> None:
    data = prepared(tmp_path, "some words of a longer text\n" * 20_000)
    arguments = command.split()
    if arguments[0] != "--help":
        arguments.insert(1, str(data))
    if arguments[0] == "peek":
        arguments += ["--length", "200000"]
    result = subprocess.run(
        ["sh", "-c", '"$0" "$@" | head -n 1', sys.executable, COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1


@pytest.mark.parametrize(
    "name",
    [
        "two words.txt",
        "äöü 文字 🙂.txt",
        "-dash.txt",
        "[red]x.txt",
        "*.txt",
    ],
)
def test_unusual_paths_work_and_can_be_copied_from_the_output(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("one")
    (tmp_path / "sub").mkdir()
    out = Path(name).stem + " out"
    result = run("prepare", f"--out={out}", *QUICK, "--val-fraction=0", "--", name, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    next_command = result.stdout.partition("Next:")[2].splitlines()[0].strip()
    assert next_command.startswith("tokenmill info ")
    shell = next_command.replace("tokenmill", f"'{sys.executable}' '{COMMAND}'", 1)
    info = subprocess.run(
        ["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert info.returncode == 0, info.stderr
    assert name in info.stdout
    npy = run("pretokenize", "--tokenizer", "bytes", "--", name, cwd=tmp_path)
    assert npy.returncode == 0, npy.stderr
    assert (tmp_path / name).with_suffix(".npy").exists()


@pytest.mark.parametrize("out", [[], ["--out", "data"]])
def test_dry_run_writes_nothing(tmp_path: Path, out: list[str]) -> None:
    (tmp_path / "x.txt").write_text("some text\n" * 1000)
    result = run("prepare", "x.txt", "--dry-run", *out, *QUICK, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert os.listdir(tmp_path) == ["x.txt"]
    for word in ("files", "tokens", "disk", "memory", "time"):
        assert f"\n{word} " in f"\n{result.stdout}"


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("prepare --out x", "prepare needs INPUT."),
        ("sample", "sample needs NAME."),
        ("info", "info needs PATH."),
        ("export x --out y", "export needs --to."),
        ("tokenizer train --vocab-size 300", "tokenizer train needs INPUT."),
    ],
)
def test_missing_arguments_are_named_as_in_the_usage_line(command: str, missing: str) -> None:
    result = run(*command.split())
    assert result.returncode == 2
    assert result.stderr.startswith(f"tokenmill: {missing}\nSee tokenmill ")
    usage = run(*missing.split(" needs ")[0].split(), "--help").stdout.splitlines()[0]
    assert missing.rpartition(" ")[2].rstrip(".") in usage


@pytest.mark.parametrize("command", ["prepare", "export", "import", "reshard"])
def test_help_says_that_out_is_required(command: str) -> None:
    result = " ".join(run(command, "--help").stdout.replace("│", " ").split())
    described = result.partition(" --out ")[2].partition(" --workers")[0]
    assert "equired" in described


def test_a_finished_dataset_on_a_read_only_disk_is_reported(tmp_path: Path) -> None:
    """There is nothing to write, but there is a lock to take."""
    result = run("prepare", __file__, "--out", "/proc/self/data", *QUICK)
    assert result.returncode == 1
    assert result.stderr.startswith("tokenmill: ")
