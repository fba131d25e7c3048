"""Fetch files of the Hub, four at once. A download resumes in the middle of a file.

Guarantees: a file gets its name only when it is complete, matches the Hub's checksum and is flushed
to disk. Until then, it is a hidden file in the same folder, with the checksum in its name. So a
killed download resumes and never mixes two versions. Processes with the same target folder take
turns.

Costs: one request per file, and one more each time the connection is lost. Bytes are hashed as they
arrive; a partial file is read once when it is resumed.

`hf_hub_download` cannot replace this module. Three trials with huggingface_hub 2.4:

- After a kill at 25 of 30 MB, it fetched all 30 MB again, and left the 21 MB of the first attempt
  in the cache for good.
- With a connection that is lost every 9 MB, it gave up, because it discards an unfinished block of
  10 MiB.
- It accepted a file with a flipped bit.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, BinaryIO

from tokenmill.errors import DatasetError, FolderError, WorkError
from tokenmill.hub.http import Unavailable, find_endpoint, request
from tokenmill.hub.paths import HubPath
from tokenmill.hub.repository import HubFile
from tokenmill.progress import Watcher
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.files import make_folder, make_subfolder, open_entry, sync_folder
from tokenmill.storage.lock import FileLock
from tokenmill.storage.reading import DamagedFileError
from tokenmill.wording import duration

if TYPE_CHECKING:
    from hashlib import _Hash

KEPT = "downloaded data is kept"
_AT_ONCE = 4
_BLOCK = 1 << 20
_ATTEMPTS = 5  # give up after this many requests in a row without a new byte
_TRIES = 2  # give up if a file arrives damaged this many times
_REPORT_EVERY = 0.1  # seconds between progress reports
_NOTED_WAIT = 10  # seconds; a longer wait is printed
_POLL = 0.2  # seconds between checks whether the folder is free


class Stopped(Exception):  # noqa: N818  (not an error)
    """Raised to end a transfer after another file failed or the user pressed Ctrl-C."""


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """A file of the Hub and its local path.

    `check` is called with the path of the downloaded file, before the file gets its final name. It raises
    a DatasetError if the file is damaged.
    """

    file: HubFile
    target: Path
    check: Callable[[Path], None] | None = None

    @property
    def part(self) -> Path:
        name = self.target.name.encode()[:150].decode(
            errors="ignore"
        )  # file systems allow 255 bytes
        return self.target.with_name(f".{name}.{self.file.digest[:16]}.part")

    @property
    def arrived(self) -> int:
        """The size of the partial file from an earlier attempt; 0 if it is larger than the file."""
        size = _size(self.part) or 0
        return size if size <= self.file.size else 0


def fetch_files(
    transfers: Sequence[Transfer], where: HubPath, commit: str, folder: Path, watcher: Watcher
) -> int:
    """Fetch the files that are missing or wrong; return the number of bytes fetched."""
    with explain_disk_errors(KEPT), _hold(folder, watcher):
        missing = _find_missing(transfers, watcher)
        _sync_folders(transfers, folder)
        if not missing:
            return 0
        total = sum(one.file.size for one in transfers)
        left = sum(one.file.size - one.arrived for one in missing)
        free = shutil.disk_usage(folder).free
        if free < left:
            raise FolderError(
                f"{left:,} bytes remain to be downloaded, but the disk that holds {folder} has "
                f"only {free:,} bytes free. Choose fewer files, or a folder on another disk."
            )
        for one in missing:
            make_subfolder(folder, one.target.parent)
        watcher.begin("downloading", total, total - left)
        return _fetch_missing(missing, where, commit, watcher)


def _sync_folders(transfers: Sequence[Transfer], folder: Path) -> None:
    """Flush the folders of all files to disk. An earlier run may have been killed before that."""
    parents = {parent for one in transfers for parent in one.target.parents}
    for parent in parents:
        if parent.is_relative_to(folder.parent) and parent.is_dir():
            sync_folder(parent)


@contextmanager
def _hold(folder: Path, watcher: Watcher) -> Iterator[None]:
    """Lock a folder. If another process downloads into the folder, wait for that process."""
    make_folder(folder)
    lock = FileLock(folder, is_folder=True)
    if not lock.acquire():
        watcher.note(f"Waiting for another process that downloads into {folder}.")
        while not lock.acquire():
            time.sleep(_POLL)
    try:
        yield
    finally:
        lock.release()


def _find_missing(transfers: Sequence[Transfer], watcher: Watcher) -> list[Transfer]:
    there = [one for one in transfers if one.target.is_file()]
    if there:
        watcher.begin("checking", sum(one.file.size for one in there))
    right = set()
    pool = ThreadPoolExecutor(_AT_ONCE, "tokenmill-check")
    try:
        for one, is_right in zip(there, pool.map(_is_right, there), strict=True):
            watcher.advance(one.file.size)
            if is_right:
                right.add(one.target)
            else:
                watcher.note(f"{one.target} differs from the file on the Hub; fetching it again.")
    finally:  # after Ctrl-C, do not check more files
        pool.shutdown(cancel_futures=True)
    return [one for one in transfers if one.target not in right]


def _is_right(transfer: Transfer) -> bool:
    if _size(transfer.target) != transfer.file.size:
        return False
    with transfer.target.open("rb") as file:
        return _hash(transfer.file, file).hexdigest() == transfer.file.digest


def _fetch_missing(
    missing: Sequence[Transfer], where: HubPath, commit: str, watcher: Watcher
) -> int:
    from huggingface_hub import hf_hub_url

    endpoint, stop, progress = find_endpoint(), Event(), _Progress(watcher)

    def fetch(transfer: Transfer) -> None:
        url = hf_hub_url(
            where.repository,
            transfer.file.path,
            repo_type="dataset",
            revision=commit,
            endpoint=endpoint,
        )
        _fetch(transfer, url, where.repository, progress, stop)

    with ThreadPoolExecutor(_AT_ONCE, "tokenmill-download") as pool:
        futures = [pool.submit(fetch, transfer) for transfer in missing]
        try:
            for future in as_completed(futures):
                future.result()
        finally:  # after an error or Ctrl-C, stop running transfers and start no more
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
    progress.report()
    return progress.fetched


class _Progress:
    """Adds up the bytes that several threads fetch, and reports them to one watcher."""

    def __init__(self, watcher: Watcher) -> None:
        self.fetched = self._unreported = 0
        self._watcher, self._lock, self._reported = watcher, threading.Lock(), 0.0

    def advance(self, count: int) -> None:
        with self._lock:
            self.fetched += count
            self._unreported += count
            if time.monotonic() - self._reported >= _REPORT_EVERY:
                self.report()

    def note_wait(self, seconds: float) -> None:
        with self._lock:
            self._watcher.note(f"The Hub is busy; retrying in {duration(seconds)}.")

    def report(self) -> None:
        self._watcher.advance(self._unreported)
        self._unreported, self._reported = 0, time.monotonic()


def _fetch(transfer: Transfer, url: str, repository: str, progress: _Progress, stop: Event) -> None:
    """Fetch one file under a temporary name, check it, and rename it."""
    file, part = transfer.file, transfer.part
    for _ in range(_TRIES):
        if _fill(transfer, url, repository, progress, stop) == file.digest:
            break
        part.unlink()
        progress.advance(-file.size)
    else:
        raise WorkError(
            f"{file.path} of {repository} arrived {_TRIES} times with a wrong checksum and was "
            "discarded. Something between you and the Hub, such as a proxy, changes the file. Try "
            "again, or use another network."
        )
    try:
        if transfer.check is not None:
            transfer.check(part)
    except DatasetError as error:
        part.unlink()
        what = error.what if isinstance(error, DamagedFileError) else f"cannot be read: {error}"
        raise DatasetError(
            f"{file.path} {what}. The file is damaged on the Hub itself, in {repository}, and was "
            "deleted here. Omit this file, and report it to the owner of the repository."
        ) from error
    part.replace(transfer.target)
    sync_folder(transfer.target.parent)


def _fill(transfer: Transfer, url: str, repository: str, progress: _Progress, stop: Event) -> str:
    """Download the rest of a partial file, and return the checksum of the whole file."""
    size = transfer.file.size
    with os.fdopen(open_entry(transfer.part), "r+b") as part:
        if os.fstat(part.fileno()).st_size > size:
            part.truncate(0)
        digest = _hash(transfer.file, part)
        have, failures = part.tell(), 0
        while have < size:
            before, cause = have, None
            try:
                for block in _receive(url, repository, have, size):
                    part.write(block)
                    digest.update(block)
                    have += len(block)
                    progress.advance(len(block))
                    if stop.is_set():
                        raise Stopped
            except Unavailable as error:
                cause = error
            failures = 0 if have > before else failures + 1
            if failures == _ATTEMPTS:
                raise cause or WorkError(
                    f"{transfer.file.path} ends after {have:,} of {size:,} bytes. To resume "
                    "later, run the same command again."
                )
            if failures:
                wait = max(2.0 ** (failures - 1), cause.wait if cause else 0)
                if wait > _NOTED_WAIT:
                    progress.note_wait(wait)
                if stop.wait(wait):
                    raise Stopped
        part.flush()
        os.fsync(part.fileno())
    return digest.hexdigest()


def _receive(url: str, repository: str, start: int, size: int) -> Iterator[bytes]:
    """Yield the bytes of a file from `start` on, as they arrive."""
    headers = {"Range": f"bytes={start}-"} if start else {}
    with request(url, repository, headers) as response:
        # A server may ignore the range and send the whole file.
        place = start if response.status_code == 206 else 0
        for block in response.iter_raw():  # no block size, because a full block may never arrive
            wanted = block[max(start - place, 0) : size - place]
            place += len(block)
            if wanted:
                yield wanted
            if place >= size:
                return


def _hash(file: HubFile, content: BinaryIO) -> _Hash:
    """Return the hash of `content`, of the same kind as the checksum of `file`: SHA-256 or git's SHA-1."""
    digest = (
        hashlib.sha256()
        if len(file.digest) == 64
        else hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    )
    while block := content.read(_BLOCK):
        digest.update(block)
    return digest


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
