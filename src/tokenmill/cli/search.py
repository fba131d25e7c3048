"""`tokenmill search`: every occurrence of a text in a dataset."""

from __future__ import annotations

import json as json_format
import shlex
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from tokenmill.cli.console import Display, show_styled, typed, typed_options, warn
from tokenmill.cli.opening import RECOGNISED, Opening, parse_path
from tokenmill.dataset.opening import open as open_dataset
from tokenmill.errors import UsageError
from tokenmill.inspect.kept import may_have_kept
from tokenmill.inspect.search.matches import Match
from tokenmill.inspect.search.search import count_matches
from tokenmill.inspect.search.search import search as find
from tokenmill.inspect.search.word_index import NAME
from tokenmill.wording import count, counted, one_line


def search(
    path: Annotated[Path, Parameter(name="PATH", converter=parse_path)],
    text: Annotated[str | None, Parameter(name="TEXT", allow_leading_hyphen=True)] = None,
    /,
    *,
    regex: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    tokens: str | None = None,
    ignore_case: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    split: str | None = None,
    limit: int | None = None,
    count_only: Annotated[bool, Parameter(name="--count", negative="", show_default=False)] = False,
    index: Annotated[bool, Parameter(negative="--no-index", show_default=False)] = True,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    tokenizer: str | None = None,
    opening: Opening = RECOGNISED,
) -> int:
    """Show every occurrence of a text in a dataset, with its document and the text around it.

    The exit status is 0 if the text occurs, 1 if it does not, and 2 after an error, as with grep.

    Parameters
    ----------
    path
        Folder of a dataset, or tokens in another format: a file or a folder.
    text
        What to find.
    regex
        Treat TEXT as a regular expression, in the syntax of Python's re.
    tokens
        Find a sequence of ids, such as 464,2068, instead of a text.
    ignore_case
        Treat upper and lower case as equal.
    split
        Only search this split. By default, all splits.
    limit
        Stop after this number of occurrences.
    count_only
        Print only the number of occurrences.
    index
        Use the index that `tokenmill index` made, if there is one. --no-index searches all tokens.
    json
        Print each occurrence as a line of JSON.
    tokenizer
        Tokenizer that made the tokens, such as gpt2, bytes or a file. By default, the tokenizer
        comes from the data.
    """
    if count_only and limit is not None:
        raise UsageError("`count_only` counts all occurrences. Omit `limit`.")
    dataset = open_dataset(path, tokenizer=tokenizer, cache_bytes=0, **opening.options)
    wanted: dict[str, Any] = {
        "regex": regex,
        "tokens": None if tokens is None else _parse_ids(tokens),
        "ignore_case": ignore_case,
        "split": split,
        "use_index": index,
    }
    out = sys.stdout  # a display may redirect it to stderr
    here = typed(path) + typed_options({"tokenizer": tokenizer, **opening.options})
    if count_only:
        with Display() as display:
            counts = count_matches(dataset, text, watcher=display, **wanted)
        if json:
            print(json_format.dumps(counts), file=out)
        else:
            for name, number in counts.items():
                print(f"{one_line(name)}: {count(number)}", file=out)
        return 0 if any(counts.values()) else 1
    with Display() as display:
        matches = find(dataset, text, limit=limit, watcher=display, **wanted)
        with closing(matches):  # ends the threads of a search that stops early
            shown, last = _show(matches, out, json=json)
    if last is None:
        warn(f"{_name(text, tokens)} does not occur in {_name_splits(dataset.splits, split)}.")
        return 1
    if not json:
        stopped = limit is not None and shown >= limit
        show_styled(
            Text(f"\n{counted(shown, 'occurrence')}{', and maybe more' if stopped else ''}")
        )
        _show_next(last, here, can_index=text is not None and not may_have_kept(dataset, NAME))
    return 0


def _show(matches: Iterator[Match], out: Any, *, json: bool) -> tuple[int, Match | None]:
    shown, last, before = 0, None, None
    for match in matches:
        shown, last = shown + 1, match
        if json:
            out.write(_as_json(match) + "\n")
            continue
        place = match.split, None if match.document is None else match.document.number
        if place != before or match.document is None:
            show_styled(Text(_describe_place(match), style="dim"), file=out)
            before = place
        line = Text("    ")
        line.append(one_line(match.before))
        line.append(one_line(match.found), style="bold red")
        line.append(one_line(match.after))
        show_styled(line, file=out)
    return shown, last


def _describe_place(match: Match) -> str:
    document = match.document
    if document is None:
        return f"{one_line(match.split)}, token {match.token}"
    where = f"{one_line(match.split)}, document {document.number}"
    if document.source is not None:
        where += f": {one_line(document.source.path)}, {document.source.unit} {document.offset}"
    return where


def _as_json(match: Match) -> str:
    values = asdict(match)
    return json_format.dumps(values).replace("\x7f", "\\u007f")


def _show_next(last: Match, here: str, *, can_index: bool) -> None:
    given = f" --split {shlex.quote(last.split)}" if last.split != "train" else ""
    commands = [f"tokenmill peek {here}{given} --token {last.token}"]
    if last.document is not None and last.document.key is not None:
        commands.append(f"tokenmill where {here} {last.document.key}")
    if can_index:
        commands.append(f"tokenmill index {here}")
    show_styled(Text("\nNext:  " + "\n       ".join(commands)))


def _name(text: str | None, tokens: str | None) -> str:
    return repr(one_line(text)) if text is not None else f"The sequence of ids {tokens}"


def _name_splits(splits: tuple[str, ...], split: str | None) -> str:
    return one_line(split) if split is not None else " or ".join(map(one_line, splits))


def _parse_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not (part.isascii() and part.isdigit())), None)
    if wrong is not None or any(len(part) > 12 for part in parts):
        raise UsageError(f"`tokens` is {one_line(text)!r}; write ids such as 464,2068.")
    return [int(part) for part in parts]
