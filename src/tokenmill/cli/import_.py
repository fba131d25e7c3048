"""`tokenmill import`: make a dataset from another program's tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenmill.cli.console import Display, report_stopped, show, show_next, typed
from tokenmill.cli.opening import RECOGNISED, Opening
from tokenmill.convert.import_dataset import TOKENS_PER_SHARD, import_dataset
from tokenmill.wording import counted


def import_(
    path: Annotated[Path, Parameter(name="PATH")],
    /,
    *,
    out: Path,
    tokenizer: str | None = None,
    tokens_per_shard: int = TOKENS_PER_SHARD,
    val_fraction: float | None = None,
    eot_id: int | None = None,
    vocab_size: int | None = None,
    opening: Opening = RECOGNISED,
) -> int:
    """Make a dataset from another program's tokens, with a manifest, checksums and documents.

    The same command resumes after an interruption.

    Parameters
    ----------
    path
        A file, folder or 'glob' of tokens.
    out
        A new or empty folder.
    tokenizer
        The tokenizer that made the tokens, if the data does not say.
    tokens_per_shard
        Tokens per file; the last file has fewer.
    val_fraction
        Share of the tokens, at the end, to hold out if there is no validation split.
    eot_id
        The id between documents, if it is not the tokenizer's.
    vocab_size
        The number of ids, to import them without a tokenizer.
    """
    try:
        with Display() as display:
            made = import_dataset(
                path,
                out,
                tokens_per_shard=tokens_per_shard,
                watcher=display,
                tokenizer=tokenizer,
                val_fraction=val_fraction,
                eot_id=eot_id,
                vocab_size=vocab_size,
                **opening.options,
            )
    except KeyboardInterrupt:
        return report_stopped(f"in {out}")
    for name, split in made.splits.items():
        show(
            f"{name}: {counted(split.tokens, 'token')}, {counted(split.documents, 'document')}, "
            f"{counted(len(split.shards), 'shard')}"
        )
    if empty := made.ledger["dropped"].get("empty"):
        show(f"Omitted: {counted(empty['documents'], 'empty document')}.")
    show_next(f"tokenmill verify {typed(out)}", f"tokenmill train {typed(out)}")
    return 0
