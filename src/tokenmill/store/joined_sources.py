"""The input files of a dataset that has grown: the tables of its generations, one after another.

Each generation lists the files that it added in a file of its own, so an earlier file never changes.
Sources keep their numbers when a dataset grows. A table is read only when one of its sources is
looked up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import xxhash

from tokenmill.store.tables import Source, SourceTable


class JoinedSources(SourceTable):
    """Several tables of sources, numbered as one.

    >>> one, two = (SourceTable.of([Source(path=p, bytes=5, unit="byte")]) for p in ("a", "b"))
    >>> joined = JoinedSources([one, two])
    >>> joined[1].path, joined.find("b"), len(joined), joined.bytes
    ('b', [1], 2, 10)
    """

    def __init__(self, parts: Sequence[SourceTable]) -> None:
        self._parts = tuple(parts)
        self._starts = [0, *accumulate(len(part) for part in parts)]
        self._count = self._starts[-1]
        self.bytes = sum(part.bytes for part in parts)
        self._facts = tuple(part._facts for part in parts)
        self.path = parts[-1].path

    @property
    def parts(self) -> tuple[SourceTable, ...]:
        return self._parts

    @cached_property
    def xxh3_128(self) -> str:  # type: ignore[override]  # computed only when it is needed
        return xxhash.xxh3_128_hexdigest(self.encode())

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedSources, (self._parts,)

    def __getitem__(self, number: int) -> Source:
        if not 0 <= number < self._count:
            raise IndexError(f"source {number} is out of range: there are {self._count:,}")
        part = bisect_right(self._starts, number) - 1
        return self._parts[part][number - self._starts[part]]

    def find(self, name: str, most: int = 100) -> list[int]:
        found: list[int] = []
        for start, part in zip(self._starts, self._parts, strict=False):
            found += [start + number for number in part.find(name, most - len(found))]
            if len(found) >= most:
                break
        return found

    def encode(self) -> memoryview:
        return memoryview(b"".join(part.encode() for part in self._parts))

    def check(self) -> None:
        for part in self._parts:
            part.check()


def join_sources(parts: Sequence[SourceTable]) -> SourceTable:
    """Return the tables as one; a single table as it is."""
    return parts[0] if len(parts) == 1 else JoinedSources(parts)
