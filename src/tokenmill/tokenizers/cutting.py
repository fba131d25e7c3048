r"""Where a text may be cut so that its pieces, encoded one by one, give the ids of the whole.

A cut is exact if all of this holds:

(1) No alternative of the pre-tokenizer's pattern can match both characters next to the cut. So a
    match ends at the cut.
(2) No alternative looks behind its start. So the second piece is matched as if it were alone.
(3) The first piece is matched the same way if nothing follows it.
(4) A normalizer neither changes the characters next to the cut nor joins them.

Between a letter and a space or line end, all of this holds for nearly every pattern known here;
`is_cuttable` names the exceptions. Large files are split only at such places. So are long texts, if
a tokenizer has no `CutRules`. `CutRules` finds more places, by the classes of the two characters:

GPT-2, `'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. Letters, numbers,
white space and all other characters are matched separately. But an apostrophe may belong to the
letters after it, and a space to anything after it. So there is a cut wherever the class changes, except

- after white space: a space may belong to the next word. Also, (3) fails, because `(?!\S)` looks at
  the next character;
- between an apostrophe and a letter.

cl100k and qwen2, `[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|…`. One
character of punctuation may belong to the letters after it: no cut there. Newlines may belong to the
punctuation before them: no cut there either. Between a newline and a visible character there is a
cut: no alternative matches both, and (3) holds because `\s*[\r\n]+` and `[\r\n]*` take all newlines
without looking further. A run of numeric characters is cut after every third character, counted from
the start of the run. With qwen2, it is cut after every character.

o200k is like cl100k, with three differences:

- Contractions belong to the letters before them: no cut between a letter and an apostrophe.
- Punctuation may include newlines and then `/`: no cut between a newline and a `/`.
- Marks (Unicode category M, such as combining accents) count as letters and as punctuation: no cut
  next to a mark.

If a tokenizer normalizes to NFC, (4) allows no cut next to a character that NFC changes or composes
with the one before it.

Characters are classified by Python's Unicode tables. A character that is not in these tables has no
class, and no cut is next to it.
"""

from __future__ import annotations

import functools
import unicodedata
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Family = Literal["gpt2", "cl100k", "qwen2", "o200k"]
Classes = npt.NDArray[np.uint8]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

# Patterns as tokenizer.json files spell them. GPT-2's file has none: its ByteLevel step implies it.
_CL100K = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|DIGITS| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_FAMILIES: dict[str | None, Family] = {
    None: "gpt2",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    _CL100K.replace("DIGITS", r"\p{N}{1,3}"): "cl100k",
    _CL100K.replace("DIGITS", r"\p{N}"): "qwen2",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}": "o200k",
}


def find_family(pattern: str | None) -> Family | None:
    r"""Return the family that a pre-tokenizer's pattern belongs to; None if it is not a known one.

    A pattern of None stands for ByteLevel's own pattern, which files do not spell out.

    >>> find_family(None), find_family(r"\w+|\W+")
    ('gpt2', None)
    """
    return _FAMILIES.get(pattern)


def is_cuttable(family: Family | None, *, nfc: bool) -> bool:
    """Return whether texts may be cut between any letter and a following space or line end.

    With NFC, cl100k and qwen2 do not allow this. NFC turns some letters, such as U+0958, into a
    letter and a combining mark. These families match such a mark as punctuation, together with the
    newlines after it.
    """
    return family is not None and not (nfc and family in ("cl100k", "qwen2"))


def find_family_of_scheme(scheme: str) -> Family | None:
    """Return the family of patterns that has the same name as a tiktoken scheme, or None."""
    return next((family for family in get_args(Family) if family == scheme), None)


_UNKNOWN, UPPER, LOWER, LETTER, MARK, NUMBER, OTHER, APOSTROPHE, SLASH, SPACE, NEWLINE = range(11)
_CLASS_COUNT = 11
_LETTERS = (UPPER, LOWER, LETTER)
_CLASSIFIED = 0x30000  # characters from here on have no class
_TAIL = 4096  # bytes searched for a cut before searching the whole text


