"""Shared by the writers of all formats: the request to write, and jobs that write one file each.

Each file is written by its own job. A file gets its final name only when it is complete. So a
resumed export keeps the existing files of ids. One block of tokens is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.formats.document_starts import split_between_documents
from tokenmill.storage.files import AtomicFile
from tokenmill.store.casting import cast
from tokenmill.store.tokens import Tokens

BLOCK = 1 << 20  # tokens that are copied at once

Advance = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class FileJob:
    """A file to write. `write(path, advance)` writes it and reports its progress to `advance`.

    `name` is relative to the folder of the export. It may include one subfolder, as in
    `train/000.bin`; the subfolder is created. `tokens` is the number of ids in the file, or 0 for
    an index or metadata. `write` must use `AtomicFile` or `write_file` of `storage.files`, because
    a file of ids that exists counts as complete.
    """

    name: str
    tokens: int
    write: Callable[[Path, Advance], None]


@dataclass(frozen=True, kw_only=True)
class TokenRange:
    """The tokens [start, stop) of a split, to be written as `dtype`, `block` tokens at a time."""

    tokens: Tokens
    start: int
    stop: int
    dtype: np.dtype[Any]
    block: int = BLOCK

    def copy(self, file: AtomicFile, advance: Advance) -> None:
        """Append the ids to a file; raise an error if the dtype cannot hold an id."""
        ids = np.empty(min(self.block, len(self)), self.dtype)
        for low in range(self.start, self.stop, self.block):
            some = ids[: min(self.block, self.stop - low)]
            cast(self.tokens.read(low, low + len(some)), some)
            file.write(some)
            advance(len(some))

    def write(self, path: Path, advance: Advance, header: bytes = b"") -> None:
        """Write a file: the header, then the ids."""
        with AtomicFile(path) as file:
            file.write(header)
            self.copy(file, advance)
            file.finish()

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, kw_only=True)
class WriteRequest:
    """The splits to write, facts about their ids, and the size of the files.

    `dtype` is the dtype of the ids in the source, and `tokenizer` is the name of the tokenizer that
    made them. `eot_id` is None if the tokens contain no end-of-text id. `tokens_per_shard` is only
    for formats with several files per split.
    """

    splits: Mapping[str, Tokens]
    dtype: np.dtype[Any]
    vocab_size: int | None = None
    eot_id: int | None = None
    tokenizer: str | None = None
    tokens_per_shard: int
    block: int = BLOCK

    def choose_dtype(self, most: int = 1 << 16, wide: str = "<u4") -> np.dtype[Any]:
        """Return uint16 if the vocabulary has at most `most` ids, otherwise `wide`."""
        size = self.vocab_size
        if size is None:
            size = int(np.iinfo(self.dtype).max) + 1
        return np.dtype("<u2" if size <= most else wide)

    def take_all(self, split: str, dtype: np.dtype[Any]) -> TokenRange:
        """Return the range of all tokens of a split."""
        return self._take(split, 0, len(self.splits[split]), dtype)

    def cut_into_shards(self, split: str, dtype: np.dtype[Any]) -> Iterator[TokenRange]:
        """Yield ranges of `tokens_per_shard` tokens; the last range has the remaining tokens."""
        total = len(self.splits[split])
        for start in range(0, total, self.tokens_per_shard):
            yield self._take(split, start, min(start + self.tokens_per_shard, total), dtype)

    def cut_between_documents(self, split: str, dtype: np.dtype[Any]) -> Iterator[TokenRange]:
        """Yield ranges of whole documents, at least `tokens_per_shard` tokens each but the last."""
        tokens = self.splits[split]
        for start, stop in split_between_documents(tokens, self.tokens_per_shard):
            yield self._take(split, start, stop, dtype)

    def _take(self, split: str, start: int, stop: int, dtype: np.dtype[Any]) -> TokenRange:
        tokens = self.splits[split]
        return TokenRange(tokens=tokens, start=start, stop=stop, dtype=dtype, block=self.block)
