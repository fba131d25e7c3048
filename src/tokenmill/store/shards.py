"""Where the ids of a split are: files of raw ids, or an array in memory.

A shard is a run of ids of one dtype, somewhere in a file. Its file is looked at when it is first
mapped, never before, so that 150,000 shards cost three arrays of 150,000 numbers and their names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from tokenmill.store.files import check_size, map_file, open_inside

__all__ = ["ArrayShard", "FileShards", "Shards"]

Integers = npt.NDArray[np.int64]


class Shards(Protocol):
    """What `Tokens` asks of the place where its ids are. It must pickle."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """How every id is stored."""

    @property
    def counts(self) -> Integers:
        """The number of ids in each shard."""

    def name(self, number: int) -> str:
        """What people call a shard: its file, relative to what was opened."""

    def map(self, number: int) -> npt.NDArray[Any]:
        """The ids of a shard, in one dimension and contiguous; not to be written to."""


@dataclass(frozen=True, kw_only=True)
class FileShards:
    """Shards in files of a folder: `counts[n]` ids from byte `offsets[n]` of file `names[n]` on,
    which has `sizes[n]` bytes. `check` may look at a file more closely before it is mapped."""

    folder: Path
    names: Sequence[str]
    dtype: np.dtype[Any]
    counts: Integers
    offsets: Integers
    sizes: Integers
    check: Callable[[BinaryIO, str, int], None] | None = None

    def name(self, number: int) -> str:
        return self.names[number]

    def map(self, number: int) -> npt.NDArray[Any]:
        path = self.names[number]
        with open_inside(self.folder, path) as file:
            check_size(file, path, int(self.sizes[number]))
            if self.check is not None:
                self.check(file, path, int(self.counts[number]))
            return map_file(
                file, path, self.dtype, int(self.counts[number]), int(self.offsets[number])
            )


@dataclass(frozen=True)
class ArrayShard:
    """One shard that is an array of the process."""

    ids: npt.NDArray[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.ids.dtype

    @property
    def counts(self) -> Integers:
        return np.array([len(self.ids)], np.int64)

    def name(self, number: int) -> str:
        assert number == 0
        return "memory"

    def map(self, number: int) -> npt.NDArray[Any]:
        assert number == 0
        return self.ids
