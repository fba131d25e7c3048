"""The Python code of docs/frameworks.md runs from top to bottom."""

import re
import subprocess
import sys
from pathlib import Path

import tokenmill

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"


def test_the_documented_code_runs(tmp_path):
    text = "".join(f"Document {number} of this corpus.<|endoftext|>" for number in range(500))
    (tmp_path / "input.txt").write_text(text)
    tokenmill.prepare(
        tmp_path / "input.txt", tmp_path / "data" / "corpus", tokenizer="bytes", workers=1
    )
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(code) == 3
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(code)], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
