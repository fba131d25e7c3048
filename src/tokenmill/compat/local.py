"""Datasets and loaders for local .npy files of tokens, with the names used in docs/guides.md.

Guarantees: the header of a file is not mistaken for tokens. With sequence length L, the inputs of
item w are `tokens[w * L : (w + 1) * L]`, and the targets are the same slice one token later. Each
epoch yields each item once, with any number of workers. Batches from `create_dataloaders` do not
depend on the number of workers.
"""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, IterableDataset

from tokenmill.dataset.opening import open as open_tokens
from tokenmill.errors import DatasetError, InputError, TokenizerError, UsageError
from tokenmill.load.distributed import find_rank, trim_last_step
from tokenmill.preparation.pretokenize import npy_path
from tokenmill.preparation.settings import EOT_TEXT
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers import Tokenizer, load_tokenizer
from tokenmill.torch import Batch, TokenBatches, TokenRows

TRAIN_PATH = "training_data/owt_train_tokens.npy"
VAL_PATH = "training_data/owt_valid_tokens.npy"
_VAL_FRACTION = 0.1  # of the tokens of a `StreamingDataset`
_TOGETHER = 64  # rows to read at once if the caller takes single rows


def open_local(
    data_path: str | os.PathLike[str], name: str = "Token", dtype: npt.DTypeLike | None = None
) -> Tokens:
    """Open the tokens of a file; `name` describes the file in error messages.

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
    """An iterable dataset of the sequences of a file, as (inputs, targets).

    With `batch_size`, it yields whole batches; then pass `batch_size=None` to the `DataLoader`.

    The sequences are divided among workers and ranks. The number of ranks comes from the launcher's
    environment variables. With `batch_size`, all ranks get the same number of batches: if fewer
    sequences than ranks remain at the end, they are dropped.

    Call `dataset.set_epoch(epoch)` before each epoch. The dataset cannot count epochs itself,
    because a `DataLoader` gives its workers new copies of the dataset for each epoch. Loaders from
    `create_dataloaders` call `set_epoch` themselves.

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
        self._batches()  # raises an error if a setting is invalid
        if batch_size is not None:
            self._rows = trim_last_step(self._rows, batch_size, find_rank(None, None)[1])

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. Epochs count from 0."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Return this rank's number of sequences or, with `batch_size`, its number of batches."""
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
    """A map-style dataset: item w is sequence w of a file, as (inputs, targets).

    To shuffle, pass `shuffle=True` to the `DataLoader`.

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
    """Make a training loader, reshuffled each epoch, and a validation loader, in file order.

    `dtype` is the dtype of ids in files without a header.

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
    """A loader in which each new iterator starts the next epoch."""

    _epoch = 0

    def __iter__(self) -> Any:
        assert isinstance(self.dataset, LocalTokenizedDataset)
        self.dataset.set_epoch(self._epoch)
        self._epoch += 1
        return super().__iter__()


