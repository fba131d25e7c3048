"""`tokenmill index`: index the words of a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenmill.cli.console import Display, report_stopped, show, show_next, typed, typed_options
from tokenmill.cli.opening import RECOGNISED, Opening, parse_path
from tokenmill.dataset.opening import open as open_dataset
from tokenmill.inspect.kept import find_kept
from tokenmill.inspect.search.search import index as build
from tokenmill.wording import count, duration, one_line, size


def index(
    path: Annotated[Path, Parameter(name="PATH", converter=parse_path)],
    /,
    *,
    tokenizer: str | None = None,
    opening: Opening = RECOGNISED,
) -> int:
    """Index the words of a dataset, so that `tokenmill search` finds them sooner.

    The index is kept beside the dataset, in .tokenmill, or in ~/.cache/tokenmill. It can be deleted at
    any time. Needs: pip install 'tokenmill[search]'

    Parameters
    ----------
    path
        Folder of a dataset, or tokens in another format: a file or a folder.
    tokenizer
        Tokenizer that made the tokens, such as gpt2, bytes or a file. By default, the tokenizer
        comes from the data.
    """
    dataset = open_dataset(path, tokenizer=tokenizer, cache_bytes=0, **opening.options)
    try:
        with Display() as display:
            made = build(dataset, watcher=display)
    except KeyboardInterrupt:
        return report_stopped(f"in {find_kept(dataset)}")
    ratio = f" ({100 * made.bytes / made.text_bytes:.0f}% of the text)" if made.text_bytes else ""
    if made.seconds:
        rate = f", {size(made.text_bytes / max(made.seconds, 1e-3))}/s"
        what = f"indexed {count(made.tokens)} tokens, {size(made.text_bytes)} of text"
        show(f"{what}, in {duration(made.seconds)}{rate}")
    else:
        show(f"{count(made.tokens)} tokens are indexed already")
    show(f"index: {one_line(made.folder)}, {size(made.bytes)}{ratio}")
    here = typed(path) + typed_options({"tokenizer": tokenizer, **opening.options})
    show_next(f"tokenmill search {here} 'WORDS'")
    return 0
