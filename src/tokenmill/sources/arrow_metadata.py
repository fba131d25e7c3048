"""Read the metadata of Arrow IPC files: where the messages are, and where a column is in each.

Arrow itself is not asked. It trusts many numbers of a file, and allocates what they claim. Here each
number is compared with the size of the file before it is used, so that a damaged file is a ValueError
and nothing is allocated for it. A message takes about 50 µs.

The metadata are FlatBuffers: a table has an offset to its list of fields (the vtable), and each field
is a number or the offset of another table or vector.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TooLongError

MAGIC = b"ARROW1"
_OLD_FEATHER = b"FEA1"
_CONTINUES = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_DEEPEST = 64  # nested fields
_MESSAGE = 200  # bytes of memory for the place of a message
_EMPTY = -1  # the size of a message whose metadata are empty: the end of a stream

# Types of columns, by their numbers in the metadata.
NULL, BINARY, TEXT, LIST, STRUCT, UNION, FIXED_LIST, MAP = 1, 4, 5, 12, 13, 14, 16, 17
LARGE_BINARY, LARGE_TEXT, LARGE_LIST, RUNS, BINARY_VIEW, TEXT_VIEW = 19, 20, 21, 22, 23, 24
LIST_VIEW, LARGE_LIST_VIEW = 25, 26
_NAMES = {
    1: "null",
    2: "integers",
    3: "floats",
    6: "bool",
    7: "decimals",
    8: "dates",
    9: "times",
    10: "timestamps",
    11: "intervals",
    LIST: "lists",
    STRUCT: "structs",
    UNION: "unions",
    15: "fixed-size binary",
    FIXED_LIST: "lists",
    MAP: "maps",
    18: "durations",
    LARGE_LIST: "lists",
    RUNS: "runs",
    LIST_VIEW: "lists",
    LARGE_LIST_VIEW: "lists",
}
_TEXTS = {BINARY, TEXT, LARGE_BINARY, LARGE_TEXT, BINARY_VIEW, TEXT_VIEW}
# The number of buffers of a column, without those of its children; 2 for all other types. A column of
# views also has as many as its batch says.
_BUFFERS = {
    NULL: 0,
    RUNS: 0,
    STRUCT: 1,
    FIXED_LIST: 1,
    LIST_VIEW: 3,
    LARGE_LIST_VIEW: 3,
    **dict.fromkeys((BINARY, TEXT, LARGE_BINARY, LARGE_TEXT), 3),
}


class Field(NamedTuple):
    """A column. A column of a dictionary has the `width` in bytes of its indices."""

    name: str
    kind: int
    children: tuple[Field, ...] = ()
    dictionary: int | None = None  # its id
    width: int = 0
    is_signed: bool = True
    is_dense: bool = False  # of a union

    @property
    def is_text(self) -> bool:
        return self.kind in _TEXTS

    @property
    def described(self) -> str:
        return _NAMES.get(self.kind, f"values of type {self.kind}")


class Message(NamedTuple):
    """A message: `header` is the table for its kind, `body` where its buffers begin, `end` its end."""

    kind: int
    header: Table
    version: int
    body: int
    end: int


class Buffers(NamedTuple):
    """The buffers of one column in a batch: pairs of an offset in the file and a size."""

    rows: int
    nulls: int
    places: tuple[tuple[int, int], ...]
    codec: str | None


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the messages of a file are: offset and size of the metadata, then their end."""

    fields: tuple[Field, ...]
    dictionaries: tuple[tuple[int, int], ...]  # offset and size of the metadata
    batches: npt.NDArray[np.int64]  # for each also the rows, and the bytes of the body


