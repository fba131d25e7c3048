"""Type checkers accept a user's code with the installed wheel, not with this checkout.

The examples of the README and of docs/ must pass `mypy --strict` and pyright, as they are.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What the text around the examples of a page has introduced.
PREAMBLES = {
    "README.md": "import tokenmill\n",
    "formats.md": "import tokenmill\n",
    "prepare.md": "import tokenmill\n",
}
MODULES = {"tokenizers_0": "my_tokenizer"}  # the name under which the page saves an example
USER = """
import numpy as np
import tokenmill
import tokenmill.grain
import tokenmill.jax
import tokenmill.torch
import torch
from typing import assert_type

data = tokenmill.open("data/corpus")
tokens = data["train"]
plain = tokenmill.Loader(tokens, batch_size=2, seq_len=4)
assert_type(next(plain), tokenmill.Batch)
documented = tokenmill.Loader(tokens, batch_size=2, seq_len=4, documents=True, seed=1)
assert_type(next(documented), tokenmill.DocumentedBatch)
next(documented).documents.cu_seqlens

inputs, targets = next(tokenmill.torch.Loader(tokens, batch_size=2, seq_len=4, device="cpu"))
assert_type(targets, torch.Tensor)
_, _, found = next(tokenmill.torch.Loader(tokens, batch_size=2, seq_len=4, documents=True))
assert_type(found, tokenmill.torch.Documents)
for inputs, targets in tokenmill.torch.TokenBatches(tokens, batch_size=2, seq_len=4):
    inputs + targets
left, right = next(tokenmill.jax.Loader(tokens, batch_size=2, seq_len=4))
left.sharding


def load(with_documents: bool) -> None:
    # Only at run time is it known which of the two kinds of batches comes.
    either = tokenmill.Loader(tokens, batch_size=2, seq_len=4, documents=with_documents)
    assert_type(next(either), tokenmill.Batch)  # of which DocumentedBatch is a subclass
    tensors = tokenmill.torch.Loader(tokens, batch_size=2, seq_len=4, documents=with_documents)
    assert_type(next(tensors), tokenmill.torch.Batch | tokenmill.torch.DocumentedBatch)
    batches = tokenmill.torch.TokenBatches(
        tokens, batch_size=2, seq_len=4, documents=with_documents
    )
    for inputs, targets, *_ in batches:
        inputs.shape, targets.shape
    arrays = tokenmill.jax.Loader(tokens, batch_size=2, seq_len=4, documents=with_documents)
    assert_type(next(arrays), tokenmill.jax.Batch | tokenmill.jax.DocumentedBatch)
    source = tokenmill.grain.TokenBatches(
        tokens, batch_size=2, seq_len=4, documents=with_documents
    )
    assert_type(source[0], tokenmill.grain.Batch | tokenmill.grain.DocumentedBatch)


def train(loader: tokenmill.Loader) -> int:
    return len(next(loader).inputs)


train(plain)
report = tokenmill.prepare("texts", "data/corpus", val_fraction=0.005, dedup="lines")
assert_type(report.manifest.splits["train"].tokens, int)
"""
UNTYPED = ("[no-untyped-call]", "[import-untyped]")  # missing types of other packages
MISTAKES = [
    "tokenmill.Loader(tokens, batch_size=2, seq_len=4, sed=1)",
    "tokenmill.Loader(tokens, batch_size='2', seq_len=4)",
    "tokenmill.prepare('a', 'b', val_fractoin=0.1)",
    "tokenmill.prepare('a', 'b', dedup='all')",
    "tokenmill.opne('a')",
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the wheel, where nothing else is."""
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", build, folder], cwd=ROOT, capture_output=True, text=True, check=True
    )
    with zipfile.ZipFile(folder / built.stdout.split()[-1]) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples of all pages, a user's script and one of mistakes."""
    folder = tmp_path_factory.mktemp("scripts")
    for page in PAGES:
        for number, text in enumerate(join_examples(page)):
            name = f"{page.stem.lower()}_{number}"
            (folder / f"{MODULES.get(name, name)}.py").write_text(text)
    (folder / "user.py").write_text(USER)
    lines = ["import tokenmill", 'tokens = tokenmill.open("x")["train"]', *MISTAKES]
    (folder / "mistakes.py").write_text("\n".join(lines) + "\n")
    return folder


def join_examples(page: Path) -> list[str]:
    """The scripts of a page: each import of tokenmill begins one, and later examples continue it."""
    found = [""]
    for block in BLOCK.findall(page.read_text()):
        if ">>>" in block:
            continue
        if "import tokenmill\n" in block and found[-1]:
            found.append("")
        found[-1] += block
    return [PREAMBLES.get(page.name, "") + text for text in found if text]


def check_mistakes(complaints: dict[str, list[str]]) -> None:
    """Check that errors are reported for the mistakes only, each in its line."""
    mistakes = complaints.pop("mistakes.py", [])
    assert not complaints, "\n".join(line for lines in complaints.values() for line in lines)
    for number, code in enumerate(MISTAKES, 3):
        assert any(f":{number}:" in line for line in mistakes), (code, mistakes)


def test_wheel_says_that_it_is_typed(site: Path) -> None:
    assert (site / "tokenmill" / "py.typed").exists()
    (facts,) = site.glob("*.dist-info")
    assert "tokenmill/py.typed" in (facts / "RECORD").read_text()


def test_wheel_has_the_presets(site: Path) -> None:
    code = (
        "from tokenmill.training.config_file import read_config; print(read_config('tiny').width)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=site,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "96\n", done.stderr


def copy_cache(source: Path, target: Path) -> None:
    """Copy what mypy cached of PyTorch and JAX for this checkout (minutes of work), but nothing
    of tokenmill: mypy may crash where modules come from elsewhere than its cache says."""
    shutil.copytree(source, target)
    for path in target.rglob("cache*.db"):
        with closing(sqlite3.connect(path)) as database:
            database.execute("DELETE FROM files2 WHERE path LIKE 'tokenmill%'")
            database.commit()


def test_mypy_knows_the_types_of_the_wheel(site: Path, scripts: Path) -> None:
    cache = scripts / ".mypy_cache"
    if (ROOT / ".mypy_cache").exists():
        copy_cache(ROOT / ".mypy_cache", cache)
    settings = ["--config-file", ROOT / "pyproject.toml", "--cache-dir", cache]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *settings, *sorted(scripts.glob("*.py"))],
        cwd=scripts,  # where the configuration's own mypy_path leads nowhere
        env={**os.environ, "MYPYPATH": str(site)},
        capture_output=True,
        text=True,
    )
    complaints: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if ": error:" in line and not line.endswith(UNTYPED):
            complaints.setdefault(Path(line.partition(":")[0]).name, []).append(line)
    assert done.returncode == 1, done.stdout + done.stderr
    check_mistakes(complaints)


def test_pyright_knows_the_types_of_the_wheel(site: Path, scripts: Path) -> None:
    settings = {
        "include": ["*.py"],
        "typeCheckingMode": "standard",
        "extraPaths": [str(site)],
        "pythonVersion": "3.11",
    }
    (scripts / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=scripts,
        capture_output=True,
        text=True,
    )
    complaints: dict[str, list[str]] = {}
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        if one["severity"] == "error":
            name = Path(one["file"]).name
            line = f"{name}:{one['range']['start']['line'] + 1}: {one['message']}"
            complaints.setdefault(name, []).append(line)
    check_mistakes(complaints)
