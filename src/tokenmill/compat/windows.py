"""Batches of random windows, with the names used in docs/guides.md for sharded data.

A window is `block_size` + 1 consecutive tokens. `TokenizedDataset` and `download_tokenized_data`
are for llm.c shards; `GPTDataLoader` is for prepared datasets and for text in memory.

Guarantees: all possible windows are equally likely, so small shards are not overrepresented. A
window may cross shard boundaries. For the same data and sizes, batches depend only on the seed, the
rank and the number of ranks; the launcher's environment variables set the last two. The header of a
shard is not mistaken for tokens.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from tokenmill.compat.local import encode_text
from tokenmill.compat.text_source import read_setting
from tokenmill.dataset.download import DEFAULT_REPOSITORY, download
from tokenmill.dataset.opening import Dataset
from tokenmill.dataset.opening import open as open_tokens
from tokenmill.errors import DatasetError, UsageError
from tokenmill.formats.base import NotThisFormat, OpenRequest
from tokenmill.formats.llmc import Llmc
from tokenmill.load.distributed import find_rank
from tokenmill.load.rows import RunRows
from tokenmill.load.settings import RowSettings
from tokenmill.store.manifest import find_manifest, is_own
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers import Tokenizer
from tokenmill.torch import Batch


class RandomWindows:
    """Draws batches of random windows from tokens.

    >>> windows = RandomWindows(Tokens.of(range(100)), block_size=3, seed=1)
    >>> windows.take(2, "cpu").targets
    tensor([[48, 49, 50],
            [23, 24, 25]])
    """

    def __init__(self, tokens: Tokens, block_size: int, seed: int) -> None:
        self._rows = RunRows(tokens, RowSettings(seq_len=block_size, seed=seed, order="random"))
        self._rank, self._world_size = find_rank(None, None)
        self._drawn = 0  # rows drawn so far, on all ranks together

    def take(self, batch_size: int, device: str | torch.device | None = None) -> Batch:
        """Return the next batch; by default on the GPU, if there is one."""
        first = self._drawn + self._rank * batch_size
        places = self._rows.locate(np.arange(first, first + batch_size))
        self._drawn += self._world_size * batch_size
        out = np.empty((batch_size, self._rows.seq_len + 1), np.int64)
        tokens = torch.from_numpy(self._rows.read(places, out))
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        tokens = tokens.to(device)
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


class TokenizedDataset:
    """Random windows from llm.c shards. The shard with the highest number is the validation split.

    Shard numbers may have gaps.

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
                "Download more: download_tokenized_data(DIR, shards=(1, 2, 3))."
            )
        self.block_size = block_size
        self.tokens = open_tokens(data_dir, format="llmc")[split]
        self._windows = RandomWindows(self.tokens, block_size, seed)

    def __len__(self) -> int:
        """Return the number of tokens in the split."""
        return len(self.tokens)

    def get_batch(self, batch_size: int, device: str | torch.device | None = None) -> Batch:
        """Return the next batch, (x, y); by default on the GPU, if there is one."""
        return self._windows.take(batch_size, device)


