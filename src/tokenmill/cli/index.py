"""`tokenmill index`: index the words of a dataset."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from tokenmill.cli.console import (
    Display,
    quote,
    report_stopped,
    show,
    show_next,
    typed,
    typed_options,
)
from tokenmill.cli.opening import RECOGNISED, Opening
from tokenmill.dataset.named import open_named, parse_named
from tokenmill.inspect.kept import find_kept
from tokenmill.inspect.search.search import index as build
from tokenmill.inspect.search.word_index import IndexReport
from tokenmill.storage.object_path import as_path
from tokenmill.wording import count, duration, one_line, size


def index(
    data: Annotated[list[str], Parameter(name="DATA", json_list=False, negative="")],
    /,
    *,
    tokenizer: str | None = None,
    opening: Opening = RECOGNISED,
) -> int:
    """Index the words of a dataset, to make `tokenmill search` faster.

    The index is kept beside the dataset, in .tokenmill, or in ~/.cache/tokenmill. It can be deleted at
    any time. Needs: pip install 'tokenmill[search]'

    Parameters
    ----------
    data
        Dataset folder, or a file or folder of tokens in another format. For a mixture, give each
        dataset a name and a weight: web=DIR:0.7 code=DIR:0.3. Each gets its own index.
    tokenizer
        Tokenizer that made the tokens, such as gpt2, bytes or a file. By default, the tokenizer
        comes from the data.
    """
    parsed = parse_named(data)
    options = {"tokenizer": tokenizer, **opening.options}
    for name, (dataset, _) in open_named(data, cache_bytes=0, **options).items():
        try:
            with Display() as display:
                made = build(dataset, watcher=display)
        except KeyboardInterrupt:
            return report_stopped(f"in {find_kept(dataset)}")
        _show(made, f"{one_line(name)}: " if name else "")
    is_single = len(parsed) == 1 and not parsed[0].name
    whole = typed(as_path(data[0])) if is_single else " ".join(map(quote, data))
    show_next(f"tokenmill search {whole}{typed_options(options)} 'WORDS'")
    return 0


def _show(made: IndexReport, name: str) -> None:
    ratio = f" ({100 * made.bytes / made.text_bytes:.0f}% of the text)" if made.text_bytes else ""
    if made.seconds:
        rate = f", {size(made.text_bytes / max(made.seconds, 1e-3))}/s"
        what = f"indexed {count(made.tokens)} tokens, {size(made.text_bytes)} of text"
        show(f"{name}{what}, in {duration(made.seconds)}{rate}")
    else:
        show(f"{name}{count(made.tokens)} tokens are indexed already")
    show(f"{name}index: {one_line(made.folder)}, {size(made.bytes)}{ratio}")
