"""`tokenmill.download`: some files of a dataset on the hub, into a folder of one's own.

Guarantees: the files that were asked for, and no others; each with the checksum that the hub tells,
a shard of llm.c also with a header that fits its size. What is there already is read and checked,
and fetched again if it is something else. The same call resumes after any interruption, also in the
middle of a file. Four files are fetched at once.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.errors import FolderError, WorkError
from tokenmill.hub.address import Address, parse_address
from tokenmill.hub.choose import choose, parse_shards
from tokenmill.hub.fetch import Errand, fetch, has_digest
from tokenmill.hub.library import connect, telling
from tokenmill.hub.listing import HubFile, find_commit, list_files

if TYPE_CHECKING:
    from tokenmill.progress import Watcher

__all__ = [
    "DEFAULT_REPOSITORY",
    "DEFAULT_SHARDS",
    "Downloaded",
    "download",
    "fetch_all",
    "file_url",
    "telling_of_the_disk",
]

DEFAULT_REPOSITORY = "karpathy/fineweb-edu-100B-gpt2-token-shards"
DEFAULT_SHARDS = "1-3"  # of it: enough to begin with, and one to hold out
_AT_ONCE = 4
_TELL_EVERY = 0.1  # seconds


@dataclass(frozen=True, kw_only=True)
class Downloaded:
    """What a download has put in its folder, or found there.

    `kind` is "tokens", "text" or "prepared"; `fetched` the bytes that came over the network.
    """

    path: Path
    files: tuple[Path, ...]
    bytes: int
    fetched: int
    kind: str


def download(
    repository: str | None = None,
    *,
    shards: str | int | Iterable[int] | None = None,
    split: str | None = None,
    max_files: int | None = None,
    to: str | os.PathLike[str] | None = None,
    watcher: Watcher | None = None,
) -> Downloaded:
    """Fetch files of a dataset on the hub; the same call resumes after any interruption.

    `repository` is OWNER/NAME, with @REVISION and /FOLDER, /FILE or a glob behind it if wanted; by
    default three of the GPT-2 token shards of FineWeb-Edu. `shards` are the numbers of token files,
    such as "1-3"; `split` takes files with that word in their names, `max_files` the first so many.
    They go to the folder `to`, under the names that they have in the repository; data/NAME by
    default.

    >>> download("fineweb")
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: 'fineweb' is not a dataset on the hub. Write it like OWNER/NAME or \
hf://datasets/OWNER/NAME, with /FOLDER or /FILE behind it for a part of it.
    """
    if repository is None:
        shards = DEFAULT_SHARDS if shards is None else shards
        repository = DEFAULT_REPOSITORY
    address = parse_address(repository)
    numbers = None if shards is None else parse_shards(shards)
    folder = Path("data", address.repository.partition("/")[2]) if to is None else Path(to)
    listing = list_files(address, find_commit(address))
    choice = choose(
        listing.files,
        address.repository,
        path=address.path,
        shards=numbers,
        split=split,
        max_files=max_files,
    )
    errands = [
        Errand(
            file=file,
            url=file_url(address, listing.commit, file),
            target=folder / file.path,
            repository=address.repository,
        )
        for file in choice.files
    ]
    fetched = fetch_all(errands, folder, watcher)
    return Downloaded(
        path=folder,
        files=tuple(errand.target for errand in errands),
        bytes=choice.bytes,
        fetched=fetched,
        kind=choice.kind,
    )


def file_url(address: Address, commit: str, file: HubFile) -> str:
    """Where the hub serves a file."""
    from huggingface_hub import hf_hub_url

    return hf_hub_url(
        address.repository,
        file.path,
        repo_type="dataset",
        revision=commit,
        endpoint=connect().endpoint,
    )


def fetch_all(errands: Sequence[Errand], folder: Path, watcher: Watcher | None) -> int:
    """Fetch what is missing or wrong of some files; returns the bytes that were fetched."""
    if watcher is None:
        from tokenmill.progress import Nobody

        watcher = Nobody()
    with telling_of_the_disk(folder):
        missing = _find_missing(errands, watcher)
        total = sum(errand.file.size for errand in errands)
        left = sum(errand.file.size - errand.begun for errand in missing)
        if not missing:
            return 0
        _check_space(folder, left)
        watcher.begin("downloading", total, total - left)
        return _fetch_missing(missing, watcher)


def _fetch_missing(errands: Sequence[Errand], watcher: Watcher) -> int:
    stop, progress = threading.Event(), _Progress(watcher)
    with (
        telling(errands[0].repository, connect().endpoint),
        ThreadPoolExecutor(_AT_ONCE, "tokenmill-download") as pool,
    ):
        futures = [pool.submit(fetch, errand, progress.advance, stop) for errand in errands]
        try:
            for future in as_completed(futures):
                future.result()
        finally:  # after an error or Ctrl-C: nothing new begins, and what runs ends soon
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
    progress.tell()
    return progress.fetched


class _Progress:
    """Counts what several threads fetch; its watcher hears of it now and then, from one at a time."""

    def __init__(self, watcher: Watcher) -> None:
        self.fetched = self._untold = 0
        self._watcher, self._lock, self._told = watcher, threading.Lock(), 0.0

    def advance(self, count: int) -> None:
        with self._lock:
            self.fetched += count
            self._untold += count
            if time.monotonic() - self._told >= _TELL_EVERY:
                self.tell()

    def tell(self) -> None:
        self._watcher.advance(self._untold, 0, 0, 0)
        self._untold, self._told = 0, time.monotonic()


def _find_missing(errands: Sequence[Errand], watcher: Watcher) -> list[Errand]:
    there = [errand for errand in errands if errand.target.exists()]
    if there:
        watcher.begin("checking", sum(errand.file.size for errand in there), 0)
    right = set()
    pool = ThreadPoolExecutor(_AT_ONCE, "tokenmill-check")
    try:
        checks = pool.map(lambda errand: has_digest(errand.target, errand.file), there)
        for errand, is_right in zip(there, checks, strict=True):
            watcher.advance(errand.file.size, 0, 0, 0)
            if is_right:
                right.add(errand.target)
            else:
                watcher.note(
                    f"{errand.target} is not what the hub has under that name: it is fetched again."
                )
    finally:  # Ctrl-C waits for the files that are being read, not for all
        pool.shutdown(cancel_futures=True)
    return [errand for errand in errands if errand.target not in right]


def _check_space(folder: Path, needed: int) -> None:
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise FolderError(
            f"{needed:,} bytes are still to be fetched, and the disk of {folder} has {free:,} left. "
            "Choose fewer files, or a folder on another disk."
        )


@contextmanager
def telling_of_the_disk(folder: Path) -> Iterator[None]:
    """Say what is wrong with a folder that is written to, and what to do about it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise WorkError(
                f"The disk of {folder} is full. Free some space; the same command resumes from there."
            ) from error
        name = error.filename or folder
        raise FolderError(
            f"{name} cannot be written: {error.strerror or error}. Choose another folder."
        ) from error
