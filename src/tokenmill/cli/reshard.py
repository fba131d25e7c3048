"""`tokenmill reshard`: write a dataset in shards of another size."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenmill.cli.console import Display, report_stopped, show, show_next, typed
from tokenmill.convert.reshard import reshard as reshard_dataset
from tokenmill.wording import counted


def reshard(
    path: Annotated[Path, Parameter(name="PATH")],
    /,
    *,
    out: Path,
    tokens_per_shard: int,
) -> int:
    """Write the same dataset in shards of another size; batches stay the same.

    The same command resumes after an interruption.

    Parameters
    ----------
    path
        A prepared dataset.
    out
        A new or empty folder.
    tokens_per_shard
        Tokens in each shard; the last one has fewer.
    """
    try:
        with Display() as display:
            made = reshard_dataset(path, out, tokens_per_shard=tokens_per_shard, watcher=display)
    except KeyboardInterrupt:
        return report_stopped(f"in {out}")
    for name, split in made.splits.items():
        shards = counted(len(split.shards), "shard")
        show(f"{name}: {counted(split.tokens, 'token')} in {shards}")
    show_next(f"tokenmill verify {typed(out)}")
    return 0
