"""`download_tokenized_data`: the first shards of FineWeb-Edu, by the name of the guide.

Shards that are there, whole by their headers, are taken as they are, without a network. Others are
fetched as `tokenmill.download` does: gone on with after an interruption, and checked.
"""

from __future__ import annotations

import os
from pathlib import Path

from tokenmill.dataset.download import DEFAULT_REPOSITORY, download
from tokenmill.errors import DatasetError
from tokenmill.formats.base import NotThisFormat, OpenRequest
from tokenmill.formats.llmc import Llmc


def download_tokenized_data(
    data_dir: str | os.PathLike[str] = "/tmp/data/fineweb-edu",  # noqa: S108  (the guide's)
    shards: tuple[int, ...] = (1, 2, 3),
) -> str:
    """Have some shards of FineWeb-Edu in a folder, the last one to hold out; returns the folder.

    >>> import struct, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for number in (1, 2, 3):  # what an earlier call has left
    ...     header = struct.pack("<3i", 20240520, 1, 50).ljust(1024, b"\\0")
    ...     name = f"edu_fineweb_train_{number:06}.bin"
    ...     _ = (folder / name).write_bytes(header + bytes(100))
    >>> download_tokenized_data(folder) == str(folder)
    Data download complete!
    True
    """
    folder = Path(data_dir)
    missing = [
        number for number in shards if not _is_whole(folder / f"edu_fineweb_train_{number:06}.bin")
    ]
    if missing:
        print(f"Downloading shards {', '.join(map(str, missing))} of {DEFAULT_REPOSITORY}...")
        download(DEFAULT_REPOSITORY, shards=missing, to=folder)
    print("Data download complete!")
    return str(folder)


def _is_whole(path: Path) -> bool:
    try:
        return path.is_file() and bool(Llmc().read(OpenRequest(path=path)).splits)
    except (NotThisFormat, DatasetError):
        return False
