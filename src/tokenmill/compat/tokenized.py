"""`TokenizedDataset`: a folder of llm.c shards, by the name of the guide that fetches them.

The header of each shard is parsed and never read as tokens. The last shard, by its number, is for
validation.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import torch

from tokenmill.compat.random_windows import RandomWindows
from tokenmill.dataset.opening import open as open_tokens
from tokenmill.errors import DatasetError, UsageError
from tokenmill.torch import Batch


class TokenizedDataset:
    """Random windows from all shards of a split; see `tokenmill.compat.random_windows`.

    A gap in the shards' numbers is fine: any of them may be fetched.

    >>> import tempfile, struct, numpy as np
    >>> folder = Path(tempfile.mkdtemp())
    >>> for number in (1, 2):
    ...     header = struct.pack("<3i", 20240520, 1, 50).ljust(1024, b"\\0")
    ...     ids = np.arange(50, dtype="<u2") + 100 * number
    ...     name = f"edu_fineweb_train_{number:06}.bin"
    ...     _ = (folder / name).write_bytes(header + ids.tobytes())
    >>> x, y = TokenizedDataset(folder, "val", block_size=4).get_batch(2, device="cpu")
    >>> x
    tensor([[204, 205, 206, 207],
            [200, 201, 202, 203]])
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        split: Literal["train", "val"] = "train",
        block_size: int = 1024,
        *,
        seed: int = 0,
    ) -> None:
        if split not in ("train", "val"):
            raise UsageError(f"`split` is {split!r}; it must be train or val.")
        shards = [path for path in Path(data_dir).glob("*.bin") if path.name[0] != "."]
        if len(shards) < 2:
            raise DatasetError(
                f"Need at least 2 shards to create train/val splits: {data_dir} has {len(shards)}. "
                "Fetch more, such as edu_fineweb_train_000001.bin and edu_fineweb_train_000002.bin."
            )
        self.block_size = block_size
        self.tokens = open_tokens(data_dir, format="llmc")[split]
        self._windows = RandomWindows(self.tokens, block_size, seed)

    def __len__(self) -> int:
        """The tokens of the split."""
        return len(self.tokens)

    def get_batch(self, batch_size: int, device: str | torch.device | None = None) -> Batch:
        """The next batch, (x, y); by default on the GPU if there is one."""
        return self._windows.take(batch_size, device)
