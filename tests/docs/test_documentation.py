"""The pages of the documentation: links lead somewhere, tables are generated, examples run."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest

import tokenmill

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(#[^)\s]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    for name, anchor in LINK.findall(page.read_text()):
        target = page.parent / name if name else page
        assert target.exists(), name
        if anchor:
            assert anchor in {_anchor(line) for line in target.read_text().splitlines()}, anchor


def _anchor(line: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    if not line.startswith("#"):
        return ""
    words = re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower())
    return f"#{words.strip().replace(' ', '-')}"


def test_index_lists_every_page():
    linked = {name for name, _ in LINK.findall((ROOT / "docs" / "index.md").read_text())}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= linked


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_tables_match_the_results(tmp_path):
    for name in ("README.md", "docs", "benchmarks/results.py", "benchmarks/results.json"):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, target)
    runpy.run_path(str(tmp_path / "benchmarks" / "results.py"), run_name="__main__")
    for page in PAGES:
        written = tmp_path / page.relative_to(ROOT)
        if written.exists():
            assert written.read_text() == page.read_text(), page.name


def test_the_example_of_the_readme_continues_with_the_next_row(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("".join(f"sentence {n} of a small corpus\n" for n in range(40_000)))
    tokenmill.prepare("text.txt", "data/corpus", tokenizer="bytes")
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names = {"tokenmill": tokenmill}
    exec(example, names)
    consumed = 8 * 32
    rows = tokenmill.Loader(names["tokens"], batch_size=64, seq_len=1024, seed=42)
    assert np.array_equal(next(names["loader"]).inputs, rows.batch_at(consumed // 64).inputs)
