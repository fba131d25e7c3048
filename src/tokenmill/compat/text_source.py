"""`TextDataSource`: texts as padded examples, by the name of the guide about Grain.

A text is tokenized once, by `tokenmill.prepare`, into a folder beside it, which every process and
every later run then opens; processes that start together wait for the first of them. An example is a
document, padded to the length asked for. A longer document goes on in further examples, so that no
token is lost; each token but a document's first is a target once.

Costs: 16 bytes of memory an example, and the ids of the first `_cache_size` examples; a batch is one
gather.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.opening import Dataset
from tokenmill.dataset.opening import open as open_tokens
from tokenmill.errors import DatasetError, FolderError, InputError, UsageError
from tokenmill.order.rows import RowOrder
from tokenmill.preparation.prepare import prepare
from tokenmill.storage.names import MANIFEST_NAME
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers import load_tokenizer

Integers = npt.NDArray[np.int64]

_PIECE = 1 << 20  # tokens that are searched for documents at once
_SPLITS = {"validation": "val", "test": "val"}
# The text as it is; a part held out, so that there is a split to validate on.
_AS_IT_IS: dict[str, Any] = {"normalize": False, "dedup": "none", "val_fraction": 0.01}
_REQUIRED = object()


class TextDataSource:
    """Examples by their numbers: {"input_ids", "targets"}, (max_length,) of int32 each.

    >>> import tempfile
    >>> text = Path(tempfile.mkdtemp()) / "stories.jsonl"
    >>> _ = text.write_text('{"text": "To be"}\\n{"text": "or not to be."}\\n')
    >>> source = TextDataSource(text, "train", "bytes", max_length=8)
    >>> len(source), source[0]["input_ids"].tolist()
    (3, [84, 111, 32, 98, 101, 256, 256, 256])
    >>> bytes(source[1]["input_ids"].tolist()), bytes(source[1]["targets"].tolist())
    (b'or not t', b'r not to')

    Parameters
    ----------
    dataset_name
        A file or folder of texts, as `tokenmill prepare` takes them, or a prepared dataset.
    split
        train or val; validation and test mean val.
    tokenizer_name
        Such as gpt2. That of a prepared dataset must be the same.
    max_length
        The tokens of an example.
    pad_token_id
        What stands behind a document; by default the end-of-text id.
    cache_dir
        Where the tokens go, if not beside the text.
    """

    _cache_size = 100_000  # examples whose ids are kept in memory

    def __init__(
        self,
        dataset_name: str | os.PathLike[str],
        split: str,
        tokenizer_name: str,
        max_length: int,
        *,
        pad_token_id: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if max_length < 1:
            raise UsageError(f"`max_length` is {max_length}; it must be at least 1.")
        data = open_texts(Path(dataset_name), tokenizer_name, cache_dir)
        self.tokens = data[_SPLITS.get(split, split)]
        self.max_length = max_length
        pad = data.eot_id if pad_token_id is None else pad_token_id
        if pad is None:
            raise UsageError(f"{tokenizer_name} has no end-of-text id; give `pad_token_id`.")
        self.pad_token_id = pad
        self._starts, self._lengths = _cut(self.tokens, max_length)
        self._kept: Tokens | None = None
        if not len(self._starts):
            raise DatasetError(f"split {split!r} of {dataset_name} has no document in it.")

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: SupportsIndex) -> dict[str, npt.NDArray[np.int32]]:
        place = number.__index__()
        if not -len(self) <= place < len(self):
            raise IndexError(f"examples go from 0 to {len(self) - 1:,}; {place:,} is not one")
        rows = self.read(np.array([place % len(self)]))
        return {"input_ids": rows[0, :-1], "targets": rows[0, 1:]}

    def __repr__(self) -> str:
        told = f"max_length={self.max_length}, pad_token_id={self.pad_token_id}"
        return f"TextDataSource({self.tokens.fingerprint}, {told})"

    def read(self, numbers: Integers) -> npt.NDArray[np.int32]:
        """Some examples, (examples, max_length + 1): inputs without the last, targets without the
        first token."""
        starts, lengths = self._starts[numbers], self._lengths[numbers]
        width = self.max_length + 1
        rows = np.full((len(numbers), width), self.pad_token_id, np.int32)
        kept = self._keep()
        is_kept, is_inside = starts + width <= len(kept), starts + width <= len(self.tokens)
        for tokens, chosen in ((kept, is_kept), (self.tokens, is_inside & ~is_kept)):
            if chosen.any():
                rows[chosen] = tokens.gather(starts[chosen], width, np.int32)
        for number in np.flatnonzero(~is_inside):
            start, length = int(starts[number]), int(lengths[number])
            rows[number, :length] = self.tokens[start : start + length]
        rows[np.arange(width) >= lengths[:, None]] = self.pad_token_id
        return rows

    def _keep(self) -> Tokens:
        """The tokens of the first examples, in memory."""
        count = min(max(self._cache_size, 0), len(self))
        size = int(self._starts[count - 1] + self._lengths[count - 1]) if count else 0
        if self._kept is None or len(self._kept) != size:
            self._kept = Tokens.of(self.tokens[:size])
        return self._kept

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}


class TextBatches:
    """Batches of a source, shuffled, over some epochs: batch i is (inputs, targets) of step i.

    Every epoch has another order, and each example once; what is left behind the last whole batch is
    left out.
    """

    def __init__(self, source: TextDataSource, *, batch_size: int, epochs: int, seed: int) -> None:
        if batch_size < 1:
            raise UsageError(f"`batch_size` is {batch_size}; it must be at least 1.")
        self.source, self.batch_size = source, batch_size
        self._length = len(source) * epochs // batch_size
        # One more token than examples makes as many rows of one token.
        self._order = RowOrder(tokens=len(source) + 1, seq_len=1, seed=seed, name="")
        self._seed = seed

    def __len__(self) -> int:
        return self._length

    def __getitem__(
        self, step: SupportsIndex
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        first = step.__index__() * self.batch_size
        rows = self.source.read(self._order.starts(np.arange(first, first + self.batch_size)))
        return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])

    def __repr__(self) -> str:
        told = f"batch_size={self.batch_size}, batches={self._length}, seed={self._seed}"
        return f"TextBatches({self.source!r}, {told})"


class Settings(NamedTuple):
    """What the guide's three configurations say about data."""

    source: TextDataSource
    batches: TextBatches
    prefetch: int


