"""Write the shards of a prepared dataset from tokens that are already on disk.

Each shard is written on its own, from a range of a split's tokens. When a shard is finished, its
entry for the manifest is saved in `.work` as a receipt. A resumed run reads finished shards once,
and writes a shard again if its checksums differ from the receipt. The manifest is written last, as
in `prepare`. Converted files get new checksums, which would hide damage in the source. So
`check_checksums` verifies a prepared source first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError, FolderError
from tokenmill.formats.writing import BLOCK
from tokenmill.progress import Watcher
from tokenmill.storage.files import (
    NpyFile,
    hash_file,
    make_subfolder,
    remove,
    write_file,
)
from tokenmill.storage.folder import storage_for
from tokenmill.storage.names import MANIFEST_NAME, TOKENIZER_NAME, WORK_NAME
from tokenmill.storage.reading import DamagedFileError, open_inside
from tokenmill.store.casting import cast
from tokenmill.store.frames import Compression
from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest, Split, check_shard_count
from tokenmill.store.shard_file import ShardFile
from tokenmill.store.shard_receipts import (
    ShardReceipt,
    describe_change,
    is_intact,
    read_shard_receipt,
)
from tokenmill.store.tables import Shard, ShardName, ShardTable

RECORD = f"{WORK_NAME}/conversion.json"
MARKS = (RECORD, MANIFEST_NAME)  # files that mark an unfinished or a finished conversion


class SplitTokens(Protocol):
    """Supplies the tokens of a split."""

    @property
    def split(self) -> str: ...
    def __len__(self) -> int: ...
    def read(self, start: int, stop: int) -> npt.NDArray[Any]: ...


class DocumentRecords(Protocol):
    """Supplies the document records of a split."""

    def read(self, start: int, stop: int) -> Iterator[npt.NDArray[np.void]]:
        """Yield the records of the documents that start in [start, stop), in blocks.

        In a record, `first` is the position of the document's first token, counted from `start`.
        """

    def facts(self) -> dict[str, bool]:
        """Return facts about the documents read since the last call, to save in the receipt.

        {"after": True} says that all of them end with the end-of-text id, and {"before": True} that
        all of them begin with it. The result may be empty.
        """


SplitData = tuple[SplitTokens, DocumentRecords]


@dataclass(frozen=True, kw_only=True)
class _Range(ShardName):
    start: int
    stop: int


def write_splits(
    folder: Path,
    splits: Mapping[str, SplitData],
    *,
    dtype: np.dtype[Any],
    vocab_size: int,
    tokens_per_shard: int,
    compression: Compression | None,
    watcher: Watcher,
) -> tuple[dict[str, Split], list[dict[str, bool]]]:
    """Write missing or changed shards; return the splits, and the facts about each shard.

    The facts are those of `DocumentRecords.facts`, such as whether all documents end with the
    end-of-text id. `splits` has, by name, the tokens of each split and their document records.
    Raises `DatasetError` if an id is not below `vocab_size`.
    """
    lengths = (len(tokens) for tokens, _ in splits.values())
    check_shard_count(lengths, tokens_per_shard, compression)
    total = sum(len(tokens) for tokens, _ in splits.values())
    watcher.begin("writing shards", total, unit="tokens")
    made, facts = {}, []
    for split, (tokens, records) in splits.items():
        make_subfolder(folder, folder / split)
        shards = []
        for number, start in enumerate(range(0, len(tokens), tokens_per_shard)):
            stop = min(start + tokens_per_shard, len(tokens))
            job = _Range(
                split=split, number=number, compression=compression, start=start, stop=stop
            )
            place = folder / WORK_NAME / f"{split}-{number:05}.json"
            receipt = read_shard_receipt(place, job, stop - start)
            if receipt is not None and not is_intact(folder, receipt.shard, dtype):
                watcher.note(describe_change(receipt.shard))
                receipt = None
            if receipt is None:
                shard = _write_shard(folder, job, tokens, records, dtype, vocab_size)
                receipt = ShardReceipt(shard=shard, facts=records.facts(), library=job.library)
                receipt.write(place)
            shards.append(receipt.shard)
            facts.append(receipt.facts)
            watcher.advance(stop - start)
        made[split] = Split(shards=ShardTable.of(shards))
    return made, facts


def _write_shard(
    folder: Path,
    job: _Range,
    tokens: SplitTokens,
    records: DocumentRecords,
    dtype: np.dtype[Any],
    vocab_size: int,
) -> Shard:
    documents = 0
    with (
        ShardFile(folder / job.path, dtype, job.compression) as ids_file,
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
        checksum, compressed = ids_file.finish()
        return Shard(
            path=job.path,
            tokens=job.stop - job.start,
            documents=documents,
            xxh3_128=checksum,
            documents_path=job.documents_path,
            documents_xxh3_128=documents_file.finish(),
            compressed=compressed,
        )


def _check_ids(ids: npt.NDArray[Any], start: int, tokens: SplitTokens, vocab_size: int) -> None:
    wrong = ids >= vocab_size
    if ids.dtype.kind == "i":
        wrong |= ids < 0
    if wrong.any():
        place = int(wrong.argmax())
        raise DatasetError(
            f"split {tokens.split!r} has the id {ids[place]} at token {start + place:,}; ids of the "
            f"tokenizer are below {vocab_size:,}. Pass the tokenizer that made these tokens. If "
            "this is the right tokenizer, the file is damaged or in another format."
        )


def write_manifest(folder: Path, manifest: Manifest, tokenizer_state: bytes) -> None:
    """Finish a dataset: write its tokenizer and manifest, and remove the work folder."""
    write_file(folder / TOKENIZER_NAME, tokenizer_state)
    manifest.write(storage_for(folder))
    remove(folder / WORK_NAME)


def read_finished(folder: Path) -> Manifest | None:
    """Return the manifest of a finished dataset, or None; remove a leftover work folder.

    Call this only while holding the folder's lock. Otherwise another run may still need the work
    folder.
    """
    if not (folder / MANIFEST_NAME).exists():
        return None
    manifest = Manifest.read(folder)
    if wrong := manifest.find_incomplete(folder):
        raise FolderError(
            f"{folder} holds a finished dataset, but {wrong} is missing or cut short. "
            "Delete that folder to make the dataset again."
        )
    # A run that is killed after it wrote the manifest leaves its work folder. A work folder with a
    # lock belongs to `prepare`, which removes it itself.
    if not (folder / WORK_NAME / "lock").exists():
        remove(folder / WORK_NAME)
    return manifest


def refuse_other_dataset(folder: Path) -> NoReturn:
    """Raise `FolderError`: the folder holds a finished dataset, but not the requested one."""
    raise FolderError(
        f"{folder} holds another finished dataset. Choose another `out`, or delete that folder."
    )


def check_checksums(folder: Path, manifest: Manifest) -> None:
    """Read every file of a prepared dataset that its manifest describes, and compare checksums.

    Raises `DamagedFileError` at the first difference.
    """
    for path, expected in _list_checksums(manifest):
        with open_inside(folder, path) as file:
            if hash_file(file) != expected:
                raise DamagedFileError(path, "does not match its checksum")


def _list_checksums(manifest: Manifest) -> Iterator[tuple[str, str]]:
    for split in manifest.splits.values():
        for shard in split.shards:
            yield shard.path, shard.file_xxh3_128
            yield shard.documents_path, shard.documents_xxh3_128
    for file in manifest.fields.files.values() if manifest.fields else ():
        yield file.path, file.xxh3_128
