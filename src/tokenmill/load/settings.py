"""The settings of a loader: checked once, then fixed.

`RowSettings` and the data decide which tokens row n holds. These settings are part of a loader's
state, and a run resumes only with the same values. `LoaderSettings` adds settings for how one
process reads those rows; they may change whenever a run resumes. `LoaderArguments` has the types
that callers may pass; the fields of the dataclasses have the types after validation.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, fields
from typing import Any, Required, TypedDict, cast

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError
from tokenmill.load.distributed import find_rank
from tokenmill.order.blocks import choose_blocks
from tokenmill.order.rows import Kind

_INT64 = np.dtype(np.int64)


class SharedArguments(TypedDict, total=False):
    """The arguments that every loader takes, in every framework."""

    batch_size: Required[int]
    seq_len: Required[int]
    seed: int
    order: Kind
    block_rows: int | None
    group_blocks: int | None
    rank: int | None
    world_size: int | None
    contiguous: bool
    limit_rows: int | None
    limit_tokens: int | None
    limit_epochs: float | None
    drop_last: bool
    in_memory: bool
    prefetch: int | None


class LoaderArguments(SharedArguments, total=False):
    """The arguments of `tokenmill.Loader`, except `documents`, which decides the loader's type."""

    dtype: npt.DTypeLike


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """The settings that decide which tokens row n holds.

    >>> RowSettings(seq_len=2048, seed=1, order="blocks").identity
    {'seq_len': 2048, 'seed': 1, 'order': 'blocks', 'block_rows': 256, 'group_blocks': 256}
    """

    seq_len: int
    seed: int = 0
    order: Kind = "shuffled"
    block_rows: int | None = None
    group_blocks: int | None = None

    def __post_init__(self) -> None:
        self._set("seq_len", check_whole("seq_len", self.seq_len, 1))
        self._set("seed", check_whole("seed", self.seed))
        for name in ("block_rows", "group_blocks"):
            if (value := getattr(self, name)) is not None:
                self._set(name, check_whole(name, value, 1))
        sizes = choose_blocks(self.order, self.seq_len, self.block_rows, self.group_blocks)
        self._set("block_rows", sizes[0])
        self._set("group_blocks", sizes[1])

    @property
    def identity(self) -> dict[str, Any]:
        """These settings by name; the JSON of a loader's state includes them."""
        return {field.name: getattr(self, field.name) for field in fields(RowSettings)}

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class LoaderSettings(RowSettings):
    """All settings of a loader; `tokenmill.Loader` documents them.

    Without `rank` and `world_size`, both come from the launcher's environment.
    """

    batch_size: int
    rank: int = cast(int, None)
    world_size: int = cast(int, None)
    dtype: np.dtype[Any] = _INT64
    documents: bool = False
    contiguous: bool = False
    limit_rows: int | None = None
    limit_tokens: int | None = None
    limit_epochs: float | None = None
    drop_last: bool = False
    in_memory: bool = False
    prefetch: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("batch_size", check_whole("batch_size", self.batch_size, 1))
        rank, world_size = find_rank(self.rank, self.world_size)
        self._set("rank", rank)
        self._set("world_size", world_size)
        self._set("dtype", np.dtype(self.dtype))
        if self.dtype.kind not in "iu":
            raise UsageError(
                f"`dtype` is {self.dtype}; ids are integers, so use int64 or int32, for example."
            )
        for name in ("prefetch", "limit_rows", "limit_tokens"):
            if (value := getattr(self, name)) is not None:
                self._set(name, check_whole(name, value, 0))
        limits = (self.limit_rows, self.limit_tokens, self.limit_epochs)
        if sum(limit is not None for limit in limits) > 1:
            raise UsageError("give only one of `limit_rows`, `limit_tokens` and `limit_epochs`.")
        if self.limit_epochs is not None and not 0 <= self.limit_epochs < math.inf:
            raise UsageError(
                f"`limit_epochs` is {self.limit_epochs}; it must be 0 or a positive number."
            )

    @property
    def global_batch(self) -> int:
        """Rows per step, on all ranks together."""
        return self.batch_size * self.world_size


def check_whole(name: str, value: Any, least: int | None = None) -> int:
    """Check that a setting is a whole number of at least `least`; returns it as a Python `int`.

    >>> check_whole("seq_len", np.int64(1024))
    1024
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"`{name}` is {value!r}; it must be a whole number.") from None
    if least is not None and number < least:
        raise UsageError(f"`{name}` is {number}; it must be {least} or more.")
    return number
