"""Cleans text by the rules of docs/cleaning.md, many documents at once.

Guaranteed: a document comes out the same whatever its neighbours and wherever it was cut into
pieces; cleaning a second time changes nothing; as many separators come out as went in.

The method: pieces that fit the cache are searched for what the rules forbid by comparing whole
arrays of bytes, which NumPy does at some 25 GB/s a comparison. What must go is overwritten with a
byte that UTF-8 never has, and all such bytes are then deleted by one `bytes.replace`.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tokenmill.mill.nfc import compose

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

_PIECE = 1 << 17
# Before a blank that follows a character which stays: ASCII, or U+00C0 to U+EFFF.
_CUT = re.compile(
    rb"[ \n](?:(?<=[!-~].)|(?<=[\xc3-\xdf][\x80-\xbf].)|(?<=[\xe0-\xee][\x80-\xbf]{2}.))",
    re.DOTALL,
)
_TAB, _NEWLINE, _RETURN, _SPACE = b"\t\n\r "
_CONTROLS = bytes(set(range(1, 32)) - set(b"\t\n\r")) + b"\x7f"
_GONE = b"\xff"
_NO = np.zeros(1, np.bool_)


def clean(text: str) -> str:
    r"""One document, cleaned.

    >>> clean("\ufeffOne  two. \r\n\r\n\r\n    three\t\n")
    'One two.\n\n    three'
    """
    return clean_block(text.replace("\0", "").encode()).decode()


def clean_block(block: bytes, *, continues: bool = False, goes_on: bool = False) -> bytes:
    """Documents as UTF-8 joined by NUL bytes, each cleaned, still joined by NUL bytes.

    `continues`: the block begins in the middle of a document, with the space or newline that
    follows a letter. `goes_on`: the block ends in the middle of a document, with a letter.
    """
    view = memoryview(block)
    pieces = []
    start = 0
    while start < len(block):
        stop = _cut(block, start)
        # Two bytes on each side say what lies beyond: the border of a document, or something
        # visible, for which the full stop stands because no mark composes with it.
        before = b".." if continues or start else b".\0"
        after = b".." if goes_on or stop < len(block) else b"\0."
        padded = _clean_padded(b"".join((before, view[start:stop], after)))
        pieces.append(memoryview(padded)[2:-2])
        start = stop
    return b"".join(pieces)


def _cut(block: bytes, start: int) -> int:
    """A place to cut, some `_PIECE` after `start`. Not every byte is tried: that would be slow."""
    for target in range(start + _PIECE, len(block), _PIECE):
        if found := _CUT.search(block, target, target + _PIECE // 64):
            return found.start()
    return len(block)


def _clean_padded(text: bytes) -> bytes:
    array = np.frombuffer(text, np.uint8)
    highest = array.max()
    if highest >= 0xC2:
        if b"\xef" in text:
            text = text.replace(b"\xef\xbb\xbf", b"")
        if b"\xc2" in text:
            text = _without_c1(text)
    if b"\r" in text:
        text = _without_returns(text)
    if highest >= 0xCC:  # U+0300, the first character that NFC may touch
        text = compose(text)
    return _without_blanks(text)


def _without_c1(text: bytes) -> bytes:
    """Without U+0080 to U+009F, and a newline for U+0085."""
    array = np.frombuffer(text, np.uint8)
    found = np.flatnonzero((array[:-1] == 0xC2) & (array[1:] < 0xA0))
    if not len(found):
        return text
    array, surplus = array.copy(), np.zeros(len(array), np.bool_)
    surplus[found] = True
    found += 1
    surplus[found] = array[found] != 0x85
    array[found] = _NEWLINE
    return _without(array, surplus)


def _without_returns(text: bytes) -> bytes:
    """Without C0 controls, and with a newline for every kind of line end."""
    array = np.frombuffer(text, np.uint8)
    known = sum(np.count_nonzero(array == byte) for byte in b"\0\t\n\r")
    if np.count_nonzero(array < _SPACE) > known or b"\x7f" in text:
        text = text.translate(None, _CONTROLS)
        array = np.frombuffer(text, np.uint8)
    if ((array == _RETURN)[:-1] > (array == _NEWLINE)[1:]).any():
        return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return text.replace(b"\r", b"")


def _without_blanks(text: bytes) -> bytes:
    """Without superfluous spaces, tabs and newlines."""
    array = np.frombuffer(text, np.uint8)
    newline, nul, space = array == _NEWLINE, array == 0, array == _SPACE
    end = newline | nul
    blank = array == _TAB
    blank |= space
    white = end | blank
    strange = array <= _SPACE
    strange ^= white
    if strange.any() or b"\x7f" in text:
        # Removing a control may join a letter and its accent, so all begins again without them.
        return _clean_padded(text.translate(None, _CONTROLS))

    surplus: Mask | None = None
    doubled = (space[1:-1] & space[2:]) > white[:-2]
    trailing = blank[:-1] & end[1:]
    if doubled.any():
        surplus = _spread(np.concatenate([_NO, _NO, doubled]), space, forwards=True)
    if trailing.any():
        before_end = _spread(np.concatenate([trailing, _NO]), blank, forwards=False)
        text = _without(array, before_end if surplus is None else surplus | before_end)
        surplus = None
        array = np.frombuffer(text, np.uint8)
        newline, nul = array == _NEWLINE, array == 0
        end = newline | nul

    borders = np.flatnonzero(nul)
    leading = newline[borders + 1].any()
    twice = end[:-1] & end[1:]
    if leading or newline[borders - 1].any() or (twice[:-1] & twice[1:]).any():
        # Of newlines in a row the last two stay, or none if the document ends there.
        surplus = np.zeros(len(array), np.bool_) if surplus is None else surplus
        surplus[:-2] |= newline[:-2] & ((newline[1:-1] & end[2:]) | nul[1:-1])
        if leading:
            first = nul[:-1] & newline[1:]
            surplus |= _spread(np.concatenate([_NO, first]), newline, forwards=True)
    if surplus is not None:
        text = _without(array, surplus)
    return text


def _spread(seeds: Mask, mask: Mask, *, forwards: bool) -> Mask:
    """The seeds, and all of `mask` that follows (or precedes) one without interruption.

    Each round doubles what is reached: a run of a million takes 20 rounds.
    """
    result, size, step = seeds, len(mask), 1
    runs = mask  # runs[i]: all of mask[i : i + step]
    while step < size:
        grown = result[:-step] & runs[1:] if forwards else result[step:] & runs[:-1]
        if not grown.any():
            break
        if forwards:
            result[step:] |= grown
        else:
            result[:-step] |= grown
        runs = runs[:-step] & runs[step:]
        step *= 2
    return result


def _without(array: Bytes, surplus: Mask) -> bytes:
    marked = array | np.negative(surplus.view(np.uint8))
    if np.count_nonzero(surplus) * 16 > len(array):
        return marked.tobytes().translate(None, _GONE)
    return marked.tobytes().replace(_GONE, b"")
