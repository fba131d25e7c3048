"""Which script each character belongs to, and how many letters of each script are in a text.

The table is made from the names of Unicode characters, such as LATIN SMALL LETTER A, when it is first
used; that takes about half a second. Only letters and marks have a script. Digits, punctuation, spaces,
symbols, and letters that all scripts share belong to no script.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NO_SCRIPT = ""  # the name of script number 0
_LAST = 0x323B0  # no letters are assigned after this code point
_NAMES = {
    "CJK": "Han",
    "IDEOGRAPHIC": "Han",
    "HENTAIGANA": "Hiragana",
    "OHM": "Greek",
    "KELVIN": "Latin",
    "ANGSTROM": "Latin",
    "FEMININE": "Latin",
    "MASCULINE": "Latin",
    "TURNED": "Latin",
    "SUPERSCRIPT": "Latin",
    "SUBSCRIPT": "Latin",
    "PHAGS-PA": "Phags-pa",
    "NKO": "N'Ko",
}
# The first words in the names of letters and marks that several scripts use.
_SHARED = frozenset(
    "COMBINING MODIFIER MATHEMATICAL MICRO DOUBLE-STRUCK SCRIPT BLACK-LETTER VARIATION ALEF BET GIMEL "
    "DALET SPACING VERTICAL INFORMATION PLANCK KATAKANA-HIRAGANA ENCLOSED MUSICAL".split()
)
# The first words in the names of scripts whose names have more than one word.
_LONG = frozenset(
    "OLD NEW TAI OL MEETEI SYLOTI KAYAH LINEAR CANADIAN MENDE PAHAWH PAU PSALTER WARANG ZANABAZAR "
    "MASARAM GUNJALA SORA HANIFI NYIAKENG DIVES KHITAN IMPERIAL INSCRIPTIONAL CAUCASIAN BASSA "
    "EGYPTIAN ANATOLIAN MEROITIC NAG".split()
)


class ScriptTable(NamedTuple):
    """`numbers[c]` is the number of the script of code point c; `names` has the names by number."""

    numbers: npt.NDArray[np.uint8]
    names: tuple[str, ...]

    def count_in(self, text: str) -> npt.NDArray[np.int64]:
        """Count the characters of a text by the number of their script. U+FFFD is not counted.

        >>> table = find_scripts()
        >>> found = table.count_in("Hi, мир\\ufffd")
        >>> {table.names[n]: found[n].item() for n in found.nonzero()[0]}
        {'': 2, 'Cyrillic': 3, 'Latin': 2}
        """
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        points = points[points != 0xFFFD]
        return np.bincount(self.numbers[points], minlength=len(self.names))


@cache
def find_scripts() -> ScriptTable:
    """Return the scripts of all characters that this version of Python knows.

    >>> table = find_scripts()
    >>> [table.names[table.numbers[ord(one)]] for one in "aяλ中かカ한عא1"]
    ['Latin', 'Cyrillic', 'Greek', 'Han', 'Hiragana', 'Katakana', 'Hangul', 'Arabic', 'Hebrew', '']
    """
    found: dict[int, str] = {}
    for point in range(_LAST):
        letter = chr(point)
        if unicodedata.category(letter)[0] in "LM":
            found[point] = _name_script(unicodedata.name(letter, ""))
    names = (NO_SCRIPT, *sorted({*found.values()} - {NO_SCRIPT}))
    assert len(names) <= 256
    by_name = {name: number for number, name in enumerate(names)}
    numbers = np.zeros(0x110000, np.uint8)
    numbers[list(found)] = [by_name[name] for name in found.values()]
    return ScriptTable(numbers, names)


def _name_script(name: str) -> str:
    """Return the script of a letter by its Unicode name.

    >>> _name_script("HALFWIDTH KATAKANA LETTER A"), _name_script("OLD ITALIC LETTER A")
    ('Katakana', 'Old Italic')
    """
    words = name.split()
    if words[:1] in (["FULLWIDTH"], ["HALFWIDTH"]):
        words = words[1:]
    if not words or words[0] in _SHARED:
        return NO_SCRIPT
    if words[0] in _NAMES:
        return _NAMES[words[0]]
    return " ".join(words[: 2 if words[0] in _LONG else 1]).title()
