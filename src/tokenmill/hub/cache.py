"""Use datasets on the Hub like local ones: hf://datasets/OWNER/NAME.

Files are fetched into the cache of huggingface_hub, in its layout: file contents are under `blobs`,
named by checksum, and the file names of each commit are under `snapshots`. So tokenmill and other
programs share these files. A name under `snapshots` is a hard link to its blob, if the disk allows
hard links, because a prepared dataset refuses symbolic links that lead out of its folder.

A file gets its name only after its checksum was verified, so a file of the right size counts as
present. If all files are in the cache, opening costs one request, or none if the path names a
commit. Without a network, the last known commit is used, if all requested files are present.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from tokenmill.errors import DatasetError, InputError, TokenmillError, UsageError, WorkError
from tokenmill.hub.choose import Choice, choose
from tokenmill.hub.fetch import KEPT, Transfer, fetch_files
from tokenmill.hub.http import find_endpoint
from tokenmill.hub.paths import HubPath, parse_hub_path
from tokenmill.hub.repository import COMMIT, HubFile, find_commit, list_files
from tokenmill.progress import Display
from tokenmill.storage.decoding import load_json
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.files import make_subfolder, temporary_path, write_file
from tokenmill.wording import counted, size


def find_cached_files(text: str) -> list[Path]:
    """Return the local paths of the text files at a Hub path; fetch missing files first."""
    found = _find(parse_hub_path(text))
    if found.choice.kind != "text":
        raise InputError(
            f"{found.where} holds tokens, not text, so it needs no preparation. To open it, use "
            f"its path directly: tokenmill info {found.where}"
        )
    return _fetch(found)


def find_cached_dataset(text: str | os.PathLike[str]) -> Path:
    """Return the local file or folder with the tokens at a Hub path; fetch missing files first."""
    found = _find(where := parse_hub_path(text))
    if found.choice.kind == "text":
        raise DatasetError(
            f"{where} holds text, not tokens. Make tokens from it with: tokenmill prepare {where} "
            "--out DIR"
        )
    inside = f"{where.path}/" if where.path else ""
    if not any(f"{file.path}/".startswith(inside) for file in found.choice.files):
        raise UsageError(
            f"{where} is a glob, but `open` takes a file or a folder. Download the files with: "
            f"tokenmill download '{where}' --to DIR"
        )
    folders = {path.parent for path in _fetch(found)}
    path = found.snapshot / where.path
    return path if path.is_file() or len(folders) > 1 else folders.pop()


@dataclass(frozen=True, kw_only=True)
class _Found:
    """The files at a Hub path. `offline` is None, or the error if the Hub cannot be reached."""

    where: HubPath
    folder: Path  # the folder of the repository in the cache
    commit: str
    choice: Choice
    offline: WorkError | None

    @property
    def snapshot(self) -> Path:
        return self.folder / "snapshots" / self.commit


def _find(where: HubPath) -> _Found:
    find_endpoint()  # raises an error if huggingface_hub is missing
    from huggingface_hub import constants

    cache = Path(os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE).expanduser()
    folder = cache / f"datasets--{where.repository.replace('/', '--')}"
    commit, offline = _find_commit(where, folder)
    listing = _listing_path(folder, commit)
    try:
        files = tuple(HubFile(**file) for file in load_json(_read(listing)))
    except (ValueError, TypeError, TokenmillError):  # the saved list of files is missing or damaged
        files = list_files(where.repository, commit)
        _write(folder, listing, orjson.dumps([asdict(file) for file in files]))
    choice = choose(files, where.repository, path=where.path)
    return _Found(where=where, folder=folder, commit=commit, choice=choice, offline=offline)


def _find_commit(where: HubPath, folder: Path) -> tuple[str, WorkError | None]:
    """Return the commit of a revision, and None.

    If the Hub cannot be reached, return the last known commit, and the error.
    """
    reference = folder / "refs" / where.revision
    known = _read(reference).decode(errors="replace").strip()
    try:
        commit = find_commit(where)
    except WorkError as error:
        if COMMIT.fullmatch(known) and _listing_path(folder, known).is_file():
            return known, error
        raise
    if commit not in (known, where.revision):
        _write(folder, reference, commit.encode())
    return commit, None


def _listing_path(folder: Path, commit: str) -> Path:
    return folder / "tokenmill" / f"{commit}.json"


def _fetch(found: _Found) -> list[Path]:
    """Fetch the chosen files that are missing; return the local paths of all chosen files."""
    paths = {file: found.snapshot / file.path for file in found.choice.files}
    blobs = {file: found.folder / "blobs" / file.digest for file in paths}
    missing = [
        file
        for file, path in paths.items()
        # huggingface_hub makes symbolic links, which a prepared dataset refuses.
        if not _is_there(path, file.size) or (found.choice.kind == "prepared" and path.is_symlink())
    ]
    transfers = {
        file.digest: Transfer(file=file, target=blobs[file])
        for file in missing
        if not _is_there(blobs[file], file.size)
    }
    if transfers and found.offline:
        raise found.offline
    if transfers:
        total = size(sum(transfer.file.size for transfer in transfers.values()))
        lines = Display()  # prints lines, because the caller may show a progress bar
        lines.note(
            f"{found.where}: fetching {counted(len(transfers), 'file')}, {total}, "
            f"into {found.folder}"
        )
        fetch_files(list(transfers.values()), found.where, found.commit, found.folder, lines)
    with explain_disk_errors(KEPT):
        for file in missing:
            _link(found.folder, blobs[file], paths[file])
    return list(paths.values())


def _link(folder: Path, blob: Path, path: Path) -> None:
    """Link `path` to a blob. Safe even if another process makes the same link at the same time."""
    make_subfolder(folder, path.parent)
    temporary = temporary_path(path)
    temporary.unlink(missing_ok=True)
    try:
        temporary.hardlink_to(blob.resolve())
    except OSError:  # a hard link is impossible here
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


def _write(folder: Path, path: Path, data: bytes) -> None:
    with suppress(OSError):  # the cache may be read-only
        make_subfolder(folder, path.parent)
        write_file(path, data)
