"""Tokens that are read from their files, and not through maps of them.

A map of a file that is cut short while a run uses it, or of a disk that fails, ends the process
without a word (SIGBUS). Read, it is an error that names the file, and a run for weeks can save what
it has. Costs: some 30 µs a row, in the thread that reads ahead, and one look at the file a row. That
thread stops between two rows, so that a run with large steps exits promptly.
"""

from __future__ import annotations

from copy import copy
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from tokenmill.load.mixture import Mixture
from tokenmill.load.prefetch import leave_if_stopped
from tokenmill.store.gather import RowReader
from tokenmill.store.tokens import Tokens


class ReadTokens(Tokens):
    """The same tokens; rows of them are read."""

    def find_rows(self, starts: npt.NDArray[np.int64], length: int) -> RowReader:
        """See `Tokens.find_rows`; each row is read."""
        starts = self._check_rows(starts, length)

        def read(first: int, last: int) -> npt.NDArray[Any]:
            places = starts[first:last].tolist()
            rows = np.empty((len(places), length), self.dtype)
            for row, start in zip(rows, places, strict=True):
                leave_if_stopped()
                row[:] = self.read(start, start + length)
            return rows

        return read

    def read_ahead(self, starts: npt.NDArray[np.int64], length: int) -> None:
        """Nothing: the system reads ahead of those who read."""


@overload
def read_not_mapped(data: Tokens) -> Tokens: ...
@overload
def read_not_mapped(data: Tokens | Mixture) -> Tokens | Mixture: ...
def read_not_mapped(data: Tokens | Mixture) -> Tokens | Mixture:
    """The same data, of which every row is read.

    >>> rows = read_not_mapped(Tokens.of([5, 6, 7, 8])).gather(np.array([2, 0]), 2, np.int32)
    >>> rows.tolist()
    [[7, 8], [5, 6]]
    """
    if isinstance(data, Tokens):
        return _read(data)
    changed = copy(data)
    changed.tokens = tuple(_read(tokens) for tokens in data.tokens)
    return changed


def _read(tokens: Tokens) -> Tokens:
    return ReadTokens(
        tokens._shards,
        tokens.split,
        documents=tokens.documents,
        eot_id=tokens.eot_id,
        eot=tokens.eot,
    )
