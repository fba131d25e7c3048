"""One file of the hub, fetched from where an earlier attempt stopped, and checked.

Guarantees: a file has its name only when all its bytes are there, are those whose checksum the hub
tells, and are on the disk. Until then they are in a part beside it, whose name carries the checksum:
what a killed download leaves is gone on with, and never mixed with another version. Processes that
want the same file wait for the first of them.

Costs one request a file, and one more each time that the connection is cut; hashing goes along. A
part is read once when it is gone on with.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, BinaryIO

from tokenmill.errors import DatasetError, WorkError
from tokenmill.hub.listing import HubFile
from tokenmill.storage.files import sync_folder
from tokenmill.storage.reading import DamagedFileError

if TYPE_CHECKING:
    from hashlib import _Hash

_BLOCK = 1 << 20
_PATIENCE = 5  # attempts in a row that bring no byte
_TRIES = 2  # for a file that arrives altered
_LOOK_EVERY = 0.2  # seconds, at a part that another process has


class Stopped(Exception):  # noqa: N818  (not an error)
    """The download was told to stop."""


@dataclass(frozen=True, kw_only=True)
class Errand:
    """A file to fetch, from where and to where. `repository` names it in errors.

    `check` raises a DatasetError if the fetched file is damaged.
    """

    file: HubFile
    url: str
    target: Path
    repository: str
    check: Callable[[Path], None] | None = None

    @property
    def part(self) -> Path:
        return self.target.with_name(f".{self.target.name[:150]}.{self.file.digest[:16]}.part")

    @property
    def begun(self) -> int:
        """The bytes that an earlier attempt has left."""
        try:
            return min(self.part.stat().st_size, self.file.size)
        except OSError:
            return 0


def fetch(errand: Errand, advance: Callable[[int], None], stop: Event) -> None:
    """Fetch a file that is not there. `advance` is told of bytes as they arrive, or are thrown away.

    Raises what the hub's library does, besides tokenmill's errors; `Stopped` soon after `stop`.
    """
    file = errand.file
    errand.target.parent.mkdir(parents=True, exist_ok=True)
    begun = errand.begun
    with _hold(errand.part, stop) as part:
        if _size(errand.target) == file.size and has_digest(errand.target, file):
            advance(file.size - begun)  # another process was here in the meantime
            errand.part.unlink(missing_ok=True)
            return
        if (now := _size(errand.part) or 0) > file.size:
            part.truncate(0)
            now = 0
        advance(now - begun)
        for _ in range(_TRIES):
            if _fill(errand, part, advance, stop) == file.digest:
                break
            part.truncate(0)
            advance(-file.size)
        else:
            raise WorkError(
                f"{file.path} of {errand.repository} arrived {_TRIES} times with bytes whose "
                "checksum is not the one that the hub tells, and was thrown away. Something on the "
                "way alters it, such as a proxy: try again, or from another network."
            )
        part.flush()
        os.fsync(part.fileno())
        _check(errand)
        errand.part.replace(errand.target)
    sync_folder(errand.target.parent)


def has_digest(path: Path, file: HubFile) -> bool:
    """Whether a file on this machine has the bytes of one on the hub; costs reading it."""
    if _size(path) != file.size:
        return False
    with path.open("rb") as opened:
        return _read_into(_begin(file), opened).hexdigest() == file.digest


def _fill(errand: Errand, part: BinaryIO, advance: Callable[[int], None], stop: Event) -> str:
    """Append what a part lacks; returns the checksum of the whole."""
    from huggingface_hub import errors

    size = errand.file.size
    part.seek(0)
    digest = _read_into(_begin(errand.file), part)
    have, failures = part.tell(), 0
    while have < size:
        before, cause = have, None
        try:
            for block in _receive(errand.url, have, size):
                part.write(block)
                digest.update(block)
                have += len(block)
                advance(len(block))
                if stop.is_set():
                    raise Stopped
        except errors.HfHubHTTPError:
            raise
        except errors.HTTPError as error:  # type: ignore[attr-defined]  # the connection was cut
            cause = error
        failures = 0 if have > before else failures + 1
        if failures == _PATIENCE:
            raise cause or WorkError(
                f"{errand.file.path} of {errand.repository} ends after {have:,} of {size:,} bytes. "
                "Try again later; the same command resumes from there."
            )
        if failures and stop.wait(2 ** (failures - 1)):
            raise Stopped
    return digest.hexdigest()


def _receive(url: str, start: int, size: int) -> Iterator[bytes]:
    """The bytes of a file from `start` on."""
    from huggingface_hub import constants
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # they are, lazily
        build_hf_headers,
        hf_raise_for_status,
        http_stream_backoff,
    )

    headers = {**build_hf_headers(library_name="tokenmill"), "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with http_stream_backoff(
        "GET",
        url,
        headers=headers,
        timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
        retry_on_exceptions=(),  # these are for `_fill`, which knows how far it came
    ) as response:
        hf_raise_for_status(response)
        # A server may answer with the whole file all the same.
        place = start if response.status_code == 206 else 0
        for block in response.iter_bytes():  # as they arrive: what is waited for is lost in a cut
            wanted = block[max(start - place, 0) : size - place]
            place += len(block)
            if wanted:
                yield wanted
            if place >= size:
                return


def _check(errand: Errand) -> None:
    """Refuse a file that its format calls damaged, although it is the one on the hub."""
    if errand.check is None:
        return
    try:
        errand.check(errand.part)
    except DatasetError as error:
        errand.part.unlink(missing_ok=True)
        what = error.what if isinstance(error, DamagedFileError) else f"cannot be read: {error}"
        raise DatasetError(
            f"{errand.file.path} {what}. The file on the hub, in {errand.repository}, has this "
            "fault; it was deleted here. Leave it out, and tell its owner."
        ) from error


@contextmanager
def _hold(path: Path, stop: Event) -> Iterator[BinaryIO]:
    """Open a part to read and append, waiting for any other process that has it."""
    while True:
        with path.open("ab+") as file:
            while not _lock(file):
                if stop.wait(_LOOK_EVERY):
                    raise Stopped
            # Who had it before may have finished, and the name has gone or is another part's.
            if path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                yield file
                return


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _begin(file: HubFile) -> _Hash:
    if len(file.digest) == 64:
        return hashlib.sha256()
    return hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)


def _read_into(digest: _Hash, file: BinaryIO) -> _Hash:
    while block := file.read(_BLOCK):
        digest.update(block)
    return digest


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
