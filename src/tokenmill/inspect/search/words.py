"""How text is divided into words for the index.

Each character is always treated in the same way, whatever is next to it. So no occurrence is missed:
a text that contains the searched text contains a word that ends with the first word of the searched
text, a word that begins with its last word, and all words between these.

- ASCII letters and digits, and letters of other alphabets, form words. A to Z become lower case.
- Every other character beyond ASCII is a word of its own: Chinese, Japanese and Thai characters,
  emoji, punctuation, combining marks.
- Everything else, such as spaces and ASCII punctuation, only separates words.
- A word of more than `LONGEST` bytes becomes the word `LONG`, which stands for any long word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

LONGEST = 64  # bytes of a word
LONG = "\x01long"  # cannot occur in a text, because control characters separate words

_WORD_BYTES = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TABLE = bytes(
    byte if byte >= 128 else bytes([byte]).lower()[0] if byte in _WORD_BYTES else 32
    for byte in range(256)
)
# Characters that are words of their own: those of scripts without spaces between words, and
# everything beyond ASCII that is not a letter or digit.
_ALONE = re.compile(
    r"[^\x00-\x7f\w]|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\ua9e0-\ua9ff"
    r"\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)
_TOO_LONG = re.compile(rb"[^ ]{%d,}" % (LONGEST + 1))

Kind = Literal["whole", "start", "end", "part"]


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word that a text must contain: whole, or as the start, the end or a part of a word."""

    text: str
    kind: Kind


def list_words(text: bytes) -> str:
    r"""Return the words of a text, separated by spaces.

    >>> list_words("Don't panic! 我们 café\u0301".encode()).split()
    ['don', 't', 'panic', '我', '们', 'café', '\u0301']
    """
    if not text.isascii():
        spaced = _ALONE.sub(r" \g<0> ", text.decode("utf-8", "replace"))
        text = " ".join(spaced.split()).encode()  # without spaces beyond ASCII
    text = text.translate(_TABLE)
    spaces = np.flatnonzero(np.frombuffer(text, np.uint8) == 32)
    if np.diff(spaces, prepend=-1, append=len(text)).max() > LONGEST + 1:
        text = _TOO_LONG.sub(LONG.encode(), text)  # slow: most texts have no such word
    return text.decode()


def find_words(text: str) -> list[Word]:
    """Return the words that every text that contains `text` must contain.

    >>> [(word.text, word.kind) for word in find_words("In the beginning")]
    [('in', 'end'), ('the', 'whole'), ('beginning', 'start')]
    >>> [(word.text, word.kind) for word in find_words("(panic)")], find_words("//")
    ([('panic', 'whole')], [])
    """
    words = list_words(text.encode()).split()
    first_is_open, last_is_open = _continues(text[:1]), _continues(text[-1:])
    found = []
    for number, word in enumerate(words):
        before = number == 0 and first_is_open
        after = number == len(words) - 1 and last_is_open
        kind: Kind = "part" if before and after else "end" if before else "whole"
        if after and not before:
            kind = "start"
        found.append(Word(text=word, kind="whole" if word == LONG else kind))
    return found


def _continues(character: str) -> bool:
    """Return whether a word with this character at its start or end may be longer."""
    words = list_words(character.encode()).split()
    return bool(words) and not _ALONE.match(character)
