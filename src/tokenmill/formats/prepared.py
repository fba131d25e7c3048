"""A dataset that `tokenmill prepare` made: a folder with a manifest, which tells everything.

Checked at opening: the manifest. Checked when a shard is first touched: its size. The rest is for
`tokenmill verify`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tokenmill.errors import DatasetError, UsageError
from tokenmill.formats.protocol import Asked, Contents, NotThisFormat
from tokenmill.storage.names import MANIFEST_NAME, WORK_NAME
from tokenmill.store.documents import Documents
from tokenmill.store.manifest import Manifest, find_manifest
from tokenmill.store.shards import FileShards

NAME = "tokenmill"


def read(asked: Asked) -> Contents:
    """What a prepared dataset holds."""
    folder = asked.path
    if not asked.is_folder:
        if folder.name == MANIFEST_NAME:
            raise DatasetError(
                f"{folder} is a file, and a dataset is a folder; give the folder it is in: "
                f"{folder.parent}."
            )
        raise NotThisFormat("it is a file, and a prepared dataset is a folder")
    data = find_manifest(folder)
    if data is None:
        if (folder / WORK_NAME).exists():
            raise DatasetError(
                f"{folder} is not finished: a run into it was interrupted or is still running. "
                "The same `tokenmill prepare` command resumes where it stopped."
            )
        raise NotThisFormat(f"it is not a finished dataset, it has no {MANIFEST_NAME}")
    manifest = Manifest.from_json(data, folder)
    for name, given, known in (
        ("dtype", asked.dtype and str(asked.dtype), manifest.dtype),
        ("eot_id", asked.eot_id, manifest.eot_id),
        ("vocab_size", asked.vocab_size, manifest.vocab_size),
    ):
        if given is not None and given != known:
            raise UsageError(f"`{name}` is {given}, and {folder} has {known}. Omit it.")
    return contents(folder.absolute(), manifest)


def contents(folder: Path, manifest: Manifest) -> Contents:
    """What a manifest says."""
    dtype = np.dtype(manifest.dtype).newbyteorder("<")
    splits, documents = {}, {}
    for name, split in manifest.splits.items():
        table = split.shards
        splits[name] = FileShards(
            folder=folder,
            names=table.path,
            dtype=dtype,
            counts=table.tokens,
            offsets=np.zeros_like(table.tokens),
            sizes=table.tokens * dtype.itemsize,
        )
        documents[name] = Documents(folder, table, manifest.sources, name)
    return Contents(
        splits=splits,
        documents=documents,
        eot_id=manifest.eot_id,
        eot=manifest.eot,
        vocab_size=manifest.vocab_size,
        manifest=manifest,
    )
