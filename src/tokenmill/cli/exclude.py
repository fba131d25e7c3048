"""`tokenmill exclude`: keep a list of documents that later datasets leave out."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from tokenmill.cli.console import Display, report_stopped, show, show_next, typed
from tokenmill.cli.opening import parse_path
from tokenmill.errors import UsageError
from tokenmill.inspect.exclude import Excluded
from tokenmill.inspect.exclude import exclude as exclude_documents
from tokenmill.preparation.exclusion import Exclusion, find_list
from tokenmill.wording import count, counted, one_line

_TEXT = 60  # characters of a document to show


def exclude(
    data: Annotated[Path, Parameter(name="DATA", converter=parse_path)],
    /,
    *what: Annotated[str, Parameter(name="WHAT")],
    search: str | None = None,
    regex: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    because: str | None = None,
    undo: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    list_: Annotated[bool, Parameter(name="--list", negative="", show_default=False)] = False,
    out: Annotated[Path | None, Parameter(converter=parse_path)] = None,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Put documents on a list that later datasets leave out. The dataset itself is not changed.

    The list is DATA.exclude.jsonl, beside the dataset's folder. `tokenmill reshard DATA` leaves out
    the documents on it, and so does `tokenmill prepare --out DATA`. When you prepare into another
    folder, pass the list with --exclude.

    Parameters
    ----------
    data
        Folder of a dataset.
    what
        Documents to exclude: a key or its first digits, document=NUMBER, FILE:LINE, FILE:byte=BYTE
        or FILE:row=ROW; or FILE, for all documents of a file.
    search
        Exclude all documents in which this text occurs.
    regex
        Treat the text of --search as a regular expression, in the syntax of Python's re.
    because
        Reason to store with each document.
    undo
        Key to remove from the list, or its first digits. May be repeated.
    list_
        Show the list.
    out
        Another file for the list, for a dataset beside which no file can be written.
    json
        Print the result as JSON.
    """
    if list_ and (what or undo or search is not None):
        raise UsageError("--list shows the list. Omit it to change the list.")
    try:
        with Display() as display:
            found = exclude_documents(
                data,
                *what,
                search=search,
                regex=regex,
                because=because,
                undo=undo,
                out=out,
                watcher=display,
            )
    except KeyboardInterrupt:
        return report_stopped(f"in {out or find_list(data)}")
    is_list = not (what or undo or search is not None)
    if json:
        _print_json(found, is_list=is_list)
        return 0
    if is_list:
        total, last = 0, None
        for entry in found:
            total, last = total + 1, entry
            show(_describe(entry))
        show(f"{one_line(found.path)} lists {counted(total, 'document')}.")
        if last is not None:
            _show_next(data, out, last, is_list=True)
        return 0
    if undo:
        show(f"Removed {counted(found.removed, 'document')} from {found.path}.")
    else:
        known = f"; {count(found.known)} already listed" if found.known else ""
        tokens = f" ({counted(found.tokens, 'token')})" if found.added else ""
        show(f"Added {counted(found.added, 'document')}{tokens} to {found.path}{known}.")
    for entry in found.examples:
        show(f"  {_describe(entry)}")
    hidden = found.added + found.removed - len(found.examples)
    if hidden > 0:
        show(f"  … and {count(hidden)} more")
    if found.examples:
        _show_next(data, out, found.examples[0] if found.added else None)
    return 0


def _describe(entry: Exclusion) -> str:
    parts = [entry.key]
    if entry.source is not None:
        parts.append(f"{entry.source}, {entry.offset}")
    if entry.beginning:
        text = entry.beginning[:_TEXT]
        parts.append(json_format.dumps(text, ensure_ascii=False))
    if entry.because is not None:
        parts.append(f"({entry.because})")
    return one_line("  ".join(parts))


def _show_next(
    data: Path, out: Path | None, entry: Exclusion | None, *, is_list: bool = False
) -> None:
    here = typed(data)
    listed = "" if out is None else f" --exclude {typed(out)}"
    given = "" if out is None else f" --out {typed(out)}"
    commands = [f"tokenmill reshard {here} --out {here}-clean{listed}"]
    if entry is not None:
        commands.append(f"tokenmill exclude {here} --undo {entry.key[:12]}{given}")
    if not is_list:
        commands.append(f"tokenmill exclude {here} --list{given}")
    show_next(*commands)


def _print_json(found: Excluded, *, is_list: bool) -> None:
    """Print the result. The entries of a list are printed one by one, because there may be many."""
    values: dict[str, Any] = {
        "path": str(found.path),
        "added": found.added,
        "known": found.known,
        "removed": found.removed,
        "tokens": found.tokens,
    }
    # ASCII: every terminal can show it, and it contains no control characters.
    head = json_format.dumps(values, indent=2).removesuffix("\n}").replace("\x7f", "\\u007f")
    print(head + ',\n  "documents": [', end="")
    comma = ""
    for entry in found if is_list else found.examples:
        line = json_format.dumps(msgspec.to_builtins(entry)).replace("\x7f", "\\u007f")
        print(f"{comma}\n    {line}", end="")
        comma = ","
    print("\n  ]\n}" if comma else "]\n}")
