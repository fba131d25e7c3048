"""Encode one long text piece by piece, in bounded memory, to the ids of the whole.

A tokenizer with a method `settle` can say which ids at the beginning of a text are final before the
rest is known. For any other tokenizer, a text is cut between a letter and a space or newline if the
tokenizer is `cuttable`, and otherwise held until its end.
"""

from __future__ import annotations

import re

import numpy as np

from tokenmill.errors import TooLongError
from tokenmill.tokenizers.protocol import Ids, Tokenizer

WINDOW = 512 << 10  # bytes encoded at once; gigatoken takes up to 25 times that for one word
_LETTER = re.compile(rb"[A-Za-z](?=[ \n])")


class LongText:
    """Encodes one text piece by piece. `most` is how many bytes of it may be held."""

    def __init__(self, tokenizer: Tokenizer, most: int) -> None:
        self._tokenizer = tokenizer
        self._most = most
        self._rest = b""
        self._tried = 0  # bytes of the rest in which no id is final yet

    def feed(self, text: bytes) -> list[Ids]:
        """Continue with some valid UTF-8. Returns the ids that are now final."""
        data = self._rest + text if self._rest else text
        found: list[Ids] = []
        start = 0
        size = max(WINDOW, 2 * self._tried)
        while len(data) - start > size:
            ids, taken = self._settle(data[start : _character_start(data, start + size)])
            if taken:
                found.append(ids)
                start += taken
                self._tried, size = 0, WINDOW
            else:
                self._tried, size = size, 2 * size
        self._rest = data[start:] if start else data
        if len(self._rest) > max(self._most, 2 * WINDOW):
            size, name = len(self._rest), self._tokenizer.name
            raise TooLongError(
                size, f"{size:,} bytes of a document cannot be cut for the tokenizer {name}"
            )
        return found

    def finish(self) -> list[Ids]:
        """The remaining ids, if the text ends here."""
        rest, self._rest, self._tried = self._rest, b"", 0
        return [self._tokenizer.encode_batch([rest])[0]] if rest else []

    def _settle(self, text: bytes) -> tuple[Ids, int]:
        own = getattr(self._tokenizer, "settle", None)
        if own is not None:
            ids, taken = own(text)
            return ids, taken
        cut = 0
        if self._tokenizer.cuttable:
            for match in _LETTER.finditer(text, max(0, len(text) - (1 << 16))):
                cut = match.end()
        return (self._tokenizer.encode_batch([text[:cut]])[0], cut) if cut else (_NOTHING, 0)


_NOTHING = np.zeros(0, np.uint32)


def encode_long(tokenizer: Tokenizer, text: bytes, most: int) -> Ids:
    """The ids of a long text that is in memory.

    >>> from tokenmill.tokenizers import load_tokenizer
    >>> gpt2 = load_tokenizer("gpt2")
    >>> text = b"a" * 2_000_000
    >>> bool((encode_long(gpt2, text, 1 << 20) == gpt2.encode_batch([text])[0]).all())
    True
    """
    long = LongText(tokenizer, max(most, len(text)))
    return np.concatenate([_NOTHING, *long.feed(text), *long.finish()])


def _character_start(text: bytes, place: int) -> int:
    while text[place] & 0xC0 == 0x80:
        place -= 1
    return place
