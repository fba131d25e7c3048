"""What the tests of `prepare` share: inputs, runs in this process, and comparing folders."""

from __future__ import annotations

import filecmp
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from in_process import in_process

import tokenmill


def make(source: Any, out: Path, **options: Any) -> Any:
    with in_process():
        return tokenmill.prepare(source, out, **{"tokenizer": "bytes", "workers": 1, **options})


def write_documents(path: Path) -> Path:
    path.write_text("<|endoftext|>".join(f"Document {n}, with some words." for n in range(40)))
    return path


def files_in(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def assert_same_files(one: Path, other: Path) -> None:
    assert files_in(one) == files_in(other)
    _, different, unreadable = filecmp.cmpfiles(one, other, files_in(one), shallow=False)
    assert not different
    assert not unreadable


def python_sources(size: int) -> Iterator[str]:
    """Texts out of Python's own library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        yield text
        size -= len(text)
        if size < 0:
            return


def make_mixed(folder: Path) -> list[Path]:
    """Half a megabyte or so in all kinds of files, with duplicates across them."""
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    texts = list(python_sources(400_000))
    words = "one two three\nfour five six\nseven\n" * 40
    texts[3] = texts[0]
    some = texts[::3]
    (folder / "a.txt").write_text("<|endoftext|>".join([*some, "", words]))
    (folder / "b.md").write_text(f"# Title\n\n{words}")
    rows = [json.dumps({"text": text, "id": n}) for n, text in enumerate([*texts[1::3], words])]
    rows[2:2] = ["", "not json", '{"id": 1}']
    with gzip.open(folder / "c.jsonl.gz", "wt") as file:
        file.write("\n".join(rows))
    (folder / "d.jsonl").write_text("\n".join(reversed([*rows, "[]"])))
    column = pa.array([*texts[2::3], None, texts[0]])
    pq.write_table(pa.table({"text": column}), folder / "e.parquet", row_group_size=3)
    return sorted(folder.iterdir())
