"""`TextDataSource`: texts as padded examples, with the name used in docs/guides.md for Grain.

`tokenmill.prepare` tokenizes a text once, into a folder next to the text. Other processes and later
runs open that folder. If several processes start together, one prepares the folder and the others
wait.

An example is a document, padded to the requested length. A longer document becomes several
examples. No token is lost: each token except the first of a document is a target exactly once.

Costs: 16 bytes of memory per example, plus the ids of the first `cache_size` examples.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.opening import Dataset
from tokenmill.dataset.opening import open as open_tokens
from tokenmill.errors import DatasetError, FolderError, InputError, UsageError
from tokenmill.order.rows import RowOrder
from tokenmill.preparation.prepare import prepare
from tokenmill.storage.files import make_folder, refuse_link
from tokenmill.storage.lock import FileLock
from tokenmill.storage.names import MANIFEST_NAME
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers import load_tokenizer

Integers = npt.NDArray[np.int64]

_BLOCK = 1 << 20  # tokens that are searched for documents at once
_SPLITS = {"validation": "val", "test": "val"}
# Settings of `prepare` that leave the text unchanged and hold out some of it for validation.
_AS_IT_IS: dict[str, Any] = {"normalize": False, "dedup": "none", "val_fraction": 0.01}
_POLL = 0.1  # seconds between checks whether another process has finished
_REQUIRED = object()


class TextDataSource:
    """A source of examples: `source[n]` has `input_ids` and `targets`, each (max_length,) of int32.

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
        A file or folder of texts, as for `tokenmill prepare`, or a prepared dataset.
    split
        train or val; validation and test mean val.
    tokenizer_name
        Name of the tokenizer, such as gpt2. For a prepared dataset, it must be the tokenizer that
        made the dataset.
    max_length
        Tokens per example.
    pad_token_id
        The id that pads an example after its document; by default the end-of-text id.
    cache_dir
        Folder to write the tokens to; by default a folder next to the text.
    cache_size
        Number of examples whose ids are kept in memory; by default 100,000.
    """

    _cache_size = 100_000

    def __init__(
        self,
        dataset_name: str | os.PathLike[str],
        split: str,
        tokenizer_name: str,
        max_length: int,
        *,
        pad_token_id: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
    ) -> None:
        if max_length < 1:
            raise UsageError(f"`max_length` is {max_length}; it must be at least 1.")
        data = open_texts(Path(dataset_name), tokenizer_name, cache_dir)
        self.tokens = data[_SPLITS.get(split, split)]
        self.max_length = max_length
        pad = data.eot_id if pad_token_id is None else pad_token_id
        if pad is None:
            raise UsageError(f"{tokenizer_name} has no end-of-text id; pass `pad_token_id`.")
        self.pad_token_id = pad
        self._starts, self._lengths = _cut(self.tokens, max_length)
        if cache_size is not None:
            self._cache_size = int(cache_size)
        self._kept: Tokens | None = None
        if not len(self._starts):
            raise DatasetError(
                f"split {split!r} of {dataset_name} has no documents. Choose another `split`."
            )

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: SupportsIndex) -> dict[str, npt.NDArray[np.int32]]:
        place = number.__index__()
        if not -len(self) <= place < len(self):
            raise IndexError(f"example {place:,} is out of range: there are {len(self):,} examples")
        rows = self.read(np.array([place % len(self)]))
        return {"input_ids": rows[0, :-1], "targets": rows[0, 1:]}

    def __repr__(self) -> str:
        settings = f"max_length={self.max_length}, pad_token_id={self.pad_token_id}"
        return f"TextDataSource({self.tokens.identity}, {settings})"

    def read(self, numbers: Integers) -> npt.NDArray[np.int32]:
        """Read examples as rows of max_length + 1 ids: [:, :-1] are inputs, [:, 1:] are targets."""
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
        """Return the tokens of the first `cache_size` examples, loaded into memory on first use."""
        count = min(max(self._cache_size, 0), len(self))
        size = int(self._starts[count - 1] + self._lengths[count - 1]) if count else 0
        if self._kept is None or len(self._kept) != size:
            self._kept = Tokens.of(self.tokens[:size])
        return self._kept

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}


class TextBatches:
    """Shuffled batches of a source for several epochs: batch i is (inputs, targets) of step i.

    Each epoch has its own order and contains each example once. An incomplete last batch is
    dropped.
    """

    def __init__(self, source: TextDataSource, *, batch_size: int, epochs: int, seed: int) -> None:
        if batch_size < 1:
            raise UsageError(f"`batch_size` is {batch_size}; it must be at least 1.")
        self.source, self.batch_size = source, batch_size
        self._length = len(source) * epochs // batch_size
        # With one token per row, n + 1 tokens make n rows: one row per example.
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
        settings = f"batch_size={self.batch_size}, batches={self._length}, seed={self._seed}"
        return f"TextBatches({self.source!r}, {settings})"


def read_configs(
    d_config: Any, m_config: Any, t_config: Any, tokenizer_name: str, pad_token_id: int | None
) -> tuple[TextBatches, int]:
    """Return the batches that the three configurations describe, and how many to prefetch.

    `d_config` is about the data, `m_config` about the model, and `t_config` about training.
    """
    source = TextDataSource(
        read_setting(d_config, "dataset_name"),
        read_setting(d_config, "split", "train"),
        tokenizer_name or read_setting(d_config, "tokenizer_name", "gpt2"),
        int(read_setting(m_config, "maxlen")),
        pad_token_id=pad_token_id,
        cache_dir=read_setting(d_config, "cache_dir", None),
        cache_size=read_setting(d_config, "cache_size", None),
    )
    batches = TextBatches(
        source,
        batch_size=int(read_setting(d_config, "batch_size", 512)),
        epochs=int(read_setting(t_config, "num_epochs", 1)),
        seed=int(read_setting(d_config, "shuffle_seed", 42)),
    )
    return batches, int(read_setting(d_config, "prefetch_buffer_size", 4))


def read_setting(config: Any, name: str, default: Any = _REQUIRED) -> Any:
    """Return a value of a configuration, which is a mapping or an object with attributes.

    Without a `default`, a missing value raises `UsageError`.
    """
    if isinstance(config, Mapping):
        found = config.get(name, default)
    else:
        found = getattr(config, name, default)
    if found is _REQUIRED:
        raise UsageError(f"the configuration has no {name}. Add a value for {name}.")
    return found


def open_texts(
    path: Path, tokenizer: str, cache_dir: str | os.PathLike[str] | None = None
) -> Dataset:
    """Open the tokens of a text file or folder. Tokenizes the text first if that has not been done.

    `path` may also be a prepared dataset, which is opened as it is.
    """
    if not path.exists():
        raise InputError(
            f"{path} does not exist. dataset_name is a file or folder of texts; a dataset on the "
            "Hugging Face Hub must be downloaded first, with: tokenmill download OWNER/NAME"
        )
    if (path / MANIFEST_NAME).exists():
        return open_tokens(path, tokenizer=tokenizer)
    loaded = load_tokenizer(tokenizer)
    folder = path.with_name(f"{path.name}.tokens") if cache_dir is None else Path(cache_dir)
    name = f"{loaded.name.replace('/', '-')}-{loaded.fingerprint[:8]}"
    make_folder(folder)
    if cache_dir is None:
        refuse_link(folder)
    refuse_link(folder / name)
    lock = FileLock(folder / f"{name}.lock")
    while not lock.acquire():
        time.sleep(_POLL)
    try:
        prepare(path, folder / name, tokenizer=loaded, **_AS_IT_IS)
    except FolderError as error:
        raise FolderError(
            f"{error}\nTo make the tokens of {path} again, remove {folder / name} and rerun."
        ) from None
    finally:
        lock.release()
    return open_tokens(folder / name)


def _cut(tokens: Tokens, length: int) -> tuple[Integers, Integers]:
    """Return the starts and lengths of examples: documents cut to at most `length` + 1 tokens.

    The last token of an example is the first token of the next one in the same document.
    """
    found = [np.empty(0, np.int64)]
    for first in range(0, len(tokens), _BLOCK):
        size = min(_BLOCK, len(tokens) - first)
        found.append(tokens.find_document_starts(np.array([first]), size) + first)
    begins = np.concatenate(found)
    sizes = np.diff(begins, append=len(tokens))
    counts = np.maximum(-(-(sizes - 1) // length), 1)
    ends = np.cumsum(counts)
    number = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    starts = np.repeat(begins, counts) + number * length
    lengths = np.minimum(np.repeat(begins + sizes, counts) - starts, length + 1)
    return starts, lengths
