"""Fetch many files of the hub at once: what is missing or wrong, with progress and one error.

Files that exist are read and checked, and fetched again if their checksum differs. Four files are
fetched at once.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.errors import FolderError
from tokenmill.hub.address import Address
from tokenmill.hub.fetch import Errand, fetch, has_digest
from tokenmill.hub.library import connect, telling
from tokenmill.hub.listing import HubFile
from tokenmill.storage.disk import explain_disk_errors

if TYPE_CHECKING:
    from tokenmill.progress import Watcher

KEPT = "what was fetched is kept"
_AT_ONCE = 4
_TELL_EVERY = 0.1  # seconds


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
    with explain_disk_errors(KEPT):
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
        self._watcher.advance(self._untold)
        self._untold, self._told = 0, time.monotonic()


def _find_missing(errands: Sequence[Errand], watcher: Watcher) -> list[Errand]:
    there = [errand for errand in errands if errand.target.exists()]
    if there:
        watcher.begin("checking", sum(errand.file.size for errand in there))
    right = set()
    pool = ThreadPoolExecutor(_AT_ONCE, "tokenmill-check")
    try:
        checks = pool.map(lambda errand: has_digest(errand.target, errand.file), there)
        for errand, is_right in zip(there, checks, strict=True):
            watcher.advance(errand.file.size)
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
