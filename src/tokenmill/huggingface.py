"""Rows for Hugging Face models, for use with `Trainer`, with Accelerate or alone.

Guarantees: an epoch has every row once, in the order of the run, on any number of processes.
`input_ids` and `labels` of a row are the same tokens, because these models shift the labels
themselves. If the labels were already shifted, like the targets of other loaders, the models would
learn to predict the wrong token.

Costs: to resume, `Trainer` and Accelerate skip row numbers, without reading these rows. The rows of
a batch are read in one call, and copied once for the labels.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

try:
    import torch
    from torch.utils.data import Dataset
except ModuleNotFoundError as error:
    error.add_note("Install it with: pip install 'tokenmill[huggingface]'")
    raise

import tokenmill.torch
from tokenmill.errors import UsageError
from tokenmill.load.mixture import Mixture
from tokenmill.store.tokens import Tokens

__all__ = ["TokenRows"]


class TokenRows(Dataset[dict[str, torch.Tensor]]):
    """The rows of `tokenmill.torch.TokenRows` as `input_ids` and `labels`, with the same arguments.

    The rows are already in their final order, so do not shuffle them: use
    `TrainingArguments(train_sampling_strategy="sequential")`, or a `DataLoader` without
    `shuffle=True`.

    >>> rows = TokenRows(Tokens.of(range(1_000)), seq_len=4, seed=1)
    >>> rows[0]
    {'input_ids': tensor([440, 441, 442, 443]), 'labels': tensor([440, 441, 442, 443])}
    """

    def __init__(self, data: Tokens | Mixture, *, seq_len: int, **settings: Any) -> None:
        self._rows = tokenmill.torch.TokenRows(data, seq_len=seq_len, **settings)
        self._has_warned = False

    def set_epoch(self, epoch: int) -> None:
        """Move to the rows of an epoch; see `tokenmill.torch.TokenRows`."""
        _check_division()
        self._rows.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        _check_division()
        if not self._has_warned and any(b > a + 1 for a, b in pairwise(rows)):
            self._has_warned = True
            warnings.warn(
                "The rows of tokenmill are read out of order. They are already shuffled. Shuffling "
                "them again takes memory for a list of all row numbers, and step n no longer has "
                'the rows that tokenmill assigns to it. Use TrainingArguments(train_sampling_strategy="sequential"), or '
                "DataLoader without shuffle=True.",
                stacklevel=2,
            )
        ids = self._rows.read(rows)[:, :-1].contiguous()
        labels = ids.clone()  # a copy, because collators may mask labels
        return [{"input_ids": one, "labels": other} for one, other in zip(ids, labels, strict=True)]


def _check_division() -> None:
    """Raise an error if Accelerate would give all rows to every process.

    On a machine without a GPU, Accelerate joins torch's process group, but by default does not
    divide the data among its processes.
    """
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is None or not torch.distributed.is_initialized():
        return
    found = accelerate.PartialState._shared_state.get("num_processes")
    processes = torch.distributed.get_world_size()
    if found == 1 and processes > 1:
        raise UsageError(
            f"Accelerate does not divide the rows: each of the {processes} processes would train on "
            "all rows. Without a GPU, set ACCELERATE_USE_CPU=true in the environment, "
            "or use TrainingArguments(use_cpu=True) or Accelerator(cpu=True)."
        )
