"""Measures of documents: numbers that rules compare with thresholds, for all documents of a block.

Each function gets a `Block` and returns one number for each document. A share of nothing, such as
the share of lines in a text without words, is 0. tests/preparation/plain_filters.py has the same
measures of one text in plain Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tokenmill.preparation.filters.block import Block, Mask, Places

Values = npt.NDArray[np.float64]
Measure = Callable[[Block], Values]

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
SENTENCE_ENDS = ".?!。！？．｡؟۔।॥።։‽⁇⁈⁉‼"
SHORT_LINE = 30  # characters
LONG_WORD = 1000  # bytes of a word that C4 does not accept in a line
ENCODED = 60  # bytes of a word of letters, digits, +, /, = and _ that looks encoded
MINIFIED = 1000  # bytes of a line that looks like minified code
POLICIES = (
    b"terms of use",
    b"privacy policy",
    b"cookie policy",
    b"uses cookies",
    b"use of cookies",
    b"use cookies",
)
_CITATIONS = re.compile(rb"(?:\[\d*\]|\[edit\]|\[citation needed\])++\Z")
_ENCODED_LINE, _DIGIT = re.compile(rb"[A-Za-z0-9+/=_-]+"), re.compile(rb"[0-9]")
_CITED = 200  # bytes of a line in which citations are searched
_LONGEST_STOP = max(map(len, STOP_WORDS))
_HEAD = 64  # words of a text in which stop words are searched first
_ONE = np.uint64(1)
# The UTF-8 of these characters as numbers, as `Block.eights` gives them.
_SENTENCE_ENDS = np.array(
    [int.from_bytes(character.encode(), "little") for character in SENTENCE_ENDS], np.uint64
)


def divide(amounts: npt.NDArray[np.int64], totals: npt.NDArray[np.int64]) -> Values:
    """Return amounts / totals, or 0 where a total is 0.

    >>> divide(np.array([1, 1]), np.array([4, 0])).tolist()
    [0.25, 0.0]
    """
    quotients: Values = amounts / np.maximum(totals, 1)
    return np.where(totals > 0, quotients, 0.0)


def count_bytes(block: Block) -> Values:
    """Count bytes."""
    return (block.ends - block.starts).astype(np.float64)


def count_words(block: Block) -> Values:
    """Count words with a letter or a digit."""
    return block.count(block.real_words).astype(np.float64)


def mean_word_length(block: Block) -> Values:
    """Return the mean length of words, in characters from the first letter or digit on."""
    # Adding the first byte of each word to its bytes other than letters and digits removes those
    # before the first letter or digit.
    others = block.words & ~(block.letters | block.digits)
    before = others & ~(others + block.word_starts)
    inside = block.words & ~before & ~block.continuing
    return divide(block.count(inside), block.count(block.real_words))


def hashes_per_word(block: Block) -> Values:
    """Return the number of # for each word."""
    return divide(block.count_rare(block.bytes == ord("#")), block.word_counts)


