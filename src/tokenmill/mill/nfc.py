"""Unicode NFC of UTF-8 bytes, at the price of what there is to normalise.

`unicodedata.normalize` decodes, checks and encodes everything, normalises all of a text for the
sake of one accent, and takes quadratic time for a long run of combining marks. Here the leading
bytes of characters pick out the few that NFC may touch; each of them is normalised with its
neighbours, and long runs of marks are sorted beforehand. The Unicode version is Python's.
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

_TABLED = 0x30000  # code points in the tables; Unicode has put nothing for NFC to do beyond
_NEAR = 32
_MANY_MARKS = 32


class _Tables(NamedTuple):
    """What NFC may do, by code point (all beyond are the last entry) and by leading bytes."""

    unsure: Mask  # changes, or may compose with what precedes it
    classes: Bytes  # canonical combining class
    leads: bytes  # nonzero: some character with this first byte is unsure or has a class
    seconds: Mask  # the same by the first two bytes


@functools.cache
def _tables() -> _Tables:
    characters = [chr(code) for code in range(_TABLED)]
    classes = np.array([*map(unicodedata.combining, characters), 0], np.uint8)
    unsure = np.zeros(_TABLED + 1, np.bool_)
    unsure[_TABLED] = True
    for code, character in enumerate(characters):
        parts = unicodedata.normalize("NFD", character)
        if parts != character:
            unsure[[ord(part) for part in parts[1:]]] = True
            unsure[code] |= not unicodedata.is_normalized("NFC", character)
    touched = np.flatnonzero(unsure | (classes > 0)).tolist()
    leads = bytearray(256)
    seconds = np.zeros((256, 256), np.bool_)
    for code in [*touched, *range(_TABLED, 0x110000, 0x1000)]:
        first, second, *_ = chr(code).encode()
        leads[first] = seconds[first, second] = 1
    return _Tables(unsure, classes, bytes(leads), seconds)


def compose(text: bytes) -> bytes:
    """`text`, valid UTF-8 that begins with an ASCII character, in NFC."""
    tables = _tables()
    array = np.frombuffer(text, np.uint8)
    high = array >= 0xCC
    if np.count_nonzero(high) * 16 > len(array):
        high = np.frombuffer(text.translate(tables.leads), np.bool_)
    starts = np.flatnonzero(high)
    starts = starts[tables.seconds[array[starts], array[starts + 1]]]
    if not len(starts):
        return text
    codes, widths = _decoded(array, starts)
    codes = np.minimum(codes, _TABLED)
    unsure, classes = tables.unsure[codes], tables.classes[codes]
    touched = unsure | (classes > 0)
    starts, widths = starts[touched], widths[touched]
    unsure, classes = unsure[touched], classes[touched]
    if not len(starts):
        return text
    stops = starts + widths
    joined = starts[1:] == stops[:-1]
    unsure[1:] |= joined & (classes[1:] < classes[:-1]) & (classes[1:] > 0)

    # A row is a maximal sequence of touched characters; with the character before it, it can be
    # normalised alone. Rows that are near one another are taken together.
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

    pieces: list[bytes] = []
    done = 0
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        piece = text[start:stop].decode()
        if crowded:
            piece = _in_canonical_order(piece)
        pieces += text[done:start], unicodedata.normalize("NFC", piece).encode()
        done = stop
    return b"".join([*pieces, text[done:]])


def _decoded(array: Bytes, starts: Positions) -> tuple[Positions, Positions]:
    """Code points and widths in bytes of the characters of two bytes and more at `starts`."""
    lead = array[starts].astype(np.intp)
    widths = 2 + (lead >= 0xE0) + (lead >= 0xF0)
    codes = lead & (0xFF >> (widths + 1))
    for place in range(1, 4):
        more = widths > place
        codes[more] = (codes[more] << 6) | (array[starts[more] + place] & 0x3F)
    return codes, widths


def _in_canonical_order(text: str) -> str:
    """Sorts marks as NFC wants them, because unicodedata needs quadratic time for that."""
    for mark in "\u0344\u0f73\u0f75\u0f81":  # all the marks that decompose into two
        text = text.replace(mark, unicodedata.normalize("NFD", mark))
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    classes = _tables().classes[np.minimum(codes, _TABLED)]
    letters = np.cumsum(classes == 0)
    order = np.argsort((letters << 8) | classes, kind="stable")
    return codes[order].tobytes().decode("utf-32-le")
