"""Keep statistics beside their dataset, and read them again.

Each file appears whole or not at all. What is read is checked: its version, the types and the sizes,
and a checksum. If anything is wrong, the statistics count as absent, and are computed again.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import DatasetError, TokenizerError
from tokenmill.inspect.kept import find_kept
from tokenmill.inspect.stats.result import Figures, Sources, Statistics
from tokenmill.inspect.stats.tokens import MOST_IDS
from tokenmill.storage.files import is_temporary, refuse_link, write_file
from tokenmill.storage.lock import FileLock
from tokenmill.storage.reading import read_inside
from tokenmill.storage.receipts import encode_receipt, read_receipt
from tokenmill.tokenizers import Tokenizer

VERSION = 2
_NAME = "statistics"

Integers = npt.NDArray[np.int64]


class _Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of an array of little-endian int64."""

    name: str
    length: int
    xxh3_128: str


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the main file. `sources` is None if the dataset does not know its sources."""

    version: int
    figures: Figures
    counts: _Array
    sources: _Array | None
    has_bytes: bool


def read_kept(dataset: Dataset, split: str | None) -> Statistics | None:
    """Return the kept statistics of a dataset; None if there are none that can be used."""
    folder = find_kept(dataset)
    kept = read_receipt(_name(folder, split, "json"), _Kept)
    if kept is None or kept.version != VERSION or kept.figures.split != split:
        return None
    if not _is_made_alike(kept.figures, dataset):
        return None
    counts = _read(folder, kept.counts, MOST_IDS)
    sources = None
    if kept.sources is not None and dataset.manifest is not None:
        table = dataset.manifest.sources
        columns = _read(folder, kept.sources, len(Sources.COLUMNS) * len(table))
        if columns is None or len(columns) != len(Sources.COLUMNS) * len(table):
            return None
        columns = columns.reshape(len(Sources.COLUMNS), -1)
        sources = Sources(table, columns, has_bytes=kept.has_bytes)
    if counts is None:
        return None
    figures = {one.name: getattr(kept.figures, one.name) for one in dataclasses.fields(Figures)}
    return Statistics(**{**figures, "path": str(dataset.path)}, counts=counts, sources=sources)


def keep(dataset: Dataset, found: Statistics) -> None:
    """Write statistics to the folder of kept results.

    If another process is writing them, nothing is written. Raises OSError or FolderError if writing
    is not possible. A link in place of the folder is refused, since the dataset may be untrusted.
    """
    folder = find_kept(dataset, make=True)
    refuse_link(folder)
    lock = FileLock(folder / f"{_NAME}.lock")
    if not lock.acquire():
        return
    try:
        for name in os.listdir(folder):  # remove what killed processes left behind
            if name.startswith(_NAME) and is_temporary(name):
                (folder / name).unlink(missing_ok=True)
        _write_all(folder, found)
    finally:
        lock.release(remove=True)


def _write_all(folder: Path, found: Statistics) -> None:
    values: dict[str, Any] = {
        one.name: getattr(found, one.name) for one in dataclasses.fields(Figures)
    }
    sources = found.sources
    kept = _Kept(
        version=VERSION,
        figures=Figures(**values),
        counts=_write(_name(folder, found.split, "counts"), found.counts),
        sources=None
        if sources is None
        else _write(_name(folder, found.split, "sources"), sources.columns),
        has_bytes=sources is not None and sources.has_bytes,
    )
    write_file(_name(folder, found.split, "json"), encode_receipt(kept))


def _is_made_alike(figures: Figures, dataset: Dataset) -> bool:
    """Return whether figures were made with the same tokenizer and the same options."""
    if figures.eot_id != dataset.eot_id:
        return False
    manifest, vocab_size = dataset.manifest, dataset.vocab_size
    if manifest is not None and dataset.has_tokenizer:
        # The fingerprint is None if the tokenizer could not be loaded when they were computed.
        known: tuple[str | None, ...] = (manifest.tokenizer_fingerprint, None)
    else:
        found = find_tokenizer(dataset)
        if isinstance(found, TokenizerError):
            known = (None,)
        else:
            known = (found.fingerprint,)
            vocab_size = found.vocab_size if vocab_size is None else vocab_size
    return figures.tokenizer_fingerprint in known and figures.vocab_size == vocab_size


def find_tokenizer(dataset: Dataset) -> Tokenizer | TokenizerError:
    """Return the tokenizer of a dataset, or the error that says why it is unknown."""
    try:
        return dataset.tokenizer
    except TokenizerError as error:
        return error


def _name(folder: Path, split: str | None, kind: str) -> Path:
    """Return the path of a file. Its name has a hash of the split's name, which may be any text."""
    if split is None:
        return folder / f"{_NAME}.{kind}"
    name = xxhash.xxh3_64_hexdigest(split.encode("utf-8", "surrogatepass"))
    return folder / f"{_NAME}-{name}.{kind}"


def _write(path: Path, values: Integers) -> _Array:
    data = np.ascontiguousarray(values, "<i8").data.cast("B") if values.size else memoryview(b"")
    write_file(path, data)
    return _Array(path.name, values.size, xxhash.xxh3_128_hexdigest(data))


def _read(folder: Path, file: _Array, most: int) -> Integers | None:
    if not 0 <= file.length <= most or not file.name.startswith(_NAME) or "/" in file.name:
        return None
    try:
        data = read_inside(folder, file.name, 8 * file.length)
    except DatasetError:
        return None
    if len(data) != 8 * file.length or xxhash.xxh3_128_hexdigest(data) != file.xxh3_128:
        return None
    return np.frombuffer(data, "<i8")