def ellipses_per_word(block: Block) -> Values:
    """Return the number of ellipses, three dots or the character for them, for each word."""
    counted = block.count(block.ellipsis_characters) if not block.is_ascii else 0 * block.ends
    first = block.three_dots
    if first:
        places = block.places(first)
        # A run of k places is a run of k + 2 dots.
        begins = np.flatnonzero(np.diff(places, prepend=-2) != 1)
        lengths = np.diff(np.append(begins, len(places)))
        documents = np.searchsorted(block.ends, places[begins])
        counted = counted + block.sum_lines(documents, (lengths + 2) // 3)
    return divide(counted, block.word_counts)


def bullet_lines(block: Block) -> Values:
    """Return the share of lines that begin with a dash or a bullet, after spaces and tabs."""
    bullets = block.find(block.bytes == ord("-")) | block.find_character("•")
    # Adding the start of a line carries over its spaces and tabs to the first other byte.
    first = (block.blank + block.line_starts) & ~block.blank
    return divide(block.count(first & bullets), _count_lines(block))


def _count_lines(block: Block) -> Places:
    return block.newline_counts + 1


def ellipsis_lines(block: Block) -> Values:
    """Return the share of lines that end with an ellipsis."""
    marks = (block.three_dots << 2) | (block.ellipsis_characters << 2)
    last = (block.newline | block.nul | (1 << len(block.data))) >> 1
    return divide(block.count(last & marks), _count_lines(block))


def letter_words(block: Block) -> Values:
    """Return the share of words with a letter."""
    return divide(block.count(block.first_of_words(block.letters)), block.word_counts)


def stop_words(block: Block, *, enough: float) -> Values:
    """Count which of `STOP_WORDS` a text has, each as a word of its own, in lower case.

    If the first words of a text have `enough` of them, only those are counted.
    """
    sizes = block.word_counts
    firsts = np.concatenate(([0], np.cumsum(sizes)))
    heads = np.minimum(sizes, _HEAD)
    before = np.repeat(firsts[:-1] - np.concatenate(([0], np.cumsum(heads)[:-1])), heads)
    kinds = _count_stop_words(block, np.arange(len(before)) + before)
    few = (kinds < enough) & (sizes > _HEAD)
    if few.any():
        rest = np.flatnonzero(few[block.word_documents])
        kinds[few] = _count_stop_words(block, rest)[few]
    return kinds


def _count_stop_words(block: Block, chosen: Places) -> Values:
    """Count the stop words among the chosen words of a block."""
    starts, ends = block.word_places
    sizes = ends[chosen] - starts[chosen]
    short = chosen[sizes <= _LONGEST_STOP]
    sizes = ends[short] - starts[short]
    words = block.eights[starts[short]] & ((np.uint64(1) << (8 * sizes).astype(np.uint64)) - _ONE)
    documents = block.word_documents[short]
    kinds = np.zeros(len(block))
    for word in STOP_WORDS:
        is_there = np.zeros(len(block), np.bool_)
        is_there[documents[words == np.uint64(int.from_bytes(word.encode(), "little"))]] = True
        kinds += is_there
    return kinds


def punctuated_lines(block: Block) -> Values:
    """Return the share of lines with text that end with the end of a sentence."""
    _, ends, documents = _lines_with_text(block)
    ended = ends_sentence(block, ends)
    return divide(block.sum_lines(documents[ended]), block.sum_lines(documents))


def short_lines(block: Block) -> Values:
    """Return the share of lines with text that have at most 30 characters."""
    starts, ends, documents = _lines_with_text(block)
    short = block.count_characters(starts, ends) <= SHORT_LINE
    return divide(block.sum_lines(documents[short]), block.sum_lines(documents))


def newlines_per_word(block: Block) -> Values:
    """Return the number of newlines for each word."""
    return divide(block.newline_counts, block.word_counts)


def _lines_with_text(block: Block) -> tuple[Places, Places, Places]:
    starts, ends, documents = block.full_lines
    full = block.count_between(block.word_starts, starts, ends) > 0
    return starts[full], ends[full], documents[full]


def ends_sentence(block: Block, ends: Places) -> Mask:
    """Return which lines, none of them empty, end with a character that ends a sentence."""
    last = block.bytes[ends - 1]
    ended = (last == ord(".")) | (last == ord("?")) | (last == ord("!"))
    beyond = np.flatnonzero(last >= 0x80)
    if len(beyond):
        first = ends[beyond] - 1
        for _ in range(3):
            first -= (block.bytes[first] & 0xC0) == 0x80
        widths = ends[beyond] - first
        codes = block.eights[first] & (
            (np.uint64(1) << (8 * widths).astype(np.uint64)) - np.uint64(1)
        )
        ended[beyond] = np.isin(codes, _SENTENCE_ENDS)
    found: Mask = ended
    return found


def longest_line(block: Block) -> Values:
    """Return the length of the longest line, in bytes."""
    starts, ends = block.lines
    return np.maximum.reduceat(ends - starts, _first_lines(block)).astype(np.float64)


def _first_lines(block: Block) -> Places:
    return np.searchsorted(block.lines[0], block.starts)


def encoded_lines(block: Block) -> Values:
    """Return the share of bytes in lines that look encoded or minified.

    Those are lines of over 1,000 bytes with less than one space in 20 bytes, and lines that are one
    word of at least 60 letters, digits and `+/=_-`, of which at least one is a digit.
    """
    starts, ends, documents = block.full_lines
    sizes = ends - starts
    long = sizes >= ENCODED
    starts, ends, sizes, documents = starts[long], ends[long], sizes[long], documents[long]
    total = block.ends - block.starts
    if not len(starts):
        return np.zeros(len(block))
    minified = (sizes > MINIFIED) & (block.count_between(block.blank, starts, ends) * 20 < sizes)
    encoded = np.zeros(len(starts), np.bool_)
    for index in np.flatnonzero(block.count_between(block.words, starts, ends) == sizes).tolist():
        line = block.data[starts[index] : ends[index]]
        encoded[index] = bool(_ENCODED_LINE.fullmatch(line)) and bool(_DIGIT.search(line))
    looks = minified | encoded
    return divide(block.sum_lines(documents[looks], sizes[looks]), total)


def braces(block: Block) -> Values:
    """Count lines that C4 would keep, if they had no opening brace."""
    return _c4_lines(block)[0]


def placeholders(block: Block) -> Values:
    """Count lines with "lorem ipsum" that C4 would keep otherwise."""
    return _c4_lines(block)[1]


def c4_sentences(block: Block) -> Values:
    """Count the sentences in lines that C4 keeps.

    A line has one sentence, and one more for each `.`, `?` or `!` before white space in it.
    """
    return _c4_lines(block)[2]


def _c4_lines(block: Block) -> tuple[Values, Values, Values]:
    if block.c4 is None:
        block.c4 = _measure_c4(block)
    return block.c4


def _without_citations(block: Block, starts: Places, ends: Places) -> Places:
    """Return where the lines end without the citations at their ends, of which a line has one byte."""
    ends = ends.copy()
    for index in np.flatnonzero(block.bytes[ends - 1] == ord("]")).tolist():
        start = max(int(starts[index]), int(ends[index]) - _CITED)
        if match := _CITATIONS.search(block.data, start, int(ends[index])):
            ends[index] = max(match.start(), int(starts[index]) + 1)
    return ends


def _measure_c4(block: Block) -> tuple[Values, Values, Values]:
    """Measure what C4's rules ask for: see `braces`, `placeholders` and `c4_sentences`.

    C4 keeps lines that end with `.`, `?`, `!` or a quotation mark, but not with three dots, that
    have at least three words, none of over 1,000 bytes, and that mention neither JavaScript nor a
    policy about cookies, privacy or use. Citations at the end of a line, such as [1], are ignored.
    """
    starts, ends, documents = block.full_lines
    ends = _without_citations(block, starts, ends)
    last = block.bytes[ends - 1]
    good = (last == ord(".")) | (last == ord("?")) | (last == ord("!"))
    good |= (last == ord('"')) | (last == ord("'"))
    good &= block.count_between(block.word_starts, starts, ends) >= 3
    if len(starts):
        dots = block.count_between(block.three_dots, np.maximum(starts, ends - 3), ends)
        good &= dots == 0
    starts, ends, documents = starts[good], ends[good], documents[good]
    good = np.ones(len(starts), np.bool_)
    if long := block.long_words(LONG_WORD + 1):
        good = block.count_between(long, starts, ends) == 0
    placeholder = good & block.has_phrase(b"lorem ipsum", starts, ends)
    good &= ~block.has_phrase(b"javascript", starts, ends)
    brace = good & ~placeholder & (block.count_between(block.brace, starts, ends) > 0)
    for phrase in POLICIES:
        good &= ~block.has_phrase(phrase, starts, ends)
    starts, ends, kept = starts[good], ends[good], documents[good]
    marks = (block.bytes == ord(".")) | (block.bytes == ord("?")) | (block.bytes == ord("!"))
    inner = block.find(marks) & (block.blank >> 1)
    sentences = block.sum_lines(kept, 1 + block.count_between(inner, starts, ends))
    amounts = (block.sum_lines(documents[mask]) for mask in (brace, placeholder))
    first, second = (amount.astype(np.float64) for amount in amounts)
    return first, second, sentences.astype(np.float64)
