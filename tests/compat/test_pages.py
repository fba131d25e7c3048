"""The Python code on the pages about loading runs, in the order of the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tokenmill

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that the pages open."""
    folder = tmp_path_factory.mktemp("pages")
    text = "".join(f"Document {number} of this corpus.<|endoftext|>" for number in range(2_000))
    (folder / "input.txt").write_text(text)
    for name in ("corpus", "code"):
        tokenmill.prepare(
            folder / "input.txt",
            folder / "data" / name,
            tokenizer="bytes",
            val_fraction=0.2,
            workers=1,
        )
    ids = np.arange(9_000, dtype=np.int32)
    for path in ("training_data/owt_train_tokens", "training_data/owt_valid_tokens", "Datasets/c4"):
        (folder / path).parent.mkdir(exist_ok=True)
        np.save(folder / f"{path}.npy", ids)
    (folder / "fineweb").mkdir()
    for number in (1, 2, 3):
        header = np.zeros(256, "<i4")
        header[:3] = 20240520, 1, len(ids)
        path = folder / f"fineweb/edu_fineweb_train_{number:06}.bin"
        path.write_bytes(header.tobytes() + ids.astype("<u2").tobytes())
    return folder


@pytest.mark.parametrize("page", ["loading.md", "guides.md"])
def test_the_code_on_a_page_runs(folder: Path, page: str) -> None:
    code = blocks(page)
    assert len(code) > 4
    script = folder / f"{page}.py"
    script.write_text("\n".join(code))
    result = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
