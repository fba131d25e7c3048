"""Local .npy files of tokens, by the names of the guide about them.

Guarantees: the header of a file is parsed and never read as tokens; item w is tokens w * L to
(w + 1) * L, inputs and targets, L being `max_length`; each comes once an epoch, under any number of
workers; shuffled epochs differ, and the loaders of `create_dataloaders` give the same batches
whatever the number of workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, IterableDataset

from tokenmill.dataset.opening import open as open_tokens
from tokenmill.errors import DatasetError
from tokenmill.load.distributed import find_rank, trim_last_step
from tokenmill.store.tokens import Tokens
from tokenmill.torch import Batch, TokenBatches, TokenRows

TRAIN_PATH = "training_data/owt_train_tokens.npy"
VAL_PATH = "training_data/owt_valid_tokens.npy"
_TOGETHER = 64  # rows that are read at once where they are given one by one


def open_local(
    data_path: str | os.PathLike[str], name: str = "Token", dtype: npt.DTypeLike | None = None
) -> Tokens:
    """The tokens of a file; `name` is what an error calls it.

    >>> open_local("no.npy", "Training")
    Traceback (most recent call last):
    ...
    tokenmill.errors.DatasetError: Training data file not found: no.npy. Make it from a text, \
no.txt, with: tokenmill pretokenize no.txt
    """
    path = Path(data_path)
    if not path.exists():
        text = path.with_suffix(".txt")
        raise DatasetError(
            f"{name} data file not found: {path}. Make it from a text, {text.name}, with: "
            f"tokenmill pretokenize {text}"
        )
    return open_tokens(path, dtype=dtype)["train"]


class LocalTokenizedDataset(IterableDataset[Any]):
    """The sequences of a file, one after another, as (inputs, targets); with `batch_size`, in
    whole batches, for `DataLoader(..., batch_size=None)`.

    Workers, and ranks as the launcher tells them, share the sequences. In whole batches, all ranks
    get as many, and sequences at the end that are fewer than the ranks are left out.

    A `DataLoader` copies the dataset to its workers for each epoch, so tell it the epoch:
    `dataset.set_epoch(epoch)`, as `create_dataloaders` does by itself.

    >>> import tempfile, numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "tokens.npy"
    >>> np.save(path, np.arange(9, dtype=np.int32))
    >>> for inputs, targets in LocalTokenizedDataset(path, max_length=4, shuffle=False):
    ...     print(inputs.tolist(), targets.tolist())
    [0, 1, 2, 3] [1, 2, 3, 4]
    [4, 5, 6, 7] [5, 6, 7, 8]
    """

    def __init__(
        self,
        data_path: str | os.PathLike[str] | Tokens,
        max_length: int = 1024,
        seed: int = 42,
        shuffle: bool = True,
        batch_size: int | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        if not isinstance(data_path, Tokens):
            data_path = open_local(data_path, dtype=dtype)
        self.tokens = data_path
        self._batch_size = batch_size
        self._settings: dict[str, Any] = {
            "seq_len": max_length,
            "seed": seed,
            "order": "shuffled" if shuffle else "sequential",
        }
        self.num_sequences = len(TokenRows(self.tokens, **self._settings))
        self._epoch, self._rows = 0, self.num_sequences
        self._batches()  # which finds settings that cannot be
        if batch_size is not None:
            self._rows = trim_last_step(self._rows, batch_size, find_rank(None, None)[1])

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be that of an epoch, from 0."""
        self._epoch = epoch

    def __len__(self) -> int:
        """The sequences of this rank, or with `batch_size` its batches."""
        if self._batch_size is not None:
            return len(self._batches())
        rank, world_size = find_rank(None, None)
        steps, rest = divmod(self._rows, _TOGETHER * world_size)
        return steps * _TOGETHER + rest * (rank + 1) // world_size - rest * rank // world_size

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches():
            if self._batch_size is None:
                yield from map(Batch, batch.inputs, batch.targets)
            else:
                yield Batch(batch.inputs, batch.targets)

    def _batches(self) -> TokenBatches:
        first = self._epoch * self.num_sequences
        return TokenBatches(
            self.tokens,
            **self._settings,
            start=first,
            limit_rows=first + self._rows,
            batch_size=_TOGETHER if self._batch_size is None else self._batch_size,
        )


class LocalTokenizedDatasetFixed(TokenRows):
    """Sequence w of a file at index w, as (inputs, targets); shuffle with the `DataLoader`.

    >>> import tempfile, numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "tokens.npy"
    >>> np.save(path, np.arange(9, dtype=np.int32))
    >>> dataset = LocalTokenizedDatasetFixed(path, max_length=4)
    >>> len(dataset), dataset[1].targets.tolist()
    (2, [5, 6, 7, 8])
    """

    def __init__(
        self,
        data_path: str | os.PathLike[str],
        max_length: int = 1024,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        tokens = open_local(data_path, dtype=dtype)
        super().__init__(tokens, seq_len=max_length, order="sequential")


def create_dataloaders(
    train_data_path: str | os.PathLike[str] = TRAIN_PATH,
    val_data_path: str | os.PathLike[str] = VAL_PATH,
    batch_size: int = 32,
    max_length: int = 1024,
    num_workers: int = 8,
    prefetch_factor: int = 4,
    seed: int = 42,
    dtype: npt.DTypeLike | None = None,
) -> tuple[DataLoader[Batch], DataLoader[Batch]]:
    """A loader for training, in another order each epoch, and one for validation, in the file's.

    `dtype` is for files of ids without a header, whatever their name.

    >>> import tempfile, numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "tokens.npy"
    >>> np.save(path, np.arange(1_000, dtype=np.int32))
    >>> train, val = create_dataloaders(path, path, batch_size=8, max_length=10, num_workers=0)
    >>> len(train), next(iter(val)).inputs.shape
    (13, torch.Size([8, 10]))
    """
    loaders: list[DataLoader[Batch]] = []
    for path, name in ((train_data_path, "Training"), (val_data_path, "Validation")):
        dataset = LocalTokenizedDataset(
            open_local(path, name, dtype), max_length, seed, name == "Training", batch_size
        )
        loaders.append(
            _Epochs(
                dataset,
                batch_size=None,
                num_workers=num_workers,
                prefetch_factor=prefetch_factor if num_workers else None,
                pin_memory=torch.cuda.is_available(),
            )
        )
    return loaders[0], loaders[1]


class _Epochs(DataLoader[Batch]):
    """A loader whose every iteration is the next epoch."""

    _epoch = 0

    def __iter__(self) -> Any:
        assert isinstance(self.dataset, LocalTokenizedDataset)
        self.dataset.set_epoch(self._epoch)
        self._epoch += 1
        return super().__iter__()
