"""Write the tokens of a shard, plain or compressed, durably and with their checksums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tokenmill.storage.files import AtomicFile
from tokenmill.store.frames import Compression, Packer
from tokenmill.store.tables import CompressedFile


class ShardFile:
    """A file of tokens with a temporary name until `finish`. `size` counts uncompressed bytes."""

    def __init__(self, path: Path, dtype: np.dtype[Any], compression: Compression | None) -> None:
        self._packer: Packer | None = None
        if compression is not None:
            frame_bytes = compression.tokens_per_frame * dtype.itemsize
            self._packer = Packer(level=compression.level, frame_bytes=frame_bytes)
        self._file = AtomicFile(path)
        self._hash = xxhash.xxh3_128()
        self.size = 0

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def write(self, data: Any) -> None:
        """Append ids, as bytes or as an array."""
        self.size += memoryview(data).nbytes
        if self._packer is None:
            self._file.write(data)
        else:
            self._hash.update(data)
            self._file.write(self._packer.pack(data))

    def finish(self) -> tuple[str, CompressedFile | None]:
        """Make the file durable, and give it its name.

        Returns the checksum of the ids and, if the file is compressed, its own size and checksum.
        """
        if self._packer is None:
            return self._file.finish(), None
        self._file.write(self._packer.finish())
        compressed = CompressedFile(bytes=self._file.size, xxh3_128=self._file.finish())
        return self._hash.hexdigest(), compressed
