"""`tokenmill search`: every occurrence of a text in a dataset."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from tokenmill.cli.console import Display, quote, show_styled, typed, typed_options, warn
from tokenmill.cli.opening import RECOGNISED, Opening
from tokenmill.dataset.named import open_named, parse_named
from tokenmill.dataset.opening import Dataset
from tokenmill.errors import UsageError
from tokenmill.inspect.kept import may_have_kept
from tokenmill.inspect.search.matches import Match
from tokenmill.inspect.search.search import count_matches
from tokenmill.inspect.search.search import search as find
from tokenmill.inspect.search.word_index import NAME
from tokenmill.storage.object_path import as_path
from tokenmill.wording import count, counted, one_line


def search(
    data: Annotated[str, Parameter(name="DATA")],
    text: Annotated[str | None, Parameter(name="TEXT", allow_leading_hyphen=True)] = None,
    /,
    *more: Annotated[str, Parameter(show=False)],
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
    """Show every occurrence of a string in a dataset, with its document and the surrounding text.

    The exit status is 0 if the string is found, 1 if it is not, and 2 after an error, as with grep.

    Parameters
    ----------
    data
        Dataset folder, or a file or folder of tokens in another format. For a mixture, give each
        dataset a name and a weight: web=DIR:0.7 code=DIR:0.3 TEXT.
    text
        What to find. It comes last.
    more
        More datasets, and TEXT.
    regex
        Treat TEXT as a regular expression, in the syntax of Python's re.
    tokens
        Find a sequence of ids, such as 464,2068, instead of TEXT.
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
    paths, text = _divide(data, text, more, has_tokens=tokens is not None)
    named = {one.name: one for one in parse_named(paths)}
    wanted: dict[str, Any] = {
        "regex": regex,
        "tokens": None if tokens is None else _parse_ids(tokens),
        "ignore_case": ignore_case,
        "split": split,
        "use_index": index,
    }
    options = {"tokenizer": tokenizer, **opening.options}
    opened = {
        name: dataset for name, (dataset, _) in open_named(paths, cache_bytes=0, **options).items()
    }
    out = sys.stdout  # a display may redirect it to stderr
    if count_only:
        return _count(opened, text, wanted, out, json=json)
    with Display() as display:
        matches = find(opened, text, limit=limit, watcher=display, **wanted)
        with closing(matches):  # ends the threads of a search that stops early
            shown, last = _show(matches, out, json=json)
    if last is None:
        splits = dict.fromkeys(one for dataset in opened.values() for one in dataset)
        where = one_line(split) if split is not None else " or ".join(map(one_line, splits))
        of = f" of {' or '.join(map(one_line, opened))}" if "" not in opened else ""
        warn(f"{_name(text, tokens)} does not occur in {where}{of}.")
        return 1
    if not json:
        stopped = limit is not None and shown >= limit
        show_styled(
            Text(f"\n{counted(shown, 'occurrence')}{', and maybe more' if stopped else ''}")
        )
        given = typed_options(options)
        here = typed(as_path(named[last.name].path)) + given
        lacks_index = not all(may_have_kept(dataset, NAME) for dataset in opened.values())
        whole = " ".join(map(quote, paths)) if last.name else here
        _show_next(last, here, f"{whole}{given}" if text is not None and lacks_index else None)
    return 0


def _divide(
    data: str, text: str | None, more: Sequence[str], *, has_tokens: bool
) -> tuple[list[str], str | None]:
    """Return the datasets, and the text, which comes last; with --tokens, there is no text."""
    given = [data, *([] if text is None else [text]), *more]
    if has_tokens:
        if len(given) > 1 and not parse_named(given[-1:])[0].name:
            raise UsageError("give what to find as TEXT or as `tokens`, not as both.")
        return given, None
    if len(given) == 1:
        return given, None
    *paths, text = given
    wrong = next((one for one in paths if not parse_named([one])[0].name), None)
    if wrong is not None and len(paths) > 1:
        raise UsageError(
            f"{one_line(wrong)!r} is neither TEXT, which comes last, nor a dataset of a mixture. Put a TEXT "
            "of several words in quotes. Give each of several datasets a name and a weight: "
            "NAME=DATA:0.5"
        )
    return paths, text


def _count(
    opened: Mapping[str, Dataset],
    text: str | None,
    wanted: Mapping[str, Any],
    out: Any,
    *,
    json: bool,
) -> int:
    """Print the number of occurrences in each split of each dataset."""
    split = wanted["split"]
    having = {name: one for name, one in opened.items() if split is None or split in one} or opened
    with Display() as display:
        counts = {
            name: count_matches(dataset, text, watcher=display, **wanted)
            for name, dataset in having.items()
        }
    if json:
        print(json_format.dumps(counts.get("", counts)), file=out)
    else:
        for name, numbers in counts.items():
            for part, number in numbers.items():
                where = f"{name}, {part}" if name else part
                print(f"{one_line(where)}: {count(number)}", file=out)
    return 0 if any(any(numbers.values()) for numbers in counts.values()) else 1


def _show(matches: Iterator[Match], out: Any, *, json: bool) -> tuple[int, Match | None]:
    shown, last, before = 0, None, None
    for match in matches:
        shown, last = shown + 1, match
        if json:
            out.write(_as_json(match) + "\n")
            continue
        number = None if match.document is None else match.document.number
        place = match.name, match.split, number
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
    split = one_line(f"{match.name}, {match.split}" if match.name else match.split)
    if document is None:
        return f"{split}, token {match.token}"
    where = f"{split}, document {document.number}"
    if document.source is not None:
        where += f": {one_line(document.source.path)}, {document.source.unit} {document.offset}"
    return where


def _as_json(match: Match) -> str:
    values = asdict(match)
    return json_format.dumps(values).replace("\x7f", "\\u007f")


def _show_next(last: Match, here: str, to_index: str | None) -> None:
    given = f" --split {quote(last.split)}" if last.split != "train" else ""
    commands = [f"tokenmill peek {here}{given} --token {last.token}"]
    if last.document is not None and last.document.key is not None:
        commands.append(f"tokenmill where {here} {last.document.key}")
    if to_index is not None:
        commands.append(f"tokenmill index {to_index}")
    show_styled(Text("\nNext:  " + "\n       ".join(commands)))


def _name(text: str | None, tokens: str | None) -> str:
    return repr(one_line(text)) if text is not None else f"The sequence of ids {tokens}"


def _parse_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not (part.isascii() and part.isdigit())), None)
    if wrong is not None or any(len(part) > 12 for part in parts):
        raise UsageError(f"`tokens` is {one_line(text)!r}; write ids such as 464,2068.")
    return [int(part) for part in parts]
