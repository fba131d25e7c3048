"""Write a prepared dataset out of tokens that are on disk already.

Each shard is made alone, from a range of a split's tokens; a receipt in `.work` tells that it is
done, with what the manifest will say of it. The manifest is written last, as by `prepare`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.convert.targets.protocol import BLOCK
from tokenmill.errors import DatasetError, FolderError
from tokenmill.progress import Watcher
from tokenmill.storage.files import AtomicFile, NpyFile, write_file
from tokenmill.storage.folder import Folder
from tokenmill.storage.names import MANIFEST_NAME, TOKENIZER_NAME, WORK_NAME
from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest, Split
from tokenmill.store.tables import Shard, ShardTable
from tokenmill.store.tokens import Tokens, cast

RECORD = f"{WORK_NAME}/conversion.json"


class Records(Protocol):
    """Where the records of a split's documents come from."""

    def read(self, start: int, stop: int) -> Iterator[npt.NDArray[np.void]]:
        """The records of the documents that start in a range; `first` is counted from `start`."""

    def facts(self) -> dict[str, Any]:
        """What was noticed about the documents that were read last; kept in the receipt."""


@dataclass(frozen=True, kw_only=True)
class _Range:
    split: str
    number: int
    start: int
    stop: int

    @property
    def path(self) -> str:
        return f"{self.split}/shard_{self.number:05}.bin"

    @property
    def documents_path(self) -> str:
        return f"{self.split}/shard_{self.number:05}.docs.npy"


def write_splits(
    folder: Path,
    splits: dict[str, tuple[Tokens, Records]],
    *,
    dtype: np.dtype[Any],
    vocab_size: int,
    tokens_per_shard: int,
    watcher: Watcher,
) -> tuple[dict[str, Split], list[dict[str, Any]]]:
    """Make the shards that are not there yet; returns the splits and what was noticed of each shard.

    An id that is not below `vocab_size` is an error.
    """
    total = sum(len(tokens) for tokens, _ in splits.values())
    watcher.begin("writing shards", total, unit="tokens")
    made, noticed = {}, []
    for split, (tokens, records) in splits.items():
        (folder / split).mkdir(exist_ok=True)
        shards = []
        for number, start in enumerate(range(0, len(tokens), tokens_per_shard)):
            stop = min(start + tokens_per_shard, len(tokens))
            job = _Range(split=split, number=number, start=start, stop=stop)
            receipt = folder / WORK_NAME / f"{split}-{number:05}.json"
            if not all(
                path.exists() for path in (receipt, folder / job.path, folder / job.documents_path)
            ):
                shard = _write_shard(folder, job, tokens, records, dtype, vocab_size)
                told = {"shard": msgspec.structs.asdict(shard), "facts": records.facts()}
                write_file(receipt, orjson.dumps(told))
            told = orjson.loads(receipt.read_bytes())
            shards.append(Shard(**told["shard"]))
            noticed.append(told["facts"])
            watcher.advance(stop - start)
        made[split] = Split(shards=ShardTable.of(shards))
    return made, noticed


def _write_shard(
    folder: Path,
    job: _Range,
    tokens: Tokens,
    records: Records,
    dtype: np.dtype[Any],
    vocab_size: int,
) -> Shard:
    documents = 0
    with (
        AtomicFile(folder / job.path) as ids_file,
        NpyFile(folder / job.documents_path, DOCUMENT_DTYPE) as documents_file,
    ):
        for low in range(job.start, job.stop, BLOCK):
            ids = tokens.read(low, min(low + BLOCK, job.stop))
            _check_ids(ids, low, tokens, vocab_size)
            out = np.empty(len(ids), dtype)
            cast(ids, out)
            ids_file.write(out)
        for table in records.read(job.start, job.stop):
            documents_file.write(table.tobytes())
            documents += len(table)
        return Shard(
            path=job.path,
            tokens=job.stop - job.start,
            documents=documents,
            xxh3_128=ids_file.finish(),
            documents_path=job.documents_path,
            documents_xxh3_128=documents_file.finish(),
        )


def _check_ids(ids: npt.NDArray[Any], start: int, tokens: Tokens, vocab_size: int) -> None:
    wrong = ids >= vocab_size
    if ids.dtype.kind == "i":
        wrong |= ids < 0
    if wrong.any():
        place = int(wrong.argmax())
        raise DatasetError(
            f"split {tokens.split!r} holds the id {ids[place]} at token {start + place:,}, and the "
            f"tokenizer has {vocab_size:,}. Give the tokenizer that made these tokens; if it is the "
            "right one, the file is damaged or not what it was taken for."
        )


def write_manifest(folder: Path, manifest: Manifest, tokenizer_state: bytes) -> None:
    """Finish: the tokenizer, the manifest, and the scaffolding away."""
    write_file(folder / TOKENIZER_NAME, tokenizer_state)
    manifest.write(Folder(folder))
    shutil.rmtree(folder / WORK_NAME)


def read_finished(folder: Path) -> Manifest | None:
    """The manifest of a dataset that is finished, if one is there; its scaffolding goes away."""
    if not (folder / MANIFEST_NAME).exists():
        return None
    manifest = Manifest.read(folder)
    if (folder / RECORD).exists():  # killed after the manifest was written
        shutil.rmtree(folder / WORK_NAME)
    return manifest


def another_dataset(folder: Path) -> FolderError:
    """What to say if the finished dataset is not the one asked for."""
    return FolderError(
        f"{folder} holds another finished dataset. Choose another `out`, or delete that folder."
    )
