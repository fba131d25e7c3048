"""Where measurements go: `results.json`, and from there into the tables of README and docs.

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`.
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
    """Keep the rows of one measurement, print them, and put them where they belong."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    results[name] = {"conditions": {**conditions, **machine}, "rows": rows}
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    table = as_table(rows)
    print(f"\n{table}")
    marked = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    for page in PAGES:
        text = page.read_text()
        page.write_text(marked.sub(lambda match: f"{match[1]}{table}\n{match[2]}", text))


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
