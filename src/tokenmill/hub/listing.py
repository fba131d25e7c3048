"""Which files a dataset's repository holds at one commit, with their sizes and checksums.

A commit never changes, so that its list is asked for once and may be kept. Costs two requests, and
one more for each further 1,000 files.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

import orjson

from tokenmill.errors import InputError
from tokenmill.hub.address import Address
from tokenmill.hub.library import connect, telling

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """One file. `digest` is its SHA-256, or for small files that git keeps, git's own (SHA-1)."""

    path: str
    size: int
    digest: str

    def __post_init__(self) -> None:
        parts = self.path.replace("\\", "/").split("/")
        if {"", ".", ".."} & set(parts) or ":" in parts[0] or "\0" in self.path:
            raise InputError(
                f"The repository names a file {self.path!r}, which could lead out of the folder. "
                "Nothing of it was fetched."
            )
        if not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", self.digest) or self.size < 0:
            raise InputError(f"The hub tells no checksum for {self.path!r}. Try again later.")


@dataclass(frozen=True, kw_only=True)
class Listing:
    """All files of a repository at a commit."""

    commit: str
    files: tuple[HubFile, ...]

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, data: bytes) -> Listing:
        """What `to_json` made; ValueError, KeyError or TypeError if it is something else."""
        read = orjson.loads(data)
        return cls(commit=read["commit"], files=tuple(HubFile(**file) for file in read["files"]))


def find_commit(address: Address) -> str:
    """The commit that a revision stands for now."""
    if _COMMIT.fullmatch(address.revision):
        return address.revision
    hub = connect()
    with telling(address.repository, hub.endpoint):
        found = hub.dataset_info(address.repository, revision=address.revision).sha or ""
    if not _COMMIT.fullmatch(found):
        raise InputError(
            f"{hub.endpoint} does not answer as the hub does: it names no commit of "
            f"{address.repository}. Check HF_ENDPOINT."
        )
    return found


def list_files(address: Address, commit: str) -> Listing:
    """The files of a repository at a commit."""
    from huggingface_hub import RepoFile

    hub = connect()
    with telling(address.repository, hub.endpoint):
        entries = hub.list_repo_tree(
            address.repository, recursive=True, revision=commit, repo_type="dataset"
        )
        files = [entry for entry in entries if isinstance(entry, RepoFile)]
    return Listing(
        commit=commit,
        files=tuple(
            HubFile(
                path=file.path,
                size=file.lfs.size if file.lfs else file.size,
                digest=file.lfs.sha256 if file.lfs else file.blob_id,
            )
            for file in files
        ),
    )
