"""The shingle set of a text: the hashes of all runs of five words, to compare texts by what they share.

A word is a run of letters, digits, marks and underscores, in lower case. The case of letters beyond
Armenian stays. In scripts that do not put spaces between words, such as Chinese, Japanese and Thai,
each character is a word, so that a shingle is five characters. A word of more than 64 bytes counts as
several: it is cut after every 64. A text of fewer than five words has no shingles.

The set depends on the text alone, not on how it is cut into blocks. It is sorted and has 32-bit hashes.
A set of more than `MOST` shingles is reduced to a sample: those whose reversed bytes are below a
threshold, which is halved until the sample is small enough. The samples of two texts, cut to the lower
of their thresholds, are samples of the same shingles, so they can be compared.

NumPy goes through many texts at once, some 100 MB a second. Memory is a few megabytes for texts of any
size.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint32]
Places = npt.NDArray[np.int64]
_Wide = npt.NDArray[np.uint64]

WORDS = 5  # in a shingle
MOST = 1 << 18  # shingles of a set; larger sets are sampled
_SLICE = 256 << 10  # bytes to handle at once: larger arrays would not fit in the processor's cache
_LONGEST = 64  # bytes of a word
_LETTER, _SINGLE, _INSIDE = (
    1,
    2,
    3,
)  # what a byte is: of a word, the start of a one-character word, its rest

_LENGTH, _FIRST, _NEXT, _JOIN, _LAST = (
    np.uint64(number)
    for number in (
        0x9E3779B97F4A7C15,
        0xBF58476D1CE4E5B9,
        0xD6E8FEB86659FD93,
        0xFF51AFD7ED558CCD,
        0xC4CEB9FE1A85EC53,
    )
)
_JOIN_TWICE = np.uint64(int(_JOIN) ** 2 % 2**64)
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
_ASCII = bytes(
    _LETTER if byte >= 128 or chr(byte).isalnum() or byte == ord("_") else 0 for byte in range(256)
)

# Characters beyond ASCII that are in no word: punctuation, symbols, private use.
_OUTSIDE = """
80-A9 AB-B4 B6-B9 BB-BF D7 F7 37E 387 55A-55F 589-58A 5BE 5C0 5C3 5C6 5F3-5F4 60C-60D 61B 61E-61F
66A-66D 6D4 964-965 970 E4F E5A-E5B F04-F14 104A-104F 10FB 1361-1368 166D-166E 1680 16EB-16ED
17D4-17D6 17D8-17DA 1800-180A 2000-200B 200E-206F 20A0-20CF 2190-245F 2500-2BFF 2E00-2E7F 3000-3004
3008-3020 3030 303D 30A0 30FB A4FE-A4FF A60D-A60F D800-F8FF FD3E-FD3F FE10-FE19 FE30-FE6F FEFF
FF00-FF0F FF1A-FF20 FF3B-FF40 FF5B-FF65 FFE0-FFFF 1F000-1FAFF E0000-E0FFF F0000-10FFFF
"""
# Characters that are words of their own: Thai, Lao, Myanmar, Khmer, Tai, Chinese, Japanese, Yi, …
_SINGLES = """
E01-E4E E50-E59 E80-EFF 1000-1049 1050-109F 1780-17D3 17E0-17E9 1950-19FF 1A20-1AAF 3005-3007
3021-3029 3031-303C 3041-309F 30A1-30FA 30FC-312F 31A0-31BF 31F0-31FF 3400-4DBF 4E00-9FFF A000-A48F
A980-A9FF AA60-AADF F900-FAFF FF66-FF9F 16FE0-18AFF 1AFF0-1B16F 20000-3FFFF
"""


def shingle_texts(block: bytes, starts: Places, ends: Places) -> tuple[Hashes, Places]:
    """Return the shingle sets of many texts, one after the other, and the size of each.

    Text number n is `block[starts[n]:ends[n]]`. Texts are in order, and have at most `MOST` shingles
    each: a longer text is for `Shingler`.

    >>> sets, sizes = shingle_texts(b"a b c d e\\0A, B: c d e f. a b c d e", np.array([0, 10]), np.array([9, 32]))
    >>> sizes.tolist(), int(sets[0]) in sets[1:]
    ([1, 6], True)
    """
    found: list[Hashes] = []
    sizes = np.zeros(len(starts), np.int64)
    first = 0
    while first < len(starts):
        stop = max(first + 1, int(ends.searchsorted(starts[first] + _SLICE, "right")))
        low = int(starts[first])
        text = block[low : int(ends[stop - 1])]
        sets, sizes[first:stop] = _shingle_slice(text, starts[first:stop] - low)
        found.append(sets)
        first = stop
    return np.concatenate([np.zeros(0, np.uint32), *found]), sizes


def are_long(sizes: Places) -> npt.NDArray[np.bool_]:
    """Return which texts, by their sizes in bytes, are for `Shingler`: they may have many shingles."""
    return sizes > _SLICE


class Shingler:
    """Makes the shingle set of one text of any size, piece by piece.

    >>> whole, pieces = Shingler(), Shingler()
    >>> whole.add("Ünder fünf großen Bäumen schlafen Füchse.".encode())
    >>> for byte in "ünder FÜNF großen Bäumen, schlafen Füchse".encode():
    ...     pieces.add(bytes([byte]))
    >>> whole.finish()[0].tolist() == pieces.finish()[0].tolist()
    True
    """

    def __init__(self) -> None:
        self._held = b""  # the beginning of a word or a character
        self._last = np.zeros(0, np.uint64)  # the hashes of the last words
        self._sets: list[Hashes] = []
        self._count = 0
        self._level = 0

    def add(self, data: bytes | memoryview) -> None:
        """Add more of the text. It may be cut anywhere."""
        for start in range(0, len(data), _SLICE):
            self._add(self._held + bytes(data[start : start + _SLICE]), is_last=False)

    def finish(self) -> tuple[Hashes, int]:
        """Return the sorted set and its level: how often the threshold of the sample was halved."""
        self._add(self._held, is_last=True)
        self._merge()
        return self._sets[0], self._level

    def _add(self, data: bytes, *, is_last: bool) -> None:
        cut = len(data) if is_last else _last_whole_character(data)
        words = _Words(data[:cut])
        hashes = words.hash()
        self._held = data[cut:]
        if words.is_open and not is_last:
            self._held = words.last() + self._held
            hashes = hashes[:-1]
        hashes = np.concatenate((self._last, hashes))
        self._last = hashes[-(WORDS - 1) :]
        self._sets.append(sample(np.sort(_join(hashes)), self._level))
        self._count += len(self._sets[-1])
        if self._count > 2 * MOST:
            self._merge()

    def _merge(self) -> None:
        merged = np.sort(np.concatenate(self._sets))
        merged = merged[_is_new(merged)]
        while len(merged) > MOST:
            self._level += 1
            merged = sample(merged, self._level)
        self._sets, self._count = [merged], len(merged)


def sample(hashes: Hashes, level: int) -> Hashes:
    """Return those of some hashes whose reversed bytes are below a threshold: 2**(32 - level)."""
    return hashes[hashes.byteswap() >> np.uint32(32 - level) == 0] if level else hashes


class _Words:
    """The words of a text. `is_open` says whether the last word may continue after the text."""

    def __init__(self, text: bytes) -> None:
        text = text.lower()  # ASCII only
        kinds = np.frombuffer(text.translate(_ASCII), np.uint8)
        if text.isascii():
            edges = np.flatnonzero(np.diff(kinds, prepend=0, append=0))
            starts, ends = edges[::2], edges[1::2]
            self._bytes = np.frombuffer(text + bytes(16 - len(text) % 8), np.uint8)
        else:
            kinds = np.append(kinds, 0).astype(np.uint8)
            self._bytes = np.frombuffer(bytearray(text + bytes(16 - len(text) % 8)), np.uint8)
            _classify(self._bytes[: len(text)], kinds)
            begins = kinds == _SINGLE
            begins[0] |= kinds[0] == _LETTER
            begins[1:] |= (kinds[1:] == _LETTER) & (kinds[:-1] != _LETTER)
            inside = kinds[:-1] != 0
            starts = np.flatnonzero(begins)
            ends = np.flatnonzero(inside & (begins[1:] | (kinds[1:] == 0))) + 1
        self.is_open = (
            bool(len(ends)) and int(ends[-1]) == len(text) and kinds[len(text) - 1] == _LETTER
        )
        lengths = ends - starts
        if len(lengths) and lengths.max() > _LONGEST:
            pieces = -(-lengths // _LONGEST)
            number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
            starts = np.repeat(starts, pieces) + _LONGEST * number
            lengths = np.minimum(_LONGEST, np.repeat(ends, pieces) - starts)
        self.starts, self._lengths = starts, lengths

    def last(self) -> bytes:
        """Return the bytes of the last word."""
        start = int(self.starts[-1])
        return self._bytes[start : start + int(self._lengths[-1])].tobytes()

    def hash(self) -> _Wide:
        """Return the 64-bit hash of each word."""
        wide, lengths = self._bytes.view("<u8"), self._lengths
        hashes = lengths.view(np.uint64) * _LENGTH
        hashes ^= _load(wide, self.starts, lengths)
        hashes *= _FIRST
        hashes ^= hashes >> np.uint64(32)
        long = np.flatnonzero(lengths > 8)
        for done in range(8, _LONGEST, 8):
            if not len(long):
                break
            more = hashes[long] * _NEXT
            more ^= _load(wide, self.starts[long] + done, lengths[long] - done)
            more *= _FIRST
            more ^= more >> np.uint64(29)
            hashes[long] = more
            long = long[lengths[long] > done + 8]
        return hashes


def _load(wide: _Wide, starts: Places, lengths: Places) -> _Wide:
    """Return the first eight bytes from each start, as a number; bytes beyond the length are 0."""
    shift = ((starts & 7) << 3).view(np.uint64)
    at = starts >> 3
    # To shift by 64 gives 0, in NumPy.
    found: _Wide = (wide[at] >> shift) | (wide[at + 1] << (np.uint64(64) - shift))
    found &= _MASKS[np.minimum(lengths, 8)]
    return found


def _join(hashes: _Wide) -> Hashes:
    """Return the hash of every `WORDS` words in a row."""
    if len(hashes) < WORDS:
        return np.zeros(0, np.uint32)
    two = hashes[:-1] * _JOIN
    two += hashes[1:]
    four = two[:-2] * _JOIN_TWICE
    four += two[2:]
    five = four[:-1] * _JOIN
    five += hashes[4:]
    five ^= five >> np.uint64(32)
    five *= _LAST
    five >>= np.uint64(32)
    return five.astype(np.uint32)


def _shingle_slice(text: bytes, starts: Places) -> tuple[Hashes, Places]:
    """Return the shingle sets of some texts, and their sizes. `starts` says where each text begins."""
    words = _Words(text)
    shingles = _join(words.hash())
    firsts = np.append(words.starts.searchsorted(starts), len(words.starts))
    number = np.repeat(np.arange(len(starts), dtype=np.uint64), np.diff(firsts))
    count = len(shingles)
    inside = number[:count] == number[len(number) - count :]
    keys = (number[:count] << np.uint64(32)) | shingles
    keys = np.sort(keys[inside])
    keys = keys[_is_new(keys)]
    borders = keys.searchsorted(np.arange(len(starts) + 1, dtype=np.uint64) << np.uint64(32))
    return keys.astype(np.uint32), np.diff(borders)


def _is_new(ordered: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.bool_]:
    """Return, for each of some sorted numbers, whether it differs from the one before."""
    new = np.ones(len(ordered), np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    return new


def _last_whole_character(text: bytes) -> int:
    """Return where the last character of a text begins if it is incomplete, else the text's size."""
    for back in range(1, min(3, len(text)) + 1):
        byte = text[-back]
        if byte >= 0xC0:
            size = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return len(text) - back if size > back else len(text)
        if byte < 0x80:
            break
    return len(text)


