"""Find characters, words and lines in a block of documents.

A block is UTF-8 of several documents, joined by NUL bytes. A set of bytes, such as all letters, is a
Python integer with one bit for each byte of the block (`Bits`): a comparison in NumPy makes it, and
then AND, OR, shifts and additions of large integers take 0.02 ns a byte. `Block.count` counts the
bits of each document.

Words are separated by ASCII white space and control characters, lines by newlines. A letter is an ASCII letter or a
character from U+00C0 on, except U+2000 to U+2FFF (punctuation and symbols). A symbol is a word
without letters and digits.
"""

from __future__ import annotations

from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bits: TypeAlias = int
Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]
C4: TypeAlias = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]

_NEWLINE, _SPACE = 10, 32
_RARE = b" etaoinsrhldcumfpgwybvkxjqz"  # letters, ordered from frequent to rare
_TO_LOWER = np.uint64(0x2020202020202020)  # for eight letters
_BEYOND = 16  # bytes after the block, so that eight bytes can be read from any place in it


class Block:
    """Some documents, joined by NUL bytes. None of them contains a NUL byte."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.bytes = np.frombuffer(data, np.uint8)
        self.is_ascii = data.isascii()
        self.c4: C4 | None = None  # kept by `measures.py`

    def find(self, mask: Mask) -> Bits:
        """Return the set of bytes for which a mask is true."""
        return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")

    def spread(self, bits: Bits) -> Mask:
        """Return a set of bytes as a mask."""
        packed = np.frombuffer(bits.to_bytes(len(self.data) // 8 + 1, "little"), np.uint8)
        spread: Mask = np.unpackbits(packed, count=len(self.data), bitorder="little").view(np.bool_)
        return spread

    def places(self, bits: Bits) -> Places:
        """Return the places of a set of bytes."""
        return np.flatnonzero(self.spread(bits))

    def count_between(self, bits: Bits, starts: Places, ends: Places) -> Places:
        """Return how many bytes of a set are in each range of the block."""
        if not bits:
            return np.zeros(len(starts), np.int64)
        words = np.frombuffer(bits.to_bytes((len(self.data) // 64 + 1) * 8, "little"), "<u8")
        before = np.zeros(len(words), np.int64)
        np.cumsum(np.bitwise_count(words[:-1]), out=before[1:], dtype=np.int64)

        def rank(places: Places) -> Places:
            index, low = (
                places >> 6,
                (np.uint64(1) << (places & 63).astype(np.uint64)) - np.uint64(1),
            )
            counted: Places = before[index] + np.bitwise_count(words[index] & low)
            return counted

        return rank(ends) - rank(starts)

    def count(self, bits: Bits) -> Places:
        """Return how many bytes of a set are in each document."""
        return self.count_between(bits, self.starts, self.ends)

    @cached_property
    def _nul(self) -> Mask:
        found: Mask = self.bytes == 0
        return found

    @cached_property
    def ends(self) -> Places:
        """Where the documents end."""
        return np.append(np.flatnonzero(self._nul), len(self.data))

    @cached_property
    def starts(self) -> Places:
        """Where the documents start."""
        return np.concatenate(([0], self.ends[:-1] + 1))

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def all(self) -> Bits:
        """All bytes, also the NUL bytes."""
        return (1 << len(self.data)) - 1

    @cached_property
    def nul(self) -> Bits:
        """The NUL bytes between the documents."""
        return self.find(self._nul)

    @cached_property
    def newline(self) -> Bits:
        """The newlines."""
        return self.find(self.bytes == _NEWLINE)

    @cached_property
    def blank(self) -> Bits:
        """White space within lines."""
        return self.all ^ self.words ^ self.newline ^ self.nul

    @cached_property
    def continuing(self) -> Bits:
        """The bytes of characters except their first bytes."""
        return 0 if self.is_ascii else self.find(self.bytes.view(np.int8) < -64)

    @cached_property
    def words(self) -> Bits:
        """The bytes of words."""
        return self.find(self.bytes > _SPACE)

    @cached_property
    def word_starts(self) -> Bits:
        """The first bytes of words."""
        return self.words & ~(self.words << 1)

    @cached_property
    def letters(self) -> Bits:
        """The first bytes of letters."""
        ascii_letters = self._lower - np.uint8(97) < 26
        if self.is_ascii:
            return self.find(ascii_letters)
        beyond = (self.bytes >= 0xC3) & (self.bytes != 0xE2)
        return self.find(ascii_letters | beyond)

    @cached_property
    def digits(self) -> Bits:
        """The ASCII digits."""
        return self.find(self.bytes - np.uint8(48) < 10)

    @cached_property
    def line_starts(self) -> Bits:
        """The first byte of each line. If the line is empty, that is its newline or NUL byte."""
        return (((self.newline | self.nul) << 1) | 1) & self.all

    def first_of_words(self, bits: Bits) -> Bits:
        """Return the first byte of each word that is in a set: one for each word that has one.

        Adding the first byte of a word to its bytes that are not in the set carries up to the first
        byte that is.
        """
        return ((self.words & ~bits) + self.word_starts) & bits & self.words

    @cached_property
    def word_counts(self) -> Places:
        """The number of words in each document."""
        return self.count(self.word_starts)

    @cached_property
    def newline_counts(self) -> Places:
        """The number of newlines in each document."""
        return self.count(self.newline)

    @cached_property
    def word_places(self) -> tuple[Places, Places]:
        """Where the words start, and where they end."""
        edges = self.places((self.words ^ (self.words << 1)) & self.all)
        if len(edges) % 2:  # the last word ends with the block
            edges = np.append(edges, len(self.data))
        return edges[::2].copy(), edges[1::2].copy()

    @cached_property
    def word_documents(self) -> Places:
        """The document of each word."""
        return np.repeat(np.arange(len(self)), self.word_counts)

    def count_rare(self, mask: Mask) -> Places:
        """Return how many bytes of each document are in a mask with few bytes."""
        return self.sum_lines(np.searchsorted(self.ends, np.flatnonzero(mask)))

    @cached_property
    def real_words(self) -> Bits:
        """The first letter or digit of each word that has one."""
        return self.first_of_words(self.letters | self.digits)

    def long_words(self, size: int) -> Bits:
        """Return the places from which on a word has at least `size` more bytes."""
        found, width = self.words, 1
        while found and width < size:
            step = min(width, size - width)
            found &= found >> step
            width += step
        return found

    @cached_property
    def three_dots(self) -> Bits:
        """The first bytes of three dots in a row."""
        dots = self.find(self.bytes == ord("."))
        return dots & (dots >> 1) & (dots >> 2)

    @cached_property
    def brace(self) -> Bits:
        """The opening braces."""
        return self.find(self.bytes == ord("{"))

    @cached_property
    def _lower(self) -> npt.NDArray[np.uint8]:
        """The bytes with letters in lower case, and some others changed."""
        return self.bytes | np.uint8(32)

    def find_character(self, character: str) -> Bits:
        """Return the first bytes of a character that is not ASCII."""
        if self.is_ascii:
            return 0
        found = self.all
        for number, byte in enumerate(character.encode()):
            found &= self.find(self.bytes == byte) >> number
        return found

    @cached_property
    def ellipsis_characters(self) -> Bits:
        """The first bytes of U+2026, the character for three dots."""
        return self.find_character("…")

    def has_phrase(self, phrase: bytes, starts: Places, ends: Places) -> Mask:
        """Return which lines have a phrase of ASCII letters and spaces. Case does not matter.

        The lines are in order.
        """
        found = np.zeros(len(starts), np.bool_)
        at = max(range(len(phrase) - 2), key=lambda i: _RARE.find(phrase[i : i + 1]))
        lower, room = self._lower, len(self.data) - len(phrase) + 1
        if room <= 0 or not len(starts):
            return found
        first = lower[at : at + room] == phrase[at]
        first &= lower[at + 1 : at + 1 + room] == phrase[at + 1]
        if len(phrase) - at > 2:
            first &= lower[at + 2 : at + 2 + room] == phrase[at + 2]
        places = np.flatnonzero(first)
        head = phrase[:8]
        mask = np.uint64((1 << 8 * len(head)) - 1)
        eights = (self.eights[places] | _TO_LOWER) & mask
        for place in places[eights == np.uint64(int.from_bytes(head, "little"))].tolist():
            if self.data[place : place + len(phrase)].lower() == phrase:
                line = int(np.searchsorted(starts, place, side="right")) - 1
                if line >= 0 and place < ends[line]:
                    found[line] = True
        return found

    @cached_property
    def line_ends(self) -> Places:
        """Where the lines end: at newlines and at the ends of documents."""
        return np.append(np.flatnonzero((self.bytes == _NEWLINE) | self._nul), len(self.data))

    @cached_property
    def lines(self) -> tuple[Places, Places]:
        """Where the lines start, and where they end."""
        return np.concatenate(([0], self.line_ends[:-1] + 1)), self.line_ends

    @cached_property
    def line_documents(self) -> Places:
        """The document of each line."""
        return np.searchsorted(self.ends, self.line_ends)

    @cached_property
    def full_lines(self) -> tuple[Places, Places, Places]:
        """The lines that are not empty: where they start and end, and their documents."""
        starts, ends = self.lines
        full = ends > starts
        return starts[full], ends[full], self.line_documents[full]

    @cached_property
    def paragraphs(self) -> tuple[Places, Places, Places]:
        """The text between empty lines: where it starts and ends, and its document."""
        starts, ends, documents = self.full_lines
        apart = (starts[1:] > ends[:-1] + 1) | (documents[1:] != documents[:-1])
        first, last = np.append(True, apart), np.append(apart, True)
        if not len(starts):
            return starts, ends, documents
        return starts[first], ends[last], documents[first]

    def count_characters(self, starts: Places, ends: Places) -> Places:
        """Return the number of characters in each range of the block."""
        sizes: Places = ends - starts
        return sizes - self.count_between(self.continuing, starts, ends)

    @cached_property
    def characters(self) -> Places:
        """The number of characters in each document."""
        return self.count_characters(self.starts, self.ends)

    @cached_property
    def eights(self) -> npt.NDArray[np.uint64]:
        """The eight bytes from each place of the block on, with zeros after the end."""
        padded = self.data + bytes(_BEYOND)
        return np.ndarray((len(self.data) + _BEYOND - 8,), "<u8", buffer=padded, strides=(1,))

    def sum_lines(self, documents: Places, amounts: npt.NDArray[np.int64] | None = None) -> Places:
        """Return for each document how many lines it has, or the sum of their amounts.

        `documents` has the document of each line.
        """
        counted = np.bincount(documents, amounts, minlength=len(self))
        return counted.astype(np.int64)
