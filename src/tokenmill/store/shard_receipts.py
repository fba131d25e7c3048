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
    """A finished shard: its entry in the future manifest, and facts about its documents."""

    shard: Shard
    facts: dict[str, bool] = msgspec.field(default_factory=dict)
    library: str = ""  # the version of libzstd: another one may write other bytes

    def write(self, path: Path) -> None:
        """Write the receipt; the files of the shard must be on the disk already."""
        write_file(path, encode_receipt(self))


def read_shard_receipt(path: Path, name: ShardName, tokens: int) -> ShardReceipt | None:
    """Return the receipt of a shard; None if it is absent, damaged or for a different shard."""
    receipt = read_receipt(path, ShardReceipt)
    if receipt is None:
        return None
    shard = receipt.shard
    found = shard.path, shard.documents_path, shard.tokens, receipt.library
    expected = name.path, name.documents_path, tokens, name.library
    is_complete = (shard.compressed is None) == (name.compression is None)
    return receipt if found == expected and is_complete else None


def is_intact(folder: Path, shard: Shard, dtype: np.dtype[Any]) -> bool:
    """Return whether the files of a shard still have the sizes and checksums in `shard`."""
    try:
        with open_inside(folder, shard.path) as file:
            check_size(file, shard.path, shard.measure_file(dtype.itemsize))
            if hash_file(file) != shard.file_xxh3_128:
                return False
        with open_inside(folder, shard.documents_path) as file:
            read_table_header(file, shard.documents_path, shard.documents)
            file.seek(0)
            return hash_file(file) == shard.documents_xxh3_128
    except (DamagedFileError, OSError):
        return False


def describe_change(shard: Shard) -> str:
    """Return the notice that a shard is written again because its files changed."""
    return f"{shard.path} or its document table changed after it was written; writing it again."