def _classify(text: npt.NDArray[np.uint8], kinds: npt.NDArray[np.uint8]) -> None:
    """Correct the kinds of the bytes beyond ASCII, and change their letters to lower case, in place."""
    table, lower = _tables()
    padded = np.append(text, np.zeros(3, np.uint8))
    leads = np.flatnonzero((text >= 0xC0) & (text < 0xF8))
    sizes = 2 + (text[leads] >= 0xE0) + (text[leads] >= 0xF0)
    whole = np.ones(len(leads), np.bool_)  # other bytes, which are not UTF-8, stay letters
    for place in (1, 2, 3):
        whole &= (padded[leads + place] & 0xC0 == 0x80) | (sizes <= place)
    leads, sizes = leads[whole], sizes[whole]
    if not len(leads):
        return
    head = text[leads].astype(np.uint32)
    second = padded[leads + 1].astype(np.uint32) & 0x3F
    third = padded[leads + 2].astype(np.uint32) & 0x3F
    fourth = padded[leads + 3].astype(np.uint32) & 0x3F
    two = (head & 0x1F) << 6 | second
    three = (head & 0x0F) << 12 | second << 6 | third
    points = np.where(head < 0xE0, two, three)
    points = np.where(head < 0xF0, points, (head & 7) << 18 | second << 12 | third << 6 | fourth)

    small = np.flatnonzero(head < 0xE0)
    lowered = lower[points[small]]
    small, lowered = small[lowered > 0], lowered[lowered > 0]
    text[leads[small]] = 0xC0 | lowered >> 6
    text[leads[small] + 1] = 0x80 | lowered & 0x3F

    found = table[np.minimum(points, 0x10FFFF)]
    other = np.flatnonzero(found != _LETTER)
    leads, sizes, found = leads[other], sizes[other], found[other]
    kinds[leads] = found
    rest = np.where(found == _SINGLE, _INSIDE, 0).astype(np.uint8)
    for place in (1, 2, 3):
        some = np.flatnonzero(sizes > place)
        kinds[leads[some] + place] = rest[some]


@cache
def _tables() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint16]]:
    """Return the kind of each character, and the lower case of those below U+0590, or 0 if the same."""
    kinds = np.full(0x110000, _LETTER, np.uint8)
    for text, kind in ((_OUTSIDE, 0), (_SINGLES, _SINGLE)):
        for entry in text.split():
            first, _, last = entry.partition("-")
            kinds[int(first, 16) : int(last or first, 16) + 1] = kind
    lower = np.zeros(0x800, np.uint16)
    for point in range(0x80, 0x590):
        small = chr(point).lower()
        if len(small) == 1 and small != chr(point) and 0x80 <= ord(small) < 0x800:
            lower[point] = ord(small)
    return kinds, lower
