"""Recognise text where tokens were expected, so that the error can say that the path holds text.

Costs: reads the first bytes of some files, only after every format has refused the path.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenmill.storage.names import MANIFEST_NAME

HEAD = 8192  # bytes to read of each file
_MOST = 1000  # files to read in a folder
_MOST_ENTRIES = 10_000  # of a list in the footer of a Parquet file
_COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
_RECORDS = (".jsonl", ".ndjson", ".json", ".txt", ".md", ".csv", ".tsv", ".html", ".xml")
_TOKENS = (".bin", ".idx", ".npy", ".npz", ".ds", ".mds", ".array_record", ".arrayrecord")


def explain_text(path: Path) -> str | None:
    """Return the error message for a path that holds text instead of tokens; None for other paths.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "my input.txt"
    >>> _ = file.write_text("To be, or not to be.")
    >>> explain_text(file).replace(str(file.parent), "texts")
    "texts/my input.txt is text, not tokens. Tokenize it first: tokenmill prepare 'texts/my \
input.txt' --out 'data/my input'"
    """
    try:
        if path.is_dir():
            what = "is a folder of text" if _holds_text(path) else None
        else:
            what = "is text" if _is_text(path) else None
    except OSError:  # opening it raises a better error
        return None
    if what is None:
        return None
    name = path.absolute().name.partition(".")[0] or "corpus"
    out = Path("data", name)
    if out.absolute() == path.absolute():
        out = out.with_name(f"{name}_tokens")
    command = f"tokenmill prepare {shlex.quote(str(path))} --out {shlex.quote(str(out))}"
    return f"{path} {what}, not tokens. Tokenize it first: {command}"


def looks_like_text(head: bytes) -> bool:
    """Return whether the first `HEAD` bytes of a file are UTF-8 without a NUL.

    >>> looks_like_text("größer".encode()), looks_like_text(bytes([200, 0, 3, 0]))
    (True, False)
    """
    if b"\0" in head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 4 and len(head) == HEAD
    return True


def _holds_text(folder: Path) -> bool:
    """Return whether a folder holds text, and no dataset or token files near its top."""
    found = False
    for file in islice(_walk(folder), _MOST):
        if file.name == MANIFEST_NAME:
            return False
        if file.suffix in _TOKENS and len(file.relative_to(folder).parts) < 3:
            return False
        found = found or _is_text(file)
    return found


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(place) / name
            if not name.startswith(".") and path.is_file():
                yield path


def _is_text(path: Path) -> bool:
    if path.suffix in _TOKENS:
        return False
    if path.suffix in _COMPRESSED:
        return path.with_suffix("").suffix in _RECORDS
    with path.open("rb") as file:
        head = file.read(HEAD)
    if head.startswith(b"PAR1"):
        return _has_strings(path)
    return bool(head) and looks_like_text(head)


def _has_strings(path: Path) -> bool:
    """Return whether a Parquet file has a column of text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Without a limit, a list that claims a million entries takes 700 MB.
        with path.open("rb") as file:
            found = pq.ParquetFile(file, thrift_container_size_limit=_MOST_ENTRIES)
            types = found.schema_arrow.types
    except (pa.ArrowException, OSError):
        return False
    return any(pa.types.is_string(one) or pa.types.is_large_string(one) for one in types)
