"""Datasets on the hub that are used as if they were here: hf://datasets/OWNER/NAME.

They are fetched into the cache that the hub's other tools use, in its layout: contents once under
`blobs`, by checksum; the names of each commit under `snapshots`. What those tools have put there is
used, and they find what was put there by this. Names are hard links where the disk allows it, so
that a prepared dataset has its files inside its folder.

A file counts as there by its size, since it got its name only after its checksum was right: opening
costs one request, and none for a commit that was used before. Without a network the last known
commit is used, if all of it that was asked for is here.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tokenmill.errors import DatasetError, InputError, TokenmillError, UsageError, WorkError
from tokenmill.hub.address import Address, parse_address
from tokenmill.hub.choose import Choice, choose
from tokenmill.hub.download import KEPT, fetch_all, file_url
from tokenmill.hub.fetch import Errand
from tokenmill.hub.library import connect
from tokenmill.hub.listing import HubFile, Listing, find_commit, list_files
from tokenmill.progress import Unit
from tokenmill.storage.disk import explain_disk_errors

_EVERY = 10.0  # seconds between two lines


def find_cached_files(text: str) -> list[Path]:
    """The text files of an address on this machine, fetched if they are not here yet."""
    address = parse_address(text)
    found = _find(address)
    if found.choice.kind != "text":
        raise InputError(
            f"{address} holds tokens, not text: there is nothing to prepare. Open it as it is: "
            f"tokenmill info {address}"
        )
    return _bring(found)


def find_cached_dataset(text: str | os.PathLike[str]) -> Path:
    """The file or folder of tokens at an address, on this machine, fetched if it is not here yet."""
    address = parse_address(text)
    found = _find(address)
    if found.choice.kind == "text":
        raise DatasetError(
            f"{address} holds text, not tokens. Make tokens of it with: tokenmill prepare {address} "
            "--out DIR"
        )
    inside = f"{address.path}/" if address.path else ""
    if not any(f"{file.path}/".startswith(inside) for file in found.choice.files):
        raise UsageError(
            f"{address} is a glob, and tokens are opened by file or by folder. Fetch those files "
            f"into one with: tokenmill download '{address}' --to DIR"
        )
    folders = {path.parent for path in _bring(found)}
    path = found.store.snapshot(found.commit) / address.path
    return path if path.is_file() or len(folders) > 1 else folders.pop()


@dataclass(frozen=True, kw_only=True)
class _Store:
    """The folder of one repository in the hub's cache."""

    folder: Path

    def snapshot(self, commit: str) -> Path:
        return self.folder / "snapshots" / commit

    def listing(self, commit: str) -> Path:
        return self.folder / "tokenmill" / f"{commit}.json"

    def reference(self, revision: str) -> Path:
        return self.folder / "refs" / revision

    def blob(self, file: HubFile) -> Path:
        return self.folder / "blobs" / file.digest


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What an address means: a commit, and files of it. `away` is why the hub could not be asked."""

    address: Address
    store: _Store
    commit: str
    choice: Choice
    away: WorkError | None


def _find(address: Address) -> _Found:
    connect()
    from huggingface_hub import constants

    name = f"datasets--{address.repository.replace('/', '--')}"
    cache = os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE
    store = _Store(folder=Path(cache).expanduser() / name)
    commit, away = _find_commit(store, address)
    try:
        listing = Listing.from_json(_read(store.listing(commit)))
    except (ValueError, KeyError, TypeError, TokenmillError):  # not there, or damaged
        listing = list_files(address, commit)
        _write(store.listing(commit), listing.to_json())
    choice = choose(listing.files, address.repository, path=address.path)
    return _Found(address=address, store=store, commit=commit, choice=choice, away=away)


def _find_commit(store: _Store, address: Address) -> tuple[str, WorkError | None]:
    """The commit of a revision now; the last known one if the hub is away."""
    reference = store.reference(address.revision)
    known = _read(reference).decode(errors="replace").strip()
    try:
        commit = find_commit(address)
    except WorkError as error:
        if known and _read(store.listing(known)):
            return known, error
        raise
    if commit not in (known, address.revision):
        _write(reference, commit.encode())
    return commit, None


def _bring(found: _Found) -> list[Path]:
    """The paths of chosen files on this machine, after fetching those that are not here."""
    address, store, commit = found.address, found.store, found.commit
    paths = {file: store.snapshot(commit) / file.path for file in found.choice.files}
    missing = [
        file
        for file, path in paths.items()
        # A prepared dataset follows no links out of its folder; the hub's tools make such links.
        if not _is_there(path, file.size) or (found.choice.kind == "prepared" and path.is_symlink())
    ]
    errands = {
        file.digest: Errand(
            file=file,
            url=file_url(address, commit, file),
            target=store.blob(file),
            repository=address.repository,
        )
        for file in missing
        if not _is_there(store.blob(file), file.size)
    }
    if errands and found.away:
        raise found.away
    if errands:
        total = sum(errand.file.size for errand in errands.values())
        count = "1 file" if len(errands) == 1 else f"{len(errands):,} files"
        lines = _Lines()
        lines.note(f"{address}: fetching {count}, {total / 1e6:,.1f} MB, into {store.folder}")
        fetch_all(list(errands.values()), store.folder, lines)
    with explain_disk_errors(KEPT):
        for file in missing:
            _link(store.blob(file), paths[file])
    return list(paths.values())


class _Lines:
    """Tells on stderr how a download goes, now and then: it may take hours."""

    def __init__(self) -> None:
        self._total = self._done = 0
        self._said = time.monotonic()

    def begin(self, stage: str, total: int, done: int = 0, unit: Unit = "bytes") -> None:  # noqa: ARG002
        self._total, self._done = total, done

    def advance(
        self,
        amount: int,
        tokens: int = 0,  # noqa: ARG002
        documents: int = 0,  # noqa: ARG002
        dropped: int = 0,  # noqa: ARG002
    ) -> None:
        self._done += amount
        if time.monotonic() - self._said >= _EVERY:
            self.note(f"  {self._done / 1e6:,.1f} of {self._total / 1e6:,.1f} MB")

    def note(self, text: str) -> None:
        self._said = time.monotonic()
        print(text, file=sys.stderr, flush=True)


def _link(blob: Path, path: Path) -> None:
    """Give a content its name; another process may do the same at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:150]}.{os.getpid()}.link")
    temporary.unlink(missing_ok=True)
    try:
        temporary.hardlink_to(blob.resolve())
    except OSError:  # a file system that has none, or a blob on another one
        temporary.symlink_to(blob.resolve())
    temporary.replace(path)


def _is_there(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):  # a cache that may only be read is as good, but for the next start
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