def read_layout(file: BinaryIO, most: int) -> Layout:
    """Read where the messages of a file or stream are.

    Raises ValueError if the file is damaged, and TooLongError if its metadata take more than `most`
    bytes of memory.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(8)
    if head.startswith(_OLD_FEATHER):
        raise ValueError("it is a Feather file of version 1; write it again with a later version")
    if not head:
        raise ValueError("the file is empty")
    if head.startswith(MAGIC):
        return _read_file_layout(file, size, most)
    return _read_stream_layout(file, size, most)


def _read_stream_layout(file: BinaryIO, size: int, most: int) -> Layout:
    fields: tuple[Field, ...] | None = None
    dictionaries: list[tuple[int, int]] = []
    batches: list[tuple[int, int, int, int]] = []
    for place, message, length in _scan(file, size, most):
        if (fields is None) != (message.kind == _SCHEMA):
            raise ValueError("it does not begin with a schema, or has two")
        if message.kind == _SCHEMA:
            fields = _read_fields(message.header)
        elif message.kind == _DICTIONARY:
            dictionaries.append((place, length))
        elif message.kind == _BATCH:
            rows = _count_rows(message.header)
            batches.append((place, length, rows, message.end - message.body))
        if _MESSAGE * (len(batches) + len(dictionaries)) > most:
            count = len(batches) + len(dictionaries)
            raise TooLongError(count * _MESSAGE, f"it has {count:,} messages or more")
    if fields is None:
        raise ValueError("it has no schema")
    return Layout(fields=fields, dictionaries=tuple(dictionaries), batches=_to_array(batches))


def _read_file_layout(file: BinaryIO, size: int, most: int) -> Layout:
    schema, dictionaries, batches = _read_footer(file, size, most)
    found = []
    for place, length in batches:
        message = read_message(file, place, length, size, most)
        if message.kind != _BATCH:
            raise ValueError(f"the message at byte {place:,} is not a record batch")
        found.append((place, length, _count_rows(message.header), message.end - message.body))
    return Layout(
        fields=_read_fields(schema), dictionaries=tuple(dictionaries), batches=_to_array(found)
    )


def _to_array(batches: list[tuple[int, int, int, int]]) -> npt.NDArray[np.int64]:
    return np.array(batches, np.int64).reshape(-1, 4)


def _read_footer(
    file: BinaryIO, size: int, most: int
) -> tuple[Table, list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the schema, and where the dictionaries and the batches of a file are."""
    file.seek(max(0, size - 10))
    tail = file.read(10)
    if tail[4:] != MAGIC:
        raise ValueError("it has no footer; the file is cut short")
    length = int.from_bytes(tail[:4], "little")
    if not 0 < length <= size - 18:
        raise ValueError("the size of its footer is wrong")
    if 16 * length > most:
        raise TooLongError(16 * length, f"the footer has {length:,} bytes")
    file.seek(size - 10 - length)
    footer = Table.root(file.read(length))
    schema = footer.table(1)
    if schema is None:
        raise ValueError("it has no schema")
    blocks = []
    for number in (2, 3):
        data, start, count = footer.vector(number, 24)
        found = [struct.unpack_from("<qi", data, start + 24 * i) for i in range(count)]
        blocks.append(found)
    return schema, blocks[0], blocks[1]


def _scan(file: BinaryIO, size: int, most: int) -> Iterator[tuple[int, Message, int]]:
    place = 0
    while place < size:
        length = _measure(file, place)
        if length == _EMPTY:
            return
        message = read_message(file, place, length, size, most)
        yield place, message, length
        place = message.end


def _measure(file: BinaryIO, place: int) -> int:
    """Return the size of the metadata at `place`, with the bytes before them."""
    file.seek(place)
    head = file.read(8)
    start = 4 if head[:4] == _CONTINUES else 0  # older files have no such mark
    if len(head) < start + 4:
        raise ValueError(f"it ends at byte {place + len(head):,}; the file is cut short")
    length = int.from_bytes(head[start : start + 4], "little", signed=True)
    return start + 4 + length if length else _EMPTY


def read_message(file: BinaryIO, place: int, length: int, size: int, most: int) -> Message:
    """Read the message whose metadata of `length` bytes begin at `place`."""
    if place < 0 or length < 8 or place + length > size:
        cut = " the file is cut short;" if place + length > size else ""
        raise ValueError(f"the metadata at byte {place:,} do not fit in it;{cut} {length:,} bytes")
    if 8 * length > most:
        raise TooLongError(8 * length, f"the metadata at byte {place:,} have {length:,} bytes")
    file.seek(place)
    data = file.read(length)
    start = 8 if data[:4] == _CONTINUES else 4
    table = Table.root(data[start:])
    header, body = table.table(2), table.number(3, "q")
    if header is None or not 0 <= body <= size - place - length:
        raise ValueError(f"the message at byte {place:,} ends after the file; it is cut short")
    kind, version = table.number(1, "B"), table.number(0, "h")
    return Message(kind, header, version, place + length, place + length + body)


def _count_rows(batch: Table) -> int:
    rows = batch.number(0, "q")
    if rows < 0:
        raise ValueError("a batch has a negative number of rows")
    return rows


def _read_fields(schema: Table) -> tuple[Field, ...]:
    if schema.number(0, "h"):
        raise ValueError("it is big-endian, which is not supported")
    budget = [len(schema.data)]  # a table may be the child of many, again and again
    return tuple(_read_field(field, 0, budget) for field in schema.tables(1))


def _read_field(field: Table, depth: int, budget: list[int]) -> Field:
    budget[0] -= 16
    if depth > _DEEPEST or budget[0] < 0:
        raise ValueError("its columns are nested too deeply")
    kind, about = field.number(2, "B"), field.table(3)
    children = tuple(_read_field(child, depth + 1, budget) for child in field.tables(5))
    dictionary = field.table(4)
    is_dense = kind == UNION and about is not None and about.number(0, "h") == 1
    plain = Field(field.text(0), kind, children, is_dense=is_dense)
    if dictionary is None:
        return plain
    indices = dictionary.table(1)
    bits = 32 if indices is None else indices.number(0, "i")
    if bits not in (8, 16, 32, 64):
        raise ValueError(f"the indices of a dictionary have {bits} bits")
    is_signed = indices is None or bool(indices.number(1, "B"))
    return plain._replace(
        dictionary=dictionary.number(0, "q"), width=bits // 8, is_signed=is_signed
    )


