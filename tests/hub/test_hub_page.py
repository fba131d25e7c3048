"""docs/hub.md: every command and every line of Python on it runs, against a local Hub."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from local_hub import LocalHub, llmc_shard

import tokenmill

PAGE = Path(__file__).parents[2] / "docs" / "hub.md"


def fill(hub: LocalHub) -> None:
    table = pa.table({"text": [f"Text {number}." for number in range(50)]})
    for path in (
        "HuggingFaceFW/fineweb-edu/sample/10BT/000_00000.parquet",
        "HuggingFaceFW/fineweb-edu/sample/10BT/001_00000.parquet",
        "HuggingFaceFW/fineweb-edu/data/other.parquet",
        "Salesforce/wikitext/wikitext-2-v1/validation/0000.parquet",
    ):
        (hub.folder / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, hub.folder / path)
    shards = {f"edu_fineweb_train_{n:06}.bin": llmc_shard([n] * 100) for n in range(1, 9)}
    hub.put("karpathy/fineweb-edu-100B-gpt2-token-shards", shards)
    text = hub.folder / "text.txt"
    text.write_text("one<|endoftext|>two<|endoftext|>three")
    tokenmill.prepare(
        text, hub.folder / "my-lab/corpus", tokenizer="bytes", workers=1, val_fraction=0
    )


def test_every_command_and_script_on_the_page_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    script = "\n".join(code for language, code in blocks if language == "python")
    typed = [line for language, code in blocks if language == "sh" for line in code.splitlines()]
    commands = [shlex.split(line)[1:] for line in typed if line.startswith("tokenmill ")]
    assert len(commands) == 6
    script += "\nfrom tokenmill.cli import main\nif __name__ == '__main__':\n"
    script += "".join(f"    assert main({command!r}) == 0, {command!r}\n" for command in commands)
    (tmp_path / "page.py").write_text(script)
    with LocalHub(tmp_path / "site") as hub:
        fill(hub)
        run = subprocess.run(
            [sys.executable, "page.py"],
            cwd=tmp_path,
            env={**os.environ, **hub.environment(tmp_path / "home")},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert run.returncode == 0, run.stderr
    assert sorted(os.listdir(tmp_path / "text/sample/10BT")) == [
        "000_00000.parquet",
        "001_00000.parquet",
    ]
    assert len(list(tmp_path.glob("fineweb/*.bin"))) == 4
    assert len(tokenmill.open(tmp_path / "data/edu")["train"]) > 0
