"""`tokenmill import`: make a dataset from another program's tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tokenmill.cli.console import Display, report_stopped, show, show_next, typed
from tokenmill.cli.opening import RECOGNISED, Opening, parse_path
from tokenmill.convert.import_dataset import TOKENS_PER_SHARD, import_dataset
from tokenmill.wording import counted


def import_(
    path: Annotated[Path, Parameter(name="PATH", converter=parse_path)],
    /,
    *,
    out: Annotated[Path, Parameter(converter=parse_path)],
    tokenizer: str | None = None,
    tokens_per_shard: int = TOKENS_PER_SHARD,
    compress: Literal["none", "zstd"] = "none",
    val_fraction: float | None = None,
    eot_id: int | None = None,
    vocab_size: int | None = None,
    opening: Opening = RECOGNISED,
) -> int:
    """Turn another program's tokens into a dataset: add a manifest, checksums and document boundaries.

    To resume after an interruption, run the same command again.

    Parameters
    ----------
    path
        Tokens to import: a file, a folder or a glob in quotes.
    out
        Folder for the dataset. Must be new or empty, unless you are resuming.
    tokenizer
        Tokenizer that made the tokens. By default, the tokenizer comes from the data.
    tokens_per_shard
        Tokens per shard. The last shard of a split may have fewer.
    compress
        Compress shards with zstd, to about a third of the size. Loading becomes slower.
    val_fraction
        Fraction of the tokens, at the end of the data, to hold out for validation. Only for data
        without a validation split.
    eot_id
        Id that separates documents. By default, the id comes from the tokenizer or the data.
    vocab_size
        Number of ids in the vocabulary. Needed only if the tokenizer is unknown.
    """
    try:
        with Display() as display:
            made = import_dataset(
                path,
                out,
                tokens_per_shard=tokens_per_shard,
                compress=compress,
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
