"""The data of a run: training tokens, validation tokens, and their tokenizer.

The data is anything that `tokenmill.open` opens, or several datasets as `name=DIR:weight`, or one
text file, which is tokenized in memory. The time to open a dataset does not grow with the number of
tokens.

The validation set is the split `val`. For a mixture, the validation set is made in memory from the
beginning of each source's `val`, in proportion to the weights. So the validation loss estimates the
loss on the mixture, and every run on this data has the same validation set.

While training, rows are read from their files and not through memory maps. If a mapped file is
truncated, or its disk fails, the system kills the process (SIGBUS). A failed read instead raises an
error that names the file, and the run can save a checkpoint. `store/file_rows.py` describes the
cost. Reading can stop between two rows, so that a run with large steps exits promptly.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.named import parse_named
from tokenmill.dataset.opening import Dataset
from tokenmill.errors import InputError, TokenizerError, UsageError
from tokenmill.load.mixture import Mixture
from tokenmill.load.prefetch import leave_if_stopped
from tokenmill.preparation.settings import EOT_TEXT
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers import Tokenizer
from tokenmill.training.config import Config, Ids, check_value
from tokenmill.training.run_generations import open_saved
from tokenmill.training.run_reading import DataOrigin, SavedSource

AnyPath = str | os.PathLike[str]

IN_MEMORY_VAL = 0.1  # the share of a text file, at its end, for validation
LARGE = 512 << 20  # bytes; a larger text file should be prepared instead


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The training and validation data of a run; ids go from 0 to vocab - 1.

    `describe` is a description and `notes` are warnings, both for display. `origin` says how to
    open the data again; None if it was made in memory.
    """

    train: Tokens | Mixture
    val: Tokens | None
    vocab: int
    tokenizer: Tokenizer | None
    eot_id: int | None
    describe: str
    notes: tuple[str, ...] = ()
    origin: DataOrigin | None = None

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes that identify the tokens of each source, the validation set and the tokenizer."""
        if isinstance(self.train, Mixture):
            names = [f"train {name}" for name in self.train.names]
            found = dict(zip(names, self.train.tokens, strict=True))
        else:
            found = {"train": self.train}
        if self.val is not None:
            found["val"] = self.val
        named = {name: tokens.identity for name, tokens in found.items()}
        return named | ({"tokenizer": self.tokenizer.fingerprint} if self.tokenizer else {})


@dataclass(frozen=True, kw_only=True)
class _Source:
    """One dataset of a run; `name` is "" if it is not part of a mixture."""

    path: str
    name: str
    weight: float
    dataset: Dataset

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.dataset.known_tokenizer

    @cached_property
    def vocab(self) -> int:
        known = [self.dataset.vocab_size] if self.dataset.vocab_size is not None else []
        known += [self.tokenizer.vocab_size] if self.tokenizer is not None else []
        if not known:
            raise UsageError(
                f"{self.path} does not include the size of its vocabulary. Give the tokenizer that made "
                "it (`tokenizer='gpt2'`) or the number of ids (`vocab_size=50257`)."
            )
        return max(known)

    @property
    def described(self) -> str:
        """The path, and the generation if the dataset has grown since the run began."""
        manifest = self.dataset.manifest
        if manifest is None or manifest.generation == manifest.newest:
            return self.path
        return f"{self.path}, generation {manifest.generation} of {manifest.newest}"

    @property
    def val(self) -> Tokens | None:
        return self.dataset["val"] if "val" in self.dataset.splits else None

    def check_same(self, other: _Source) -> None:
        """Raise `TokenizerError` if `other` was made with another tokenizer."""
        ours, theirs = self.tokenizer, other.tokenizer
        if (ours and ours.fingerprint) != (theirs and theirs.fingerprint):
            raise TokenizerError(
                f"{self.path} was made with {_describe(ours)}, and {other.path} with "
                f"{_describe(theirs)}: their ids may mean different things. If one of them does not "
                "name its tokenizer, give `tokenizer=NAME`; otherwise prepare both with one tokenizer."
            )


def open_data(
    data: Sequence[str],
    *,
    input_file: AnyPath | None = None,
    tokenizer: str | Tokenizer | None = None,
    val: AnyPath | None = None,
    config: Config,
    vocab_size: int | None = None,
    eot_id: int | None = None,
    dtype: npt.DTypeLike | None = None,
    format: str | None = None,
    val_fraction: float | None = None,
    cache_dir: AnyPath | None = None,
    cache_bytes: int | None = None,
    saved: Mapping[str, SavedSource] | None = None,
) -> RunData:
    """Open the data of a run: one dataset, several as `name=DIR:weight`, or a text file.

    `saved` are the tokens of the run that resumes, by source: if a dataset has grown, the generation
    with these tokens is opened. `val` is the path of tokens to validate on, instead of the split `val`. The other arguments work
    as in `tokenmill.open`. The default `tokenizer` for `input_file` is gpt2.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "input.txt"
    >>> _ = file.write_text("To be, or not to be: that is the question. " * 100)
    >>> found = open_data([], input_file=file, tokenizer="bytes", config=Config())
    >>> found.train, found.vocab
    (<Tokens 'train': 3,870 tokens (uint16) in 1 shard>, 257)
    >>> open_data(["no/such"], config=Config())
    Traceback (most recent call last):
    ...
    tokenmill.errors.DatasetError: no/such does not exist. Make a dataset with: \
