"""A plain implementation to compare with: words from `unicodedata`, sets of tuples of words."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

GONE = "'’ʼ＇"
ALONE = (
    "CJK ",
    "HIRAGANA ",
    "KATAKANA",
    "THAI ",
    "LAO ",
    "KHMER ",
    "MYANMAR ",
    "HALFWIDTH KATAKANA",
)


def words_of(text: str) -> list[str]:
    """Fold a text one character at a time."""
    words, word = [], ""
    for character in text:
        if character in GONE or unicodedata.category(character) == "Cf":
            continue
        if 0xFE00 <= ord(character) <= 0xFE0F or 0xE0000 <= ord(character) < 0xE1000:
            continue
        if 0x20000 <= ord(character) < 0x40000:  # Chinese, some of it new to `unicodedata`
            words += [word, character] if word else [character]
            word = ""
            continue
        simple = unicodedata.normalize("NFKC", character)
        simple = simple if len(simple) == 1 else character
        folded = simple.casefold() if len(simple.casefold()) == 1 else simple
        is_word = unicodedata.category(folded)[0] in "LMN"
        if is_word and not unicodedata.name(folded, "").startswith(ALONE):
            word += folded
            continue
        words += [word] if word else []
        words += [folded] if is_word else []
        word = ""
    return words + ([word] if word else [])


def units_of(text: str, size: int) -> set[tuple[str, ...]]:
    words = words_of(text)
    if len(words) >= size:
        found = (tuple(words[i : i + size]) for i in range(len(words) - size + 1))
    elif len(words) >= 5 and sum(len(word.encode()) for word in words) >= 20:
        found = iter([tuple(words)])
    else:
        return set()
    return {unit for unit in found if all(len(word.encode()) <= 1000 for word in unit)}


def find_units(text: str, units: set[tuple[str, ...]]) -> list[tuple[int, tuple[str, ...]]]:
    """Return each place in a text where a unit begins, and the unit."""
    words = words_of(text)
    lengths = sorted({len(unit) for unit in units})
    found = []
    for start in range(len(words)):
        for length in lengths:
            unit = tuple(words[start : start + length])
            if len(unit) == length and unit in units:
                found.append((start, unit))
    return found


def all_units(texts: Sequence[str], size: int, common: int = 100) -> set[tuple[str, ...]]:
    counts: dict[tuple[str, ...], int] = {}
    seen = set()
    for text in texts:
        if tuple(words_of(text)) not in seen:
            seen.add(tuple(words_of(text)))
            for unit in units_of(text, size):
                counts[unit] = counts.get(unit, 0) + 1
    return {unit for unit, count in counts.items() if count <= common}
