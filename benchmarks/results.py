"""Store measurements in `results.json`, and write them into the tables of README and docs.

A table is between `<!-- NAME -->` and `<!-- /NAME -->`.
"""

from __future__ import annotations

import json
import os
import platform
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PAGES = [HERE.parent / "README.md", *sorted((HERE.parent / "docs").glob("*.md"))]


def record(name: str, conditions: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Store the rows of one measurement, print them, and update the tables of the pages."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    results[name] = {"conditions": {**conditions, **machine}, "rows": rows}
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\n{as_table(rows)}")
    write_table(name, rows)
    write_table("headline", find_headline(results))


def write_table(name: str, rows: list[dict[str, Any]]) -> None:
    """Write a table into every page that has its marks."""
    marked = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    for page in PAGES:
        text = page.read_text()
        page.write_text(marked.sub(lambda match: f"{match[1]}{as_table(rows)}\n{match[2]}", text))


def find_headline(results: dict[str, Any]) -> list[dict[str, Any]]:
    """The three numbers of the README, from the results of the benchmarks."""

    def find(name: str, what: str, column: str) -> Any:
        return next(row[column] for row in results[name]["rows"] if row["what"] == what)

    prepare = find("prepare-real", "tokenmill prepare", "MB/s")
    tokenizers = find("prepare-real", "tokenizers, `encode_batch`", "MB/s")
    load = find("load", "`tokenmill.torch.Loader`, 32 × 1,024", "M tokens/s")
    torch = find("load", "PyTorch DataLoader, 0 workers, 32 × 1,024", "M tokens/s")
    grain = find("frameworks", "`tokenmill.grain.make_dataset`", "M tokens/s")
    peer = find("frameworks", "Grain, rows of a memory map, no threads", "M tokens/s")
    columns = ("", "tokenmill", "today", "ratio")
    rows = [
        ("source code to finished shards", f"{prepare:.0f} MB/s", f"`tokenizers`, ids only: {tokenizers} MB/s", prepare / tokenizers),
        ("shuffled PyTorch batches", f"{load} M tokens/s", f"`DataLoader`: {torch} M tokens/s", load / torch),
        ("shuffled Grain batches", f"{grain} M tokens/s", f"Grain over a memory map: {peer} M tokens/s", grain / peer),
    ]  # fmt: skip
    return [dict(zip(columns, (*row[:3], f"{row[3]:.0f}×"), strict=True)) for row in rows]


def as_table(rows: list[dict[str, Any]]) -> str:
    """Rows as a Markdown table.

    >>> print(as_table([{"what": "a", "MB/s": 1.5}]))
    | what | MB/s |
    |---|---:|
    | a | 1.5 |
    """
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |"]
    lines.append("|---|" + "---:|" * (len(names) - 1))
    lines += ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":  # after a change of the pages
    recorded = json.loads(RESULTS.read_text())
    for name, result in recorded.items():
        write_table(name, result["rows"])
    write_table("headline", find_headline(recorded))
