"""Parquet files byte by byte, with whatever sizes their headers and footers claim."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

PLAIN, DELTA_LENGTH, DELTA, DICTIONARY = 0, 6, 7, 8  # encodings
_INT, _LONG, _BYTES, _LIST, _STRUCT = 5, 6, 8, 9, 12  # types of Thrift's compact protocol


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def zigzag(number: int) -> bytes:
    return varint(number << 1)


def make_struct(*fields: tuple[int, int, Any]) -> bytes:
    """A structure of fields: the number of each, its type, and its value."""
    found, last = b"", 0
    for number, kind, value in fields:
        found += bytes([(number - last) << 4 | kind])
        last = number
        if kind in (_INT, _LONG):
            found += zigzag(value)
        else:
            found += varint(len(value)) + value if kind == _BYTES else value
    return found + b"\0"


def make_list(items: Sequence[bytes], kind: int = _STRUCT, claimed: int | None = None) -> bytes:
    count = len(items) if claimed is None else claimed
    return bytes([0xF0 | kind]) + varint(count) + b"".join(items)


def make_page(content: bytes, values: int, encoding: int, *, size: int | None = None) -> bytes:
    """A data page that claims `values` values and `size` bytes."""
    about = make_struct((1, _INT, values), (2, _INT, encoding), (3, _INT, 3), (4, _INT, 3))
    return _make_page(0, content, len(content) if size is None else size, (5, _STRUCT, about))


def make_dictionary_page(content: bytes, values: int) -> bytes:
    about = make_struct((1, _INT, values), (2, _INT, PLAIN))
    return _make_page(2, content, len(content), (7, _STRUCT, about))


def _make_page(kind: int, content: bytes, size: int, about: tuple[int, int, bytes]) -> bytes:
    return make_struct((1, _INT, kind), (2, _INT, size), (3, _INT, len(content)), about) + content


def make_file(pages: bytes, rows: int) -> bytes:
    """A file with one column `text`. Its footer claims texts of 1 byte in all, and no dictionary."""
    column = make_struct(
        (1, _INT, 6),  # BYTE_ARRAY
        (2, _LIST, make_list([zigzag(PLAIN)], _INT)),
        (3, _LIST, make_list([varint(4) + b"text"], _BYTES)),
        (4, _INT, 0),  # not compressed
        (5, _LONG, rows),
        (6, _LONG, 1),
        (7, _LONG, len(pages)),
        (9, _LONG, 4),  # the place of the first page
    )
    chunk = make_struct((2, _LONG, 4), (3, _STRUCT, column))
    group = make_struct((1, _LIST, make_list([chunk])), (2, _LONG, 1), (3, _LONG, rows))
    return with_footer(pages, rows, make_list([group]))


def with_footer(pages: bytes, rows: int, groups: bytes) -> bytes:
    schema = [
        make_struct((4, _BYTES, b"root"), (5, _INT, 1)),
        make_struct((1, _INT, 6), (3, _INT, 0), (4, _BYTES, b"text"), (6, _INT, 0)),
    ]
    footer = make_struct(
        (1, _INT, 1), (2, _LIST, make_list(schema)), (3, _LONG, rows), (4, _LIST, groups)
    )
    return b"PAR1" + pages + footer + struct.pack("<I", len(footer)) + b"PAR1"


def make_repeated_dictionary(size: int, rows: int) -> bytes:
    """One text of `size` bytes in every row, stored once in a dictionary."""
    text = struct.pack("<I", size) + b"a" * size
    numbers = bytes([1]) + varint(rows << 1) + b"\0"  # one run of the number 0
    return make_file(make_dictionary_page(text, 1) + make_page(numbers, rows, DICTIONARY), rows)
