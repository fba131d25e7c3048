"""`tokenmill contaminated`: find the documents of a dataset that contain evaluation texts."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from tokenmill.cli.console import Display, quote, show, show_next, show_styled, typed, warn
from tokenmill.cli.opening import RECOGNISED, Opening, parse_path
from tokenmill.inspect.contaminated import Contaminated, Contamination
from tokenmill.inspect.contaminated import contaminated as find
from tokenmill.wording import count, counted, one_line

_SHOWN = 20  # passages
_WORDS = 16  # of a passage
_KEYS = 3  # in the next command


def contaminated(
    data: Annotated[Path, Parameter(name="DATA", converter=parse_path)],
    /,
    *evaluation: Annotated[Path, Parameter(name="FILE", required=True, converter=parse_path)],
    words: int = 13,
    common: int = 100,
    text_field: str = "text",
    split: str | None = None,
    all_passages: Annotated[bool, Parameter(name="--all", negative="", show_default=False)] = False,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    tokenizer: str | None = None,
    opening: Opening = RECOGNISED,
) -> int:
    """Find the documents of a dataset that contain texts of evaluation files. Changes nothing.

    Texts are compared word by word, without regard to case, punctuation and white space. The exit
    status is 0 if a text is found, 1 if none is, and 2 after an error, as with grep.

    Parameters
    ----------
    data
        Dataset folder, or a file or folder of tokens in another format.
    evaluation
        Files of evaluation texts: JSON lines, Parquet, or plain text with a text in each line. Or
        datasets.
    words
        Number of words in a row that a document must share with an evaluation text.
    common
        Ignore words in a row that occur in more than this number of documents, or of evaluation
        texts.
    text_field
        Name of the JSON field or Parquet column of evaluation files that contains the text.
    split
        Only check this split. By default, all splits.
    all_passages
        Show all passages, not only the first 20.
    json
        Print each passage as a line of JSON. If documents have keys, the lines are a list for
        --exclude.
    tokenizer
        Tokenizer that made the tokens, such as gpt2, bytes or a file. By default, the tokenizer
        comes from the data.
    """
    out = sys.stdout  # a display may redirect it to stderr
    with Display() as display:
        found = find(
            data,
            evaluation,
            words=words,
            common=common,
            text_field=text_field,
            split=split,
            tokenizer=tokenizer,
            watcher=display,
            **opening.options,
        )
    if json:
        for one in found:
            out.write(_as_json(one) + "\n")
    if not found.contaminated:
        warn(f"No evaluation text was found in {counted(found.documents, 'document')}.")
        _explain(found)
        return 1
    if not json:
        _show(found, data, evaluation, None if all_passages else _SHOWN)
    return 0


def _as_json(one: Contaminated) -> str:
    values = {name: value for name, value in asdict(one).items() if value is not None}
    return json_format.dumps(values).replace("\x7f", "\\u007f")


def _show(found: Contamination, data: Path, evaluation: tuple[Path, ...], most: int | None) -> None:
    before, keys = None, dict[str, None]()
    for shown, one in enumerate(found):
        if most is not None and shown == most:
            show("… --all shows more, --json everything.")
            break
        if (one.split, one.document) != before:
            show_styled(Text(_describe_place(one), style="dim"))
            before = one.split, one.document
        words = one.words.split(" ")
        text = " ".join(words[:_WORDS]) + (" …" if len(words) > _WORDS else "")
        place = f"{one_line(one.evaluation)}, {one.unit} {count(one.record)}"
        show(f"    {place}, {counted(one.count, 'word')}: {one_line(text)}")
        if one.key is not None and len(keys) < _KEYS:
            keys[one.key] = None
    share = found.contaminated / max(1, found.documents)
    show(
        f"\n{counted(found.contaminated, 'document')} of {count(found.documents)} ({share:.2%}) "
        f"{'contains' if found.contaminated == 1 else 'contain'} evaluation texts."
    )
    _explain(found)
    here, files = typed(data), " ".join(map(typed, evaluation))
    if not keys:
        show_next(f"tokenmill peek {here}")
        return
    commands = [f"tokenmill exclude {here} {' '.join(keys)} --because {quote('evaluation text')}"]
    if found.contaminated > len(keys):
        commands = [
            f"tokenmill contaminated {here} {files} --json > contaminated.jsonl",
            f"tokenmill reshard {here} --out {here}-clean --exclude contaminated.jsonl",
        ]
    show_next(*commands)


def _describe_place(one: Contaminated) -> str:
    where = f"{one_line(one.split)}, document {count(one.document)}"
    if one.source is not None:
        where += f": {one_line(one.source)}, {one.offset}"
    return where


def _explain(found: Contamination) -> None:
    """Print what does not count."""
    facts: dict[str, Any] = {
        "too short to look for": (found.too_short, "evaluation text"),
        "in many other texts": (found.templates, "evaluation text"),
        "in many documents, ignored": (found.common_ngrams, "n-gram"),
    }
    for reason, (number, thing) in facts.items():
        if number:
            warn(f"{counted(number, thing)}: {reason}.")
