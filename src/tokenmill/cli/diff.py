"""`tokenmill diff`: compare the documents of two datasets."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenmill.cli.console import Display, quote, show, show_next, show_table, typed, typed_options
from tokenmill.cli.opening import RECOGNISED, Opening, parse_path
from tokenmill.errors import UsageError
from tokenmill.inspect.diff.diff import Difference, Example
from tokenmill.inspect.diff.diff import diff as compare
from tokenmill.wording import count, counted, one_line

_TEXT = 60  # characters of a document to show


def diff(
    one: Annotated[Path, Parameter(name="DATA1", converter=parse_path)],
    other: Annotated[Path, Parameter(name="DATA2", converter=parse_path)],
    /,
    *,
    top: int = 10,
    tokenizer: str | None = None,
    eot_id: int | None = None,
    opening: Opening = RECOGNISED,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Compare the documents of two datasets: removed, added, and moved to another split.

    Documents are compared by the keys of their texts, so shards, order and workers do not matter.
    Settings are shown if they differ, but do not count as a difference. The exit status is 0 if both
    have the same documents in the same splits, 1 if not, and 2 after an error.

    Parameters
    ----------
    one
        Folder of the first dataset, or tokens in another format.
    other
        Folder of the second dataset, or tokens in another format.
    top
        Number of sources and documents to show.
    tokenizer
        Tokenizer that made the tokens. Only for tokens that are not a tokenmill dataset.
    eot_id
        Id that separates documents. Only for tokens that are not a tokenmill dataset.
    json
        Print the comparison as JSON.
    """
    if top < 1:
        raise UsageError(f"`top` is {top}; it must be 1 or more.")
    with Display() as display:
        found = compare(
            one, other, tokenizer=tokenizer, eot_id=eot_id, **opening.options, watcher=display
        )
    if json:
        values = {**asdict(found), "is_same": found.is_same}
        print(json_format.dumps(values, indent=2).replace("\x7f", "\\u007f"))
    else:
        _show(found, top)
        given = typed_options({"tokenizer": tokenizer, **opening.options})
        commands = [f"tokenmill stats {typed(path)}{given}" for path in (one, other)]
        for example in found.examples[:1]:
            place = one if example.kind == "removed" else other
            command = f"tokenmill peek {typed(place)}{given} --split {quote(example.split)}"
            commands.insert(0, f"{command} --token {example.start}")
        show_next(*commands)
    return 0 if found.is_same else 1


def _show(found: Difference, top: int) -> None:
    for note in found.notes:
        show(f"note: {note}")
    show_table(
        None,
        ("", "documents", "tokens"),
        [
            ("the same", count(found.same.documents), count(found.same.tokens)),
            ("removed", count(found.removed.documents), count(found.removed.tokens)),
            ("added", count(found.added.documents), count(found.added.tokens)),
            *(
                (
                    f"moved from {one.before} to {one.after}",
                    count(one.documents),
                    count(one.tokens),
                )
                for one in found.moved
            ),
        ],
    )
    if found.same.tokens != found.same_tokens_after:
        show(f"The same documents have {counted(found.same_tokens_after, 'token')} in the second.")
    if found.sources:
        show_table(
            "Sources",
            ("file", "removed", "tokens removed", "added", "tokens added"),
            [
                (
                    one.path,
                    count(one.removed.documents),
                    count(one.removed.tokens),
                    count(one.added.documents),
                    count(one.added.tokens),
                )
                for one in found.sources[:top]
            ],
        )
        more = len(found.sources) + found.more_sources - top
        if more > 0:
            show(f"… and {count(more)} more")
    if found.settings:
        show_table(
            "Settings",
            ("", "first", "second"),
            [(one.name, one.before or "none", one.after or "none") for one in found.settings],
        )
    for kind in ("removed", "added", "moved"):
        chosen = [example for example in found.examples if example.kind == kind][:top]
        if chosen:
            rows = [
                (
                    example.split,
                    _place(example),
                    count(example.tokens),
                    repr(example.text[:_TEXT]) if example.text is not None else "",
                )
                for example in chosen
            ]
            show_table(f"Examples: {kind}", ("split", "", "tokens", ""), rows)
    show(f"\n{_conclude(found)}")


def _conclude(found: Difference) -> str:
    if found.is_same:
        other = ", but other settings" if found.settings else ""
        return f"The datasets have the same documents{other}."
    numbers = {
        "removed": found.removed.documents,
        "added": found.added.documents,
        "moved to another split": found.moved_documents,
    }
    parts = [f"{count(number)} {what}" for what, number in numbers.items() if number]
    whole = sum(numbers.values())
    return f"The datasets differ in {counted(whole, 'document')}: {', '.join(parts)}."


def _place(example: Example) -> str:
    offset = "" if example.offset is None else f", {count(example.offset)}"
    return f"{one_line(example.source)}{offset}"
