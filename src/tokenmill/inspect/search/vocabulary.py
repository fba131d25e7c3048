"""The bytes of every id in flat arrays, for looking up many ids at once.

Joining the bytes of a million ids takes about 10 ms: pyarrow copies them out of one table.

The spelling of an id is its bytes. Ids outside the vocabulary, and ids without a spelling, match
nothing. In text, each of them is shown as U+FFFD.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
AnyIds = npt.NDArray[Any]

_SHOWN = "\ufffd".encode()
_LOWER = np.arange(256, dtype=np.uint8)
_LOWER[ord("A") : ord("Z") + 1] += 32


class Vocabulary:
    """The bytes of all ids.

    - `flat` has the bytes of all ids, joined. Those of id n start at `starts[n]`.
    - `lengths[n]` is the number of bytes of id n, and `known[n]` says whether it has a spelling.

    Arrays with an entry per id have `room` entries, at least one for each value of a uint16. So they
    can be indexed with the ids that `trim` returns, without a check.

    >>> vocabulary = Vocabulary([b"to", b" be", None])
    >>> bytes(vocabulary.join(np.array([0, 1], np.uint16))[0])
    b'to be'
    """

    def __init__(self, spellings: Sequence[bytes | None]) -> None:
        self.size = len(spellings)
        self.room = max(self.size + 1, 1 << 16)
        self._spellings = spellings
        lengths = [len(_SHOWN if one is None else one) for one in spellings]
        self.lengths = np.full(self.room, len(_SHOWN), np.int64)
        self.lengths[: self.size] = lengths
        self.known = np.zeros(self.room, bool)
        self.known[: self.size] = [one is not None for one in spellings]
        self.starts = np.concatenate(([0], np.cumsum(self.lengths)))
        joined = b"".join([_SHOWN if one is None else one for one in spellings])
        self.flat = np.frombuffer(joined + _SHOWN * (self.room - self.size), np.uint8)

    @cached_property
    def lower(self) -> npt.NDArray[np.uint8]:
        """`flat` with the letters A to Z in lower case."""
        return _LOWER[self.flat]

    @cached_property
    def _is_first(self) -> npt.NDArray[np.bool_]:
        """For each byte of `flat`: whether it is the first of an id that has a spelling."""
        firsts = np.zeros(len(self.flat), bool)
        firsts[self.starts[:-1][self.known & (self.lengths > 0)]] = True
        return firsts

    @cached_property
    def _is_inner(self) -> npt.NDArray[np.bool_]:
        """For each byte of `flat`: whether it is another byte of an id that has a spelling."""
        return np.repeat(self.known, self.lengths) & ~self._is_first

    def find_byte(
        self, byte: int, flat: npt.NDArray[np.uint8], *, first: bool
    ) -> tuple[Integers, Integers]:
        """Return the ids with a byte, and the place of the byte in each: the first, or any other.

        `flat` is `self.flat` or `self.lower`. An id can occur several times.

        >>> vocabulary = Vocabulary([b"to", b" to", b"otto"])
        >>> [ids.tolist() for ids in vocabulary.find_byte(ord("o"), vocabulary.flat, first=False)]
        [[0, 1, 2], [1, 2, 3]]
        """
        found = np.flatnonzero((flat == byte) & (self._is_first if first else self._is_inner))
        ids = self.starts.searchsorted(found, "right") - 1
        return ids, found - self.starts[ids]

    @cached_property
    def longest(self) -> int:
        """The number of bytes of the longest id."""
        return int(self.lengths.max())

    @cached_property
    def _table(self) -> Any:
        import pyarrow

        offsets = pyarrow.py_buffer(self.starts.astype(np.int64))
        data = pyarrow.py_buffer(np.ascontiguousarray(self.flat))
        return pyarrow.Array.from_buffers(pyarrow.large_binary(), self.room, [None, offsets, data])

    def trim(self, ids: AnyIds) -> AnyIds:
        """Return ids as uint16 or uint32, all below `room`; an id that is too large becomes unknown."""
        if ids.dtype == np.uint16:
            return ids
        unsigned = ids.astype(ids.dtype.newbyteorder("="), copy=False)
        unsigned = unsigned.view(f"u{ids.dtype.itemsize}")  # negative numbers become huge
        trimmed: AnyIds = np.minimum(unsigned, self.size, dtype=unsigned.dtype)
        return trimmed.astype(np.uint32, copy=False)

    def measure(self, ids: AnyIds) -> int:
        """Return the total number of bytes of some trimmed ids."""
        return int(self.lengths.take(ids).sum())

    def join(self, ids: AnyIds) -> tuple[memoryview, Integers]:
        """Return the joined bytes of some trimmed ids, and where each id starts in them.

        The second array has one more entry: where the last id ends.
        """
        import pyarrow
        import pyarrow.compute

        if not len(ids):
            return memoryview(b""), np.zeros(1, np.int64)
        found = pyarrow.compute.take(self._table, pyarrow.array(ids), boundscheck=False)
        _, offsets, data = found.buffers()
        ends = np.frombuffer(offsets, np.int64, len(ids) + 1)
        return memoryview(b"" if data is None else data)[: int(ends[-1])], ends


def lower_ascii(text: bytes) -> bytes:
    """Return a text with the letters A to Z in lower case."""
    return _LOWER[np.frombuffer(text, np.uint8)].tobytes()
