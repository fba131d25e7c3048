"""What a format is to `tokenmill.export`.

A target plans files, each of which can be made alone from the tokens; a file that is there under
its name is whole, and is not made again. What a format cannot hold is refused while planning, where
that can be known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tokenmill.dataset.opening import Dataset
from tokenmill.storage.files import AtomicFile
from tokenmill.store.tokens import Tokens, cast

BLOCK = 1 << 20  # tokens that are copied at once

Advance = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class FileJob:
    """A file to make: `write` makes it under its name, and tells of tokens that it wrote."""

    name: str
    tokens: int
    write: Callable[[Path, Advance], None]


class Target(Protocol):
    """A format to export to.

    `keeps_documents` says whether it has a table of documents, and `keeps_empty` whether the table can
    hold empty ones. Without a table, `eot` is the side on which readers look for the end-of-text id.
    """

    @property
    def keeps_documents(self) -> bool: ...

    @property
    def keeps_empty(self) -> bool: ...

    @property
    def eot(self) -> str | None: ...

    def plan(
        self, dataset: Dataset, splits: list[str], tokens_per_shard: int, /
    ) -> Iterator[FileJob]:
        """The files of some splits, in the order in which they are to be made."""

    def open(
        self, folder: Path, splits: list[str], eot_id: int | None = None, /
    ) -> dict[str, Tokens]:
        """The splits as `tokenmill.open` reads them back, with `eot_id` if there is no table."""


def choose_dtype(dataset: Dataset, most: int = 1 << 16) -> np.dtype[Any]:
    """uint16 where ids surely fit in it, and are below `most`; else uint32."""
    size = dataset.vocab_size
    if size is None:
        size = int(np.iinfo(dataset.dtype).max) + 1
    return np.dtype("<u2" if size <= most else "<u4")


@dataclass(frozen=True, kw_only=True)
class TokenRange:
    """The tokens `start` to `stop` of a split, to be written as `dtype`."""

    tokens: Tokens
    start: int
    stop: int
    dtype: np.dtype[Any]

    def copy(self, file: AtomicFile, advance: Advance) -> None:
        """Append them to a file; an id that the dtype cannot hold is an error."""
        ids = np.empty(min(BLOCK, len(self)), self.dtype)
        for low in range(self.start, self.stop, BLOCK):
            some = ids[: min(BLOCK, self.stop - low)]
            cast(self.tokens.read(low, low + len(some)), some)
            file.write(some)
            advance(len(some))

    def write(self, path: Path, advance: Advance) -> None:
        """Make a file of them and nothing else."""
        with AtomicFile(path) as file:
            self.copy(file, advance)
            file.finish()

    def __len__(self) -> int:
        return self.stop - self.start


def take_all(tokens: Tokens, dtype: np.dtype[Any]) -> TokenRange:
    """All tokens of a split."""
    return TokenRange(tokens=tokens, start=0, stop=len(tokens), dtype=dtype)
