"""`tokenmill export`: tokens as another program's files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from tokenmill.cli.console import stdout
from tokenmill.cli.opening import RECOGNISED, Opening
from tokenmill.cli.progress import Display, tell_stopped
from tokenmill.convert.export import TOKENS_PER_SHARD
from tokenmill.convert.export import export as export_tokens
from tokenmill.wording import counted, harmless


def export(
    path: Annotated[Path, Parameter(name="PATH")],
    /,
    *,
    to: str,
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
    to
        The format to write: llmc, nanogpt, npy, megatron, datatrove, mds or litdata.
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
        return tell_stopped(f"in {out}")
    before = f", {made.files_done_before:,} of them before" if made.files_done_before else ""
    _line(f"{made.path}: {made.format}, {counted(len(made.files), 'file')}{before}")
    for split, tokens in made.tokens.items():
        documents = made.documents[split]
        told = "" if documents is None else f", {counted(documents, 'document')}"
        _line(f"  {split}: {counted(tokens, 'token')}{told}, compared with the source")
    for note in made.notes:
        _line(f"note: {note}")
    return 0


def _line(text: str) -> None:
    stdout.print(Text(harmless(text)))
