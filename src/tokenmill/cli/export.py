"""`tokenmill export`: tokens as another program's files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenmill.cli.console import Display, report_stopped, show, show_next, typed
from tokenmill.cli.opening import RECOGNISED, Opening, parse_path
from tokenmill.convert.export import TOKENS_PER_SHARD
from tokenmill.convert.export import export as export_tokens
from tokenmill.formats import WRITABLE
from tokenmill.wording import counted


def export(
    path: Annotated[Path, Parameter(name="PATH", converter=parse_path)],
    /,
    *,
    to: Annotated[str, Parameter(help=f"Format of the output: {', '.join(WRITABLE)}.")],
    out: Annotated[Path, Parameter(converter=parse_path)],
    tokens_per_shard: int = TOKENS_PER_SHARD,
    tokenizer: str | None = None,
    eot_id: int | None = None,
    vocab_size: int | None = None,
    opening: Opening = RECOGNISED,
) -> int:
    """Convert tokens to another program's format, and compare the output with the input.

    To resume after an interruption, run the same command again.

    Parameters
    ----------
    path
        Folder of a dataset, or tokens in another format: a file, a folder or a glob in quotes.
    out
        Folder for the output. Must be new or empty, unless you are resuming.
    tokens_per_shard
        Tokens per output file. Only for formats that divide a split into several files.
    tokenizer
        Tokenizer that made the tokens. By default, the tokenizer comes from the data.
    eot_id
        Id that separates documents. By default, the id comes from the tokenizer or the data.
    vocab_size
        Number of ids in the vocabulary. By default, the number comes from the tokenizer or the
        data.
    """
    try:
        with Display() as display:
            made = export_tokens(
                path,
                out,
                to=to,
                tokens_per_shard=tokens_per_shard,
                watcher=display,
                tokenizer=tokenizer,
                eot_id=eot_id,
                vocab_size=vocab_size,
                **opening.options,
            )
    except KeyboardInterrupt:
        return report_stopped(f"in {out}")
    before = (
        f", {made.files_done_before:,} of them from an earlier run"
        if made.files_done_before
        else ""
    )
    show(f"{made.path}: {made.format}, {counted(len(made.files), 'file')}{before}")
    for split, tokens in made.tokens.items():
        documents = made.documents[split]
        known = "" if documents is None else f", {counted(documents, 'document')}"
        show(f"  {split}: {counted(tokens, 'token')}{known}, compared with the source")
    for note in made.notes:
        show(f"note: {note}")
    show_next(f"tokenmill info {typed(made.path)}")
    return 0