class GPTDataLoader:
    """Random windows from a dataset's shards, or from a text given to `prepare_data`.

    >>> loader = GPTDataLoader({"batch_size": 2, "block_size": 3, "device": "cpu"}, "bytes")
    >>> loader.prepare_data("To be, or not to be: that is the question.")
    >>> x, y = loader.get_batch("train")
    >>> bytes(x[0].tolist()), bytes(y[0].tolist())
    (b'hat', b'at ')

    Parameters
    ----------
    config
        An object or a mapping with batch_size, block_size, device (by default the GPU, if there is
        one) and seed (0 by default).
    tokenizer
        A name such as gpt2, a `tokenmill.Tokenizer`, or an object with `encode(text)`. With
        `dataset_dir`, the default is the tokenizer of the dataset; any other is refused.
    dataset_dir
        A dataset made by `tokenmill prepare`, or a folder with `train/*.bin` and `val/*.bin` of
        uint32 ids. Without it, the text given to `prepare_data` is used.
    """

    def __init__(
        self,
        config: Any,
        tokenizer: Any = None,
        dataset_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.batch_size = int(read_setting(config, "batch_size"))
        self.block_size = int(read_setting(config, "block_size"))
        self.device = read_setting(config, "device", None)
        self._seed = int(read_setting(config, "seed", 0))
        self.tokenizer = tokenizer
        self._windows: dict[str, RandomWindows] = {}
        if dataset_dir is not None:
            data = _open(Path(dataset_dir), tokenizer)
            if tokenizer is None and data.manifest is not None:
                self.tokenizer = data.tokenizer
            self._use({split: data[split] for split in data.splits})

    def prepare_data(self, text: str, val_fraction: float = 0.1) -> None:
        """Tokenize a text in memory, and hold out the last tokens for validation."""
        if self.tokenizer is None:
            raise UsageError(
                "prepare_data needs a tokenizer. Pass one, such as GPTDataLoader(config, 'gpt2')."
            )
        ids = encode_text(self.tokenizer, text.encode(errors="replace"))
        place = int(len(ids) * (1 - val_fraction))
        self._use({"train": Tokens.of(ids[:place]), "val": Tokens.of(ids[place:], split="val")})

    def get_batch(self, split: Literal["train", "val"] = "train") -> Batch:
        """Return the next batch of a split, (x, y), on the device that the configuration names."""
        if not self._windows:
            raise UsageError(
                "there is no data yet: pass dataset_dir, or call prepare_data(text) first."
            )
        if split not in self._windows:
            raise DatasetError(
                f"split {split!r} is missing or shorter than a window of {self.block_size:,} + 1 tokens. "
                f"Splits that are long enough: {', '.join(self._windows)}."
            )
        return self._windows[split].take(self.batch_size, self.device)

    def _use(self, splits: Mapping[str, Tokens]) -> None:
        # If a text is too short for a validation window, training on the text still works.
        self._windows = {
            split: RandomWindows(tokens, self.block_size, self._seed)
            for split, tokens in splits.items()
            if split == "train" or len(tokens) > self.block_size
        }


def _open(folder: Path, tokenizer: Any) -> Dataset:
    if not any((folder / "train").glob("*.bin*")):
        raise DatasetError(
            f"No training shards found: {folder} has no train/*.bin. Make them with: "
            f"tokenmill prepare TEXTS --out {folder}"
        )
    metadata = find_manifest(folder)
    if metadata is None or not is_own(metadata):  # made by a script, not by tokenmill
        return open_tokens(folder, format="raw", dtype="uint32")
    if isinstance(tokenizer, (str, Tokenizer)):
        return open_tokens(folder, tokenizer=tokenizer)
    return open_tokens(folder)


def download_tokenized_data(
    data_dir: str | os.PathLike[str] = "/tmp/data/fineweb-edu",  # noqa: S108  (the guide's)
    shards: tuple[int, ...] = (1, 2, 3),
) -> str:
    """Download some shards of FineWeb-Edu, unless the folder has them; return the folder.

    A shard in the folder that has the right size for its header is not downloaded again.
    `tokenmill.download` fetches the others, checks each file, and resumes after an interruption.

    >>> import struct, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for number in (1, 2, 3):  # as from an earlier call
    ...     header = struct.pack("<3i", 20240520, 1, 50).ljust(1024, b"\\0")
    ...     name = f"edu_fineweb_train_{number:06}.bin"
    ...     _ = (folder / name).write_bytes(header + bytes(100))
    >>> download_tokenized_data(folder) == str(folder)
    Data download complete!
    True
    """
    folder = Path(data_dir)
    missing = [
        number for number in shards if not _is_whole(folder / f"edu_fineweb_train_{number:06}.bin")
    ]
    if missing:
        print(f"Downloading shards {', '.join(map(str, missing))} of {DEFAULT_REPOSITORY}...")
        download(DEFAULT_REPOSITORY, shards=missing, to=folder)
    print("Data download complete!")
    return str(folder)


def _is_whole(path: Path) -> bool:
    try:
        return path.is_file() and bool(Llmc().read(OpenRequest(path=path)).splits)
    except (NotThisFormat, DatasetError):
        return False