class StreamingDataset(TokenRows):
    """A map-style dataset of the ids in X.npy next to X.txt, as (inputs, targets).

    The first 90% of the tokens are for training, the rest for validation. If there is no X.npy, the
    text is tokenized in memory to the same ids, and a warning names the command that makes X.npy.
    If X.npy is older than X.txt, a warning says so.

    >>> import tempfile
    >>> text = Path(tempfile.mkdtemp()) / "x.txt"
    >>> _ = text.write_text("To be, or not to be: that is the question. " * 9)
    >>> import tokenmill
    >>> _ = tokenmill.pretokenize(text)
    >>> dataset = StreamingDataset(text, seq_length=8, verbose=False)
    >>> len(dataset), dataset[0].inputs.tolist()
    (13, [2514, 307, 11, 393, 407, 284, 307, 25])

    Parameters
    ----------
    path_to_txt
        Path of X.txt; X.npy is expected next to it.
    tokenizer
        A name, a path, or an object with `encode(text)`; by default gpt2. Used only if there is no
        X.npy.
    seq_length, seq_len
        Tokens per sequence. Both names mean the same.
    split
        train (the first 90%) or val (the rest).
    verbose
        Print the file and the number of tokens.
    """

    def __init__(
        self,
        path_to_txt: str | os.PathLike[str],
        tokenizer: Any = None,
        seq_length: int = 128,
        split: Literal["train", "val"] = "train",
        *,
        seq_len: int | None = None,
        verbose: bool = True,
    ) -> None:
        if split not in ("train", "val"):
            raise UsageError(f"`split` is {split!r}; it must be train or val.")
        text = Path(path_to_txt)
        total, place = self._open(text, tokenizer, split, verbose)
        start, stop = (0, place) if split == "train" else (place, total)
        super().__init__(self.tokens, seq_len=seq_len or seq_length, order="sequential")
        if verbose:
            _print(f"   Total tokens in file: {total:,}")
            _print(
                f"   Using {split} portion: {stop - start:,} tokens (indices {start:,} to {stop:,})"
            )
            _print(
                f"StreamingDataset ({split}): {len(self):,} sequences from {stop - start:,} tokens"
            )

    def _open(self, text: Path, tokenizer: Any, split: str, verbose: bool) -> tuple[int, int]:
        """Open the tokens; return how many there are in total, and how many are for training."""
        path = npy_path(text)
        if path.exists():
            if verbose:
                _print(f"🚀 Using memory-mapped file: {path}")
                _print("   (This uses ~0MB RAM regardless of dataset size!)")
            _warn_if_older(path, text)
            data = open_tokens(path, val_fraction=_VAL_FRACTION)
            self.tokens = data[split]
            return len(data["train"]) + len(data["val"]), len(data["train"])
        if not text.is_file():
            raise InputError(f"Neither {text} nor {path} exists. Check the path.")
        warnings.warn(
            f"No .npy file found: {path}. Tokenizing all of {text} in memory. To tokenize it only "
            f"once, run: tokenmill pretokenize {shlex.quote(str(text))}",
            stacklevel=3,
        )
        ids = encode_text("gpt2" if tokenizer is None else tokenizer, text.read_bytes())
        place = int(len(ids) * (1 - _VAL_FRACTION))
        self.tokens = Tokens.of(ids[:place] if split == "train" else ids[place:], split=split)
        return len(ids), place


def _warn_if_older(path: Path, text: Path) -> None:
    if text.exists() and path.stat().st_mtime_ns < text.stat().st_mtime_ns:
        warnings.warn(
            f"{path} is older than {text} and may not match it. To make {path.name} again, run: "
            f"tokenmill pretokenize --restart {shlex.quote(str(text))}",
            stacklevel=4,
        )


def _print(line: str) -> None:
    """Print a line, replacing characters that the output cannot encode."""
    encoding = sys.stdout.encoding or "utf-8"
    print(line.encode(encoding, "replace").decode(encoding))


def encode_text(tokenizer: Any, text: bytes) -> npt.NDArray[np.uint32]:
    """Encode a text to the ids that `tokenmill pretokenize` would write.

    `tokenizer` is a name or path, a `tokenmill.Tokenizer`, or another object with `encode(text)`.
    The ids from another object are used unchanged; no end-of-text id is added.

    >>> encode_text("gpt2", b"Hello world").tolist()
    [15496, 995, 50256]
    """
    if isinstance(tokenizer, str):
        tokenizer = load_tokenizer(tokenizer)
    if isinstance(tokenizer, Tokenizer):
        documents = [document for document in text.split(EOT_TEXT.encode()) if document]
        return tokenizer.encode_terminated(documents)[0]
    if not hasattr(tokenizer, "encode"):
        raise TokenizerError(
            f"{type(tokenizer).__name__} is not a tokenizer: it has no encode(text). Pass a tokenizer "
            "or a name such as 'gpt2'."
        )
    return np.array(tokenizer.encode(text.decode(errors="replace")), np.uint32)
