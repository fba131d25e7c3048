"""`LocalDataModule`: the Lightning data module for local .npy files, as in docs/guides.md."""

from __future__ import annotations

import os
from typing import Any

import numpy.typing as npt

from tokenmill.compat.local import TRAIN_PATH, VAL_PATH, open_local
from tokenmill.lightning import TokenDataModule


class LocalDataModule(TokenDataModule):
    """A `tokenmill.lightning.TokenDataModule` for one training file and one validation file.

    >>> import tempfile, numpy as np
    >>> path = f"{tempfile.mkdtemp()}/tokens.npy"
    >>> np.save(path, np.arange(1_000, dtype=np.int32))
    >>> module = LocalDataModule(path, path, batch_size=8, max_length=10)
    >>> next(iter(module.val_dataloader())).inputs[1]
    tensor([10, 11, 12, 13, 14, 15, 16, 17, 18, 19])
    """

    def __init__(
        self,
        train_data_path: str | os.PathLike[str] = TRAIN_PATH,
        val_data_path: str | os.PathLike[str] = VAL_PATH,
        batch_size: int = 32,
        max_length: int = 1024,
        num_workers: int = 0,
        prefetch_factor: int = 4,
        seed: int = 42,
        dtype: npt.DTypeLike | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            open_local(train_data_path, "Training", dtype),
            open_local(val_data_path, "Validation", dtype),
            batch_size=batch_size,
            seq_len=max_length,
            seed=seed,
            num_workers=num_workers,
            prefetch=prefetch_factor,
            **settings,
        )