tokenmill prepare TEXTS --out no/such
    """
    if bool(data) == (input_file is not None):
        raise UsageError(
            "give the data once: give either datasets (`data`) or a text file (`input_file`)."
        )
    check_value("vocab_size", vocab_size, Ids | None)
    if tokenizer is not None:
        from tokenmill.tokenizers import load_tokenizer

        tokenizer = load_tokenizer(tokenizer)
    if input_file is not None:
        found = _read_text(Path(input_file), tokenizer, val_fraction)
    options: dict[str, Any] = {"tokenizer": tokenizer, "dtype": dtype, "format": format}
    options |= {"vocab_size": vocab_size, "eot_id": eot_id}
    options |= {"cache_dir": cache_dir, "cache_bytes": cache_bytes}
    sources = [_open(*parsed, val_fraction, options, saved or {}) for parsed in parse_named(data)]
    if sources:
        found = _join(sources, config)
    if val is not None:
        other = _open("", os.fspath(val), 1.0, None, options, {})
        if sources:
            sources[0].check_same(other)
        found = replace(found, val=other.val or other.dataset["train"], notes=())
    origin = DataOrigin.of(
        data,
        input_file=input_file,
        tokenizer=tokenizer.name if tokenizer is not None else None,
        dtype=None if dtype is None else np.dtype(dtype).name,
        format=format,
        vocab_size=vocab_size,
        eot_id=eot_id,
        val_fraction=val_fraction,
    )
    return _without_short_val(replace(found, origin=origin), config)


def _open(
    name: str,
    path: str,
    weight: float,
    val_fraction: float | None,
    options: dict[str, Any],
    saved: Mapping[str, SavedSource],
) -> _Source:
    # Mixtures keep an existing `val`.
    keeps_val = bool(name)
    opened = open_saved(
        path, saved.get(name), val_fraction=val_fraction, keeps_val=keeps_val, **options
    )
    return _Source(name=name, path=path, weight=weight, dataset=opened.read)


def _join(sources: Sequence[_Source], config: Config) -> RunData:
    """Return the sources as the data of a run. Raises `TokenizerError` if tokenizers differ."""
    first = sources[0]
    for source in sources[1:]:
        first.check_same(source)
    parts = {source.name: (source.dataset["train"], source.weight) for source in sources}
    described = [
        f"{f'{name} {weight:g} of ' if name else ''}{source.described}: {len(tokens):,} tokens"
        for source, (name, (tokens, weight)) in zip(sources, parts.items(), strict=True)
    ]
    return RunData(
        train=Mixture(parts) if first.name else parts[""][0],
        val=_join_val(sources, config) if first.name else first.val,
        vocab=max(source.vocab for source in sources),
        tokenizer=first.tokenizer,
        eot_id=first.dataset.eot_id,
        describe="; ".join(described),
        notes=tuple(
            f"{source.path} has no validation split; use `val` or `val_fraction`."
            for source in sources
            if source.val is None
        ),
    )


def _describe(tokenizer: Tokenizer | None) -> str:
    return f"the tokenizer {tokenizer.name!r}" if tokenizer else "a tokenizer that it does not name"


def _join_val(sources: Sequence[_Source], config: Config) -> Tokens | None:
    """Return a validation set of rows from the start of each source's `val`.

    The numbers of rows are in proportion to the weights. None if there would be no rows.
    """
    having = [(source.val, source.weight) for source in sources if source.val is not None]
    whole = sum(weight for _, weight in having)
    parts: list[npt.NDArray[np.uint32]] = []
    for tokens, weight in having:
        rows = int(config.validation_tokens * weight / whole) // config.seq_len if whole else 0
        rows = min(rows, max(0, len(tokens) - 1) // config.seq_len)
        if rows:
            # A row's last target is the first token of the next row, so only the last row needs one
            # more token.
            parts[-1:] = [part[:-1] for part in parts[-1:]]
            parts.append(tokens[: rows * config.seq_len + 1].astype(np.uint32))
    if not parts:
        return None
    first = having[0][0]
    return Tokens.of(np.concatenate(parts), split="val", eot_id=first.eot_id, eot=first.eot)


def _without_short_val(found: RunData, config: Config) -> RunData:
    if found.val is None or len(found.val) > config.seq_len:
        return found
    note = (
        f"the validation set has {len(found.val):,} tokens, but one row needs more than "
        f"{config.seq_len:,}: there will be no validation."
    )
    return replace(found, val=None, notes=(*found.notes, note))


def _read_text(path: Path, tokenizer: Tokenizer | None, val_fraction: float | None) -> RunData:
    """Tokenize a text file in memory: its first part is for training, its end for validation."""
    from tokenmill.tokenizers import load_tokenizer

    tokenizer = tokenizer or load_tokenizer("gpt2")
    fraction = IN_MEMORY_VAL if val_fraction is None else val_fraction
    if not 0 <= fraction < 1:
        raise UsageError(f"`val_fraction` is {fraction}; it must be 0 or more, and below 1.")
    if path.is_char_device() or path.is_block_device():  # it may never end
        raise InputError(f"{path} is a device, not a text file.")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{str(path)!r} cannot be read: {error}.") from error
    documents = [document for document in text.split(EOT_TEXT.encode()) if document]
    if not documents:
        raise InputError(f"{path} contains no text.")
    if tokenizer.eot_id is None:
        ids = tokenizer.encode_batch(documents)[0]
    else:
        ids = tokenizer.encode_terminated(documents)[0]
    if tokenizer.vocab_size <= 1 << 16:
        ids = ids.astype(np.uint16)
    place = int(len(ids) * (1 - fraction))
    train, val = (
        Tokens.of(part, split=split, eot_id=tokenizer.eot_id)
        for part, split in ((ids[:place], "train"), (ids[place:], "val"))
    )
    large = (
        f"{path} is tokenized in memory at every start. Tokenize a text of this size once, with "
        f"tokenmill prepare {path} --out DIR, and give DIR as `data`.",
    )
    return RunData(
        train=train,
        val=val if len(val) else None,
        vocab=tokenizer.vocab_size,
        tokenizer=tokenizer,
        eot_id=tokenizer.eot_id,
        describe=f"{path}: {len(train):,} tokens in memory",
        notes=large if len(text) > LARGE else (),
    )


@overload
def read_not_mapped(data: Tokens) -> Tokens: ...
@overload
def read_not_mapped(data: Tokens | Mixture) -> Tokens | Mixture: ...
def read_not_mapped(data: Tokens | Mixture) -> Tokens | Mixture:
    """Return the same data, read from files without memory maps. Reading can stop between rows.

    >>> rows = read_not_mapped(Tokens.of([5, 6, 7, 8])).gather(np.array([2, 0]), 2, np.int32)
    >>> rows.tolist()
    [[7, 8], [5, 6]]
    """
    return data.unmapped(leave_if_stopped)
