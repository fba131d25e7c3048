"""docs/explain.md: its Python runs."""

from __future__ import annotations

import re
from pathlib import Path

import tokenmill

PAGE = Path(__file__).parents[2] / "docs" / "explain.md"


def test_the_code_on_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.txt").write_text(
        "".join(f"Document {n} of this corpus.<|endoftext|>" for n in range(99))
    )
    tokenmill.prepare("x.txt", "data/corpus", tokenizer="bytes", val_fraction=0, workers=1)
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(code) == 2
    names = {}
    exec("\n".join(code), names)
    assert [row.span.row for row in names["found"].rows] == [28, 29, 30, 31]
    assert names["view"].step_rows(1_000_000) == range(4_000_000, 4_000_004)
    span = names["span"]
    assert {row.span.row for row in names["explained"]} == set(names["rows"].tolist())
    assert all(
        row.span.start < span.stop and row.span.stop > span.start for row in names["explained"]
    )
