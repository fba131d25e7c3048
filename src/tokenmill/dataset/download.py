"""`tokenmill.download`: fetch files of a dataset on the hub into a folder.

Only the requested files are fetched. Each must match the checksum that the hub states, and the header
of an llm.c shard must match its size. The same call resumes after any interruption, even in the middle
of a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenmill.formats.llmc import check_file
from tokenmill.hub.address import parse_address
from tokenmill.hub.choose import choose, parse_shards
from tokenmill.hub.download import fetch_all, file_url
from tokenmill.hub.fetch import Errand
from tokenmill.hub.listing import find_commit, list_files
from tokenmill.progress import Watcher

DEFAULT_REPOSITORY = "karpathy/fineweb-edu-100B-gpt2-token-shards"
DEFAULT_SHARDS = "1-3"  # two to train on, one for validation


@dataclass(frozen=True, kw_only=True)
class Downloaded:
    """The files of a download, fetched now or earlier.

    `kind` is "tokens", "text" or "prepared"; `fetched` counts the bytes from the network.
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

    `repository` is OWNER/NAME, optionally followed by @REVISION and by /FOLDER, /FILE or a glob; by
    default, three GPT-2 token shards of FineWeb-Edu. `shards` are the numbers of token files, such as
    "1-3"; `split` selects files with that word in their names, and `max_files` limits how many. Files
    are written to the folder `to` (by default data/NAME), under their names in the repository.

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
            check=check_file if file.path.endswith(".bin") else None,
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
