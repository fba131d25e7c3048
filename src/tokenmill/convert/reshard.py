"""`tokenmill.reshard`: write a prepared dataset with shards of another size.

The result is byte for byte the output of `prepare` with that shard size: the same tokens,
documents, keys and origins. Batches do not change. The checksums of the source are verified first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenmill.convert.shard_writer import (
    RECORD,
    check_checksums,
    read_finished,
    refuse_other_dataset,
    write_manifest,
    write_splits,
)
from tokenmill.dataset.opening import open
from tokenmill.errors import UsageError
from tokenmill.preparation.folder import REPORT_NAMES
from tokenmill.progress import Watcher, watching
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.files import AtomicFile
from tokenmill.storage.names import TOKENIZER_NAME
from tokenmill.storage.output import OutputFolder
from tokenmill.storage.reading import open_inside, read_inside
from tokenmill.store.documents import read_table_header, sums
from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest, Split
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers.limits import MOST_BYTES

_BLOCK = 1 << 16  # records that are read at once: 3 MB


def reshard(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    tokens_per_shard: int,
    progress: bool | None = None,
    watcher: Watcher | None = None,
) -> Manifest:
    """Write a prepared dataset with shards of another size, or resume writing it.

    >>> import tempfile, tokenmill
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("To be, or not to be.")
    >>> _ = tokenmill.prepare(folder / "a.txt", folder / "a", tokenizer="bytes", val_fraction=0)
    >>> made = reshard(folder / "a", folder / "b", tokens_per_shard=10)
    >>> [shard.tokens for shard in made.splits["train"].shards]
    [10, 10, 1]
    """
    if not 1 <= tokens_per_shard < 1 << 62:
        raise UsageError(
            f"`tokens_per_shard` is {tokens_per_shard}; it must be positive, and below 2**62."
        )
    dataset = open(source)
    manifest = dataset.manifest
    if manifest is None:
        raise UsageError(
            f"{source} is in the format {dataset.format}, not a prepared dataset. Import it: "
            f"tokenmill import {source} --out FOLDER --tokens-per-shard {tokens_per_shard}"
        )
    wanted = replace(manifest, settings={**manifest.settings, "tokens_per_shard": tokens_per_shard})
    target = Path(out)
    if there := read_finished(target):
        same = replace(there, splits={}) == replace(wanted, splits={})
        if not same or _count_contents(there) != _count_contents(wanted):
            refuse_other_dataset(target)
        return there
    settings = {
        "reshard": [split.shards.xxh3_128 for split in manifest.splits.values()],
        "tokens_per_shard": tokens_per_shard,
    }
    with (
        explain_disk_errors(),
        OutputFolder(target, marks=[RECORD]) as folder,
        watching(watcher, progress) as shown,
    ):
        folder.remember(RECORD, settings)
        nothing = Tokens.of(np.empty(0, dataset.dtype))  # for empty splits
        check_checksums(dataset.path, manifest)
        splits, _ = write_splits(
            folder.path,
            {
                name: (dataset.get(name, nothing), _TableRecords(dataset.path, split))
                for name, split in manifest.splits.items()
            },
            dtype=dataset.dtype,
            vocab_size=manifest.vocab_size,
            tokens_per_shard=tokens_per_shard,
            watcher=shown,
        )
        made = replace(wanted, splits=splits)
        for name in REPORT_NAMES:
            if (dataset.path / name).is_file():
                _copy(dataset.path, folder.path, name)
        state = read_inside(dataset.path, TOKENIZER_NAME, MOST_BYTES)
        write_manifest(folder.path, made, state)
        return made


def _copy(source: Path, target: Path, name: str) -> None:
    with open_inside(source, name) as file, AtomicFile(target / name) as copy:
        while block := file.read(4 << 20):
            copy.write(block)
        copy.finish()


def _count_contents(manifest: Manifest) -> list[tuple[str, int, int]]:
    return [(name, split.tokens, split.documents) for name, split in manifest.splits.items()]


class _TableRecords:
    """The records of a prepared split, by ranges of its tokens."""

    def __init__(self, folder: Path, split: Split) -> None:
        self.folder, self.split = folder, split
        self.starts = sums(split.shards.tokens)

    def facts(self) -> dict[str, bool]:
        return {}

    def read(self, start: int, stop: int) -> Iterator[npt.NDArray[np.void]]:
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        last = int(np.searchsorted(self.starts, stop, side="left"))
        for number in range(first, last):
            shard, before = self.split.shards[number], int(self.starts[number])
            with open_inside(self.folder, shard.documents_path) as file:
                file.seek(read_table_header(file, shard.documents_path, shard.documents))
                while data := file.read(_BLOCK * DOCUMENT_DTYPE.itemsize):
                    table = np.frombuffer(bytearray(data), DOCUMENT_DTYPE)
                    places = table["first"].astype(np.int64) + before
                    inside = (places >= start) & (places < stop)
                    table["first"] = places - start
                    yield table[inside]
