"""Targets with a folder a split and an `index.json` of its files: MosaicML Streaming's and LitData's.

In both, a file begins with the number of its documents, where each begins and where the last ends,
in 32 bits each; a file that would be too long for that is refused. No document crosses files. The
index is made of the files as they are on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tokenmill.dataset.opening
from tokenmill.convert.borders import cut_between
from tokenmill.convert.targets.protocol import Advance, FileJob, TokenRange, choose_dtype
from tokenmill.dataset.opening import Dataset
from tokenmill.errors import DatasetError
from tokenmill.formats.json_index import INDEX
from tokenmill.storage.files import write_file
from tokenmill.store.tokens import Tokens


@dataclass(frozen=True, kw_only=True)
class Written:
    """A file on disk."""

    name: str
    documents: int
    size: int


@dataclass(frozen=True, kw_only=True)
class IndexedFolders:
    """Files of at least `tokens_per_shard` tokens; `wide` is the dtype of ids that need 4 bytes.

    `write` makes one, and `index` makes the index of all, which tells `tokens_per_shard` too.
    """

    format: str
    name: str
    wide: str
    write: Callable[[TokenRange, Path, Advance], None]
    index: Callable[[list[Written], np.dtype[Any], int], bytes]
    keeps_empty: bool
    keeps_documents = True
    eot = None

    def plan(self, dataset: Dataset, splits: list[str], tokens_per_shard: int) -> Iterator[FileJob]:
        dtype = choose_dtype(dataset)
        dtype = dtype if dtype.itemsize == 2 else np.dtype(self.wide)
        for split in splits:
            tokens, names = dataset[split], []
            for number, (start, stop) in enumerate(cut_between(tokens, tokens_per_shard)):
                part = TokenRange(tokens=tokens, start=start, stop=stop, dtype=dtype)
                names.append(self.name.format(number))
                yield FileJob(
                    name=f"{split}/{names[-1]}", tokens=len(part), write=partial(self.write, part)
                )
            write = partial(self._write_index, names, dtype, tokens_per_shard)
            yield FileJob(name=f"{split}/{INDEX}", tokens=0, write=write)

    def open(
        self, folder: Path, splits: list[str], _eot_id: int | None = None
    ) -> dict[str, Tokens]:
        return {
            split: tokenmill.dataset.opening.open(folder / split, format=self.format)["train"]
            for split in splits
        }

    def _write_index(
        self, names: list[str], dtype: np.dtype[Any], tokens_per_shard: int, path: Path, _: Advance
    ) -> None:
        files = []
        for name in names:
            with (path.parent / name).open("rb") as file:
                documents = int.from_bytes(file.read(4), "little")
                files.append(Written(name=name, documents=documents, size=file.seek(0, 2)))
        write_file(path, self.index(files, dtype, tokens_per_shard))


def check_offsets(tokens: Tokens, size: int) -> None:
    """Refuse a file whose places do not fit in 32 bits."""
    if size >= 1 << 32:
        raise DatasetError(
            f"a file of split {tokens.split!r} would have {size:,} bytes, but the format's offsets "
            "must be below 2**32. Use a smaller `tokens_per_shard`; documents are never cut."
        )
