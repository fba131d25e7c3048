"""Compare the files of a prepared dataset with the checksums in its manifest.

What is converted gets checksums of its own, so that damage must be found before: afterwards nothing
would tell it.
"""

from __future__ import annotations

from pathlib import Path

import xxhash

from tokenmill.storage.reading import DamagedFileError, open_inside
from tokenmill.store.manifest import Manifest

_BLOCK = 4 << 20


def check_checksums(folder: Path, manifest: Manifest) -> None:
    """Read every shard and table, and refuse the first that is not what it was."""
    for split in manifest.splits.values():
        for shard in split.shards:
            for path, said in (
                (shard.path, shard.xxh3_128),
                (shard.documents_path, shard.documents_xxh3_128),
            ):
                digest = xxhash.xxh3_128()
                with open_inside(folder, path) as file:
                    while block := file.read(_BLOCK):
                        digest.update(block)
                if digest.hexdigest() != said:
                    raise DamagedFileError(path, "does not match its checksum")
