"""`tokenmill export`: tokens as another program's files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenmill.cli.console import Display, report_stopped, show, show_next, typed
from tokenmill.cli.opening import RECOGNISED, Opening
from tokenmill.convert.export import TOKENS_PER_SHARD
from tokenmill.convert.export import export as export_tokens
from tokenmill.formats import WRITABLE
from tokenmill.wording import counted


def export(
    path: Annotated[Path, Parameter(name="PATH")],
    /,
    *,
    to: Annotated[str, Parameter(help=f"The format to write: {', '.join(WRITABLE)}.")],
    out: Path,
    tokens_per_shard: int = TOKENS_PER_SHARD,
    tokenizer: str | None = None,
    eot_id: int | None = None,
    vocab_size: int | None = None,
    opening: Opening = RECOGNISED,
) -> int:
    """Write tokens as another program's files, and compare them with the source.

    The same command resumes after an interruption.

    Parameters
    ----------
    path
        A dataset's folder, or a file, folder or 'glob' of tokens in another format.
    out
        A new or empty folder.
    tokens_per_shard
        Tokens per file, for formats with several files.
    tokenizer
        The tokenizer that made the tokens, if the data does not say.
    eot_id
        The id between documents, if the data does not say.
    vocab_size
        The size of the vocabulary, if the data does not say.
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
    before = f", {made.files_done_before:,} of them earlier" if made.files_done_before else ""
    show(f"{made.path}: {made.format}, {counted(len(made.files), 'file')}{before}")
    for split, tokens in made.tokens.items():
        documents = made.documents[split]
        known = "" if documents is None else f", {counted(documents, 'document')}"
        show(f"  {split}: {counted(tokens, 'token')}{known}, compared with the source")
    for note in made.notes:
        show(f"note: {note}")
    show_next(f"tokenmill info {typed(made.path)}")
    return 0
