"""Normalise UTF-8 bytes to NFC, in time proportional to the characters that may change.

`unicodedata.normalize` has to decode and encode the whole text, normalises all of it because of one
accent, and takes quadratic time for a long run of combining marks. Here, the few characters that NFC
may change are found by their first bytes. Only these are normalised, each with its neighbours, and
long runs of marks are sorted first. The Unicode version is Python's.
"""

from __future__ import annotations

import functools
import unicodedata
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.intp]

_TABLED = 0x30000  # code points in the tables; NFC changes no larger ones
_NEAR = 32  # bytes: places closer than this are normalised together
_MANY_MARKS = 32  # in a row: from here on, `unicodedata` takes too long to sort them


class _Tables(NamedTuple):
    leads: bytes  # for each first byte: nonzero if NFC may change characters that begin with it
    classes: Bytes  # for each key, see `_key`: the canonical combining class of the character
    unsure: Mask  # for each key: whether the character changes or may compose with the one before
    classes_by_code: Bytes  # for each code point: its canonical combining class
    moved: frozenset[int]  # code points that change or may compose with the character before


@functools.cache
def _tables() -> _Tables:
    """Make tables of the characters that NFC may change, from `unicodedata`, in 60 ms."""
    characters = [chr(code) for code in range(_TABLED)]
    classes_by_code = np.array([*map(unicodedata.combining, characters), 0], np.uint8)
    moved: set[int] = set()
    for code, character in enumerate(characters):
        parts = unicodedata.normalize("NFD", character)
        if parts != character:
            moved.update(map(ord, parts[1:]))
            if not unicodedata.is_normalized("NFC", character):
                moved.add(code)
    leads = bytearray(256)
    classes = np.zeros(1 << 18, np.uint8)
    unsure = np.zeros(1 << 18, np.bool_)
    for code in moved.union(np.flatnonzero(classes_by_code).tolist()):
        encoded = chr(code).encode()
        leads[encoded[0]] = 1
        key = _key(encoded)
        keys = slice(key, key + 64 if len(encoded) == 2 else key + 1)
        # A key has no fourth byte, so it stands for 64 characters of four bytes: mark all 64.
        unsure[keys] = code in moved or len(encoded) == 4
        classes[keys] = 0 if len(encoded) == 4 else classes_by_code[code]
    leads[0xF0:0xF5] = b"\1" * 5
    unsure[_key(chr(_TABLED).encode()) :] = True
    return _Tables(bytes(leads), classes, unsure, classes_by_code, frozenset(moved))


def _key(encoded: bytes) -> int:
    """Return the index of a character in the lookup tables: 18 bits of its first three bytes.

    If the character has only two bytes, the third byte belongs to the next character and can be
    anything. So the tables have 64 consecutive entries for a two-byte character.
    """
    first, second, third, *_ = encoded + b"\x80"
    return (first & 0x3F) << 12 | (second & 0x3F) << 6 | (third & 0x3F)


def begins_anew(character: str) -> bool:
    """Return whether NFC treats a character and the one before it independently."""
    code = ord(character)
    tables = _tables()
    return code < _TABLED and not tables.classes_by_code[code] and code not in tables.moved


def compose(text: bytes) -> bytes:
    """Normalise UTF-8 text to NFC. It must begin and end with an ASCII character."""
    tables = _tables()
    array = np.frombuffer(text, np.uint8)
    high = array >= 0xCC
    if np.count_nonzero(high) * 16 > len(array):
        high = np.frombuffer(text.translate(tables.leads), np.bool_)
    starts = np.flatnonzero(high)
    keys = array[starts].astype(np.intp) & 0x3F
    for place in (1, 2):
        keys <<= 6
        keys |= array[starts + place] & 0x3F
    unsure, classes = tables.unsure[keys], tables.classes[keys]
    touched = np.flatnonzero(unsure | (classes > 0))
    if not len(touched):
        return text
    starts, unsure, classes = starts[touched], unsure[touched], classes[touched]
    lead = array[starts]
    stops = starts + 2 + (lead >= 0xE0) + (lead >= 0xF0)
    joined = starts[1:] == stops[:-1]
    unsure[1:] |= joined & (classes[1:] < classes[:-1]) & (classes[1:] > 0)

    # A row is a maximal sequence of touched characters. A row and the character before it can be
    # normalised without the rest of the text. Rows close to each other are normalised together.
    heads = np.flatnonzero(np.append(True, ~joined))
    tails = np.append(heads[1:], len(starts)) - 1
    wanted = np.logical_or.reduceat(unsure, heads)
    heads, tails = heads[wanted], tails[wanted]
    if not len(heads):
        return text
    crowded = (tails - heads).max() >= _MANY_MARKS
    starts, stops = starts[heads] - 1, stops[tails]
    for _ in range(3):
        starts -= (array[starts] & 0xC0) == 0x80
    far = np.flatnonzero(starts[1:] - stops[:-1] > _NEAR)
    starts, stops = starts[np.append(0, far + 1)], stops[np.append(far, -1)]

    composed: list[bytes] = []
    done = 0
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        span = text[start:stop].decode()
        if crowded:
            span = _in_canonical_order(span)
        composed += text[done:start], unicodedata.normalize("NFC", span).encode()
        done = stop
    return b"".join([*composed, text[done:]])


def _in_canonical_order(text: str) -> str:
    """Sort combining marks as NFC requires. `unicodedata` would take quadratic time for this."""
    for mark in "\u0344\u0f73\u0f75\u0f81":  # these are all the marks that decompose into two
        text = text.replace(mark, unicodedata.normalize("NFD", mark))
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    classes = _tables().classes_by_code[np.minimum(codes, _TABLED)]
    letters = np.cumsum(classes == 0)
    order = np.argsort((letters << 8) | classes, kind="stable")
    return codes[order].tobytes().decode("utf-32-le")
