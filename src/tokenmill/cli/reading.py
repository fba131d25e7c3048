"""Flags that say how rows are read, shared by all commands about steps and rows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from cyclopts import Group, Parameter

from tokenmill.cli.opening import Opening
from tokenmill.order.rows import Kind

_READING = Group("How the rows are read (not needed with --run)", sort_key=1)


@Parameter(name="*", group=_READING)
@dataclass(frozen=True, kw_only=True)
class Reading(Opening):
    """The settings of a loader, and options to open its data.

    Parameters
    ----------
    seq_len
        Tokens per row.
    batch_size
        Rows per step on each rank.
    world_size
        Number of ranks. By default, 1.
    seed
        Seed of the order. By default, 0.
    order
        Order of the rows. By default, shuffled.
    block_rows
        For --order blocks: the number of neighbouring rows in a block.
    group_blocks
        For --order blocks: the number of blocks that are shuffled together.
    split
        Split of the tokens. By default, train.
    tokenizer
        Tokenizer that made the tokens, such as gpt2, bytes or a file. By default, the tokenizer
        comes from the data.
    eot_id
        Id that separates documents. By default, the id comes from the tokenizer or the data.
    """

    seq_len: int | None = None
    batch_size: int | None = None
    world_size: int | None = None
    seed: int | None = None
    order: Kind | None = None
    block_rows: int | None = None
    group_blocks: int | None = None
    split: str | None = None
    tokenizer: str | None = None
    eot_id: int | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The flags that were set, as keyword arguments.

        >>> Reading(seq_len=1024, tokenizer="gpt2").arguments
        {'seq_len': 1024, 'tokenizer': 'gpt2'}
        """
        return self.options

    @property
    def opening(self) -> dict[str, str | None]:
        """The flags that other commands need to open the same data.

        >>> Reading(seq_len=1024, tokenizer="gpt2").opening
        {'tokenizer': 'gpt2', 'dtype': None, 'format': None, 'column': None}
        """
        names = ("tokenizer", *(one.name for one in fields(Opening)))
        return {name: getattr(self, name) for name in names}


FROM_RUN = Reading()
