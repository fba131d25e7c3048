"""The shards of a split as the manifest lists them, kept as columns.

A dataset may have 150,000 shards: as objects they would cost more than reading the manifest does.
A `Shard` is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, overload

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of tokens and the table of the documents that start in it."""

    path: str
    tokens: int
    documents: int
    xxh3_128: str
    documents_path: str
    documents_xxh3_128: str


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardTable(Sequence[Shard]):
    """Shards, each column by itself; as a sequence, `Shard` objects.

    >>> shard = Shard(
    ...     path="a", tokens=3, documents=1, xxh3_128="", documents_path="b", documents_xxh3_128=""
    ... )
    >>> table = ShardTable.of([shard, shard])
    >>> table[1] == shard, table.tokens.tolist(), len(table)
    (True, [3, 3], 2)
    """

    path: Sequence[str]
    tokens: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int64]
    xxh3_128: Sequence[str]
    documents_path: Sequence[str]
    documents_xxh3_128: Sequence[str]

    @classmethod
    def of(cls, shards: Iterable[Shard]) -> ShardTable:
        """A table of some shards; a table is itself one."""
        if isinstance(shards, cls):
            return shards
        some = list(shards)
        columns: dict[str, Any] = {
            column.name: [getattr(shard, column.name) for shard in some] for column in fields(Shard)
        }
        for counts in ("tokens", "documents"):
            columns[counts] = np.array(columns[counts], np.int64)
        return cls(**columns)

    def __len__(self) -> int:
        return len(self.path)

    @overload
    def __getitem__(self, index: int) -> Shard: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Shard, ...]: ...
    def __getitem__(self, index: int | slice) -> Shard | tuple[Shard, ...]:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        return Shard(
            path=self.path[index],
            tokens=int(self.tokens[index]),
            documents=int(self.documents[index]),
            xxh3_128=self.xxh3_128[index],
            documents_path=self.documents_path[index],
            documents_xxh3_128=self.documents_xxh3_128[index],
        )

    def __iter__(self) -> Iterator[Shard]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardTable) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self.xxh3_128))
