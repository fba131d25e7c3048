"""Two binary encodings as trees that can be changed: protocol buffers and Thrift's compact protocol.

SentencePiece models are protocol buffers; the footers and page headers of Parquet are Thrift. Both
are read without their schemas, which is enough to change a number or a text and to write all lengths
around it anew.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from .mutate import INTEGERS, STRINGS, change_bytes

_MASK = (1 << 64) - 1


def write_varint(number: int) -> bytes:
    number &= _MASK
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, place


class Message:
    """A protocol buffer: fields in order, each a number, a wire type and a value."""

    def __init__(self, data: bytes, nested: dict[int, Any] | None = None) -> None:
        """`nested` are the fields that are messages, with their own nested fields."""
        self.fields: list[list[Any]] = []
        place = 0
        while place < len(data):
            tag, place = read_varint(data, place)
            number, kind = tag >> 3, tag & 7
            if kind == 0:
                value, place = read_varint(data, place)
            elif kind == 2:
                size, place = read_varint(data, place)
                value, place = data[place : place + size], place + size
                if nested and number in nested:
                    value = Message(value, nested[number])
            else:
                size = 8 if kind == 1 else 4
                value, place = data[place : place + size], place + size
            self.fields.append([number, kind, value])

    def encode(self) -> bytes:
        parts = []
        for number, kind, value in self.fields:
            parts.append(write_varint(number << 3 | kind))
            if kind == 0:
                parts.append(write_varint(value))
                continue
            data = value.encode() if isinstance(value, Message) else value
            parts.append(write_varint(len(data)) + data if kind == 2 else data)
        return b"".join(parts)

    def change(self, random: Random) -> None:
        """Change one field, here or in a nested message."""
        place = random.randrange(len(self.fields)) if self.fields else -1
        if place < 0:
            self.fields.append([random.randrange(50), 0, random.choice(INTEGERS)])
            return
        field = self.fields[place]
        match random.randrange(9):
            case 0:
                del self.fields[place]
            case 1:
                self.fields.insert(place, [field[0], field[1], field[2]])
            case 2:
                self.fields.append([random.randrange(1, 50), 0, random.choice(INTEGERS)])
            case 3:
                field[0] = random.randrange(1, 50)
            case _ if isinstance(field[2], Message):
                field[2].change(random)
            case _ if field[1] == 0:
                field[2] = random.choice([field[2] + 1, field[2] ^ 1, *INTEGERS])
            case _ if field[1] == 5:
                field[2] = struct.pack(
                    "<f", random.choice([0, -1, float("nan"), float("inf"), 1e38])
                )
            case _:
                text = random.choice(STRINGS).encode("utf-8", "surrogatepass")
                field[2] = random.choice([text, change_bytes(random, field[2])])
                field[1] = 2


# Thrift's compact protocol: the types of fields.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


class Struct:
    """A Thrift structure: fields in order, each an id, a type and a value."""

    def __init__(self, data: bytes, place: int = 0) -> None:
        self.fields: list[list[Any]] = []
        last = 0
        while (head := data[place]) != 0:
            place += 1
            if head >> 4:
                last += head >> 4
            else:
                number, place = read_varint(data, place)
                last = (number >> 1) ^ -(number & 1)
            value, place = _read(data, place, head & 15)
            self.fields.append([last, head & 15, value])
        self.end = place + 1

    def encode(self) -> bytes:
        parts, last = [], 0
        for number, kind, value in self.fields:
            if kind in (_TRUE, _FALSE):
                kind = _TRUE if value else _FALSE
            if 0 < number - last < 16:
                parts.append(bytes([(number - last) << 4 | kind]))
            else:
                parts.append(bytes([kind]) + _zigzag(number))
            last = number
            if kind not in (_TRUE, _FALSE):
                parts.append(_write(kind, value))
        return b"".join(parts) + b"\0"

    def change(self, random: Random) -> None:
        """Change one field, here or in a nested structure."""
        if not self.fields:
            self.fields.append([1, _I64, random.choice(INTEGERS)])
            return
        place = random.randrange(len(self.fields))
        field = self.fields[place]
        match random.randrange(10):
            case 0:
                del self.fields[place]
            case 1:
                self.fields.insert(place, list(field))
            case 2:
                field[0] = random.choice([field[0] + 1, 0, 1, 30000])
            case _:
                field[2] = _change(random, field[1], field[2])


def _zigzag(number: int) -> bytes:
    return write_varint((number << 1) ^ (number >> 63))


def _read(data: bytes, place: int, kind: int) -> tuple[Any, int]:
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, place
    if kind == _BYTE:
        return data[place], place + 1
    if kind in (_I16, _I32, _I64):
        number, place = read_varint(data, place)
        return (number >> 1) ^ -(number & 1), place
    if kind == _DOUBLE:
        return data[place : place + 8], place + 8
    if kind == _BINARY:
        size, place = read_varint(data, place)
        return data[place : place + size], place + size
    if kind in (_LIST, _SET):
        head = data[place]
        size, place = (head >> 4, place + 1) if head >> 4 != 15 else read_varint(data, place + 1)
        items = []
        for _ in range(size):
            item, place = (
                _read(data, place, head & 15) if head & 15 > 2 else (data[place], place + 1)
            )
            items.append(item)
        return [head & 15, items, None], place
    if kind == _STRUCT:
        inner = Struct(data, place)
        return inner, inner.end
    raise ValueError(f"a Thrift type {kind}")


def _write(kind: int, value: Any) -> bytes:
    if kind == _BYTE or isinstance(value, bool):
        return bytes([value & 255])
    if kind in (_I16, _I32, _I64):
        return _zigzag(value % (1 << 64) - (1 << 64) * (value % (1 << 64) >> 63))
    if kind == _DOUBLE:
        return bytes(value)
    if kind == _BINARY:
        return write_varint(len(value)) + value
    if kind in (_LIST, _SET):
        inner, items, claimed = value
        size = len(items) if claimed is None else claimed
        head = (
            bytes([size << 4 | inner]) if size < 15 else bytes([0xF0 | inner]) + write_varint(size)
        )
        parts = [_write(inner, item) if inner > 2 else bytes([item & 255]) for item in items]
        return head + b"".join(parts)
    encoded: bytes = value.encode()
    return encoded


def _change(random: Random, kind: int, value: Any) -> Any:
    if kind == _STRUCT:
        value.change(random)
        return value
    if kind in (_LIST, _SET):
        inner, items, _ = value
        match random.randrange(6):
            case 0 if items:
                items.append(items[0])
            case 1 if items:
                del items[random.randrange(len(items))]
            case 2:
                return [inner, items, random.choice([len(items) + 1, 2**20, 2**31 - 1, 2**32 - 1])]
            case _ if items:
                place = random.randrange(len(items))
                items[place] = _change(random, inner, items[place])
        return value
    if kind == _BINARY:
        text = random.choice(STRINGS).encode("utf-8", "surrogatepass")
        return random.choice([text, change_bytes(random, value), value])
    if kind in (_TRUE, _FALSE):
        return not value
    if kind == _DOUBLE:
        return random.randbytes(8)
    return random.choice([value + 1, value - 1, value * 2, -value, *range(12), *INTEGERS])
