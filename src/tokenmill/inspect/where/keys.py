"""Find documents by their keys. A key is the 128-bit hash of a document's cleaned text.

In a dataset of up to 2 million documents, all document tables are read, which takes a few tenths of a
second. For a larger one, an index is made first: see `key_index.py`. It is kept beside the dataset
(`kept.py`); a lookup then takes a few milliseconds, however many documents there are. Every result is
compared with the document table, so an index of other data never gives a wrong answer. A damaged
index is made again. If several processes need the index, one makes it and the others wait.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import DatasetError, UsageError
from tokenmill.inspect.kept import find_kept
from tokenmill.inspect.where.key_index import FILE_NAME, RECEIPT_NAME, KeyIndex, make_index
from tokenmill.progress import Watcher, watching
from tokenmill.storage.files import make_subfolder, remove_temporaries
from tokenmill.storage.lock import FileLock
from tokenmill.storage.reading import DamagedFileError, is_mappable
from tokenmill.store.documents import Document, Documents, sums

LEAST_DIGITS, DIGITS = 6, 32
SCANNED = 1 << 21  # documents; more than that need an index
SCANNED_REMOTE = 1 << 16

_KEY = re.compile(f"[0-9a-fA-F]{{{LEAST_DIGITS},{DIGITS}}}")
_FOLDER = "keys"
_WAIT = 0.2  # seconds between tries to take the lock
_MOST = 1000  # documents to return, by default


def is_key(text: str) -> bool:
    """Return whether a text looks like a key, or like at least the first 6 digits of one.

    >>> is_key("00ff00"), is_key("00ff0"), is_key("hello!")
    (True, False, False)
    """
    return _KEY.fullmatch(text) is not None


def open_tables(dataset: Dataset) -> list[Documents]:
    """Return the document tables of a prepared dataset, one for each split.

    Raises DatasetError if the data is in another format, because its documents have no keys.
    """
    manifest = dataset.manifest
    if manifest is None:
        raise DatasetError(
            f"{dataset.path} is in the format {dataset.format}, whose documents have neither keys nor "
            "sources. Search for their text, or import the tokens first: tokenmill import "
            f"{dataset.path} --out FOLDER"
        )
    return [
        Documents(dataset.path, split.shards, manifest.sources, name)
        for name, split in manifest.splits.items()
    ]


def find_key(
    dataset: Dataset,
    key: str,
    *,
    most: int = _MOST,
    progress: bool | None = None,
    watcher: Watcher | None = None,
) -> list[Document]:
    """Return the documents with a key, or with keys that begin with it; at most `most` of them.

    `key` has 6 to 32 hexadecimal digits. Several documents may have the same key if duplicates were
    kept. Documents are ordered by the first 64 bits of their keys, then by their places.

    >>> import tempfile
    >>> import tokenmill
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("to be or not to be")
    >>> _ = tokenmill.prepare(folder / "a.txt", folder / "data", tokenizer="bytes", val_fraction=0)
    >>> dataset = tokenmill.open(folder / "data")
    >>> key = dataset["train"].documents[0].key
    >>> [document.number for document in find_key(dataset, key[:8])]
    [0]
    >>> find_key(dataset, "0" * 32)
    []
    """
    if not is_key(key):
        raise UsageError(
            f"{key!r} is not a key. A key has {DIGITS} digits from 0 to 9 and a to f; give at least "
            f"the first {LEAST_DIGITS}."
        )
    key = key.lower()
    tables = open_tables(dataset)
    scanned = SCANNED if is_mappable(dataset.path) else SCANNED_REMOTE
    if sum(map(len, tables)) <= scanned:
        return list(islice(_scan(tables, key), most))
    with watching(watcher, progress) as shown:
        try:
            folder = find_kept(dataset, make=True)
            make_subfolder(folder.parent, folder / _FOLDER)
            return _look_up(tables, folder / _FOLDER, key, most, shown)
        except OSError as error:  # the folder cannot be written to, or the disk is full
            shown.note(
                f"The index of keys cannot be kept: {error.strerror or error}. Reading all document "
                "tables instead."
            )
            return list(islice(_scan(tables, key), most))


def _look_up(
    tables: Sequence[Documents], folder: Path, key: str, most: int, watcher: Watcher
) -> list[Document]:
    """Find documents with the index in a folder. Make the index if it is missing or damaged."""
    for _ in range(2):
        if (index := KeyIndex.find(folder, tables)) is None:
            index = _make_alone(tables, folder, watcher)
        try:
            return list(islice(_search(index, tables, key), most))
        except DamagedFileError as error:
            if error.file != FILE_NAME:
                raise
            (folder / RECEIPT_NAME).unlink(missing_ok=True)
    raise DatasetError(
        f"The index of keys in {folder} was made again because it was damaged, and is damaged again. "
        "Check the disk, and delete that folder."
    )


def _make_alone(tables: Sequence[Documents], folder: Path, watcher: Watcher) -> KeyIndex:
    """Make the index, unless another process makes it first."""
    lock, waits = FileLock(folder / "lock"), False
    while not lock.acquire():
        if not waits:
            waits = True
            watcher.note(f"Waiting for process {lock.owner}, which makes the index of keys.")
        time.sleep(_WAIT)
    try:
        if (index := KeyIndex.find(folder, tables)) is None:
            remove_temporaries(folder)  # left by a process that was killed
            index = make_index(folder, tables, watcher)
        return index
    finally:
        lock.release()


def _search(index: KeyIndex, tables: Sequence[Documents], key: str) -> Iterator[Document]:
    """Yield the documents with keys that begin with `key`. The index has only 64 bits of each key."""
    low, high = _bounds(key)
    starts = sums([len(table) for table in tables])
    for entries in index.search(low, high):
        if int(entries["number"].max()) >= int(starts[-1]):
            raise _foreign_index()
        splits = starts.searchsorted(entries["number"].astype(np.int64), "right") - 1
        for (first, number), split in zip(entries.tolist(), splits.tolist(), strict=True):
            document = tables[split][number - int(starts[split])]
            if document.key is None or int(document.key[:16], 16) != first:
                raise _foreign_index()
            if document.key.startswith(key):
                yield document


def _foreign_index() -> DamagedFileError:
    return DamagedFileError(FILE_NAME, "does not belong to these documents")


def _bounds(key: str) -> tuple[int, int]:
    """Return the lowest and the highest value of the first 64 bits of keys that begin with `key`."""
    return int(key[:16].ljust(16, "0"), 16), int(key[:16].ljust(16, "f"), 16)


def _scan(tables: Sequence[Documents], key: str) -> Iterator[Document]:
    """Yield the documents with keys that begin with `key`, after reading all tables."""
    low, high = map(np.uint64, _bounds(key))
    keys, places = [np.empty(0, np.uint64)], [np.empty((0, 2), np.int64)]
    for split, table in enumerate(tables):
        for first, records in table.read_records():
            halves = records["key"][:, 0]
            found = np.flatnonzero((halves >= low) & (halves <= high))
            keys.append(halves[found])
            places.append(np.stack([np.full(len(found), split), first + found], axis=1))
    joined, numbers = np.concatenate(keys), np.concatenate(places)
    for split, number in numbers[np.argsort(joined, kind="stable")].tolist():
        document = tables[split][number]
        if document.key is not None and document.key.startswith(key):
            yield document
