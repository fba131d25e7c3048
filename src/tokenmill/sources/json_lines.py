"""Read documents from JSON lines. Each line is a record, and one of its fields is the text.

A line that cannot be used is a `Rejection` with its position and the reason; the lines around it are
kept. A line is held whole, because it has to be parsed whole. A long line is refused if its values
would not fit in memory: two bytes of JSON can become 80 bytes of Python. Reading takes one pass over
a line of any length, and a second pass over a long line with many values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from tokenmill.errors import TooLongError
from tokenmill.sources.fields import Field, FieldError, TextField, json_kind, parse_text_field
from tokenmill.sources.kept_fields import keep_fields
from tokenmill.sources.records import (
    BLOCK,
    COPIES,
    MOST_RECORDS,
    PARSED,
    Chunk,
    Cutter,
    Rejection,
    count_byte,
    limit_chunk,
)

LONG = 1 << 20  # bytes; the values of a shorter line always fit in memory
_VALUE = 80  # maximum bytes of memory for a parsed value
_SEPARATORS = b",:[{"  # each value except the first follows one of these
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_LONG_STRING = 64


def read_json_lines(
    blocks: Iterable[bytes],
    start: int,
    text_field: str,
    cutter: Cutter | None,
    block_bytes: int = BLOCK,
    hold_limit: int = 1 << 62,
    keep: tuple[Field, ...] = (),
) -> Iterator[Chunk]:
    """Yield the texts in a stream of JSON lines. The stream begins at offset `start` of its source.

    `keep` are the fields to keep besides the text.

    >>> chunks = read_json_lines([b'{"text": "a"}\\n{"te', b'xt": "b"}'], 0, "text", None)
    >>> [(chunk.texts, chunk.offsets) for chunk in chunks]
    [([b'a'], [0]), ([b'b'], [14])]
    """
    field = parse_text_field(text_field)
    held: list[bytes] = []  # the blocks of an unfinished line
    for block in _and_newline(blocks):
        held.append(block)
        if b"\n" not in block:
            continue
        whole = b"".join(held)
        while len(lines := whole.split(b"\n", MOST_RECORDS)) > 1:
            rest = lines.pop()
            chunk = _read_lines(lines, start, field, hold_limit, keep)
            chunk.whole, chunk.begin = whole, start
            start += chunk.read
            yield from limit_chunk(chunk, cutter, block_bytes)
            whole = rest
        held = [whole]


def _read_lines(
    lines: list[bytes], start: int, field: TextField, hold_limit: int, keep: tuple[Field, ...]
) -> Chunk:
    """Read the texts in some lines. The first line is at offset `start`."""
    name = None if keep else field.name
    texts: list[bytes] = []
    offsets: list[int] = []
    chunk = Chunk(texts, offsets)
    for line in lines:
        if len(line) > LONG:
            refuse_many_values(line, f"the line at byte {start}", hold_limit)
        try:
            # One expression, so that a large record is freed before the next one is parsed.
            if name is not None:
                text = orjson.loads(line)[name]
            else:
                text = take_text(orjson.loads(line), start, field, chunk, keep)
            texts.append(text.encode())
            offsets.append(start)
        except (ValueError, KeyError, TypeError, AttributeError, FieldError):
            found = read_odd_record(line, start, field, chunk, hold_limit, keep)
            if found is not None:
                texts.append(found)
                offsets.append(start)
        start += len(line) + 1
        chunk.lines += 1
        chunk.read += len(line) + 1
    return chunk


def take_text(
    record: Any, place: int, field: TextField, chunk: Chunk, keep: tuple[Field, ...]
) -> str:
    """Return the text of a record at an offset, and add the fields to keep to its chunk."""
    text = field.text(record)
    if keep:
        chunk.fields[place] = keep_fields(record, keep)
    return text


def refuse_many_values(line: bytes, what: str, hold_limit: int) -> None:
    """Raise TooLongError if the values of a record take too much memory once they are parsed.

    `what` names the record and its place.
    """
    most = COPIES // 2 * hold_limit // _VALUE  # the other half is for the line and its text
    values = sum(count_byte(line, byte) for byte in _SEPARATORS)
    if values > most:  # do not count separators in long strings
        for string in _STRING.finditer(line):
            first, end = string.span()
            if end - first > _LONG_STRING:
                values -= sum(line.count(byte, first, end) for byte in _SEPARATORS)
    if values > most:
        reason = f"{what} has {values:,} values"
        raise TooLongError(values * _VALUE // (COPIES // 2), reason)


def _and_newline(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the blocks, then a line end if the last line has none."""
    last = b"\n"
    for block in blocks:
        yield block
        last = block[-1:]
    if last != b"\n":
        yield b"\n"


def read_odd_record(
    line: bytes,
    start: int,
    field: TextField,
    chunk: Chunk,
    hold_limit: int,
    keep: tuple[Field, ...],
    what: str = "line",
    strings: bool = False,
) -> bytes | None:
    """Read a record that the fast path could not read. Returns its text, or None if it has no text.

    A record without text adds a rejection to `chunk`, unless it is blank. `what` is what an error
    calls a record that is too long. `strings`: a record may also be a string, which is its text.
    """
    if len(line) > PARSED // 2 * hold_limit and not line.isascii():
        # The standard library takes twice the memory of orjson.
        reason = f"the {what} at byte {start} has {len(line):,} bytes"
        raise TooLongError(len(line) // (PARSED // 2), reason) from None
    if not line.strip():
        return None
    size = len(line)
    if start == 0:
        line = line.removeprefix(b"\xef\xbb\xbf")
    errors = "strict"
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        # Invalid bytes are kept for now; `on_bad_text` decides later.
        errors = "surrogateescape"
        chunk.bad_bytes[start] = start + size - len(line) + error.start
    try:
        # The standard library reads NaN and huge numbers, because it also writes them; orjson
        # refuses both.
        record = json.loads(line.decode("utf-8", errors))
        if strings and isinstance(record, str):
            return record.encode("utf-8", errors)
        if not isinstance(record, dict):
            raise FieldError("not a JSON object", f"a JSON {json_kind(record)}, not an object")
        return take_text(record, start, field, chunk, keep).encode("utf-8", errors)
    except FieldError as error:
        kind, reason = error.kind, error.reason
    except UnicodeEncodeError:
        kind, reason = "lone surrogate", f"{_name(field)} holds a lone surrogate"
    except RecursionError:
        kind, reason = "not JSON", "not JSON: nested too deeply"
    except ValueError as error:
        kind, reason = "not JSON", f"not JSON: {error}"
    chunk.rejections.append(Rejection(chunk.lines, start, kind, reason, size))
    return None


def _name(field: TextField) -> str:
    return "the text" if field.is_template else f"field {field.fields[0].name!r}"
