"""Scripts: which letters belong to Latin, Han and other scripts, by ranges of Unicode."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from tokenmill.preparation.filters.block import Block

_Ranges = tuple[tuple[int, int], ...]

# The blocks of Unicode that have the letters of a script. Japanese text also has letters of Han.
SCRIPTS: Mapping[str, _Ranges] = MappingProxyType(
    {
        "Latin": ((0xC0, 0x2AF), (0x1E00, 0x1EFF), (0xAB30, 0xAB6F), (0xFF21, 0xFF5A)),
        "Greek": ((0x370, 0x3FF), (0x1F00, 0x1FFF)),
        "Cyrillic": ((0x400, 0x52F), (0x1C80, 0x1C8F), (0xA640, 0xA69F)),
        "Armenian": ((0x530, 0x58F),),
        "Hebrew": ((0x590, 0x5FF), (0xFB1D, 0xFB4F)),
        "Arabic": (
            (0x600, 0x6FF),
            (0x750, 0x77F),
            (0x8A0, 0x8FF),
            (0xFB50, 0xFDFF),
            (0xFE70, 0xFEFF),
        ),
        "Devanagari": ((0x900, 0x97F), (0xA8E0, 0xA8FF)),
        "Bengali": ((0x980, 0x9FF),),
        "Gurmukhi": ((0xA00, 0xA7F),),
        "Gujarati": ((0xA80, 0xAFF),),
        "Tamil": ((0xB80, 0xBFF),),
        "Telugu": ((0xC00, 0xC7F),),
        "Kannada": ((0xC80, 0xCFF),),
        "Malayalam": ((0xD00, 0xD7F),),
        "Thai": ((0xE00, 0xE7F),),
        "Georgian": ((0x10A0, 0x10FF), (0x1C90, 0x1CBF), (0x2D00, 0x2D2F)),
        "Ethiopic": ((0x1200, 0x139F),),
        "Kana": ((0x3041, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F)),
        "Han": ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF)),
        "Hangul": ((0x1100, 0x11FF), (0x3130, 0x318F), (0xAC00, 0xD7AF)),
    }
)


def share_of_script(block: Block, *, script: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the share of the letters of each document that belong to a script.

    Letters are those of `block.py`. A text without letters has 0.
    """
    letters = block.count(block.letters)
    plain = block.find((block.bytes | np.uint8(32)) - np.uint8(97) < 26)
    own = block.count(plain) if script == "Latin" else np.zeros(len(block), np.int64)
    if not block.is_ascii:
        places = block.places(block.letters & ~plain)
        codes = _decode(block, places)
        inside = np.zeros(len(codes), np.bool_)
        for first, last in SCRIPTS[script]:
            inside |= (codes >= first) & (codes <= last)
        own = own + block.sum_lines(np.searchsorted(block.ends, places[inside]))
    return np.where(letters > 0, own / np.maximum(letters, 1), 0.0)


def _decode(
    block: Block, places: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the code points of the characters at some places, none of which is ASCII."""
    eights = block.eights[places].astype(np.int64)
    first, second, third, fourth = (eights >> (8 * i) & 0xFF for i in range(4))
    two = (first & 0x1F) << 6 | second & 0x3F
    three = (first & 0x0F) << 12 | (second & 0x3F) << 6 | third & 0x3F
    four = (first & 0x07) << 18 | (second & 0x3F) << 12 | (third & 0x3F) << 6 | fourth & 0x3F
    return np.where(first < 0xE0, two, np.where(first < 0xF0, three, four))
