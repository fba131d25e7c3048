"""The examples of CONTRIBUTING.md work when they are put into a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
SECTIONS = dict(re.findall(r"^## (Add a .*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
TEXT = "".join(f"Sentence {number} of a text.<|endoftext|>" for number in range(300))


def test_every_kind_of_contribution_has_an_example():
    kinds = ("format", "tokenizer", "source", "command", "framework")
    assert list(SECTIONS) == [f"Add a {kind}" for kind in kinds]


@pytest.mark.parametrize("section", SECTIONS)
def test_example_works(section, tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src")
    (tmp_path / "text.txt").write_text(TEXT)
    programs = []
    for block in re.findall(r"```python\n(.*?)```", SECTIONS[section], re.DOTALL):
        named = re.match(r"# (src/\S+)\n", block)
        if named is None:
            programs.append(block)
            continue
        target = tmp_path / named[1]
        body = block[named.end() :]
        if target.exists():
            edit(target, body)
        else:
            target.write_text(body)
    (program,) = programs
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr


def edit(path: Path, body: str) -> None:
    """Insert the lines of an example: imports first, then what follows a line that exists."""
    text = path.read_text()
    *imports, rest = body.split("\n\n") if body.startswith("from ") else [body]
    for line in imports:
        text = text.replace("from tokenmill.", f"{line}\nfrom tokenmill.", 1)
    first, *added = rest.rstrip().splitlines()
    opening = re.search(rf"^{re.escape(first)}", text, re.MULTILINE)
    assert opening is not None, first
    path.write_text(f"{text[: opening.end()]}\n" + "\n".join(added) + f"{text[opening.end() :]}")
