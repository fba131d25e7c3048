"""Receipts of finished shards: a resumed run keeps a shard only if both of its files are unchanged.

The check reads each file once, at the speed of the disk or of xxh3, whichever is slower.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tokenmill.storage.files import hash_file, write_file
from tokenmill.storage.reading import DamagedFileError, check_size, open_inside
from tokenmill.storage.receipts import encode_receipt, read_receipt
from tokenmill.store.documents import read_table_header
from tokenmill.store.tables import Shard, ShardName


class ShardReceipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The entry of a finished shard for the manifest, and facts about its documents."""

    shard: Shard
    facts: dict[str, bool] = msgspec.field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the receipt; the files of the shard must be on the disk already."""
        write_file(path, encode_receipt(self))


def read_shard_receipt(path: Path, name: ShardName, tokens: int) -> ShardReceipt | None:
    """The receipt of a shard, or None if it is absent, damaged or of another shard."""
    receipt = read_receipt(path, ShardReceipt)
    if receipt is None:
        return None
    found = receipt.shard.path, receipt.shard.documents_path, receipt.shard.tokens
    return receipt if found == (name.path, name.documents_path, tokens) else None


def is_intact(folder: Path, shard: Shard, dtype: np.dtype[Any]) -> bool:
    """Whether the files of a shard have the sizes and checksums of its entry."""
    try:
        with open_inside(folder, shard.path) as file:
            check_size(file, shard.path, shard.tokens * dtype.itemsize)
            if hash_file(file) != shard.xxh3_128:
                return False
        with open_inside(folder, shard.documents_path) as file:
            read_table_header(file, shard.documents_path, shard.documents)
            file.seek(0)
            return hash_file(file) == shard.documents_xxh3_128
    except (DamagedFileError, OSError):
        return False


def describe_change(shard: Shard) -> str:
    """The notice for a shard that is written again."""
    return f"{shard.path} or its document table changed after it was written; writing it again."
