"""List the files of a repository on the Hub, at the commit of a revision.

Listing costs one request per 1,000 files. File names that a disk cannot store, or that lead out of
the target folder, are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tokenmill.errors import InputError
from tokenmill.hub.http import find_endpoint, not_the_hub, read_json
from tokenmill.hub.paths import HubPath
from tokenmill.wording import one_line

MOST_FILES = 1_000_000
_ATTEMPTS = 5  # attempts to read each page of a listing
_LONGEST_NAME = 255  # bytes; the limit of most file systems
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """A file on the Hub. `digest` is its SHA-256 or, for small files, git's SHA-1."""

    path: str
    size: int
    digest: str

    def __post_init__(self) -> None:
        if not all(isinstance(one, str) for one in (self.path, self.digest)):
            raise not_the_hub(
                f"a file's name ({self.path!r}) or checksum ({self.digest!r}) is not a string"
            )
        parts = self.path.replace("\\", "/").split("/")
        if {"", ".", ".."} & set(parts) or ":" in parts[0] or "\0" in self.path:
            raise InputError(
                f"The repository has a file named {self.path[:80]!r}, which could be written outside "
                "the target folder. Nothing was downloaded. Choose another repository or revision."
            )
        if any(len(part.encode("utf-8", "replace")) > _LONGEST_NAME for part in parts) or re.search(
            "[\ud800-\udfff]", self.path
        ):
            raise InputError(
                f"The repository has a file named {self.path[:80]!r}, which is not a valid file name "
                "on this system. Nothing was downloaded. Choose another repository or revision."
            )
        if (
            not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", self.digest)
            or type(self.size) is not int
            or self.size < 0
        ):
            raise InputError(
                f"The Hub gives no valid size and checksum for {self.path!r}. Try again later."
            )
        if one_line(self.path) != self.path:
            raise InputError(
                f"The repository has a file named {self.path!r}. Names with line ends, or with "
                "characters that are invisible or reorder text, are refused. Nothing was downloaded."
                " Choose another repository or revision."
            )


def find_commit(where: HubPath) -> str:
    """Return the commit that a revision points to now. A commit as revision needs no request."""
    if COMMIT.fullmatch(where.revision):
        return where.revision
    place = f"api/datasets/{where.repository}/revision/{quote(where.revision, safe='')}"
    answer, _ = read_json(f"{find_endpoint()}/{place}", where.repository)
    found = answer.get("sha") if isinstance(answer, dict) else None
    if not isinstance(found, str) or not COMMIT.fullmatch(found):
        raise not_the_hub(f"it did not return a commit for {where.repository}")
    return found


def list_files(repository: str, commit: str) -> tuple[HubFile, ...]:
    """Return all files of a repository at a commit."""
    files: dict[str, HubFile] = {}
    for entry in _list_entries(repository, commit):
        try:
            if entry["type"] != "file":
                continue
            stored = entry.get("lfs") or entry
            file = HubFile(path=entry["path"], size=stored["size"], digest=stored["oid"])
        except (KeyError, TypeError, AttributeError):
            raise not_the_hub(f"it listed {str(entry)[:80]!r} as a file of {repository}") from None
        if file.path in files or len(files) >= MOST_FILES:
            what = f"{file.path!r} twice" if file.path in files else f"over {MOST_FILES:,} files"
            raise not_the_hub(f"it listed {what} in {repository}")
        files[file.path] = file
    return tuple(files.values())


def _list_entries(repository: str, commit: str) -> Iterator[Any]:
    """Yield all entries of a repository, page by page."""
    place = f"{find_endpoint()}/api/datasets/{repository}/tree/{commit}"
    query: str | None = "recursive=true&expand=false"
    while query is not None:
        page, query = read_json(f"{place}?{query}", repository, attempts=_ATTEMPTS)
        if not isinstance(page, list) or (not page and query is not None):
            raise not_the_hub(f"it did not list the files of {repository}")
        yield from page
