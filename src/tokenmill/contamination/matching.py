"""Find protected texts in a stream of texts: every n-gram of the texts is looked up, natively.

Guarantees: a hit is exact, because the words of the text are compared with those of the protected
text, not only hashes. The result does not depend on how the stream is divided into blocks. Of the hits in a
text, at least the first `MOST_HITS` are found.

Costs on one core: 100 to 200 MB/s if nothing matches (`benchmarks/decontaminate.py`). Memory: a few
MB, besides the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.contamination.folding import fold
from tokenmill.contamination.protected import Protected, find_in_filter
from tokenmill.contamination.words import (
    EXACT,
    LONGEST,
    Hashes,
    Places,
    Words,
    find_words,
    hash_ngrams,
)

WINDOW = 1 << 18  # bytes folded at once
MOST_HITS = 1 << 14  # of a text
_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True)
class Hits:
    """Units that were found, ordered by text and place.

    `texts` has the number of the text in the stream, `places` the number of the first matching word
    in that text, `units` the number of the unit.
    """

    texts: Places
    places: Places
    units: Places

    def __len__(self) -> int:
        return len(self.texts)

    def where(self, chosen: npt.NDArray[Any]) -> Hits:
        """Return the hits with these indices, or for which this mask is true."""
        return Hits(self.texts[chosen], self.places[chosen], self.units[chosen])

    @classmethod
    def join(cls, some: list[Hits]) -> Hits:
        """Join hits, and sort them."""
        if not some:
            return cls(_NOTHING, _NOTHING, _NOTHING)
        columns = [
            np.concatenate([getattr(one, name) for one in some])
            for name in ("texts", "places", "units")
        ]
        order = np.lexsort((columns[2], columns[1], columns[0]))
        return cls(*(column[order] for column in columns))


class Passage(NamedTuple):
    """Consecutive words of a text that are consecutive words of a protected text.

    `start` and `stop` count words of the text; `first` and `last` are those of `Protected.sequence`.
    """

    text: int
    start: int
    stop: int
    protected: int  # the number of the protected text
    first: int
    last: int


class Stream:
    """Looks for protected texts in a stream of texts, separated by NUL bytes.

    `window` bytes are folded at once. Of the hits in a text, the first `most` are found.
    """

    def __init__(
        self, protected: Protected, *, window: int = WINDOW, most: int = MOST_HITS
    ) -> None:
        self._protected = protected
        self._most = most
        self._window = window
        self._keep = max(protected.size, *protected.short_lengths.tolist(), 1) - 1
        self._raw = b""  # an incomplete character
        self._carry = b""  # folded: the last words, and the beginning of the next one
        self._carried = 0  # complete words in it
        self._text = 0  # the number of the text that continues
        self._place = 0  # the number, in that text, of the first word in `_carry`
        self._found = 0, 0  # the last text with hits, and how many it has

    def feed(self, block: Any) -> Hits:
        """Take the next bytes, and return the hits that are certain by now."""
        data = self._raw + bytes(block) if self._raw else bytes(block)
        found, start = [], 0
        while start < len(data):
            stop = _cut(data, start + self._window)
            if stop == start:  # only an incomplete character is left
                break
            found.append(self._scan(self._carry + fold(data[start:stop]), is_last=False))
            start = stop
        self._raw = data[start:]
        return Hits.join([hits for hits in found if len(hits)])

    def finish(self) -> Hits:
        """Return the hits at the end of the stream."""
        rest, self._raw = fold(self._raw), b""
        return self._scan(self._carry + rest, is_last=True)

    def _scan(self, folded: bytes, *, is_last: bool) -> Hits:
        end = len(folded) if is_last else max(folded.rfind(b" "), folded.rfind(b"\0")) + 1
        body, rest = folded[:end], folded[end : end + LONGEST + 1]
        words = find_words(body)
        nuls = np.flatnonzero(np.frombuffer(body, np.uint8) == 0) if b"\0" in body else _NOTHING
        borders = words.starts.searchsorted(nuls)  # the first word after each NUL
        hits = self._limit(self._describe(*self._find(words, borders), borders))
        count = len(words)
        first = max(count - self._keep, int(borders[-1]) if len(borders) else 0)
        self._place += first
        if len(borders):
            self._place = first - int(borders[-1])
        self._text += len(nuls)
        begin = int(words.starts[first]) if first < count else end
        self._carry, self._carried = body[begin:] + rest, count - first
        return hits

    def _describe(self, starts: Places, units: Places, borders: Places) -> Hits:
        texts = borders.searchsorted(starts, "right")
        offsets = np.concatenate(([-self._place], borders))
        return Hits.join([Hits(texts + self._text, starts - offsets[texts], units)])

    def _limit(self, hits: Hits) -> Hits:
        """Leave out the hits of a text after the first ones."""
        if not len(hits):
            return hits
        ranks = np.arange(len(hits)) - hits.texts.searchsorted(hits.texts)
        text, found = self._found
        ranks[hits.texts == text] += found
        self._found = int(hits.texts[-1]), int(ranks[-1]) + 1
        return hits.where(ranks < self._most)

    def _find(self, words: Words, borders: Places) -> tuple[Places, Places]:
        """Return the first word and the unit of each hit, in no order."""
        protected = self._protected
        hashes = words.hash()
        found: list[tuple[Places, Places]] = []
        keys = hash_ngrams(hashes, protected.size)
        starts = find_in_filter(keys, protected.filter)
        if len(starts):
            found += self._confirm(words, borders, starts, keys[starts], protected.size)
        if anchor := protected.anchor:
            keys = hash_ngrams(hashes, anchor)
            anchors = find_in_filter(keys, protected.anchors)
            anchors = anchors[_is_among(keys[anchors], protected.anchor_hashes)]
            for length in protected.short_lengths.tolist() if len(anchors) else ():
                some = anchors[anchors + length <= len(words)]
                if not len(some):
                    continue
                found += self._confirm(words, borders, some, _hash_at(hashes, some, length), length)
        if not found:
            return _NOTHING, _NOTHING
        columns = zip(*found, strict=True)
        starts, units = (np.concatenate(column) for column in columns)
        return starts, units

    def _confirm(
        self, words: Words, borders: Places, starts: Places, keys: Hashes, length: int
    ) -> Iterator[tuple[Places, Places]]:
        """Yield the first words and the units of those candidates that are hits.

        A candidate was a hit already if the words before this window contain it.
        """
        table = self._protected.hashes
        found = _is_among(keys, table)
        starts, keys = starts[found], keys[found]
        stops = starts + length
        fits = stops > self._carried
        fits &= borders.searchsorted(starts, "right") == borders.searchsorted(stops - 1, "right")
        starts, keys = starts[fits], keys[fits]
        units = table.searchsorted(keys)
        while len(starts):
            same = units < len(table)
            same[same] = table[units[same]] == keys[same]
            starts, keys, units = starts[same], keys[same], units[same]
            if not len(starts):
                return
            equal = self._compare(words, starts, units, length)
            if equal.any():
                yield starts[equal], units[equal]
            units = units + 1  # another unit may have the same hash

    def _compare(
        self, words: Words, starts: Places, units: Places, length: int
    ) -> npt.NDArray[np.bool_]:
        """Return which units have the words at their starts."""
        protected, known = self._protected, self._protected.known
        equal: npt.NDArray[np.bool_] = protected.lengths[units] == length
        places = protected.places[units].astype(np.int64)
        for number in range(length):
            here, there = starts + number, protected.sequence[places + number]
            equal &= words.lengths[here] == known.lengths[there]
            equal &= words.first[here] == known.first[there]
            equal &= words.last[here] == known.last[there]
            for i in np.flatnonzero(equal & (words.lengths[here] > EXACT)).tolist():
                equal[i] = _spell(words, int(here[i])) == _spell(known, int(there[i]))
        return equal


def _is_among(keys: Hashes, table: Hashes) -> npt.NDArray[np.bool_]:
    """Return which keys are in a sorted table."""
    places = table.searchsorted(keys)
    found = places < len(table)
    found[found] = table[places[found]] == keys[found]
    return found


def _spell(words: Words, number: int) -> bytes:
    start = int(words.starts[number])
    return words.text[start : start + int(words.lengths[number])]


def _hash_at(hashes: Hashes, starts: Places, length: int) -> Hashes:
    """Return the hashes of the `length` words at some places, as `hash_ngrams` computes them."""
    rows = hashes[starts[:, None] + np.arange(length)] if len(starts) else hashes[:0]
    return hash_rows(rows, length)


def hash_rows(rows: Hashes, length: int) -> Hashes:
    """Return the hash of each row of `length` hashes of words."""
    return hash_ngrams(rows.reshape(-1), length)[::length] if len(rows) else rows.reshape(-1)


def _cut(data: bytes, stop: int) -> int:
    """Return the last place up to `stop` that is not inside a character."""
    if stop < len(data):
        back = 0
        while data[stop - back] & 0xC0 == 0x80 and back < 3:
            back += 1
        return stop - back
    stop = len(data)
    for back in range(1, min(4, stop) + 1):
        byte = data[stop - back]
        if byte & 0xC0 != 0x80:
            width = 1 if byte < 0x80 else 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return stop - back if width > back else stop
    return stop


def find_in_texts(block: bytes, protected: Protected, *, most: int = MOST_HITS) -> Hits:
    """Return the hits in some texts, joined by NUL bytes: the first `most` of each text."""
    stream = Stream(protected, most=most)
    return Hits.join([some for some in (stream.feed(block), stream.finish()) if len(some)])


def find_passages(hits: Hits, protected: Protected) -> list[Passage]:
    """Join hits that follow or overlap each other in a text and in a protected text."""
    first = protected.places[hits.units].astype(np.int64)
    lengths = protected.lengths[hits.units].astype(np.int64)
    sources = protected.text_of(hits.units)
    shifts = first - hits.places
    order = np.lexsort((hits.places, shifts, sources, hits.texts))
    columns = (hits.texts, sources, shifts, hits.places, first, lengths)
    texts, sources, shifts, places, first, lengths = (column[order] for column in columns)
    begins = np.ones(len(texts), np.bool_)
    begins[1:] = (
        (texts[1:] != texts[:-1])
        | (sources[1:] != sources[:-1])
        | (shifts[1:] != shifts[:-1])
        | (places[1:] > places[:-1] + lengths[:-1])
    )
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(texts)) - 1
    rows = zip(
        texts[starts].tolist(),
        places[starts].tolist(),
        (places + lengths)[ends].tolist(),
        sources[starts].tolist(),
        first[starts].tolist(),
        (first + lengths)[ends].tolist(),
        strict=True,
    )
    return sorted(Passage(*row) for row in rows)
