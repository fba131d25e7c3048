"""Prepared datasets: a folder with a manifest that describes all files.

Checked at opening: the manifest. Checked when a shard is first used: its size. `tokenmill verify`
checks the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.errors import DatasetError, UsageError
from tokenmill.formats.base import Contents, Format, NotThisFormat, OpenRequest
from tokenmill.storage.names import MANIFEST_NAME, WORK_NAME
from tokenmill.store.compressed import CompressedShards
from tokenmill.store.documents import Documents, DocumentTable
from tokenmill.store.fields import FieldsReader
from tokenmill.store.frames import Compression
from tokenmill.store.manifest import Manifest, find_manifest
from tokenmill.store.shards import FileShards, Shards
from tokenmill.store.tables import ShardTable
from tokenmill.store.tokens import Earlier


class Prepared(Format):
    """Reads the folder of a prepared dataset."""

    name = "tokenmill"

    def read(self, request: OpenRequest) -> Contents:
        folder = request.path
        if not request.is_folder:
            if folder.name == MANIFEST_NAME:
                raise DatasetError(
                    f"{folder} is a file; a dataset is a folder. Open the folder: {folder.parent}."
                )
            raise NotThisFormat("it is a file; a prepared dataset is a folder")
        data = find_manifest(folder)
        if data is None:
            if (folder / WORK_NAME).exists():
                raise DatasetError(
                    f"{folder} is not finished: the run that writes it was interrupted or is still "
                    "running. To resume, run the same `tokenmill prepare` "
                    "command again."
                )
            raise NotThisFormat(f"it has no {MANIFEST_NAME}, so it is not a finished dataset")
        manifest = Manifest.from_json(data, folder)
        for name, given, known in (
            ("dtype", request.dtype and str(request.dtype), manifest.dtype),
            ("eot_id", request.eot_id, manifest.eot_id),
            ("vocab_size", request.vocab_size, manifest.vocab_size),
        ):
            if given is not None and given != known:
                raise UsageError(f"`{name}` is {given}, but {folder} has {known}. Omit `{name}`.")
        return read_contents(folder.absolute(), manifest)


def _make_shards(
    folder: Path, table: ShardTable, dtype: np.dtype[Any], compression: Compression | None
) -> Shards:
    sizes = table.measure_files(dtype.itemsize)
    files = FileShards(
        folder=folder,
        names=table.path,
        dtype=dtype if compression is None else np.dtype(np.uint8),
        counts=table.tokens if compression is None else sizes,
        offsets=np.zeros_like(table.tokens),
        sizes=sizes,
        checksums=table.xxh3_128,
    )
    if compression is None:
        return files
    frame = compression.tokens_per_frame
    return CompressedShards(files, dtype, table.tokens, frame, table.xxh3_128)


def open_fields(folder: Path, manifest: Manifest, split: str) -> FieldsReader | None:
    """Return the reader of the kept fields of a split; None if it has none."""
    kept = manifest.fields
    if kept is None or split not in kept.files:
        return None
    documents = manifest.splits[split].documents
    return FieldsReader(folder, kept.files[split], documents, kept.documents_per_frame)


def read_contents(folder: Path, manifest: Manifest) -> Contents:
    """Return the contents that a manifest describes."""
    dtype = np.dtype(manifest.dtype).newbyteorder("<")
    splits: dict[str, Shards] = {}
    documents: dict[str, DocumentTable] = {}
    earlier: dict[str, tuple[Earlier, ...]] = {}
    for name, split in manifest.splits.items():
        table = split.shards
        splits[name] = _make_shards(folder, table, dtype, manifest.compression)
        fields = open_fields(folder, manifest, name)
        documents[name] = Documents(folder, table, manifest.sources, name, fields)
        sizes = (one.splits[name] for one in manifest.generations)
        earlier[name] = tuple(Earlier(size.tokens, size.shards, table, dtype) for size in sizes)
    return Contents(
        splits=splits,
        documents=documents,
        eot_id=manifest.eot_id,
        eot=manifest.eot,
        vocab_size=manifest.vocab_size,
        manifest=manifest,
        earlier=earlier,
    )
