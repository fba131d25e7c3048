"""`tokenmill view`: a dataset and its runs in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenmill.cli.console import show
from tokenmill.cli.opening import RECOGNISED, Opening

_Switch = Annotated[bool, Parameter(show_default=False)]


def view(
    data: Annotated[list[str] | None, Parameter(json_list=False, negative="")] = None,
    *,
    run: Annotated[list[Path] | None, Parameter(json_list=False, negative="")] = None,
    tokenizer: str | None = None,
    opening: Opening = RECOGNISED,
    port: int | None = None,
    browser: Annotated[bool, Parameter(show_default=False)] = True,
) -> int:
    """Show a dataset in the browser: overview, documents with their tokens, batches, runs, search.

    The pages are served on this machine only, at 127.0.0.1, until Ctrl-C. The URL contains a random
    token, without which nobody can read them.

    Parameters
    ----------
    data
        Folder of a dataset, or tokens in another format, or several datasets as NAME=PATH:WEIGHT.
        By default, the data of the first run.
    run
        Folder of a run of tokenmill train. May be given several times.
    tokenizer
        Tokenizer that made the tokens, such as gpt2, bytes or a file. By default, the tokenizer
        comes from the data.
    port
        Port to listen on. By default, 8765 or the first free port after it.
    browser
        Open the page in the browser.
    """
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
