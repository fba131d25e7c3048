"""`tokenmill reshard`: write a dataset in shards of another size, or compress it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tokenmill.cli.console import Display, report_stopped, show, show_next, typed
from tokenmill.cli.opening import parse_path, parse_paths
from tokenmill.convert.reshard import reshard as reshard_dataset
from tokenmill.wording import counted


def reshard(
    path: Annotated[Path, Parameter(name="PATH", converter=parse_path)],
    /,
    *,
    out: Annotated[Path, Parameter(converter=parse_path)],
    tokens_per_shard: int | None = None,
    compress: Literal["none", "zstd"] | None = None,
    exclude: Annotated[
        tuple[Path, ...] | None, Parameter(converter=parse_paths, negative="--no-exclude")
    ] = None,
) -> int:
    """Copy a dataset, with another shard size or compression. Training batches stay the same.

    The copy leaves out the documents that were excluded from PATH with `tokenmill exclude`.

    To resume after an interruption, run the same command again.

    Parameters
    ----------
    path
        Folder of the dataset to copy.
    out
        Folder for the copy. Must be new or empty, unless you are resuming.
    tokens_per_shard
        Tokens per shard. The last shard of a split may have fewer. By default, as in PATH.
    compress
        Compression of the shards: zstd or none. By default, as in PATH.
    exclude
        List of more documents to leave out, besides those excluded with `tokenmill exclude`. May be
        repeated. --no-exclude keeps all documents.
    """
    try:
        with Display() as display:
            made = reshard_dataset(
                path,
                out,
                tokens_per_shard=tokens_per_shard,
                compress=compress,
                exclude=exclude,
                watcher=display,
            )
    except KeyboardInterrupt:
        return report_stopped(f"in {out}")
    for name, split in made.splits.items():
        shards = counted(len(split.shards), "shard")
        show(f"{name}: {counted(split.tokens, 'token')} in {shards}")
    show_next(f"tokenmill verify {typed(out)}")
    return 0
