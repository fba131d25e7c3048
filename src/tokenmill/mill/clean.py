"""Cleans text by the rules of docs/cleaning.md, many documents at once.

Guaranteed: what comes out depends on each document alone, not on its neighbours, nor on where a
long document was cut into pieces; cleaning a second time changes nothing; the number of
separators stays.

A piece of 256 KiB at a time, which fits the cache, is searched for what the rules forbid with
NumPy comparisons of single bytes (25 GB/s each); bytes are moved only where something was found.
"""

from __future__ import annotations

import functools
import re
import unicodedata

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.intp]

_PIECE = 1 << 18
_CUT = re.compile(rb"[!-~](?=[ \n])")
_TAB, _NEWLINE, _SPACE = 9, 10, 32
_CONTROLS = bytes(set(range(1, 32)) - set(b"\t\n\r")) + b"\x7f"
_TABLED = 0x30000
_LONG_RUN = 32


def clean(text: str) -> str:
    r"""One document, cleaned.

    >>> clean("\ufeffOne  two. \r\n\r\n\r\n    three\t\n")
    'One two.\n\n    three'
    """
    return clean_block(text.replace("\0", "").encode()).decode()


def clean_block(block: bytes, *, continues: bool = False, goes_on: bool = False) -> bytes:
    """Documents as UTF-8 joined by NUL bytes, each cleaned, still joined by NUL bytes.

    `continues`: the block begins in the middle of a document, with the space or newline that
    follows a letter. `goes_on`: the block ends with a letter in the middle of a document.
    """
    pieces = []
    start = 0
    while start < len(block):
        found = _CUT.search(block, start + _PIECE)
        cut = found.end() if found else len(block)
        # What lies beyond the piece: the border of a document, or a visible character, for which
        # the full stop stands because nothing composes with it.
        before = b".." if continues or start else b".\0"
        after = b".." if goes_on or cut < len(block) else b"\0."
        pieces.append(_clean_padded(before + block[start:cut] + after)[2:-2])
        start = cut
    return b"".join(pieces)


def _clean_padded(text: bytes) -> bytes:
    """Cleaned `text`, whose first two and last two bytes are padding that stays."""
    array = np.frombuffer(text, np.uint8)
    highest = array.max()
    if highest >= 0xC2:
        if b"\xef" in text:
            text = text.replace(b"\xef\xbb\xbf", b"")
        if b"\xc2" in text:
            text = _without_c1(text)
        if highest >= 0xCC:  # U+0300 is the first character that NFC can touch
            text = _composed(text)
        array = np.frombuffer(text, np.uint8)
    end = (array == 0) | (array == _NEWLINE)
    tab = array == _TAB
    known = np.count_nonzero(end) + np.count_nonzero(tab)
    if np.count_nonzero(array < _SPACE) != known or b"\x7f" in text:
        text = text.translate(None, _CONTROLS)
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        # A removal may have joined a letter and its accent: begin again, now without controls.
        return _clean_padded(text)
    blank = tab | (array == _SPACE)
    tidy = array
    surplus = _surplus_blanks(array, end, tab, blank)
    if surplus is not None:
        keep = ~surplus
        tidy, end = tidy[keep], end[keep]
    surplus = _surplus_newlines(tidy, end)
    if surplus is not None:
        tidy = tidy[~surplus]
        surplus = _leading_newlines(tidy)
        if surplus is not None:
            tidy = tidy[~surplus]
    return text if tidy is array else tidy.tobytes()


def _surplus_blanks(array: Bytes, end: Mask, tab: Mask, blank: Mask) -> Mask | None:
    """Marks blanks before a line's end, and spaces after the first one that follows a visible
    character; None if there are none."""
    pair = blank[:-1] & blank[1:]
    trailing = blank[:-1] & end[1:]
    has_trailing = trailing.any()
    if not has_trailing and not (pair[1:] > (end | blank)[:-2]).any():
        return None
    surplus = np.zeros(len(array), np.bool_)
    if has_trailing:
        surplus[:-1] = trailing
    # Runs of two blanks or more, [first, last]; the padding is not blank, so edges come in twos.
    edges = np.flatnonzero(pair[1:] != pair[:-1]) + 1
    first, last = edges[::2], edges[1::2]
    to_end = end[last + 1]
    inside = ~(to_end | end[first - 1])
    _mark(surplus, first[to_end], last[to_end])
    first, last = first[inside], last[inside] + 1
    tabs = np.flatnonzero(tab)
    if len(tabs) and len(first):
        nearest = np.append(tabs, len(array))[np.searchsorted(tabs, first)]
        last = np.minimum(last, nearest)
    first = first + 1
    some = first < last
    _mark(surplus, first[some], last[some])
    return surplus


