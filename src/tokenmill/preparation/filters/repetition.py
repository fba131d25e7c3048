"""Measure repeated lines, paragraphs and n-grams of words, as Gopher's rules ask for.

Lines and paragraphs are compared by short keys first. Only those whose short keys are equal are
hashed. An n-gram is the hash of n words in a row. All hashes of a block are sorted together with
their places; 64-bit hashes that are equal count as equal n-grams.

To measure every n for every document would take longer than to tokenize it. Most documents repeat
little, so the limits of the rules are used: the pairs of a document, counted exactly, bound how often
its longer n-grams occur, and the words that are in a repeated 5-gram bound what longer n-grams
repeat. Only documents that these bounds do not clear are measured.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.preparation.filters.block import Block, Mask, Places
from tokenmill.preparation.filters.measures import Values, divide

Hashes = npt.NDArray[np.uint64]
_MIX = np.uint64(0x9E3779B97F4A7C15)
_STEP = np.uint64(0xD6E8FEB86659FD93)
_LONG = 64  # bytes of a range that are hashed together with other ranges


def mix(values: Hashes) -> Hashes:
    """Spread the bits of some numbers."""
    values = (values ^ (values >> np.uint64(32))) * _MIX
    return values ^ (values >> np.uint64(29))


class Repeats:
    """The repeated lines, or paragraphs, of a block: counts and characters for each document."""

    def __init__(self, block: Block, starts: Places, ends: Places, documents: Places) -> None:
        self.total = block.sum_lines(documents)
        repeated = _find_repeated(block, starts, ends, documents)
        chosen = documents[repeated]
        self.count = block.sum_lines(chosen)
        sizes = block.count_characters(starts[repeated], ends[repeated])
        self.characters = block.sum_lines(chosen, sizes)


def _find_repeated(block: Block, starts: Places, ends: Places, documents: Places) -> Places:
    """Return which texts are equal to an earlier one of the same document."""
    sizes = ends - starts
    shifts = _shifts(sizes)
    # The first and the last bytes and the size tell most lines apart.
    keys = mix((block.eights[starts] << shifts) + _STEP * sizes.astype(np.uint64))
    keys = mix(keys ^ (block.eights[np.maximum(starts, ends - 8)] << shifts))
    salt = mix(documents.astype(np.uint64) + _STEP)
    near, _ = _find_equal(keys + salt)
    if not len(near):
        return near
    near.sort()
    hashes = hash_ranges(block, starts[near], ends[near], salt[near])
    places, begins = _find_equal(hashes)
    return near[np.delete(places, begins)]


def _find_equal(hashes: Hashes) -> tuple[Places, Places]:
    """Find hashes that occur more than once.

    Returns their places, ordered so that equal hashes are next to each other, each run of equal ones
    in the order of the places; and where each run begins.
    """
    count = len(hashes)
    nothing = np.zeros(0, np.int64)
    if count < 2:
        return nothing, nothing
    # The upper bits of a hash with the place in the lower bits: sorting these is three times as fast
    # as sorting places by their hashes.
    low = np.uint64((1 << (count - 1).bit_length()) - 1)
    packed = mix(hashes)
    packed &= ~low
    packed |= np.arange(count, dtype=np.uint64)
    packed.sort()
    near = (packed[1:] ^ packed[:-1]) <= low
    member = np.zeros(count, np.bool_)
    member[1:] = near
    member[:-1] |= near
    members = np.flatnonzero(member)
    if not len(members):
        return nothing, nothing
    places = (packed[members] & low).astype(np.int64)
    whole = hashes[places]
    return places, np.flatnonzero(np.concatenate(([True], whole[1:] != whole[:-1])))


def _shifts(sizes: Places) -> Hashes:
    """Return how far to shift eight bytes to the left, so that as many stay as each size says."""
    return (8 * (8 - np.minimum(sizes, 8))).astype(np.uint64)


def hash_ranges(block: Block, starts: Places, ends: Places, salt: Hashes) -> Hashes:
    """Return a hash of each range of the block and its salt. No range is empty."""
    sizes = ends - starts
    found = mix((block.eights[starts] << _shifts(sizes)) + salt)
    left = np.flatnonzero(sizes > 8)
    done = 8
    while len(left):
        if done > _LONG:
            view = memoryview(block.data)
            for i in left.tolist():
                found[i] ^= np.uint64(xxhash.xxh3_64_intdigest(view[starts[i] + done : ends[i]]))
            break
        more = block.eights[starts[left] + done] << _shifts(sizes[left] - done)
        found[left] = mix(found[left] * _STEP + more + np.uint64(1))
        done += 8
        left = left[sizes[left] > done]
    return found


def find_sequences(block: Block, chosen: Mask) -> Sequences:
    """Return the words of the chosen documents, to measure n-grams."""
    starts, ends = block.word_places
    documents, counts = block.word_documents, block.word_counts
    if not chosen.all():
        inside = np.flatnonzero(chosen[documents])
        starts, ends, documents = starts[inside], ends[inside], documents[inside]
        counts = np.where(chosen, counts, 0)
    hashes = hash_ranges(
        block, starts, ends, mix(np.arange(len(block), dtype=np.uint64))[documents]
    )
    edges = np.concatenate(([0], np.cumsum(counts)))
    return Sequences(hashes, block.count_characters(starts, ends), edges, documents)


class Sequences:
    """The words of some documents, to measure n-grams: hashes, lengths, where each document begins."""

    def __init__(self, hashes: Hashes, lengths: Places, edges: Places, documents: Places) -> None:
        self._hashes = hashes
        self._lengths = lengths
        self._edges = edges  # of all documents, and the number of words
        self._ends = np.concatenate(([0], np.cumsum(lengths)))
        self._documents = documents
        self._runs: dict[int, tuple[Places, Places, Places]] = {}

    def only(self, chosen: Mask) -> Sequences:
        """Return the words of the chosen documents. The others then have no words."""
        inside = np.flatnonzero(chosen[self._documents])
        sizes = np.where(chosen, np.diff(self._edges), 0)
        edges = np.concatenate(([0], np.cumsum(sizes)))
        documents = self._documents[inside]
        return Sequences(self._hashes[inside], self._lengths[inside], edges, documents)

    def _find_runs(self, size: int) -> tuple[Places, Places, Places]:
        """Find n-grams of `size` words that occur more than once.

        Returns their places, where in them each run of equal n-grams begins, and how long it is: see
        `_find_equal`. An n-gram across two documents is equal to no other, because the hash of each
        word depends on its document.
        """
        if size in self._runs:
            return self._runs[size]
        count = max(0, len(self._hashes) - size + 1)
        grams = self._hashes[:count]
        for i in range(1, size):
            grams = grams * _STEP
            grams += self._hashes[i : count + i]
        places, begins = _find_equal(grams)
        self._runs[size] = places, begins, np.diff(np.append(begins, len(places)))
        return self._runs[size]

    def _span(self, places: Places, size: int) -> Places:
        """Return the characters of n-grams, with a space between two words."""
        spans: Places = self._ends[places + size] - self._ends[places] + size - 1
        return spans

    def top(self, size: int) -> Places:
        """Return the characters of all occurrences of each document's most frequent n-gram.

        If several are equally frequent, the first in the text counts. A document of fewer words has
        none.
        """
        counts = (np.diff(self._edges) >= size).astype(np.int64)
        firsts = self._edges[:-1].copy()
        places, begins, lengths = self._find_runs(size)
        heads = places[begins]
        documents = self._documents[heads]
        best = np.ones(len(counts), np.int64)
        np.maximum.at(best, documents, lengths)
        chosen = lengths == best[documents]
        documents, heads = documents[chosen], heads[chosen]
        firsts[documents] = len(self._lengths)
        np.minimum.at(firsts, documents, heads)
        counts[documents] = best[documents]
        found = np.zeros(len(counts), np.int64)
        some = counts > 0
        found[some] = counts[some] * self._span(firsts[some], size)
        return found

    def bound_top(self, size: int) -> Places:
        """Return for each document at least what `top` returns, from the pairs of words alone.

        An n-gram occurs at most as often as its first two words.
        """
        places, _, lengths = self._find_runs(2)
        bound = np.zeros(len(self._edges) - 1, np.int64)
        enough = np.diff(self._edges) >= size
        bound[enough] = self._span(self._edges[:-1][enough], size)
        inside = np.minimum(places + size, len(self._lengths))
        spans = self._ends[inside] - self._ends[places] + size - 1
        np.maximum.at(bound, self._documents[places], np.repeat(lengths, lengths) * spans)
        return bound

    def covered(self, size: int) -> Places:
        """Return the characters of all words that are in an n-gram which occurred before."""
        places, begins, _ = self._find_runs(size)
        again = np.delete(places, begins)
        inside = np.zeros(len(self._lengths) + 1, np.bool_)
        for i in range(size):
            inside[again + i] = True
        words = np.flatnonzero(inside[:-1])
        return self._sum(words, self._lengths[words])

    def _sum(self, words: Places, amounts: Places) -> Places:
        documents = self._documents[words]
        summed = np.bincount(documents, amounts, minlength=len(self._edges) - 1)
        return summed.astype(np.int64)

    def repeated(self, size: int) -> Places:
        """Return the characters of n-grams that occurred before, without spaces.

        Read from the start, an n-gram that occurred before is counted, and reading continues after
        it. Else it is remembered, and reading continues with the next word.
        """
        places, begins, lengths = self._find_runs(size)
        groups = np.repeat(np.arange(len(begins)), lengths)
        order = np.argsort(places)
        found = []
        seen: set[int] = set()
        free = 0  # the first word that is in no n-gram counted so far
        for place, group in zip(places[order].tolist(), groups[order].tolist(), strict=True):
            if place >= free:
                if group in seen:
                    found.append(place)
                    free = place + size
                else:
                    seen.add(group)
        counted = np.array(found, np.int64)
        return self._sum(counted, self._ends[counted + size] - self._ends[counted])


class Grams:
    """Measures n-grams of some documents. Results are shares of a document's characters.

    If the result for a document is not above the limit, it may be an upper bound.
    """

    def __init__(self, block: Block, chosen: Mask, smallest: int) -> None:
        self._characters = block.characters
        self._words = find_sequences(block, chosen)
        self._smallest = smallest  # the smallest n of the rules about repeated n-grams
        self._covered: Values | None = None

    def top(self, size: int, limit: float, left: Mask) -> Values:
        """Measure the most frequent n-gram of the documents that are `left`."""
        found = divide(self._words.bound_top(size), self._characters)
        chosen = left & (found > limit)
        if chosen.any():
            exact = self._words.only(chosen).top(size)
            found[chosen] = divide(exact, self._characters)[chosen]
        return found

    def repeated(self, size: int, limit: float, left: Mask) -> Values:
        """Measure the n-grams that occurred before, of the documents that are `left`."""
        if self._covered is None:
            self._covered = divide(self._words.covered(self._smallest), self._characters)
        chosen = left & (self._covered > limit)
        if chosen.any():
            words = self._words.only(chosen)
            if size > self._smallest:
                closer = divide(words.covered(size), self._characters)
                self._covered[chosen] = closer[chosen]
                chosen &= closer > limit
                words = words.only(chosen) if chosen.any() else words
        found = self._covered.copy()
        if chosen.any():
            found[chosen] = divide(words.repeated(size), self._characters)[chosen]
        return found
