"""Open a dataset folder: its manifest, its splits as arrays, its tokenizer.

Guarantees: what opens is complete, and a tokenizer is used with it only if its fingerprint is the
one that the tokens were made with. Opening costs reading the manifest; shards and tokenizer are
read when first asked for.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from tokenmill.errors import DatasetError, TokenizerError, TokenmillError
from tokenmill.store.documents import Documents
from tokenmill.store.files import CURE, open_inside
from tokenmill.store.manifest import MANIFEST_NAME, TOKENIZER_NAME, Manifest
from tokenmill.store.shards import FileShards
from tokenmill.store.tokens import Tokens

if TYPE_CHECKING:
    from tokenmill.tokenizers.protocol import Tokenizer

__all__ = ["Dataset", "find_folder", "load_saved_tokenizer", "open"]

WORK_NAME = ".work"


class Dataset:
    """A dataset on disk: `dataset["train"]` is its training tokens as one array."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._tokens: dict[str, Tokens] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # A tokenizer may be native and unwilling; the copy reads it again when it needs it.
        return Dataset, (self.path, self.manifest)

    def __repr__(self) -> str:
        sizes = ", ".join(
            f"{name} {split.tokens:,} tokens" for name, split in self.manifest.splits.items()
        )
        return f"<Dataset {str(self.path)!r}: {sizes or 'no splits'}>"

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.manifest.splits)

    def __getitem__(self, split: str) -> Tokens:
        if split not in self.manifest.splits:
            there = ", ".join(self.splits) or "none at all"
            raise DatasetError(
                f"{self.path} has no split {split!r}. The splits there are: {there}."
            )
        if split not in self._tokens:
            self._tokens[split] = prepared_tokens(self.path, self.manifest, split)
        return self._tokens[split]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the tokens were made with, from the dataset's own copy of it."""
        return _check(load_saved_tokenizer(self.path), self.manifest, self.path)


def open(path: str | os.PathLike[str], *, tokenizer: str | Tokenizer | None = None) -> Dataset:
    """Open a dataset folder; with `tokenizer`, only if the tokens were made with that one.

    >>> open("no/such/folder")
    Traceback (most recent call last):
    ...
    tokenmill.errors.DatasetError: no/such/folder does not exist. Make a dataset with: \
tokenmill prepare TEXTS --out no/such/folder
    """
    folder = find_folder(path)
    dataset = Dataset(folder.absolute(), Manifest.read(folder))
    if isinstance(tokenizer, str):
        from tokenmill.tokenizers import load_tokenizer

        tokenizer = load_tokenizer(tokenizer)
    if tokenizer is not None:
        dataset.tokenizer = _check(tokenizer, dataset.manifest, folder)
    return dataset


def prepared_tokens(folder: Path, manifest: Manifest, split: str) -> Tokens:
    """The tokens of a split of a prepared dataset, with its documents."""
    shards = manifest.splits[split].shards
    dtype = np.dtype(manifest.dtype).newbyteorder("<")
    counts = np.array([shard.tokens for shard in shards], np.int64)
    return Tokens(
        FileShards(
            folder=folder,
            names=[shard.path for shard in shards],
            dtype=dtype,
            counts=counts,
            offsets=np.zeros_like(counts),
            sizes=counts * dtype.itemsize,
        ),
        split,
        documents=Documents(folder, shards, manifest.sources, split),
        eot_id=manifest.eot_id,
        eot=manifest.eot,
    )


def find_folder(path: str | os.PathLike[str]) -> Path:
    """The folder of a finished dataset, or an error that says what is there instead."""
    folder = Path(path)
    try:
        if not folder.exists():
            raise DatasetError(
                f"{folder} does not exist. Make a dataset with: "
                f"tokenmill prepare TEXTS --out {folder}"
            )
        if not folder.is_dir():
            inside = folder.name == MANIFEST_NAME or (folder.parent / MANIFEST_NAME).exists()
            hint = f"; give the folder it is in: {folder.parent}" if inside else ""
            raise DatasetError(f"{folder} is a file, and a dataset is a folder{hint}.")
        if not (folder / MANIFEST_NAME).exists() and (folder / WORK_NAME).exists():
            raise DatasetError(
                f"{folder} is not finished: a run into it was interrupted or still goes on. "
                "The same `tokenmill prepare` command goes on where it stopped."
            )
    except (OSError, ValueError) as error:  # no permission, a name too long or with a NUL in it
        reason = getattr(error, "strerror", None) or error
        raise DatasetError(f"{str(path)!r} cannot be read: {reason}.") from error
    return folder


def load_saved_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in a dataset folder, whatever its fingerprint."""
    from tokenmill.tokenizers import from_state

    with open_inside(folder, TOKENIZER_NAME) as file:
        data = file.read()
    try:
        state = orjson.loads(data)
        if not isinstance(state, dict):
            raise ValueError("it is not a JSON object")
        return from_state(state)
    except TokenmillError as error:
        raise TokenizerError(
            f"{TOKENIZER_NAME} in {folder} cannot be used: {error} {CURE}"
        ) from error
    except Exception as error:  # a state may be damaged in ways that no tokenizer foresees
        reason = f"{type(error).__name__}: {error}"
        raise TokenizerError(
            f"{TOKENIZER_NAME} in {folder} is damaged ({reason!r}). {CURE}"
        ) from error


def _check(tokenizer: Tokenizer, manifest: Manifest, folder: Path) -> Tokenizer:
    if tokenizer.fingerprint != manifest.tokenizer_fingerprint:
        raise TokenizerError(
            f"The tokens in {folder} were made with the tokenizer {manifest.tokenizer!r} "
            f"(fingerprint {manifest.tokenizer_fingerprint!r}), and this is {tokenizer.name!r} "
            f"(fingerprint {tokenizer.fingerprint!r}). Its ids mean something else: use the one "
            f"that the dataset brings, tokenmill.open({str(folder)!r}).tokenizer."
        )
    return tokenizer
