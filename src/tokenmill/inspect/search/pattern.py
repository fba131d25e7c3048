r"""Find a text in ids, without decoding them.

In the text of the ids, each byte of an occurrence belongs to exactly one id. So each byte of the
searched text has a set of ids that can contain it at a certain position. The sets are computed from
the vocabulary once. The set that is rarest in the data becomes the anchor: all its ids are found in
the data by comparison (few ids) or with a table (many ids). From each place found, the neighbouring
ids are compared with the searched text in both directions, with one table lookup per id. Nothing is
assumed about how a tokenizer divides text, and nothing is estimated: the result is exact for any
tokenizer whose text is the joined bytes of its ids.

Costs: a comparison takes 0.035 ns per token and id, and a table 0.27 ns per token. At each place
found, the two neighbouring ids are looked at (20 ns), which decides on nearly all places; following
the others takes about 30 ns. All of it is native code during which other threads can run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tokenmill.inspect.search.vocabulary import AnyIds, Integers, Vocabulary, lower_ascii

CORE = 256  # bytes of the searched text that are compared by table; the rest is compared as text
EMPTY = 64  # ids without text that may be inside a match
_PIECE = 1 << 17  # ids searched at once, few enough for the CPU's cache
_FEW = 7  # ids; for more than these, a table is faster than comparisons
_MANY = 64  # places in a piece; for more than these, `nonzero` is faster
_SAMPLE = 1 << 20  # ids from which frequencies are estimated
_SURPRISE = 10_000  # places beyond 8 times the expected number: then the anchor is chosen again
_ENTRIES = 1 << 20  # places followed at once, which bounds memory
_COMPARE, _LOOK_UP, _FOLLOW = 0.035, 0.27, 20.0  # ns: see above

Bits = npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class Hits:
    """Occurrences, in order. Each begins after `skip` bytes of token `first`, and ends after `end`
    bytes of token `last`."""

    first: Integers
    skip: Integers
    last: Integers
    end: Integers

    def __len__(self) -> int:
        return len(self.first)

    def where(self, chosen: npt.NDArray[Any]) -> Hits:
        """Return the occurrences with these indices, or for which this mask is true."""
        return Hits(
            first=self.first[chosen],
            skip=self.skip[chosen],
            last=self.last[chosen],
            end=self.end[chosen],
        )

    def moved(self, tokens: int) -> Hits:
        """Return the occurrences with `tokens` added to their positions."""
        return Hits(
            first=self.first + tokens, skip=self.skip, last=self.last + tokens, end=self.end
        )


class Pattern(Protocol):
    """Finds the occurrences of something, such as a text, in ids."""

    width: int  # the most tokens that an occurrence can span

    def find(self, ids: AnyIds, stop: int) -> Iterator[Hits]:
        """Yield all occurrences that begin in the first `stop` of the ids, in order.

        Overlapping occurrences are all found. An occurrence must end within `ids`. Each `Hits` has a
        bounded size, even if each id has many occurrences.
        """


@dataclass(frozen=True, kw_only=True)
class _Anchor:
    """The ids that can contain one byte of the text, and their expected `share` of all tokens.

    `ids` are sorted. The n-th of them can begin at the bytes `begins[bounds[n] : bounds[n + 1]]` of
    the text; a negative number means that it begins before the text. For each id of the vocabulary,
    `left` has the bits of the places where it can begin, and `right` of those where it can end.
    Bit 0 means that the text need not continue on that side.
    """

    ids: AnyIds
    bounds: Integers
    begins: Integers
    left: Bits
    right: Bits
    share: float
    finder: IdFinder


class TextPattern:
    """A text to find, as bytes. With `ignore_case`, A to Z equal a to z.

    >>> vocabulary = Vocabulary([b"a", b"na", b"ban", b"b"])
    >>> pattern = TextPattern(vocabulary, b"ana")
    >>> (hits,) = pattern.find(np.array([3, 0, 1, 1, 2, 0], np.uint16), 6)  # b a na na ban a
    >>> hits.first.tolist(), hits.skip.tolist(), hits.last.tolist(), hits.end.tolist()
    ([1, 2, 4], [0, 1, 1], [2, 3, 5], [2, 2, 1])
    """

    def __init__(self, vocabulary: Vocabulary, text: bytes, *, ignore_case: bool = False) -> None:
        assert text
        self._vocabulary = vocabulary
        self._flat = vocabulary.lower if ignore_case else vocabulary.flat
        self._ignore_case = ignore_case
        self._text = lower_ascii(text) if ignore_case else text
        self._core = self._text[:CORE]
        self.width = len(text) + EMPTY
        self._ids, self._begins = self._fit()
        self._forward = self._set_bits(self._begins)
        lengths = vocabulary.lengths[self._ids]
        self._backward = self._set_bits(self._begins + lengths)
        # Bit 0 of the first word is for a side on which the text does not continue: see `_thin`.
        self._forward[:, 0] |= np.uint64(1)
        self._backward[:, 0] |= np.uint64(1)
        self._anchor: _Anchor | None = None

    def _fit(self) -> tuple[Integers, Integers]:
        """Return every id that can contain bytes of the text, with each place where it can begin."""
        starts, lengths, flat = self._vocabulary.starts[:-1], self._vocabulary.lengths, self._flat
        text = np.frombuffer(self._core, np.uint8)
        by_first = {
            byte: self._vocabulary.find_byte(byte, flat, first=True)[0] for byte in set(self._core)
        }
        ids, begins = [], []
        for begin in range(len(text)):
            fits = by_first[int(text[begin])]
            for more in range(1, len(text) - begin):
                long = lengths[fits] > more
                if not long.any():
                    break
                place = starts[fits] + np.where(long, more, 0)
                fits = fits[~long | (flat[place] == text[begin + more])]
            ids.append(fits)
            begins.append(np.full(len(fits), begin))
        # Ids that begin before the text: the text can begin at any of their bytes but the first.
        owner, inside = self._vocabulary.find_byte(self._core[0], flat, first=False)
        for more in range(1, len(text)):
            long = lengths[owner] > inside + more
            if not long.any():
                break
            place = starts[owner] + np.where(long, inside + more, 0)
            fitting = ~long | (flat[place] == text[more])
            owner, inside = owner[fitting], inside[fitting]
        return np.concatenate([*ids, owner]), np.concatenate([*begins, -inside])

    def _set_bits(self, places: Integers) -> Bits:
        """Return a table that says, for each id and place in the text, whether the id fits there."""
        words = (len(self._core) + 63) >> 6
        bits = np.zeros((self._vocabulary.room, words), np.uint64)
        inner = (places > 0) & (places < len(self._core))
        ids, places = self._ids[inner], places[inner]
        # A pair of an id and a place occurs once, so adding sets bits.
        np.add.at(bits, (ids, places >> 6), _bit(places))
        empty = self._vocabulary.known & (self._vocabulary.lengths == 0)
        bits[empty] = ~np.uint64(0)
        return bits

    def _learn(self, ids: AnyIds) -> _Anchor:
        """Choose the anchor by the frequencies of ids in a sample of the data."""
        ids = ids[:_SAMPLE]
        counts = np.bincount(ids, minlength=self._vocabulary.room)
        shares = (counts + 0.02) / max(len(ids), 1)
        lengths = self._vocabulary.lengths[self._ids]
        low = np.maximum(self._begins, 0)
        high = np.minimum(self._begins + lengths, len(self._core))
        numbers, weights = np.zeros((2, len(self._core) + 1))
        np.add.at(numbers, low, 1)
        np.add.at(numbers, high, -1)
        np.add.at(weights, low, shares[self._ids])
        np.add.at(weights, high, -shares[self._ids])
        numbers, weights = np.cumsum(numbers)[:-1].round(), np.cumsum(weights)[:-1]
        scan = np.where(numbers <= _FEW, numbers * _COMPARE, _LOOK_UP)
        best = int(np.argmin(scan + weights * _FOLLOW))
        chosen = np.flatnonzero((low <= best) & (high > best))
        # The later in the text an id begins, the earlier the text itself begins. Ordering an id's
        # places so makes hits come in order.
        order = chosen[np.lexsort((-self._begins[chosen], self._ids[chosen]))]
        unique, counts = np.unique(self._ids[order], return_counts=True)
        left, right = np.zeros((2, self._vocabulary.room), np.uint64)
        begins, ends = self._begins[order], self._begins[order] + lengths[order]
        np.bitwise_or.at(left, self._ids[order], _bit(np.maximum(begins, 0)))
        np.bitwise_or.at(right, self._ids[order], _bit(np.where(ends < len(self._core), ends, 0)))
        # Assign only the complete anchor, since several threads search at once.
        self._anchor = anchor = _Anchor(
            ids=unique,
            bounds=np.concatenate(([0], np.cumsum(counts))),
            begins=begins,
            left=left,
            right=right,
            share=float(weights[best]),
            finder=IdFinder(unique, self._vocabulary.room),
        )
        return anchor

    def find(self, ids: AnyIds, stop: int) -> Iterator[Hits]:
        """Yield all occurrences: see `Pattern.find`."""
        ids = self._vocabulary.trim(ids)
        anchor = self._anchor or self._learn(ids)
        places = anchor.finder.find(ids[: stop + self.width])
        if len(places) > 8 * anchor.share * len(ids) + _SURPRISE:  # unlike the sample
            self._learn(ids)
        if not len(places):
            return
        places = self._thin(ids, places, anchor)
        numbers = anchor.ids.searchsorted(ids[places])
        counts = anchor.bounds[numbers + 1] - anchor.bounds[numbers]
        for low, high in _blocks(counts, _ENTRIES):
            some = counts[low:high]
            at = np.repeat(places[low:high], some)
            offsets = np.arange(len(at)) - np.repeat(np.cumsum(some) - some, some)
            begins = anchor.begins[np.repeat(anchor.bounds[numbers[low:high]], some) + offsets]
            hits = self._follow(ids, at, begins)
            hits = hits.where(hits.first < stop)
            yield hits if len(self._text) <= CORE else self._check_rest(ids, hits)

    def _thin(self, ids: AnyIds, places: Integers, anchor: _Anchor) -> Integers:
        """Return the places whose two neighbours can continue the text.

        This decides on most places, and takes a fraction of the time of `_follow`.
        """
        if self._forward.shape[1] > 1:  # a table has only one bit for several places
            return places
        after = ids.take(places + 1, mode="clip")  # at the end of `ids`, any id: `_follow` decides
        fits = anchor.right.take(ids.take(places)) & self._forward[:, 0].take(after)
        places = places[fits != 0]
        before = ids.take(places - 1, mode="clip")
        fits = anchor.left.take(ids.take(places)) & self._backward[:, 0].take(before)
        kept: Integers = places[fits != 0]
        return kept

    def _follow(self, ids: AnyIds, at: Integers, begins: Integers) -> Hits:
        """Return the occurrences in which the id at each place begins at that byte of the text."""
        lengths, size = self._vocabulary.lengths, len(self._core)
        first, last = at, at
        left, right = begins, begins + lengths[ids[at]]
        while True:
            more = right < size
            if more.any():
                rows = np.flatnonzero(more)
                place = last[rows] + 1
                within = place < len(ids)
                next_ids = ids[np.where(within, place, 0)]
                fits = within & self._fits(self._forward, next_ids, right[rows])
                last, right = last.copy(), right.copy()
                last[rows] += 1
                right[rows] += lengths[next_ids]
                if not fits.all():
                    more[:] = True
                    more[rows] = fits
                    first, last, left, right = first[more], last[more], left[more], right[more]
            before = left > 0
            if before.any():
                rows = np.flatnonzero(before)
                place = first[rows] - 1
                within = place >= 0
                next_ids = ids[np.where(within, place, 0)]
                fits = within & self._fits(self._backward, next_ids, left[rows])
                first, left = first.copy(), left.copy()
                first[rows] -= 1
                left[rows] -= lengths[next_ids]
                if not fits.all():
                    before[:] = True
                    before[rows] = fits
                    first, last = first[before], last[before]
                    left, right = left[before], right[before]
            elif not (right < size).any():
                break
        return Hits(first=first, skip=-left, last=last, end=lengths[ids[last]] - (right - size))

    def _fits(self, table: Bits, ids: AnyIds, places: Integers) -> npt.NDArray[np.bool_]:
        words = table[:, 0].take(ids) if table.shape[1] == 1 else table[ids, places >> 6]
        fits: npt.NDArray[np.bool_] = words & _bit(places) != 0
        return fits

    def _check_rest(self, ids: AnyIds, hits: Hits) -> Hits:
        """Return the hits where all of the searched text occurs, not only its first `CORE` bytes.

        In the result, `last` and `end` are those of the whole text.
        """
        kept, lasts, ends = [], [], []
        size = len(self._text)
        for number, (first, skip) in enumerate(
            zip(hits.first.tolist(), hits.skip.tolist(), strict=True)
        ):
            joined, places = self._vocabulary.join(ids[first : first + self.width])
            text = bytes(joined[skip : skip + size])
            if self._ignore_case:
                text = lower_ascii(text)
            if text == self._text:
                last = int(places.searchsorted(skip + size, "left")) - 1
                kept.append(number)
                lasts.append(first + last)
                ends.append(skip + size - int(places[last]))
        chosen = hits.where(np.array(kept, np.int64))
        return Hits(
            first=chosen.first,
            skip=chosen.skip,
            last=np.array(lasts, np.int64),
            end=np.array(ends, np.int64),
        )


class IdPattern:
    """A sequence of ids to find.

    >>> pattern = IdPattern(None, [5, 5])
    >>> [hits.first.tolist() for hits in pattern.find(np.array([5, 5, 5, 1], np.uint16), 4)]
    [[0, 1]]
    """

    def __init__(self, vocabulary: Vocabulary | None, ids: Sequence[int]) -> None:
        self._vocabulary, self._ids = vocabulary, list(ids)
        self.width = len(self._ids)
        self._rarest: int | None = None

    def find(self, ids: AnyIds, stop: int) -> Iterator[Hits]:
        """Yield all occurrences: see `Pattern.find`."""
        if max(self._ids) > np.iinfo(ids.dtype).max:
            return
        if self._rarest is None:
            sample = ids[:_SAMPLE]
            counts = [np.count_nonzero(sample == one) for one in self._ids[:CORE]]
            self._rarest = int(np.argmin(counts))
        places = IdFinder(np.array([self._ids[self._rarest]]), 0).find(ids[: stop + self.width])
        first = places - self._rarest
        first = first[(first >= 0) & (first < stop) & (first + self.width <= len(ids))]
        for offset, one in enumerate(self._ids):
            first = first[ids[first + offset] == one]
        last = first + self.width - 1
        end = np.ones(len(first), np.int64)
        if self._vocabulary is not None:
            end = self._vocabulary.lengths[self._vocabulary.trim(ids[last])]
        yield Hits(first=first, skip=np.zeros(len(first), np.int64), last=last, end=end)


class IdFinder:
    """Finds all places of some ids.

    >>> IdFinder(np.array([3, 7]), 100).find(np.array([7, 1, 3], np.uint16))
    array([0, 2])
    """

    def __init__(self, wanted: AnyIds, room: int) -> None:
        self._few = wanted.tolist() if len(wanted) <= _FEW else []
        self._table: Any = None
        if len(wanted) > _FEW:
            import pyarrow

            table = np.zeros(room, np.uint8)
            table[wanted] = 1
            self._table = pyarrow.array(table)

    def find(self, ids: AnyIds) -> Integers:
        """Return the positions of the wanted ids, in order."""
        found = [np.empty(0, np.int64)]
        if not self._few and self._table is None:
            return found[0]
        spare = np.empty((2, min(_PIECE, len(ids))), bool)
        places = found[0]
        for low in range(0, len(ids), _PIECE):
            piece = ids[low : low + _PIECE]
            mask = self._mark(piece, spare[:, : len(piece)])
            if mask.any():  # faster than `_list_marks` if nothing is found
                places = _list_marks(mask, are_few=len(places) < _MANY)
                found.append(places + low)
        return np.concatenate(found)

    def _mark(self, piece: AnyIds, spare: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        if self._table is not None:
            import pyarrow
            import pyarrow.compute

            marks = pyarrow.compute.take(self._table, pyarrow.array(piece), boundscheck=False)
            flags: npt.NDArray[np.bool_] = np.frombuffer(marks.buffers()[1], bool, len(piece))
            return flags
        mask: npt.NDArray[np.bool_] = spare[0]
        other = spare[1]
        for number, one in enumerate(self._few):
            if number:
                np.equal(piece, one, out=other)
                np.bitwise_or(mask, other, out=mask)
            else:
                np.equal(piece, one, out=mask)
        return mask


def _list_marks(mask: npt.NDArray[np.bool_], *, are_few: bool) -> Integers:
    """Return where a mask is true. `are_few` is a guess: it may be wrong.

    A few marks are found in a quarter of the time of `nonzero`.
    """
    places: list[int] = []
    data, place = (mask.tobytes() if are_few else b""), -1
    while are_few and (place := data.find(1, place + 1)) >= 0:
        places.append(place)
        are_few = len(places) < _MANY
    return np.array(places) if are_few else mask.nonzero()[0]


def _bit(places: Integers) -> Bits:
    """Return numbers in which only the bit for a place is set."""
    bits: Bits = np.uint64(1) << (places & 63).astype(np.uint64)
    return bits


def _blocks(counts: Integers, most: int) -> list[tuple[int, int]]:
    """Divide items into ranges with about `most` entries; `counts` has the entries of each item."""
    if not len(counts):
        return []
    ends = np.cumsum(counts)
    marks = np.arange(most, int(ends[-1]), most)
    bounds = np.unique(np.concatenate(([0], ends.searchsorted(marks), [len(counts)])))
    return list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
