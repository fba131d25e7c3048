"""`tokenmill info`: what is in a dataset."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich import box
from rich.table import Table
from rich.text import Text

from tokenmill.cli.console import stdout, typed
from tokenmill.cli.flags import find_flags, name_flags
from tokenmill.cli.opening import RECOGNISED, Opening, typed_options
from tokenmill.inspect.info import Info, describe
from tokenmill.wording import count, counted, harmless, size

SOURCES_SHOWN = 10


def info(
    path: Annotated[Path, Parameter(name="PATH")],
    /,
    *,
    opening: Opening = RECOGNISED,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Show what is in a dataset: its tokens, where they came from and what was left out.

    Parameters
    ----------
    path
        A dataset's folder, or a file or folder of tokens in another format.
    json
        Print everything as JSON, for programs.
    """
    found = describe(path, **opening.options)
    if json:
        # In ASCII, so that any terminal can show it and nothing in it can harm one.
        told = {**asdict(found), "sources": [asdict(one) for one in found.sources]}
        print(json_format.dumps(told, indent=2).replace("\x7f", "\\u007f"))
        return 0
    _show(found)
    here = typed(path) + typed_options(opening.options)
    # Nothing can be read without a tokenizer; NAME is for who knows it to fill in.
    unknown = " --tokenizer NAME" if found.tokenizer is None else ""
    _line(f"\nRead some of it:  tokenmill peek {here}{unknown}")
    _line(f"Check all of it:  tokenmill verify {here}")
    return 0


def _show(found: Info) -> None:
    told = f" of {counted(found.documents, 'document')}" if found.documents is not None else ""
    _line(f"{found.path}: {count(found.tokens)} tokens{told}")
    per_token = []
    if found.characters_per_token is not None and found.bytes_per_token is not None:
        per_token = [
            (
                "a token is",
                f"{found.characters_per_token:.2f} characters, {found.bytes_per_token:.2f} bytes",
            )
        ]
    eot = {
        "after": f"{found.eot_id} after each document",
        "before": f"{found.eot_id} before each document",
        "none": "none",
    }[found.eot if found.eot_id is not None else "none"]
    if found.eot_id is None and found.eot != "none":
        eot = "not known"
    vocabulary = "unknown size" if found.vocab_size is None else count(found.vocab_size)
    _table(
        None,
        ("", ""),
        [
            *([("format", found.format)] if found.tokenizer_fingerprint is None else []),
            ("tokenizer", f"{found.tokenizer or 'not known'}, vocabulary of {vocabulary}"),
            *(
                [("fingerprint", found.tokenizer_fingerprint)]
                if found.tokenizer_fingerprint
                else []
            ),
            ("stored as", found.dtype),
            ("end of text", eot),
            *per_token,
        ],
    )
    _table(
        "Splits",
        ("split", "tokens", "documents", "shards", "size"),
        [
            (
                one.name,
                count(one.tokens),
                "unknown" if one.documents is None else count(one.documents),
                count(one.shards),
                size(one.bytes),
            )
            for one in found.splits
        ],
    )
    if found.tokenizer_fingerprint is not None:
        _show_origin(found)


def _show_origin(found: Info) -> None:
    settings = list(_flat(found.settings))
    if settings:
        _table("Settings", ("", ""), settings)
    if found.documents_in is not None:
        rows = [
            ("documents in", count(found.documents_in), size(found.bytes_in or 0)),
            *(
                (f"dropped: {one.reason}", count(one.documents), size(one.bytes))
                for one in found.dropped
            ),
            ("kept", count(found.documents or 0), size(found.bytes_kept or 0)),
        ]
        _table("Ledger", ("", "documents", "size"), rows)
        if found.text_bytes is not None:
            _line(f"The text kept is {size(found.text_bytes)} after cleaning.")
        if found.repaired_documents:
            _line(f"{counted(found.repaired_documents, 'document')} had invalid UTF-8 repaired.")
        if found.duplicate_lines:
            _line(f"{count(found.duplicate_lines)} repeated lines were left out.")
    if found.set_aside:
        flags = find_flags(["prepare"])
        shown = [
            (one.source, name_flags(one.reason, flags)) for one in found.set_aside[:SOURCES_SHOWN]
        ]
        _table(f"Set aside ({count(len(found.set_aside))})", ("file", "reason"), shown)
        _more(len(found.set_aside))
    sources = [(one.path, size(one.bytes)) for one in islice(found.sources, SOURCES_SHOWN)]
    whole = size(found.sources.bytes)
    _table(f"Sources ({count(len(found.sources))}): {whole}", ("file", "size"), sources)
    _more(len(found.sources))


def _more(number: int) -> None:
    if number > SOURCES_SHOWN:
        _line(f"… and {count(number - SOURCES_SHOWN)} more")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Settings as pairs; what is unset says nothing and is left out."""
    rows: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            rows.append((f"{prefix}{name}", "yes" if value else "no"))
        elif value is not None and value not in ([], ""):
            rows.append((f"{prefix}{name}", count(value) if isinstance(value, int) else str(value)))
    return rows


def _line(text: str) -> None:
    stdout.print(Text(harmless(text)))


def _table(title: str | None, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal; aligned columns in a file or a pipe, where lines are not cut."""
    cells = [[harmless(cell).replace("\n", "\\n") for cell in row] for row in rows]
    numbers = [n > 0 and head not in ("", "reason") for n, head in enumerate(heads)]
    _line(f"\n{title}" if title else "")
    if stdout.is_terminal:
        table = Table(box=box.SIMPLE, show_header=any(heads), pad_edge=False)
        for head, number in zip(heads, numbers, strict=True):
            table.add_column(head, justify="right" if number else "left", overflow="fold")
        for row in cells:
            table.add_row(*map(Text, row))
        stdout.print(table, soft_wrap=False)
        return
    shown = [list(heads), *cells] if any(heads) else cells
    widths = [max((len(row[n]) for row in shown), default=0) for n in range(len(heads))]
    for row in shown:
        line = "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numbers, strict=True)
        )
        _line(f"  {line}".rstrip())
