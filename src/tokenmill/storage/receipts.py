"""Receipts: small JSON files that record finished work and the checksums of its files.

A receipt begins with a checksum of its own content. If it is truncated, damaged, too large or has
values of the wrong type, it counts as absent, and the work is done again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import xxhash

from tokenmill.storage.decoding import decode
from tokenmill.storage.reading import DamagedFileError, read_inside

MOST_BYTES = 16 << 20

T = TypeVar("T")


def encode_receipt(value: Any) -> bytes:
    """Return the bytes of a receipt: the xxh3-128 of its JSON, a newline, and the JSON.

    >>> encode_receipt({"tokens": 5})
    b'08222cce9b42d8a47617930b498677f6\\n{"tokens":5}'
    """
    content = msgspec.json.encode(value)
    return xxhash.xxh3_128_hexdigest(content).encode() + b"\n" + content


def read_receipt(path: Path, kind: type[T]) -> T | None:
    """Return the receipt in a file; None if it is absent, damaged or not of the type `kind`."""
    try:
        digest, _, content = read_inside(path.parent, path.name, MOST_BYTES).partition(b"\n")
        if digest != xxhash.xxh3_128_hexdigest(content).encode():
            return None
        return decode(content, kind)
    except (DamagedFileError, ValueError):
        return None
