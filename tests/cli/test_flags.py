"""Errors name Python arguments in Python, and flags on the command line."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tokenmill.cli import main
from tokenmill.cli.flags import name_flags
from tokenmill.errors import TokenmillError

LIBRARY = Path(tokenmill.__file__).parent
SCRIPTS = LIBRARY.parents[1] / "scripts"
FLAG = re.compile(r"(?<![\w-])--[a-z]")
COMMAND = re.compile(r"\b(tokenmill [a-z]+|pip install|torchrun|zstd|ray start) .*?(?=[.;,] |\n|$)")


def list_messages(path: Path) -> Iterator[tuple[int, str]]:
    """Every string of a module except docstrings, with {} for formatted values."""
    tree = ast.parse(path.read_text())
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr | ast.Expr)
        for part in ([node.value] if isinstance(node, ast.Expr) else ast.walk(node))
        if part is not node
    }
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (str(getattr(part, "value", "")) for part in node.values)
            texts = [isinstance(part, ast.Constant) for part in node.values]
            yield (
                node.lineno,
                "".join(part if text else "{}" for part, text in zip(parts, texts, strict=True)),
            )


def test_no_message_of_the_library_names_a_flag_outside_a_whole_command() -> None:
    found = [
        f"{path.relative_to(LIBRARY)}:{line}: {message}"
        for path in sorted(LIBRARY.rglob("*.py"))
        if "cli" not in path.relative_to(LIBRARY).parts
        for line, message in list_messages(path)
        if FLAG.search(COMMAND.sub("", message))
    ]
    assert not found, "\n".join(found)


def write_files(folder: Path) -> None:
    (folder / "a.txt").write_text("Some words to begin with.\n" * 9)
    (folder / "a.jsonl").write_text('{"id": 1, "body": "words"}\n')
    pq.write_table(pa.table({"id": [1], "my body": ["words"]}), folder / "a.parquet")
    np.arange(99, dtype=np.uint16).tofile(folder / "ids.bin")
    tokenmill.prepare(folder / "a.txt", folder / "data", tokenizer="bytes")


# What is called in Python, the same command, and what each must name.
Case = tuple[Callable[[], Any], list[str], list[str], list[str]]
CASES: dict[str, Case] = {
    "setting": (
        lambda: tokenmill.prepare("a.txt", "out", tokenizer="bytes", val_fraction=2),
        ["prepare", "a.txt", "--out", "out", "--tokenizer", "bytes", "--val-fraction", "2"],
        ["`val_fraction` is 2"],
        ["--val-fraction is 2"],
    ),
    "workers": (
        lambda: tokenmill.prepare("a.txt", "out", tokenizer="bytes", workers=0),
        ["prepare", "a.txt", "--out", "out", "--tokenizer", "bytes", "--workers", "0"],
        ["`workers` is 0"],
        ["--workers is 0"],
    ),
    "other settings": (
        lambda: tokenmill.prepare("a.txt", "data", tokenizer="bytes", dedup="none"),
        ["prepare", "a.txt", "--out", "data", "--tokenizer", "bytes", "--dedup", "none"],
        ["another `out`", "`restart=True`"],
        ["another --out", "add --restart"],
    ),
    "field of JSON lines": (
        lambda: tokenmill.prepare("a.jsonl", "out", tokenizer="bytes"),
        ["prepare", "a.jsonl", "--out", "out", "--tokenizer", "bytes"],
        ["`text_field=NAME`", "`restart=True`"],
        ["--text-field NAME", "--restart"],
    ),
    "column of Parquet": (
        lambda: tokenmill.prepare("a.parquet", "out", tokenizer="bytes"),
        ["prepare", "a.parquet", "--out", "out", "--tokenizer", "bytes"],
        ["`text_field='my body'`", "`skip_bad_files=True`"],
        ["--text-field 'my body'", "--skip-bad-files"],
    ),
    "existing .npy": (
        lambda: [tokenmill.pretokenize("a.txt", dtype=dtype) for dtype in ("uint16", "int32")],
        ["pretokenize", "a.txt", "--dtype", "int32"],
        ["`restart=True`"],
        ["Add --restart"],
    ),
    "unknown format": (
        lambda: tokenmill.open("ids.bin"),
        ["info", "ids.bin"],
        ["`format`", "`dtype='uint16'`"],
        ["--format.", "--dtype uint16"],
    ),
    "no tokenizer": (
        lambda: tokenmill.open("ids.bin", dtype="uint16").tokenizer,
        ["peek", "ids.bin", "--dtype", "uint16"],
        ["`tokenizer=NAME`"],
        ["--tokenizer NAME"],
    ),
    "shards of no tokens": (
        lambda: tokenmill.reshard("data", "out", tokens_per_shard=0),
        ["reshard", "data", "--out", "out", "--tokens-per-shard", "0"],
        ["`tokens_per_shard` is 0"],
        ["--tokens-per-shard is 0"],
    ),
    "export into itself": (
        lambda: tokenmill.export("data", "data", to="npy"),
        ["export", "data", "--to", "npy", "--out", "data"],
        ["for `out`"],
        ["for --out"],
    ),
    "import of a share": (
        lambda: tokenmill.import_dataset("ids.bin", "out", dtype="uint16", val_fraction=2),
        ["import", "ids.bin", "--out", "out", "--dtype", "uint16", "--val-fraction", "2"],
        ["`val_fraction` is 2"],
        ["--val-fraction is 2"],
    ),
    "small vocabulary": (
        lambda: tokenmill.train_tokenizer("a.txt", vocab_size=2, out="t.json"),
        ["tokenizer", "train", "a.txt", "--vocab-size", "2"],
        ["`vocab_size` is 2"],
        ["--vocab-size is 2"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_errors_name_arguments_in_python_and_flags_in_commands(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    call, command, arguments, flags = CASES[name]
    with pytest.raises(TokenmillError) as caught:
        call()
    result = str(caught.value)
    assert all(argument in result for argument in arguments), result
    assert not FLAG.search(result)
    capfd.readouterr()
    assert main(command) in (1, 2)
    typed = capfd.readouterr().err
    assert all(flag in typed for flag in flags), typed
    assert "`" not in typed


def test_dry_run_and_set_aside_files_name_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    inputs = ["prepare", "a.txt", "a.parquet", "--tokenizer", "bytes"]
    for command in (
        [*inputs, "--dry-run"],
        [*inputs, "--out", "out", "--skip-bad-files"],
        ["info", "out"],
    ):
        assert main(command) == 0
        result = capfd.readouterr().out
        assert "--text-field 'my body'" in result
        assert "`" not in result


def test_the_data_and_the_model_have_separate_dtype_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    assert main(["train", "--data", "ids.bin", "--name", "x"]) == 1
    result = capfd.readouterr().err
    assert "--data-dtype uint16" in result
    assert " --dtype" not in result
    assert main(["train", "--data", "data", "--name", "x", "--batch-tokens", "3"]) == 2
    assert "--batch-tokens is 3" in capfd.readouterr().err


def test_a_setting_of_a_file_keeps_its_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.json").write_text('{"layers": 0}')
    assert main(["train", "--data", "d", "--name", "x", "--config", str(tmp_path / "c.json")]) == 2
    assert "c.json: layers is 0" in capfd.readouterr().err


def test_scripts_name_their_own_flags(tmp_path: Path) -> None:
    write_files(tmp_path)
    script = [sys.executable, SCRIPTS / "prepare_dataset.py", "--tokenization", "bytes"]
    files = ["--input_files", "a.txt", "--out_dir", "data"]
    result = subprocess.run([*script, *files], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 1
    assert "another --out_dir, or add --restart" in result.stderr
    done = subprocess.run([*script, *files, "--restart"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0


def test_other_text_in_backticks_is_not_changed() -> None:
    flags = {"out": "--out", "dtype": "--dtype"}
    for text in ("`jq -c '.[]'`", "`other`", "`Out`", "`out", "`tokenmill prepare`", "`` `"):
        assert name_flags(text, flags) == text
    assert name_flags("`out`: `dtype='>u2'`", flags) == "--out: --dtype '>u2'"
