"""Divide the documents of two datasets by their keys, so that each part fits in memory.

Costs: memory for about `LIMIT` documents. If there are more, 48 bytes of disk for each document, in a
temporary folder that is removed at the end. If a part is still too large, equal documents in it are
joined to one entry; if that is not enough, the part is divided again.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tokenmill.inspect.diff.matching import ENTRY, Entries, reduce_entries
from tokenmill.progress import Watcher
from tokenmill.storage.disk import explain_disk_errors

LIMIT = 1 << 20  # entries in memory
_BITS = 8  # bits of a hash that choose a file
_ROUNDS = 4  # divisions at most; then a part is used, however large it is
_READ = 1 << 17  # entries read at once


def divide(
    blocks: Iterable[Entries], total: int, watcher: Watcher, limit: int = LIMIT
) -> Iterator[Entries]:
    """Yield all entries again, so that entries with equal keys are in the same array.

    `total` is how many there are, or any number above `limit` if there are more than that.
    """
    if total <= limit:
        found = list(blocks)
        yield np.concatenate(found) if found else np.empty(0, ENTRY)
        return
    # The factor is random, so that nobody can make keys that all fall into one part.
    factor = np.uint64(secrets.randbits(64) | 1)
    with explain_disk_errors(), tempfile.TemporaryDirectory(prefix="tokenmill-diff-") as name:
        folder = Path(name)
        _distribute(blocks, folder, factor, 0)
        watcher.begin("comparing documents", sum(one.stat().st_size for one in folder.iterdir()))
        yield from _read_all(folder, factor, 0, limit, watcher)


def _distribute(blocks: Iterable[Entries], folder: Path, factor: np.uint64, round: int) -> None:
    """Write entries to files in a folder, chosen by some bits of a hash of their key."""
    with ExitStack() as stack:
        files: dict[int, BinaryIO] = {}
        for entries in blocks:
            high, low = entries["key"].T
            mixed = (high ^ (low * factor)) * factor
            part = (mixed >> np.uint64(64 - _BITS * (round + 1))).astype(np.uint8)
            order = np.argsort(part, kind="stable")
            borders = np.searchsorted(part[order], np.arange((1 << _BITS) + 1))
            ordered = entries[order]
            for number in np.flatnonzero(np.diff(borders)).tolist():
                if number not in files:
                    files[number] = stack.enter_context((folder / f"{number:03}").open("wb"))
                files[number].write(ordered[borders[number] : borders[number + 1]].tobytes())


def _read_all(
    folder: Path, factor: np.uint64, round: int, limit: int, watcher: Watcher
) -> Iterator[Entries]:
    for path in sorted(folder.iterdir()):
        count = path.stat().st_size // ENTRY.itemsize
        reduced = _reduce_file(path, limit if round + 1 < _ROUNDS else count)
        if reduced is not None:
            yield reduced
            watcher.advance(count * ENTRY.itemsize)
        else:
            below = folder / f"{path.name}.parts"
            below.mkdir()
            _distribute(_read(path), below, factor, round + 1)
            path.unlink()
            yield from _read_all(below, factor, round + 1, limit, watcher)
            below.rmdir()
            continue
        path.unlink()


def _reduce_file(path: Path, limit: int) -> Entries | None:
    """Return the entries of a file, equal documents joined; None if more than `limit` are left."""
    held: list[Entries] = []
    count = 0
    for entries in _read(path):
        held.append(entries)
        count += len(entries)
        if count > limit:
            held = [reduce_entries(np.concatenate(held))]
            count = len(held[0])
            if count > limit:
                return None
    return np.concatenate(held) if held else np.empty(0, ENTRY)


def _read(path: Path) -> Iterator[Entries]:
    with path.open("rb") as file:
        while data := file.read(_READ * ENTRY.itemsize):
            yield np.frombuffer(data, ENTRY)
