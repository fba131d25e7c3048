"""Near duplicates, the slow and obvious way: sets of tuples of words, and all pairs of documents."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

Shingles = frozenset[tuple[str, ...]]
_ALONE = ("CJK UNIFIED", "HIRAGANA LETTER", "KATAKANA LETTER", "THAI CHARACTER", "KHMER ")


def words(text: str) -> list[str]:
    found, word = [], ""
    for character in text:
        is_alone = unicodedata.name(character, "").startswith(_ALONE)
        is_letter = character == "_" or unicodedata.category(character)[0] in "LMN"
        if is_letter and not is_alone:
            word += character.lower()
            continue
        if word:
            found.append(word)
        word = ""
        if is_alone:
            found.append(character)
    return [*found, word] if word else found


def shingles(text: str) -> Shingles:
    found = words(text)
    return frozenset(tuple(found[i : i + 5]) for i in range(len(found) - 4))


def jaccard(one: Shingles, other: Shingles) -> float:
    shared = len(one & other)
    total = len(one) + len(other) - shared
    return shared / total if total else 0.0


def choose(texts: Sequence[str], threshold: float) -> dict[int, int | None]:
    """Which texts go: each with the first that stays and is similar; None if it repeats an earlier one."""
    sets = [shingles(text) for text in texts]
    gone: dict[int, int | None] = {}
    kept: list[int] = []
    seen: set[str] = set()
    for number, text in enumerate(texts):
        if text in seen:
            gone[number] = None
            continue
        seen.add(text)
        twins = (other for other in kept if jaccard(sets[number], sets[other]) >= threshold)
        other = next(twins, None)
        if other is None:
            kept.append(number)
        else:
            gone[number] = other
    return gone