def read_settings(
    d_config: Any, m_config: Any, t_config: Any, tokenizer_name: str, pad_token_id: int | None
) -> Settings:
    """The batches that the guide's configurations ask for."""
    source = TextDataSource(
        _setting(d_config, "dataset_name"),
        _setting(d_config, "split", "train"),
        tokenizer_name or _setting(d_config, "tokenizer_name", "gpt2"),
        int(_setting(m_config, "maxlen")),
        pad_token_id=pad_token_id,
        cache_dir=_setting(d_config, "cache_dir", None),
    )
    source._cache_size = int(_setting(d_config, "cache_size", source._cache_size))
    batches = TextBatches(
        source,
        batch_size=int(_setting(d_config, "batch_size", 512)),
        epochs=int(_setting(t_config, "num_epochs", 1)),
        seed=int(_setting(d_config, "shuffle_seed", 42)),
    )
    return Settings(source, batches, int(_setting(d_config, "prefetch_buffer_size", 4)))


def _setting(config: Any, name: str, default: Any = _REQUIRED) -> Any:
    """A value of a configuration, which is a mapping or an object."""
    if isinstance(config, Mapping):
        found = config.get(name, default)
    else:
        found = getattr(config, name, default)
    if found is _REQUIRED:
        raise UsageError(f"the configuration has no {name}, which is needed.")
    return found


def open_texts(
    path: Path, tokenizer: str, cache_dir: str | os.PathLike[str] | None = None
) -> Dataset:
    """The tokens of a text, which are made if they are not there."""
    if not path.exists():
        raise InputError(
            f"There is no {path}. dataset_name is a file or folder of texts; a dataset of the "
            "Hugging Face hub has to be downloaded first, as Parquet or JSON lines."
        )
    if (path / MANIFEST_NAME).exists():
        return open_tokens(path, tokenizer=tokenizer)
    loaded = load_tokenizer(tokenizer)
    folder = path.with_name(f"{path.name}.tokens") if cache_dir is None else Path(cache_dir)
    name = f"{loaded.name.replace('/', '-')}-{loaded.fingerprint[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            prepare(path, folder / name, tokenizer=loaded, **_AS_IT_IS)
        except FolderError as error:
            raise FolderError(
                f"{error}\nFor {path} that is: remove {folder / name}, and run again."
            ) from None
    return open_tokens(folder / name)


def _cut(tokens: Tokens, length: int) -> tuple[Integers, Integers]:
    """Where each example begins, and its tokens: `length` inputs and one target more, at most."""
    found = [np.empty(0, np.int64)]
    for first in range(0, len(tokens), _PIECE):
        size = min(_PIECE, len(tokens) - first)
        found.append(tokens.find_document_starts(np.array([first]), size) + first)
    begins = np.concatenate(found)
    sizes = np.diff(begins, append=len(tokens))
    counts = np.maximum(-(-(sizes - 1) // length), 1)
    ends = np.cumsum(counts)
    number = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    starts = np.repeat(begins, counts) + number * length
    lengths = np.minimum(np.repeat(begins + sizes, counts) - starts, length + 1)
    return starts, lengths
