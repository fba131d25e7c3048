"""HTML tables for notebooks.

Guarantees: all text is escaped, since paths and texts of datasets may be untrusted. Characters that
are invisible or reorder text are shown as escapes. A table has at most `ROWS` rows, and a cell at
most `CELL` characters, so the HTML of an object is small whatever the object holds.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from tokenmill.wording import one_line

ROWS, CELL = 20, 200

Table = tuple[str, Sequence[str], Sequence[Sequence[Any]]]


def escape(value: object) -> str:
    """Return a value as HTML text in one line, shortened to `CELL` characters.

    >>> escape("<b>\\x1b[0m")
    '&lt;b&gt;\\\\x1b[0m'
    """
    text = value if isinstance(value, str) else str(value)
    shown = one_line(text[: CELL + 1])
    return html.escape(shown if len(shown) <= CELL else f"{shown[: CELL - 1]}…")


def render(title: str, facts: Sequence[tuple[str, Any]] = (), *tables: Table) -> str:
    """Return a title, a table of names and values, and more tables, each (title, heads, rows).

    >>> render("Dataset <a>", [("tokens", 5)])
    '<div><b>Dataset &lt;a&gt;</b><table><tr><th>tokens</th><td>5</td></tr></table></div>'
    """
    parts = [f"<b>{escape(title)}</b>"]
    if facts:
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
            for name, value in facts[:ROWS]
        )
        parts.append(f"<table>{rows}</table>")
    for name, heads, cells in tables:
        head = "".join(f"<th>{escape(one)}</th>" for one in heads)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
            for row in cells[:ROWS]
        )
        more = f"<tr><td>… and {len(cells) - ROWS:,} more</td></tr>" if len(cells) > ROWS else ""
        caption = f"<caption>{escape(name)}</caption>" if name else ""
        parts.append(f"<table>{caption}<tr>{head}</tr>{body}{more}</table>")
    return f"<div>{''.join(parts)}</div>"
