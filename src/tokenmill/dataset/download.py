"""`tokenmill.download`: fetch files of a dataset on the hub into a folder.

Exactly the requested files are fetched. Each has the checksum that the hub states, and an llm.c shard
also has a header that fits its size. The same call resumes after any interruption, also in the middle
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
DEFAULT_SHARDS = "1-3"  # of it: enough to begin with, and one to hold out


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
