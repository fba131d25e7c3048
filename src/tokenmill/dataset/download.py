"""`tokenmill.download`: fetch files of a dataset on the Hugging Face Hub into a folder.

Guarantees: each fetched file matches the Hub's checksum, and the header of an llm.c shard matches
the size of the file. The same call resumes after any interruption, even in the middle of a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenmill.formats.llmc import check_file
from tokenmill.hub.choose import choose, parse_shards
from tokenmill.hub.fetch import Transfer, fetch_files
from tokenmill.hub.paths import parse_hub_path
from tokenmill.hub.repository import find_commit, list_files
from tokenmill.progress import Watcher, watching

DEFAULT_REPOSITORY = "karpathy/fineweb-edu-100B-gpt2-token-shards"
DEFAULT_SHARDS = "1-3"  # enough to start with; the last shard is for validation


@dataclass(frozen=True, kw_only=True)
class Downloaded:
    """The result of a download. `files` has all requested files, including earlier downloads.

    `kind` is "tokens", "text" or "prepared". `fetched` counts the bytes that came over the network.
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
    """Fetch files of a dataset on the Hub; the same call resumes after any interruption.

    >>> download("fineweb")
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: 'fineweb' is not a dataset on the Hub. Write OWNER/NAME or \
hf://datasets/OWNER/NAME; append /FOLDER or /FILE for a part of it.

    Parameters
    ----------
    repository
        OWNER/NAME, optionally followed by @REVISION and by /FOLDER, /FILE or a glob. The default
        fetches three shards of a repository with GPT-2 tokens of FineWeb-Edu.
    shards
        Numbers of the token files to fetch, such as "1-3". A file's number is the last in its name.
    split
        Fetch only files with this word in their paths.
    max_files
        Fetch at most this many files, not counting the index files that belong to token files.
    to
        The folder for the files, by default data/NAME. Files have the same names there as in the
        repository.
    watcher
        As in `tokenmill.prepare`.
    """
    if repository is None:
        shards = DEFAULT_SHARDS if shards is None else shards
        repository = DEFAULT_REPOSITORY
    where = parse_hub_path(repository)
    numbers = None if shards is None else parse_shards(shards)
    folder = Path("data", where.repository.partition("/")[2]) if to is None else Path(to)
    commit = find_commit(where)
    choice = choose(
        list_files(where.repository, commit),
        where.repository,
        path=where.path,
        shards=numbers,
        split=split,
        max_files=max_files,
    )
    transfers = [
        Transfer(
            file=file,
            target=folder / file.path,
            check=check_file if file.path.endswith(".bin") else None,
        )
        for file in choice.files
    ]
    with watching(watcher, progress=False) as watcher:
        fetched = fetch_files(transfers, where, commit, folder, watcher)
    return Downloaded(
        path=folder,
        files=tuple(transfer.target for transfer in transfers),
        bytes=sum(file.size for file in choice.files),
        fetched=fetched,
        kind=choice.kind,
    )
