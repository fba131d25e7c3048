"""Runs commands like a user, in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMAND = str(Path(sys.executable).with_name("tokenmill"))
SCRIPTS = Path(__file__).parents[2] / "scripts"
QUICK = ("--tokenizer", "bytes", "--workers", "1")


def run(
    *arguments: str | Path, environment: dict[str, str] | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run `tokenmill` and wait for it."""
    return python(COMMAND, *arguments, environment=environment, **options)


def python(
    *arguments: str | Path, environment: dict[str, str] | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run Python and wait for it; its output is decoded as UTF-8."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=60,
        env={**os.environ, **(environment or {})},
        **options,  # type: ignore[call-overload]
    )


def prepared(folder: Path, *texts: str, name: str = "x.txt") -> Path:
    """A dataset of some documents, in `folder`/data."""
    text = folder / name
    text.write_text("<|endoftext|>".join(texts))
    made = run("prepare", text, "--out", folder / "data", *QUICK, "--val-fraction", "0")
    assert made.returncode == 0, made.stderr
    return folder / "data"
