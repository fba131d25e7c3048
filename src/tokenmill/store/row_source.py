"""`RowSource`, the base class of all readers of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.store.documents import sums

Integers = npt.NDArray[np.int64]
RowReader = Callable[[int, int], npt.NDArray[Any]]  # reads the rows [first, last)


class RowSource(ABC):
    """Reads tokens of shards as if the shards were joined end to end. Shard n has `counts[n]` tokens."""

    piece: int  # bytes to read at once

    def __init__(self, counts: Integers, dtype: np.dtype[Any]) -> None:
        self.counts, self.dtype = counts, dtype
        # starts[n] is where shard n starts in the split; the last entry is the number of tokens.
        self.starts = sums(counts)

    def locate(self, token: int) -> tuple[int, int]:
        """Return the index of the shard that holds a token, and the token's position in that shard."""
        shard = int(np.searchsorted(self.starts, token, side="right")) - 1
        return shard, token - int(self.starts[shard])

    def read_token(self, token: int) -> int:
        """Return the id of one token."""
        ids = np.empty(1, self.dtype)
        self.copy(token, ids)
        return int(ids[0])

    @abstractmethod
    def copy(self, start: int, ids: npt.NDArray[Any]) -> None:
        """Fill `ids` with the tokens from `start` on, from as many shards as needed."""

    @abstractmethod
    def find_rows(self, starts: Integers, length: int) -> RowReader:
        """Return a function that reads rows. Row n is the tokens [starts[n], starts[n] + length).

        All rows must be inside the split.
        """

    def read_ahead(self, starts: Integers, length: int) -> None:  # noqa: B027  (not all can)
        """Ask the system to read rows soon, without waiting. By default, does nothing."""

    def fetch(self, starts: Integers, length: int, is_stopped: Callable[[], bool]) -> None:
        """Fetch rows into a cache. Ends once `is_stopped` returns True.

        A source without a cache calls `read_ahead` instead.
        """
        if not is_stopped():
            self.read_ahead(starts, length)
