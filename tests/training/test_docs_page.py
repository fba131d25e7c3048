"""docs/training.md: its Python runs, and its table of the guides' names is complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import tokenmill
from tokenmill.training.config_file import DATA_NAMES, GUIDE_NAMES, IGNORED_NAMES

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_the_code_on_the_page_runs(tmp_path: Path) -> None:
    text = "".join(f"Document {number} of this corpus.<|endoftext|>" for number in range(500))
    (tmp_path / "input.txt").write_text(text)
    tokenmill.prepare(
        tmp_path / "input.txt",
        tmp_path / "data" / "corpus",
        tokenizer="bytes",
        val_fraction=0.2,
        workers=1,
    )
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(code) == 2
    checks = "assert report.val_loss and written.startswith('Document')\nassert text in open('input.txt').read() and origin.source"
    ended = subprocess.run(
        [sys.executable, "-c", "\n".join([*code, checks])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr


def test_the_page_has_every_name_of_the_guides() -> None:
    page = PAGE.read_text()
    for name in (*GUIDE_NAMES, *DATA_NAMES, *IGNORED_NAMES, "batch_size"):
        assert f"`{name}`" in page, name