def read_dictionary(message: Message) -> tuple[int, Table, bool]:
    """Return the id and the batch of a dictionary, and whether it is added to the one before."""
    batch = message.header.table(1)
    if message.kind != _DICTIONARY or batch is None:
        raise ValueError("it has a damaged dictionary")
    return message.header.number(0, "q"), batch, bool(message.header.number(2, "B"))


def find_buffers(
    batch: Table, message: Message, fields: tuple[Field, ...], chosen: int, *, values: bool = False
) -> Buffers:
    """Return the buffers of the column number `chosen` of a batch.

    `values`: the batch is a dictionary, so that its column has the values, not indices.
    """
    nodes, first_node, node_count = batch.vector(1, 16)
    places, first, count = batch.vector(2, 16)
    counts, first_variadic, variadic_count = batch.vector(4, 8)
    variadic = iter(
        struct.unpack_from("<q", counts, first_variadic + 8 * i)[0] for i in range(variadic_count)
    )
    node = buffer = 0
    for number, field in enumerate(fields):
        nodes_here, here = _count_buffers(field, variadic, message.version, values=values)
        if number == chosen:
            break
        node, buffer = node + nodes_here, buffer + here
    if node >= node_count or here < 0 or buffer + here > count:
        raise ValueError("a batch lacks the buffers of its columns")
    rows, nulls = struct.unpack_from("<qq", nodes, first_node + 16 * node)
    if not 0 <= nulls <= rows or rows != _count_rows(batch):
        raise ValueError("the rows of a batch do not fit its columns")
    found = []
    for i in range(buffer, buffer + here):
        offset, length = struct.unpack_from("<qq", places, first + 16 * i)
        if offset < 0 or length < 0 or message.body + offset + length > message.end:
            raise ValueError("a buffer is outside of its batch")
        found.append((message.body + offset, length))
    codec = None
    if (compression := batch.table(3)) is not None:
        number = compression.number(0, "b")
        if number not in (0, 1) or compression.number(1, "b"):
            raise ValueError("its compression is unknown")
        codec = ("lz4", "zstd")[number]
    return Buffers(rows, nulls, tuple(found), codec)


def _count_buffers(
    field: Field, variadic: Iterator[int], version: int, *, values: bool = False
) -> tuple[int, int]:
    """Return how many nodes and how many buffers a column has, with its children."""
    if field.dictionary is not None and not values:
        return 1, 2
    nodes, buffers = 1, _BUFFERS.get(field.kind, 2)
    if field.kind == UNION:
        buffers = 1 + field.is_dense + (version < 4)  # version 4 here is V5
    elif field.kind in (BINARY_VIEW, TEXT_VIEW):
        more = next(variadic, -1)
        if not 0 <= more < 1 << 31:
            raise ValueError("a batch lacks the number of its buffers")
        buffers += more
    for child in field.children:
        more_nodes, more_buffers = _count_buffers(child, variadic, version)
        nodes, buffers = nodes + more_nodes, buffers + more_buffers
    return nodes, buffers


class Table:
    """A table in a FlatBuffer. Reading outside of the data is a ValueError."""

    def __init__(self, data: bytes, place: int) -> None:
        self.data = data
        self._place = place
        self._fields = place - self._get("i", place)
        self._size = self._get("H", self._fields)

    @classmethod
    def root(cls, data: bytes) -> Table:
        if len(data) < 8:
            raise ValueError("its metadata are too short")
        return cls(data, struct.unpack_from("<I", data)[0])

    def _get(self, kind: str, place: int) -> Any:
        if not 0 <= place <= len(self.data) - struct.calcsize(kind):
            raise ValueError("its metadata are damaged")
        return struct.unpack_from(f"<{kind}", self.data, place)[0]

    def _find(self, number: int) -> int | None:
        entry = 4 + 2 * number
        if entry + 2 > self._size:
            return None
        offset = self._get("H", self._fields + entry)
        return self._place + offset if offset else None

    def number(self, number: int, kind: str) -> int:
        """Return a number; 0, the default of all that are read here, if it is not there."""
        place = self._find(number)
        return 0 if place is None else int(self._get(kind, place))

    def _follow(self, place: int) -> int:
        return place + int(self._get("I", place))

    def table(self, number: int) -> Table | None:
        """Return a table, or None if it is not there."""
        place = self._find(number)
        return None if place is None else Table(self.data, self._follow(place))

    def vector(self, number: int, width: int) -> tuple[bytes, int, int]:
        """Return the data, where a vector of structs begins in them, and how many it has."""
        place = self._find(number)
        if place is None:
            return self.data, 0, 0
        start = self._follow(place)
        count = int(self._get("I", start))
        if start + 4 + width * count > len(self.data):
            raise ValueError("its metadata are damaged")
        return self.data, start + 4, count

    def tables(self, number: int) -> Iterator[Table]:
        """Yield the tables of a vector."""
        _, start, count = self.vector(number, 4)
        for place in range(start, start + 4 * count, 4):
            yield Table(self.data, self._follow(place))

    def text(self, number: int) -> str:
        """Return a text; invalid UTF-8 is replaced."""
        data, start, size = self.vector(number, 1)
        return data[start : start + size].decode("utf-8", "replace")
