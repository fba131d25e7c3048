"""`tokenmill.cache`: copy a dataset into the disk cache before a job, and measure how much is cached.

The cache stores files in pieces. Guarantees: the cache stays within its limit, and each piece is
checked when it is read. After an interruption, the same call resumes: pieces that are in the cache
are not fetched again. Costs: 16 requests of up to 1 MB run at once. Measuring reads the index of
the cache. If the dataset is in an object store, measuring also lists its objects.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy.typing as npt

import tokenmill.dataset.opening
from tokenmill.dataset.opening import Dataset
from tokenmill.dataset.paths import AnyPaths
from tokenmill.progress import Watcher, watching
from tokenmill.storage.cache import (
    SET_BYTES,
    PieceCache,
    find_cache_folder,
    find_limit,
    open_cache,
    read_keys,
)
from tokenmill.store.cached_rows import CachedRows
from tokenmill.store.frame_rows import find_stored
from tokenmill.store.shards import are_files
from tokenmill.wording import size

_AT_ONCE = 1 << 30  # bytes of tokens to look up and fetch at once
_FILLED = 0.9  # how far to fill a cache that is too small; more would replace pieces just fetched
_ROOM = 1.25  # a cache of this many times the size of the data drops almost no pieces


@dataclass(frozen=True, kw_only=True)
class SplitCache:
    """The size of a split's tokens on disk, and how many of these bytes are in the cache."""

    name: str
    bytes: int
    cached: int


@dataclass(frozen=True, kw_only=True)
class CacheReport:
    """How much of a dataset is in a cache.

    `fetched` counts the bytes that this call of `cache` has fetched; it is 0 in other reports.
    """

    path: Path
    folder: Path
    limit: int
    splits: tuple[SplitCache, ...]
    fetched: int = 0

    @property
    def bytes(self) -> int:
        """The size of the tokens of all splits, in bytes."""
        return sum(split.bytes for split in self.splits)

    @property
    def cached(self) -> int:
        """How many bytes of the tokens are in the cache."""
        return sum(split.cached for split in self.splits)


def cache(
    path: AnyPaths,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    split: str | Sequence[str] | None = None,
    dtype: npt.DTypeLike | None = None,
    format: str | None = None,
    column: str | None = None,
    watcher: Watcher | None = None,
    progress: bool | None = None,
) -> CacheReport:
    """Copy the tokens of a dataset into the disk cache, so that a job need not wait for them.

    After an interruption, the same call resumes. If the cache is too small for the data, nine
    tenths of the cache are filled with the beginning of the data, and a notice says so. A training
    job then fetches the rest of the data when needed.

    >>> import tempfile, numpy
    >>> folder = Path(tempfile.mkdtemp())
    >>> numpy.save(folder / "ids.npy", numpy.arange(100_000))
    >>> report = cache(folder / "ids.npy", cache_dir=folder / "cache", cache_bytes=10**7)
    >>> report.bytes, report.cached, report.fetched
    (800000, 800000, 800128)

    Parameters
    ----------
    path
        As in `tokenmill.open`: the address of a dataset in an object store, or a path.
    cache_dir, cache_bytes
        The folder of the cache, by default ~/.cache/tokenmill, and the limit of the cache in bytes.
        By default, an existing cache keeps its limit, and a new cache gets 17 GB, but at most half of
        the free space. Give `tokenmill.open` the same folder.
    split
        Name of the split to fetch, or several names. By default, all splits.
    dtype, format, column
        As in `tokenmill.open`.
    watcher, progress
        As in `tokenmill.prepare`.
    """
    opened = tokenmill.dataset.opening.open(path, dtype=dtype, format=format, column=column)
    folder = find_cache_folder(cache_dir)
    kept = open_cache(folder, cache_bytes)
    assert kept is not None
    names = [split] if isinstance(split, str) else list(split or opened.splits)
    for name in names:
        opened[name].cached(kept)  # raises an error if the format cannot be cached
    sources = {name: _make_source(opened, name, kept) for name in names}
    with watching(watcher, progress) as watcher:
        stops = _plan(sources, kept, watcher)
        for source in sources.values():
            source.find_files()
        keys = read_keys(folder)
        done = sum(sources[name].count_cached(keys, stop) for name, stop in stops.items())
        total = sum(stop * sources[name].dtype.itemsize for name, stop in stops.items())
        watcher.begin("caching", total, done)
        fetched = 0
        for name, stop in stops.items():
            source = sources[name]
            step = _AT_ONCE // source.dtype.itemsize
            for first in range(0, stop, step):
                for amount in source.fetch_ranges([(first, min(first + step, stop))]):
                    fetched += amount
                    watcher.advance(amount)
    return CacheReport(
        path=opened.path,
        folder=folder,
        limit=kept.limit,
        splits=measure_cache(opened, kept, names),
        fetched=fetched,
    )


def find_cached(dataset: Dataset, cache_dir: str | os.PathLike[str] | None) -> CacheReport | None:
    """Return how much of a dataset is in the cache in `cache_dir`; None if there is no cache."""
    folder = find_cache_folder(cache_dir)
    limit = find_limit(folder)
    if limit is None:
        return None
    names = [name for name, one in dataset.contents.splits.items() if are_files(find_stored(one))]
    splits = measure_cache(dataset, PieceCache(folder, limit), names)
    return CacheReport(path=dataset.path, folder=folder, limit=limit, splits=splits)


def measure_cache(
    dataset: Dataset, cache: PieceCache, names: Sequence[str]
) -> tuple[SplitCache, ...]:
    """Return how much of some splits is in a cache. Reads the index of the cache, but no piece."""
    keys = read_keys(cache.folder)
    found = []
    for name in names:
        source = _make_source(dataset, name, cache)
        tokens = int(source.starts[-1])
        if len(keys):
            source.find_files()
        cached = source.count_cached(keys, tokens)
        found.append(SplitCache(name=name, bytes=tokens * source.dtype.itemsize, cached=cached))
    return tuple(found)


def _make_source(dataset: Dataset, name: str, cache: PieceCache) -> CachedRows:
    return CachedRows(find_stored(dataset.contents.splits[name]), cache)


def _plan(sources: dict[str, CachedRows], cache: PieceCache, watcher: Watcher) -> dict[str, int]:
    """Return how many ids of each split to fetch. Print a notice if the cache cannot hold all."""
    sizes = {
        name: int(source.starts[-1]) * source.dtype.itemsize for name, source in sources.items()
    }
    total, room = sum(sizes.values()), cache.capacity
    if total > room:
        enough = -int(-_ROOM * total // SET_BYTES) * SET_BYTES
        holds, room = room, int(_FILLED * room)
        watcher.note(
            f"The data take {size(total)}, but the cache holds only {size(holds)}. Caching the first "
            f"{size(room)}; a job fetches the rest when it needs it. To cache everything, pass "
            f"`cache_bytes={enough}`."
        )
    stops = {}
    for name, amount in sizes.items():
        stops[name] = min(amount, room) // sources[name].dtype.itemsize
        room -= min(amount, room)
    return stops
