"""Open tokens on disk in place: a prepared dataset, or a file or folder in another format.

Guarantees: if no format matches the data, an error lists the formats that were tried. A prepared
dataset opens only if it is complete, and only with a tokenizer whose fingerprint matches the
manifest.

Costs: opening reads a manifest, a header or a list of files. Shards and the tokenizer are read on
first use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.paths import AnyPaths, find_all, read_paths
from tokenmill.errors import (
    DatasetError,
    TokenizerError,
    TokenmillError,
    UnregisteredTokenizerError,
    UsageError,
)
from tokenmill.formats.base import Contents, OpenRequest, parse_dtype
from tokenmill.formats.file_documents import PartOfDocuments
from tokenmill.formats.prepared import read_contents
from tokenmill.html import ROWS, render
from tokenmill.storage.cache import PieceCache, open_cache, open_default_cache
from tokenmill.storage.names import TOKENIZER_NAME
from tokenmill.storage.reading import CURE, is_mappable, read_inside
from tokenmill.store.manifest import Manifest
from tokenmill.store.shards import cut
from tokenmill.store.tokens import Tokens
from tokenmill.wording import counted

if TYPE_CHECKING:
    from tokenmill.tokenizers import Tokenizer


class Dataset(Mapping[str, Tokens]):
    """Tokens on disk: `dataset["train"]` is the training tokens as one array.

    A dataset is a mapping from names of splits to their tokens. A split without tokens is absent.
    `format` is the name of the recognized format. `vocab_size` and `eot_id` are None if neither the
    files nor the user gives them. `manifest` is None unless the dataset is a prepared one.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "x.npy", np.arange(10))
    >>> data = open(folder / "x.npy", val_fraction=0.2)
    >>> for split, tokens in data.items():
    ...     print(split, tokens)
    train <Tokens 'train': 8 tokens (int64) in 1 shard>
    val <Tokens 'val': 2 tokens (int64) in 1 shard>
    """

    # A dataset equals only itself, because comparing tokens would read all of them.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(
        self,
        path: Path,
        format: str,
        contents: Contents,
        tokenizer: Tokenizer | None = None,
        cache: PieceCache | None = None,
        *,
        is_cached: bool = False,
    ) -> None:
        self.path = path
        self.format = format
        self.contents = contents
        self.manifest = contents.manifest
        self.vocab_size = contents.vocab_size
        self.eot_id = contents.eot_id
        self._given = tokenizer
        self._cache = cache
        self._is_cached = is_cached  # whether to read through the default cache, if possible
        self._tokens: dict[str, Tokens] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(Dataset, is_cached=self._is_cached)
        return make, (self.path, self.format, self.contents, self._given, self._cache)

    def __repr__(self) -> str:
        sizes = ", ".join(
            f"{name} {int(shards.counts.sum()):,} tokens"
            for name, shards in islice(self.contents.splits.items(), ROWS)
        )
        more = len(self.contents.splits) - ROWS
        sizes += f", and {more:,} more splits" if more > 0 else ""
        kind = f"{self.format}, {self.dtype.name}"
        return f"<Dataset {str(self.path)!r}: {sizes or 'no tokens'}; {kind}>"

    def _repr_html_(self) -> str:
        manifest = self.manifest
        tokenizer = self.contents.tokenizer if manifest is None else manifest.tokenizer
        if self._given is not None:
            tokenizer = self._given.name
        facts = [("format", self.format), ("tokenizer", tokenizer or "unknown")]
        if self.contents.splits or manifest is not None:
            facts.append(("dtype", self.dtype.name))
        rows = []
        for name, shards in islice(self.contents.splits.items(), ROWS):
            split = None if manifest is None else manifest.splits.get(name)
            count = int(shards.counts.sum())
            is_whole = split is not None and split.tokens == count  # not so with `val_fraction`
            known = f"{split.documents:,}" if split is not None and is_whole else ""
            rows.append((name, f"{count:,}", known, f"{len(shards.counts):,}"))
        heads = ("split", "tokens", "documents", "shards")
        return render(f"Dataset {self.path}", facts, ("", heads, rows))

    def __iter__(self) -> Iterator[str]:
        return iter(self.contents.splits)

    def __len__(self) -> int:
        return len(self.contents.splits)

    def __contains__(self, split: object) -> bool:
        return split in self.contents.splits

    def get(self, split: str, default: Any = None) -> Any:
        """Return the tokens of a split, or `default` if there is no such split."""
        return self[split] if split in self.contents.splits else default

    def with_contents(self, contents: Contents) -> Dataset:
        """Return a copy of the dataset with other contents."""
        known = self.path, self.format, contents, self._given, self._cache
        return Dataset(*known, is_cached=self._is_cached)

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.contents.splits)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the ids on disk."""
        if self.manifest is not None:
            return np.dtype(self.manifest.dtype).newbyteorder("<")
        return next(iter(self.contents.splits.values())).dtype

    def __getitem__(self, split: str) -> Tokens:
        if split not in self:
            there = ", ".join(self) or "none"
            lacks = f"has no split {split!r}"
            if self.manifest is not None and split in self.manifest.splits:
                lacks = f"has no tokens in its split {split!r}"
            cure = "Use one of these." if self else "Make the dataset again, from more text."
            if self.splits == ("train",):
                make = (
                    "tokenmill prepare TEXTS --out FOLDER --val-fraction 0.1"
                    if self.manifest is not None
                    else f"tokenmill import {self.path} --out FOLDER --val-fraction 0.1"
                )
                cure += (
                    " To hold out some data as val, use tokenmill.open(path, val_fraction=0.1) in Python, "
                    f"or run: {make}"
                )
            raise DatasetError(f"{self.path} {lacks}. Splits with tokens: {there}. {cure}")
        if split not in self._tokens:
            tokens = Tokens(
                self.contents.splits[split],
                split,
                documents=self.contents.documents.get(split),
                eot_id=self.eot_id,
                eot=self.contents.eot,
                earlier=self.contents.earlier.get(split, ()),
            )
            if self._is_cached and tokens.is_cacheable:
                self._cache = open_default_cache()
                self._is_cached = False
            self._tokens[split] = tokens if self._cache is None else tokens.cached(self._cache)
        return self._tokens[split]

    @property
    def has_tokenizer(self) -> bool:
        """Whether a tokenizer is stored with the data. If so, failing to load it is an error."""
        if self.manifest is not None:
            return not _is_unknown(self.manifest)
        return self.contents.shard_of is not None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens: passed to `open`, or stored or named in the data.

        Raises a TokenizerError if the tokenizer is unknown.
        """
        if self._given is not None:
            return self._given
        if self.manifest is not None and not _is_unknown(self.manifest):
            return _check(load_saved_tokenizer(self.path), self.manifest, self.path)
        if self.contents.shard_of is not None:
            return open(self.contents.shard_of).tokenizer
        if self.contents.tokenizer is None:
            raise TokenizerError(
                f"{self.path} does not say which tokenizer made its tokens. Pass the name or file "
                "of the tokenizer: `tokenizer=NAME`."
            )
        from tokenmill.tokenizers import load_tokenizer

        return load_tokenizer(self.contents.tokenizer)

    @cached_property
    def known_tokenizer(self) -> Tokenizer | None:
        """The tokenizer, or None if the data does not include it and its name cannot be loaded."""
        try:
            return self.tokenizer
        except TokenizerError:
            if self.has_tokenizer:
                raise
            return None


def open(
    path: AnyPaths,
    *,
    tokenizer: str | Tokenizer | None = None,
    dtype: npt.DTypeLike | None = None,
    format: str | None = None,
    val_fraction: float | None = None,
    eot_id: int | None = None,
    vocab_size: int | None = None,
    column: str | None = None,
    generation: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> Dataset:
    """Open tokens on disk, without copying them. docs/formats.md lists the formats.

    >>> open("no/such/folder")
    Traceback (most recent call last):
    ...
    tokenmill.errors.DatasetError: no/such/folder does not exist. Make a dataset with: \
