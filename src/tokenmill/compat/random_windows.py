"""Batches of windows that begin anywhere, with replacement: what a guide's `get_batch` gives.

Guarantees: every start that has enough tokens after it is equally likely, over all shards and
across their borders; the batches follow from the seed, and ranks, as the launcher tells them, get
different ones.
"""

from __future__ import annotations

import numpy as np
import torch

from tokenmill.load.distributed import find_rank
from tokenmill.load.rows import RunRows
from tokenmill.load.settings import RowSettings
from tokenmill.store.tokens import Tokens
from tokenmill.torch import Batch


class RandomWindows:
    """Draws from tokens, batch after batch.

    >>> windows = RandomWindows(Tokens.of(range(100)), block_size=3, seed=1)
    >>> windows.take(2, "cpu").targets
    tensor([[48, 49, 50],
            [23, 24, 25]])
    """

    def __init__(self, tokens: Tokens, block_size: int, seed: int) -> None:
        self._rows = RunRows(tokens, RowSettings(seq_len=block_size, seed=seed, order="random"))
        self._rank, self._world_size = find_rank(None, None)
        self._drawn = 0  # rows, on all ranks together

    def take(self, batch_size: int, device: str | torch.device | None = None) -> Batch:
        """The next batch, by default on the GPU if there is one."""
        first = self._drawn + self._rank * batch_size
        places = self._rows.locate(np.arange(first, first + batch_size))
        self._drawn += self._world_size * batch_size
        out = np.empty((batch_size, self._rows.seq_len + 1), np.int64)
        tokens = torch.from_numpy(self._rows.read(places, out))
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        tokens = tokens.to(device)
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
