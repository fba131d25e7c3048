"""Read documents from a file that is one JSON array: each element is an object or a string.

NumPy finds the commas between elements: those outside of strings and of nested brackets. Each
element is then parsed on its own, so memory holds a block and one element, and nesting costs
nothing. An element that cannot be used is a `Rejection`, like a line of JSON lines. A file that ends
before its array, or that has anything else after it, is a `BadFileError` that names the place.

Finding the elements takes about as long as parsing them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import orjson

from tokenmill.errors import TooLongError
from tokenmill.sources.fields import Field, FieldError, TextField, parse_text_field
from tokenmill.sources.files import BadFileError, CutShortError
from tokenmill.sources.json_lines import LONG, read_odd_record, refuse_many_values, take_text
from tokenmill.sources.records import (
    BLOCK,
    MOST_RECORDS,
    PARSED,
    Chunk,
    Cutter,
    Places,
    Rejection,
    count_byte,
    limit_chunk,
)

_QUOTE, _BACKSLASH, _COMMA, _NEWLINE = b'"\\,\n'
_WHITE = b" \t\r\n"
_MARK = b"\xef\xbb\xbf"
_SLICE = 1 << 18  # bytes to search at once; each takes up to 40 bytes of memory
_STEPS = np.zeros(256, np.int8)  # how a byte changes the depth
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_IS_MARK = _STEPS != 0
_IS_MARK[[_QUOTE, _BACKSLASH, _COMMA]] = True


def read_json_array(
    blocks: Iterable[bytes],
    path: str,
    text_field: str,
    cutter: Cutter | None,
    block_bytes: int = BLOCK,
    hold_limit: int = 1 << 62,
    keep: tuple[Field, ...] = (),
) -> Iterator[Chunk]:
    """Yield the texts of the elements of an array. `path` is the name of the file for errors.

    >>> chunks = read_json_array([b'[{"text": "a,"}, "b', b'"]'], "a.json", "text", None)
    >>> [(chunk.texts, chunk.offsets) for chunk in chunks]
    [([b'a,'], [1]), ([b'b'], [17])]
    """
    field, borders = parse_text_field(text_field), _Borders()
    held: list[bytes] = []  # the blocks of an unfinished element
    size = start = place = 0  # bytes in `held`, their offset, and the offset of the next block
    is_first = True
    for block in blocks:
        rest = block
        if borders.is_at_end:
            _refuse_more(path, block, place)
        elif not borders.is_begun:
            begin = _find_array(block, path, place)
            if lines := count_byte(block[:begin], _NEWLINE):
                yield Chunk([], [], lines=lines)
            rest = block[begin:]
            start = place + begin
            borders.is_begun = block[begin - 1 : begin] == b"["
        place += len(block)
        if borders.is_at_end or not borders.is_begun:
            continue
        stops = borders.find(rest)
        held.append(rest)
        size += len(rest)
        if not len(stops):
            if size > PARSED * hold_limit:
                _refuse_long(held, start, size, blocks, borders)
            continue
        whole = b"".join(held)
        stops += size - len(rest)
        while len(stops):
            some, stops = stops[:MOST_RECORDS], stops[MOST_RECORDS:]
            is_empty = is_first and len(some) == 1 and borders.is_at_end
            chunk = _read_elements(whole, some, start, field, hold_limit, keep, is_empty)
            is_first = False
            taken = chunk.read  # before the caller counts bytes on disk in it
            yield from limit_chunk(chunk, cutter, block_bytes)
            whole, start, stops = whole[taken:], start + taken, stops - taken
        if borders.is_at_end:
            _refuse_more(path, whole, start)
        held, size = [whole], len(whole)
    if not borders.is_at_end:
        where = f", in the record after byte {start}" if borders.is_begun else ""
        raise CutShortError(path, f"the JSON array is cut short: it ends at byte {place}{where}")


def _find_array(block: bytes, path: str, place: int) -> int:
    """Return where the first element may begin; the length of the block if it is white space."""
    head = block.removeprefix(_MARK) if place == 0 else block
    if not (head := head.lstrip(_WHITE)):
        return len(block)
    if not head.startswith(b"["):
        raise BadFileError(path, "the file does not begin with a JSON array")
    return len(block) - len(head) + 1


class _Borders:
    """Finds the ends of elements, block by block."""

    def __init__(self) -> None:
        self.is_begun = self.is_at_end = False
        self._depth = 1
        self._in_string = self._escaped = False  # at the start of the next block

    def find(self, block: bytes) -> Places:
        """Return the places of the commas between elements, and of the bracket after the last one."""
        found = [np.empty(0, np.int64)]
        for first in range(0, len(block), _SLICE):
            if self.is_begun and not self.is_at_end:
                found.append(self._find(block[first : first + _SLICE]) + first)
        return np.concatenate(found)

    def _find(self, block: bytes) -> Places:
        data = np.frombuffer(block, np.uint8)
        places = np.flatnonzero(_IS_MARK[data])
        marks = data[places]
        escaped = self._find_escaped(places[marks == _BACKSLASH], len(block))
        is_quote = marks == _QUOTE
        if len(escaped):
            is_quote &= ~np.isin(places, escaped)
        in_string = (np.cumsum(is_quote) + self._in_string) & 1 == 1
        if len(in_string):
            self._in_string = bool(in_string[-1])
        outside = ~in_string & ~is_quote
        places, marks = places[outside], marks[outside]
        depths = self._depth + np.cumsum(_STEPS[marks], dtype=np.int64)
        if len(depths):
            self._depth = int(depths[-1])
        ends = np.flatnonzero(depths == 0)[:1]
        if len(ends):
            self.is_at_end = True
            stop = int(ends[0])
            places, marks, depths = places[: stop + 1], marks[: stop + 1], depths[: stop + 1]
        borders: Places = places[(depths == 0) | ((depths == 1) & (marks == _COMMA))]
        return borders

    def _find_escaped(self, backslashes: Places, size: int) -> Places:
        """Return the places of bytes after an odd number of backslashes."""
        before = np.array([0] if self._escaped else [], np.int64)
        self._escaped = False
        if not len(backslashes):
            return before
        if len(before) and backslashes[0] == 0:
            # This backslash is escaped itself, so it escapes nothing.
            backslashes = backslashes[1:]
        firsts = np.flatnonzero(np.diff(backslashes, prepend=-2) != 1)
        lengths = np.diff(firsts, append=len(backslashes))
        odd = lengths % 2 == 1
        escaped = (backslashes[firsts] + lengths)[odd]
        if len(escaped) and escaped[-1] == size:
            self._escaped, escaped = True, escaped[:-1]
        return np.concatenate((before, escaped))


def _read_elements(
    whole: bytes,
    stops: Places,
    start: int,
    field: TextField,
    hold_limit: int,
    keep: tuple[Field, ...],
    is_empty: bool,
) -> Chunk:
    """Read the elements of `whole` that end at `stops`. The byte whole[0] is at offset `start`.

    `is_empty`: the array has one element at most, which may be missing.
    """
    texts: list[bytes] = []
    offsets: list[int] = []
    chunk = Chunk(texts, offsets, whole=whole, begin=start)
    last = int(stops[-1])
    for low, high in pairwise([-1, *stops.tolist()]):
        element = whole[low + 1 : high].lstrip(_WHITE)
        place = start + high - len(element)
        element = element.rstrip(_WHITE)
        if not element:
            if not is_empty:
                _reject_nothing(chunk, place)
            continue
        if len(element) > PARSED * hold_limit:
            raise _too_long(place, len(element))
        if len(element) > LONG:
            refuse_many_values(element, f"the record at byte {place}", hold_limit)
        try:
            # One expression, so that a large record is freed before the next one is parsed.
            texts.append(_text_of(orjson.loads(element), place, field, chunk, keep).encode())
            offsets.append(place)
        except (ValueError, KeyError, TypeError, AttributeError, FieldError):
            chunk.lines = chunk.line_of(place) or 0
            text = read_odd_record(
                element, place, field, chunk, hold_limit, keep, what="record", strings=True
            )
            if text is not None:
                texts.append(text)
                offsets.append(place)
    chunk.read = last + 1
    chunk.lines = count_byte(whole[: last + 1], _NEWLINE)
    return chunk


def _text_of(
    value: Any, place: int, field: TextField, chunk: Chunk, keep: tuple[Field, ...]
) -> str:
    if isinstance(value, str):
        return value
    if field.name is None or keep:
        return take_text(value, place, field, chunk, keep)
    text: str = value[field.name]
    return text


def _reject_nothing(chunk: Chunk, place: int) -> None:
    reason = "not JSON: no value before a comma or the end of the array"
    chunk.rejections.append(Rejection(chunk.line_of(place), place, "not JSON", reason, 0))


def _refuse_long(
    held: list[bytes], start: int, size: int, blocks: Iterable[bytes], borders: _Borders
) -> None:
    """Raise TooLongError for an element that is too long to hold, with its size."""
    white = 0
    for block in held:
        white += len(block) - len(block.lstrip(_WHITE))
        if block.strip(_WHITE):
            break
    held.clear()
    for block in blocks:
        stops = borders.find(block)
        size += int(stops[0]) if len(stops) else len(block)
        if len(stops):
            break
    raise _too_long(start + white, size - white)


def _too_long(start: int, size: int) -> TooLongError:
    return TooLongError(size // PARSED, f"the record at byte {start} has {size:,} bytes")


def _refuse_more(path: str, data: bytes, place: int) -> None:
    """Raise BadFileError unless the bytes after the array are white space."""
    rest = data.lstrip(_WHITE)
    if rest:
        where = place + len(data) - len(rest)
        raise BadFileError(
            path, f"the JSON array ends before byte {where}, but the file has more after it"
        )