tokenmill prepare TEXTS --out no/such/folder

    Parameters
    ----------
    path
        A file, a folder, a glob such as "shards/*.bin", or a list of these. Lists keep their order.
        Files are assigned to splits by their names. `~` is the home folder.
    tokenizer
        The tokenizer that made the tokens; a prepared dataset refuses any other.
    dtype
        The dtype of ids in files without a header.
    format
        The name of the format. Needed only if the format is not recognized, or wrongly recognized.
    val_fraction
        Fraction of the tokens, at the end of the data, to hold out as `val`. Only for data without
        a validation split.
    eot_id
        The id that separates documents. By default, it comes from the tokenizer or the data.
    vocab_size
        One more than the largest possible id. By default, it comes from the tokenizer or the data.
    column
        The column with the tokens, in formats with several columns.
    generation
        For a dataset that has grown (`prepare` with `append`): which state to open, counted from 1.
        By default, the newest.
    cache_dir, cache_bytes
        Tokens in an object store are read through a cache on disk. If you pass `cache_dir` or
        `cache_bytes`, tokens in local files are too. `cache_dir` is the folder of the cache, by
        default ~/.cache/tokenmill. `cache_bytes` is the limit of the cache. By default, an existing
        cache keeps its limit, and a new cache gets 17 GB, but at most half of the free space.
        `cache_bytes=0` means no cache.
    """
    paths = find_all(path)
    _check_numbers(val_fraction, eot_id, vocab_size)
    request = OpenRequest(
        path=paths[0],
        dtype=None if dtype is None else parse_dtype(dtype),
        format=format,
        val_fraction=val_fraction,
        eot_id=eot_id,
        vocab_size=vocab_size,
        column=column,
    )
    name, contents, found = read_paths(request, paths)
    if generation is not None:
        contents = _choose_generation(found, contents, generation)
    contents = _drop_empty(found, contents)
    if tokenizer is not None:
        from tokenmill.tokenizers import load_tokenizer

        tokenizer = load_tokenizer(tokenizer)
    if tokenizer is not None and contents.manifest is not None:
        _check(tokenizer, contents.manifest, found)
    if tokenizer is not None and contents.shard_of is not None:
        _check(tokenizer, Manifest.read(contents.shard_of), contents.shard_of)
    contents = _hold_out(found, contents, val_fraction)
    if contents.manifest is None:
        size, end = (tokenizer.vocab_size, tokenizer.eot_id) if tokenizer else (None, None)
        end = end if contents.eot != "none" else None  # the tokens contain no end-of-text id
        contents = replace(
            contents,
            vocab_size=_first(vocab_size, size, contents.vocab_size),
            eot_id=_first(eot_id, end, contents.eot_id),
        )
    cache = None if cache_bytes == 0 else open_cache(cache_dir, cache_bytes)
    is_cached = cache is None and cache_bytes is None and not is_mappable(found)
    return Dataset(found.absolute(), name, contents, tokenizer, cache, is_cached=is_cached)


def load_saved_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer in a dataset folder, without comparing it with the manifest."""
    return read_saved_tokenizer(folder)[0]