@dataclass(frozen=True)
class CutRules:
    """Where a text may be cut for one family of patterns.

    `forbidden` are the pairs of neighbouring bytes in added tokens. No cut is made between the two
    bytes of such a pair. A pair is stored as the number `first << 8 | second`.
    """

    family: Family
    nfc: bool
    forbidden: frozenset[int] = frozenset()

    def find_last_cut(self, text: bytes) -> int:
        """Return the last position where a text may be cut, or 0 if there is none.

        The text must be valid UTF-8.

        >>> CutRules("gpt2", nfc=False).find_last_cut("日本語。日本".encode())
        12
        """
        near = find_character_start(text, max(0, len(text) - _TAIL))
        for start in (near, 0) if near else (0,):
            tail = text[start:]
            classes = self.classify(tail)
            allowed = _find_allowed_pairs(self.family)[classes[:-1], classes[1:]]
            widths = np.cumsum(_measure_characters(tail))
            for i in np.flatnonzero(allowed)[::-1].tolist():
                cut = start + int(widths[i])
                if text[cut - 1] << 8 | text[cut] not in self.forbidden:
                    return cut
        return 0

    def classify(self, text: bytes) -> Classes:
        """Return the class of each character, such as letter, number or space."""
        codes = np.frombuffer(text.decode().encode("utf-32-le"), np.uint32)
        return _classify_unicode(self.nfc)[np.minimum(codes, _CLASSIFIED)]

    def find_last_run(self, text: bytes) -> tuple[int, int]:
        """Return the group of a text's last run (see `_GROUPS`), and the byte where the run starts.

        The last run is the longest suffix of the text whose characters all belong to one group.
        """
        classes = self.classify(text)
        group = _GROUPS[self.family][classes]
        changes = np.flatnonzero(group[1:] != group[:-1])
        first = int(changes[-1]) + 1 if len(changes) else 0
        return int(group[-1]), int(_measure_characters(text)[:first].sum())

    def cut_numbers_by_three(self, text: bytes) -> int:
        """Return the last byte before which a text of only numeric characters may be cut, or 0.

        The pattern matches these characters three at a time, so the cut is after a multiple of
        three characters.
        """
        widths = _measure_characters(text)
        return int(widths[: (len(widths) - 1) // 3 * 3].sum())


def find_character_start(text: bytes, place: int) -> int:
    """Return where the character that contains the byte at `place` starts.

    If `place` is the end of the text, return the end.
    """
    while 0 < place < len(text) and text[place] & 0xC0 == 0x80:
        place -= 1
    return place


def _measure_characters(text: bytes) -> npt.NDArray[np.int64]:
    """Return how many bytes each character has."""
    starts = np.flatnonzero((np.frombuffer(text, np.uint8) & 0xC0) != 0x80)
    return np.diff(np.append(starts, len(text)))


@functools.cache
def _classify_unicode(nfc: bool) -> Classes:
    """Return a table: entry n is the class of the character n, such as letter, number or space.

    With `nfc`, a character that NFC changes or composes with the one before it has no class. Making
    the table from `unicodedata` takes 0.1 s.
    """
    kinds = {"Lu": UPPER, "Lt": UPPER, "Ll": LOWER, "Lm": LETTER, "Lo": LETTER, "Zs": SPACE}
    firsts = {"M": MARK, "N": NUMBER, "P": OTHER, "S": OTHER}
    characters = [chr(code) for code in range(_CLASSIFIED)]
    table = np.zeros(_CLASSIFIED + 1, np.uint8)
    for code, character in enumerate(characters):
        category = unicodedata.category(character)
        table[code] = kinds.get(category) or firsts.get(category[0], _UNKNOWN)
    for character, kind in {
        "'": APOSTROPHE,
        "/": SLASH,
        "\t": SPACE,
        "\r": NEWLINE,
        "\n": NEWLINE,
    }.items():
        table[ord(character)] = kind
    if nfc:
        for code, character in enumerate(characters):
            parts = unicodedata.normalize("NFD", character)
            if unicodedata.combining(character):
                table[code] = _UNKNOWN
            if parts != character:
                table[[ord(part) for part in parts[1:]]] = _UNKNOWN
                if unicodedata.normalize("NFC", character) != character:
                    table[code] = _UNKNOWN
    return table


@functools.cache
def _find_allowed_pairs(family: Family) -> npt.NDArray[np.bool_]:
    """Return a table: entry [a, b] says whether a cut is allowed after class a and before class b.

    These are the classes of the characters on both sides of the cut.
    """
    allowed = np.zeros((_CLASS_COUNT, _CLASS_COUNT), np.bool_)

    def allow(before: tuple[int, ...], after: tuple[int, ...]) -> None:
        allowed[np.ix_(before, after)] = True

    if family == "gpt2":
        rest = (MARK, OTHER, APOSTROPHE, SLASH)
        kinds = (_LETTERS, (NUMBER,), rest, (SPACE, NEWLINE))
        for before in kinds[:-1]:
            for after in kinds:
                if before is not after:
                    allow(before, after)
        allowed[np.ix_((APOSTROPHE,), _LETTERS)] = False
        return allowed
    marks = () if family == "o200k" else (MARK,)
    rest = (*marks, OTHER, APOSTROPHE, SLASH)
    allow(_LETTERS, (NUMBER, *rest, SPACE, NEWLINE))
    allow((NUMBER,), (*_LETTERS, *rest, SPACE, NEWLINE))
    allow(rest, (NUMBER, SPACE))
    allow((NEWLINE,), (*_LETTERS, NUMBER, *rest))
    if family == "qwen2":
        allow((NUMBER,), (NUMBER,))
    if family == "o200k":
        allowed[np.ix_(_LETTERS, (APOSTROPHE,))] = False
        allowed[NEWLINE, SLASH] = False
    return allowed


def _group(*members: tuple[int, ...]) -> Classes:
    groups = np.zeros(_CLASS_COUNT, np.uint8)
    for member in members:
        groups[list(member)] = member[0]
    return groups


# Groups of classes. A run of characters of one group is within one match of the pattern. Numbers
# are a group in every family, although some patterns match at most one or three of them at a time.
_REST = (OTHER, MARK, APOSTROPHE, SLASH)
_GROUPS: dict[Family, Classes] = {
    "gpt2": _group((LETTER, UPPER, LOWER), (NUMBER,), _REST, (SPACE, NEWLINE)),
    "cl100k": _group((LETTER, UPPER, LOWER), (NUMBER,), _REST),
    "qwen2": _group((LETTER, UPPER, LOWER), (NUMBER,), _REST),
    "o200k": _group((LETTER,), (LOWER,), (NUMBER,), (OTHER, APOSTROPHE, SLASH)),
}
