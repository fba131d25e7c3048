"""`tokenmill view`: a dataset and its runs in the browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenmill.cli.console import Display, show, typed
from tokenmill.cli.opening import RECOGNISED, Opening
from tokenmill.errors import UsageError
from tokenmill.wording import counted


def view(
    data: Annotated[list[str] | None, Parameter(json_list=False, negative="")] = None,
    *,
    run: Annotated[list[Path] | None, Parameter(json_list=False, negative="")] = None,
    tokenizer: str | None = None,
    opening: Opening = RECOGNISED,
    port: int | None = None,
    browser: Annotated[bool, Parameter(show_default=False)] = True,
    export: Path | None = None,
    split: str | None = None,
    document: Annotated[list[int] | None, Parameter(json_list=False, negative="")] = None,
    documents: int = 0,
) -> int:
    """Show a dataset in the browser: overview, documents with their tokens, batches, runs, search.

    The pages are served on this machine only, at 127.0.0.1, until Ctrl-C. The URL contains a random
    token, without which nobody can read the pages.

    Parameters
    ----------
    data
        Folder of a dataset, or tokens in another format, or several datasets as NAME=PATH:WEIGHT.
        By default, the data of the first run given with --run.
    run
        Folder of a run of tokenmill train. May be given several times.
    tokenizer
        Tokenizer that made the tokens, such as gpt2, bytes or a file. By default, the tokenizer
        comes from the data.
    port
        Port to listen on. By default, 8765 or the first free port after it.
    browser
        Open the page in the browser.
    export
        Folder to write the overview and some documents to, as HTML files for a data card, instead
        of serving pages.
    split
        For --export: the split of the documents; by default, train.
    document
        For --export: number of a document to write. May be given several times.
    documents
        For --export: how many more documents to write, evenly spaced in the split.
    """
    if export is not None:
        if run:
            raise UsageError("`export` writes pages of a dataset, not of runs. Omit `run`.")
        return _export(data or (), export, split, document or (), documents, tokenizer, opening)
    if split is not None or document or documents:
        raise UsageError("`split`, `document` and `documents` need `export`.")
    from tokenmill.inspect.view.server import view as serve

    def announce(url: str) -> None:
        show(f"{url}\nCtrl-C stops the viewer.")

    serve(
        data or (),
        runs=run or (),
        tokenizer=tokenizer,
        port=port,
        browser=browser,
        announce=announce,
        **opening.options,
    )
    show("Stopped.")
    return 0


def _export(
    data: Sequence[str],
    folder: Path,
    split: str | None,
    document: Sequence[int],
    documents: int,
    tokenizer: str | None,
    opening: Opening,
) -> int:
    from tokenmill.inspect.view.server import export as write

    with Display() as display:
        written = write(
            data,
            folder,
            split=split,
            document=document,
            documents=documents,
            tokenizer=tokenizer,
            watcher=display,
            **opening.options,
        )
    show(f"Wrote {counted(len(written), 'page')} to {typed(folder)}: open {written[0]}")
    return 0