def read_saved_tokenizer(folder: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the tokenizer in a dataset folder, and the saved state that it was loaded from."""
    from tokenmill.tokenizers import from_state
    from tokenmill.tokenizers.limits import MOST_BYTES, parse_object

    data = read_inside(folder, TOKENIZER_NAME, MOST_BYTES)
    try:
        state = parse_object(data, "it", "tokenizer's state")
        return from_state(state), state
    except UnregisteredTokenizerError as error:  # the file itself is intact
        raise UnregisteredTokenizerError(
            f"{TOKENIZER_NAME} in {folder} cannot be used: {error}"
        ) from error
    except TokenmillError as error:
        raise TokenizerError(
            f"{TOKENIZER_NAME} in {folder} cannot be used: {error} {CURE}"
        ) from error
    except Exception as error:  # a tokenizer can raise any error for a damaged state
        reason = f"{type(error).__name__}: {error}"
        raise TokenizerError(
            f"{TOKENIZER_NAME} in {folder} is damaged ({reason!r}). {CURE}"
        ) from error


def _is_unknown(manifest: Manifest) -> bool:
    """Return whether the dataset was imported without a tokenizer."""
    from tokenmill.tokenizers.minimal import UNKNOWN

    return manifest.tokenizer == UNKNOWN


def _check(tokenizer: Tokenizer, manifest: Manifest, folder: Path) -> Tokenizer:
    if _is_unknown(manifest):
        return tokenizer
    if tokenizer.fingerprint != manifest.tokenizer_fingerprint:
        raise TokenizerError(
            f"The tokens in {folder} were made with the tokenizer {manifest.tokenizer!r} "
            f"(fingerprint {manifest.tokenizer_fingerprint!r}), but you passed "
            f"{tokenizer.name!r} (fingerprint {tokenizer.fingerprint!r}), which gives other ids. "
            "Omit `tokenizer` to use the tokenizer in the dataset."
        )
    return tokenizer


def _check_numbers(val_fraction: float | None, eot_id: int | None, vocab_size: int | None) -> None:
    if val_fraction is not None and not 0 <= val_fraction < 1:
        raise UsageError(f"`val_fraction` is {val_fraction}; it must be 0 or more, and below 1.")
    if vocab_size is not None and vocab_size < 1:
        raise UsageError(f"`vocab_size` is {vocab_size}; it must be 1 or more.")
    if eot_id is not None and not 0 <= eot_id < (vocab_size or 1 << 63):
        raise UsageError(f"`eot_id` is {eot_id}; it must be 0 or more, and below `vocab_size`.")


def _drop_empty(path: Path, contents: Contents) -> Contents:
    """Remove splits without tokens, so that an empty split counts as absent in every format."""
    splits = {name: shards for name, shards in contents.splits.items() if shards.counts.any()}
    if not splits and contents.manifest is None:
        raise DatasetError(f"{path} has no tokens. Copy or download it again.")
    documents = {name: table for name, table in contents.documents.items() if name in splits}
    return replace(contents, splits=splits, documents=documents)


def _hold_out(path: Path, contents: Contents, val_fraction: float | None) -> Contents:
    """Return contents in which the last `val_fraction` of the split `train` is the split `val`."""
    if val_fraction is None:
        return contents
    if tuple(contents.splits) != ("train",):
        raise UsageError(
            f"{path} already has the splits {', '.join(contents.splits)}. Omit `val_fraction`."
        )
    total = int(contents.splits["train"].counts.sum())
    place = int(total * (1 - val_fraction))
    if not val_fraction:
        return contents
    if not 0 < place < total:
        raise UsageError(
            f"`val_fraction` is {val_fraction}, which leaves a split empty: there "
            f"are only {total:,} tokens. Choose a fraction that leaves tokens in both splits."
        )
    train, val = cut(contents.splits["train"], place)
    documents = {
        split: PartOfDocuments(whole, start, stop, split)
        for whole in contents.documents.values()
        for split, start, stop in (("train", 0, place), ("val", place, total))
    }
    return replace(contents, splits={"train": train, "val": val}, documents=documents, earlier={})


def _choose_generation(path: Path, contents: Contents, generation: int) -> Contents:
    """Return the contents of a dataset as they were before it grew beyond `generation`."""
    manifest = contents.manifest
    if manifest is None:
        raise UsageError(
            f"`generation` is for prepared datasets, and {path} is not one. Omit `generation`."
        )
    if not 1 <= generation <= manifest.generation:
        raise UsageError(
            f"`generation` is {generation}, but {path} has {counted(manifest.generation, 'generation')}, "
            "counted from 1."
        )
    return read_contents(path.absolute(), manifest.at(generation))


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
