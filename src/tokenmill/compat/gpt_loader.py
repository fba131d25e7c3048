"""`GPTDataLoader`: a sharded dataset or a text in memory, by the name of the sharded-data guide.

Sharded, it reads what `tokenmill prepare` made, and what the guide's own script did: `train/*.bin`
and `val/*.bin` of uint32 ids. Windows are uniform over all tokens of a split, so that small shards
are not preferred, and cross from one shard into the next.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tokenmill.compat.encoding import encode_text
from tokenmill.compat.random_windows import RandomWindows
from tokenmill.dataset.opening import Dataset
from tokenmill.dataset.opening import open as open_tokens
from tokenmill.errors import DatasetError, UsageError
from tokenmill.store.manifest import find_manifest, is_own
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers import Tokenizer
from tokenmill.torch import Batch


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
        An object or a mapping with batch_size, block_size, device (where there is one, the GPU by
        default), and seed (0 by default).
    tokenizer
        A name such as gpt2, a `tokenmill.Tokenizer`, or anything with `encode(text)`. Sharded, the
        first two are compared with the one that made the shards; None takes that.
    dataset_dir
        The folder of a dataset; without it, the text of `prepare_data` is used.
    """

    def __init__(
        self,
        config: Any,
        tokenizer: Any = None,
        dataset_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.batch_size = int(_setting(config, "batch_size"))
        self.block_size = int(_setting(config, "block_size"))
        self.device = _setting(config, "device", None)
        self._seed = int(_setting(config, "seed", 0))
        self.tokenizer = tokenizer
        self._windows: dict[str, RandomWindows] = {}
        if dataset_dir is not None:
            data = _open(Path(dataset_dir), tokenizer)
            if tokenizer is None and data.manifest is not None:
                self.tokenizer = data.tokenizer
            self._use({split: data[split] for split in data.splits})

    def prepare_data(self, text: str, val_fraction: float = 0.1) -> None:
        """Tokenize a text in memory; its end is for validation."""
        if self.tokenizer is None:
            raise UsageError("a text needs a tokenizer: GPTDataLoader(config, 'gpt2').")
        ids = encode_text(self.tokenizer, text.encode(errors="replace"))
        place = int(len(ids) * (1 - val_fraction))
        self._use({"train": Tokens.of(ids[:place]), "val": Tokens.of(ids[place:], split="val")})

    def get_batch(self, split: Literal["train", "val"] = "train") -> Batch:
        """The next batch of a split, (x, y), on the device of the configuration."""
        if not self._windows:
            raise UsageError(
                "there are no data yet: give dataset_dir, or call prepare_data(text) first."
            )
        if split not in self._windows:
            raise DatasetError(
                f"there is no split {split!r} that has a window of {self.block_size:,} + 1 tokens; "
                f"those that have are {', '.join(self._windows)}."
            )
        return self._windows[split].take(self.batch_size, self.device)

    def _use(self, splits: Mapping[str, Tokens]) -> None:
        # A short text may have no window for validation, and can be trained on all the same.
        self._windows = {
            split: RandomWindows(tokens, self.block_size, self._seed)
            for split, tokens in splits.items()
            if split == "train" or len(tokens) > self.block_size
        }


def _open(folder: Path, tokenizer: Any) -> Dataset:
    if not any((folder / "train").glob("*.bin")):
        raise DatasetError(
            f"No training shards found: {folder} has no train/*.bin. Look with: ls -R {folder}; "
            f"make them with: tokenmill prepare TEXTS --out {folder}"
        )
    metadata = find_manifest(folder)
    if metadata is None or not is_own(metadata):  # made by the guide's own script
        return open_tokens(folder, format="raw", dtype="uint32")
    if isinstance(tokenizer, (str, Tokenizer)):
        return open_tokens(folder, tokenizer=tokenizer)
    return open_tokens(folder)


_NOTHING = object()


def _setting(config: Any, name: str, default: Any = _NOTHING) -> Any:
    found = (
        config.get(name, default) if isinstance(config, Mapping) else getattr(config, name, default)
    )
    if found is _NOTHING:
        raise UsageError(f"the configuration has no {name}; it needs batch_size and block_size.")
    return found