def _mark(mask: Mask, starts: Positions, stops: Positions) -> None:
    """Sets every [start, stop) of `mask`."""
    lengths = stops - starts
    total = int(lengths.sum())
    if total == len(starts):
        mask[starts] = True
    else:
        before = np.cumsum(lengths) - lengths
        mask[np.repeat(starts - before, lengths) + np.arange(total)] = True


def _surplus_newlines(array: Bytes, end: Mask) -> Mask | None:
    """Marks all but the last two newlines in a row, and all before a document's end."""
    if not (end[:-1] & end[1:]).any():
        return None
    newline = array == _NEWLINE
    surplus = np.zeros(len(array), np.bool_)
    surplus[:-2] = newline[:-2] & ((newline[1:-1] & end[2:]) | (end > newline)[1:-1])
    return surplus


def _leading_newlines(array: Bytes) -> Mask | None:
    """Marks newlines at a document's start, where no more than two are left."""
    newline = array == _NEWLINE
    first = (array == 0)[:-1] & newline[1:]
    if not first.any():
        return None
    surplus = np.zeros(len(array), np.bool_)
    surplus[1:] = first
    surplus[2:] |= first[:-1] & newline[2:]
    return surplus


def _without_c1(text: bytes) -> bytes:
    array = np.frombuffer(text, np.uint8)
    found = np.flatnonzero((array[:-1] == 0xC2) & (array[1:] < 0xA0))
    if not len(found):
        return text
    text = text.replace(b"\xc2\x85", b"\n")
    return re.sub(rb"\xc2[\x80-\x9f]", b"", text)


@functools.cache
def _tables() -> tuple[Mask, Bytes]:
    """By code point: may NFC touch it or join it to what precedes it; its combining class."""
    characters = [chr(code) for code in range(_TABLED)]
    classes = np.array([*map(unicodedata.combining, characters), 0], np.uint8)
    touched = classes != 0
    touched[_TABLED] = True  # stands for all beyond: no decomposition is there yet
    followers = set()
    for code, character in enumerate(characters):
        parts = unicodedata.normalize("NFD", character)
        if parts != character:
            followers.update(parts[1:])
            touched[code] |= not unicodedata.is_normalized("NFC", character)
    touched[[ord(character) for character in followers]] = True
    return touched, classes


def _composed(text: bytes) -> bytes:
    """NFC. Only the neighbourhoods of characters that it may touch are normalised."""
    array = np.frombuffer(text, np.uint8)
    starts = np.flatnonzero(array >= 0xCC)
    lead = array[starts]
    second = array[starts + 1] & 0x3F
    width = 2 + (lead >= 0xE0).astype(np.intp) + (lead >= 0xF0)
    code = lead.astype(np.intp) & 0x1F
    code = (code << 6) | second
    wide = np.flatnonzero(width > 2)
    code[wide] = ((code[wide] & 0x3FF) << 6) | (array[starts[wide] + 2] & 0x3F)
    wide = np.flatnonzero(width > 3)
    code[wide] = ((code[wide] & 0x7FFF) << 6) | (array[starts[wide] + 3] & 0x3F)
    touched, _ = _tables()
    chosen = touched[np.minimum(code, _TABLED)]
    starts = starts[chosen]
    if not len(starts):
        return text
    stops = starts + width[chosen]
    gaps = starts[1:] - stops[:-1]
    apart = np.flatnonzero(gaps >= 64)
    touching = np.diff(np.flatnonzero(gaps), prepend=-1, append=len(gaps))
    crowded = touching.max() > _LONG_RUN
    starts, stops = starts[np.append(0, apart + 1)], stops[np.append(apart, -1)]
    starts = starts - 1  # back to the start of the character before
    for _ in range(3):
        starts = starts - ((array[starts] & 0xC0) == 0x80)
    pieces = []
    done = 0
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        piece = text[start:stop].decode()
        if crowded:
            piece = _in_canonical_order(piece)
        pieces += text[done:start], unicodedata.normalize("NFC", piece).encode()
        done = stop
    return b"".join([*pieces, text[done:]])


def _in_canonical_order(text: str) -> str:
    """Sorts marks as NFD does: unicodedata takes quadratic time for a long run of them."""
    for mark in "\u0344\u0f73\u0f75\u0f81":
        text = text.replace(mark, unicodedata.normalize("NFD", mark))
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    classes = _tables()[1][np.minimum(codes, _TABLED)]
    letters = np.cumsum(classes == 0)
    order = np.argsort((letters << 8) | classes, kind="stable")
    return codes[order].tobytes().decode("utf-32-le")
