"""Split bytes into records: where documents of a plain text begin, and where a long one may be cut.

A record is the text between two separators. Records are found in a stream block by block, in native
code (`bytes.split`, `re`), and memory holds one block, for any size of file.

A document longer than a block is passed on in fragments. There are two kinds of cuts:

- Workers process a file in parts. A border between two parts can be inside a document, between a
  letter and a newline or space. Every pre-tokenizer in use ends a token there, so two workers can
  tokenize the two sides, and one huge document keeps all cores busy.
- Inside a part, one worker tokenizes the fragments in order (`preparation/texts.py`). So a document
  may be cut anywhere that cleaning allows (`Cutter(anywhere=True)`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import BinaryIO
from unicodedata import category, normalize

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TooLongError
from tokenmill.sources.nfc import begins_anew

Places = npt.NDArray[np.int64]

BLOCK = 4 << 20  # bytes read at once; also the longest fragment of a document, normally
MOST_RECORDS = 1 << 15  # documents per chunk: each takes up to 1 kB of memory until it is tokenized
COPIES = 32  # a text that is held whole takes this many times its size in memory until tokenized
PARSED = 4  # a record that is parsed whole and then cut may be this many times the hold limit
_NEWLINE = 10
_CONTEXT = 8  # bytes before a space or line end that show whether a letter is there
_TRIES = 20_000  # places of one kind to try as a cut before trying another kind
_WIDEST = 4  # bytes of the longest character in UTF-8

# A run of blank lines with something after it. No part of a run can match in two ways, so the
# search takes linear time.
_BLANK_LINES = re.compile(rb"\n(?:[ \t\r]*+\n)++(?=[ \t\r]*+[^ \t\r\n])")


@dataclass(frozen=True, slots=True)
class Rejection:
    """A record that cannot become a document.

    `line` is its line number, counted from 0 at the start of the range that is read. The ledger
    counts the record under `kind`; `reason` is for the user. Without a reason it is not listed.
    """

    line: int | None
    offset: int
    kind: str
    reason: str
    size: int


@dataclass(slots=True)
class Chunk:
    """Some consecutive documents of one source, undecoded, with the offset of each.

    `continues`: the first text continues a document of the chunk before. `unfinished`: the last
    document continues in the next chunk. `mid_line`: that document was cut within a line.
    """

    texts: list[bytes]
    offsets: list[int]
    continues: bool = False
    unfinished: bool = False
    mid_line: bool = False
    rejections: list[Rejection] = field(default_factory=list)
    lines: int = 0  # line ends in the block that this chunk was cut from
    read: int = 0  # bytes of the source, for progress
    whole: bytes = b""  # the block that this chunk was cut from, if known
    begin: int = 0  # the offset of that block
    # For each record that is not UTF-8: the offset of its first invalid byte, by the offset of the
    # record. Plain text has no entries here, because the text itself shows the place.
    bad_bytes: dict[int, int] = field(default_factory=dict)
    # The kept fields of each record as a JSON object, by the offset of the record.
    fields: dict[int, bytes] = field(default_factory=dict)
    _newlines: Places | None = None

    def line_of(self, offset: int) -> int | None:
        """Return the line that contains an offset of the source.

        Lines count from 0 at the start of the block of bytes that this chunk was cut from. Returns
        None if the chunk does not have that block.
        """
        if not self.whole:
            return None
        if self._newlines is None:  # counting again for each document would take quadratic time
            self._newlines = np.flatnonzero(np.frombuffer(self.whole, np.uint8) == _NEWLINE)
        return int(self._newlines.searchsorted(offset - self.begin))


@dataclass(frozen=True, slots=True)
class Cutter:
    """Where a long document may be cut: after a letter, before a line end, or else before a space.

    `short_line`: if it is 0, cut at any line end or space. Otherwise cut only at line ends, and
    only after a line that is plain ASCII and shorter than `short_line`. Such a short line is never
    removed as a repeated line, so the cut stays next to a letter.

    `anywhere`: also cut at other places where cleaning the fragments one by one gives the same text
    as cleaning the document:

    - between a visible character and a line end;
    - as a last resort, before a character that is not white space, if cleaning neither removes it
      nor composes it with the character before it.
    """

    short_line: int = 0
    anywhere: bool = False

    def first(self, data: bytes, start: int, end: int) -> int:
        """Return the first place to cut in data[start:end], or -1 if there is none."""
        return self._search(data, start, end, data.find, lambda found: (found + 1, end))

    def last(self, data: bytes, start: int, end: int) -> int:
        """Return the last place to cut in data[start:end], or -1 if there is none."""
        return self._search(data, start, end, data.rfind, lambda found: (start, found))

    def _search(
        self,
        data: bytes,
        start: int,
        end: int,
        find: Callable[[bytes, int, int], int],
        narrow: Callable[[int], tuple[int, int]],
    ) -> int:
        places = [(b"\n", _is_letter_before)]
        if self.anywhere:
            places.append((b"\n", _is_visible_before))
        if not self.short_line:
            places.append((b" ", _is_letter_before))
        for white, fits in places:
            low, high = start, end
            for _ in range(_TRIES):
                found = find(white, low, high)
                if found < 0:
                    break
                low, high = narrow(found)
                cut = found - 1 if white == b"\n" and data[found - 1 : found] == b"\r" else found
                if cut > start and fits(data, cut) and self._allows(data, cut):
                    return cut
        if self.anywhere:
            for cut in range(end - _WIDEST, max(start, end - _TRIES), -1):
                if _is_solid(data[cut : cut + _WIDEST]):
                    return cut
        return -1

    def _allows(self, data: bytes, cut: int) -> bool:
        if not self.short_line:
            return True
        line_start = data.rfind(b"\n", max(0, cut - self.short_line), cut)
        return line_start >= 0 and data[line_start:cut].isascii()


def _is_letter_before(data: bytes, place: int) -> bool:
    last = data[place - 1]
    if last < 0x80:
        return 65 <= last & 0xDF <= 90
    letter = _character_before(data, place)
    # Cleaning splits some letters, such as U+0958, into a letter and a mark. A mark is not a letter.
    return letter.isalpha() and normalize("NFC", letter).isalpha()


def _is_visible_before(data: bytes, place: int) -> bool:
    last = data[place - 1]
    if last < 0x80:
        return 0x20 < last < 0x7F
    return category(_character_before(data, place) or "\0") not in ("Cc", "Cf", "Cn")


def _character_before(data: bytes, place: int) -> str:
    """Return the character that ends at a position, or "" if there is none."""
    start = place - 1
    while start > max(0, place - _WIDEST) and data[start] & 0xC0 == 0x80:
        start -= 1
    try:
        return data[start:place].decode("utf-8")
    except UnicodeDecodeError:
        return ""


def _is_solid(data: bytes) -> bool:
    """Return whether cleaning keeps the first character as it is, whatever text precedes it."""
    first = data[0]
    if first < 0x80:
        return 0x20 < first < 0x7F
    if first < 0xC2:
        return False
    width = 2 + (first >= 0xE0) + (first >= 0xF0)
    try:
        character = data[:width].decode("utf-8")
    except UnicodeDecodeError:
        return False
    return category(character)[0] in "LNPS" and begins_anew(character)


def overlaps_itself(separator: bytes) -> bool:
    """Return whether two occurrences of a separator can overlap.

    If so, the occurrences that a search finds depend on where the search begins.

    >>> overlaps_itself(b"----"), overlaps_itself(b"<|endoftext|>")
    (True, False)
    """
    return any(separator.startswith(separator[i:]) for i in range(1, len(separator)))


def find_border(
    file: BinaryIO,
    place: int,
    size: int,
    step: int,
    separator: bytes | None,
    cutter: Cutter | None,
    block: int = BLOCK,
) -> tuple[int, bool]:
    """Find the border for a nominal `place`: the first position from `place` on where a part may begin.

    Returns the position and whether a record starts there (otherwise a document continues there).
    The border depends only on the bytes of the file, so the parts before and after it find the same
    border. The start of a record is preferred to a cut inside a document. `step` is the distance
    between nominal places. If nothing is found near `place`, the search continues from the next
    nominal place. Then two nominal places have the same border, and the part between them is empty.
    """
    while 0 < place < size:
        back = min(place, max(4096, len(separator or b"")))
        file.seek(place - back)
        data = file.read(back + min(step, block))
        start = _first_record(data, back, separator)
        if start >= 0:
            return place - back + start, True
        if cutter is not None:
            cut = cutter.first(data, back, len(data) - len(separator or b""))
            if cut >= 0:
                return place - back + cut, False
        place += step
    return min(place, size), True


def _first_record(data: bytes, start: int, separator: bytes | None) -> int:
    """Return where the first record at or after `start` begins, or -1."""
    if separator is None or overlaps_itself(separator):
        return -1
    if separator:
        found = data.find(separator, max(0, start - len(separator)))
        return -1 if found < 0 else found + len(separator)
    for match in _BLANK_LINES.finditer(data, 0, len(data.rstrip(b" \t\r\n")) + 1):
        if match.end() >= start:
            return match.end()
    return -1


def split_records(
    blocks: Iterator[bytes],
    start: int,
    separator: bytes | None,
    cutter: Cutter | None,
    *,
    continues: bool = False,
    unfinished: bool = False,
    hold_limit: int = 1 << 62,
    block_bytes: int = BLOCK,
    most_records: int = MOST_RECORDS,
) -> Iterator[Chunk]:
    """Split a stream of blocks into records. The stream begins at offset `start` of its source.

    `separator` is what separates records: b"" means blank lines, None that all is one record.
    `continues`: the first record began before the stream. `unfinished`: the last record ends after
    the stream. `hold_limit` is how many bytes may be held if they cannot be cut.
    """
    held: list[bytes] = []  # blocks before the rest, with neither a separator nor a place to cut
    rest = b""
    for block in blocks:
        rest += block
        while (chunk := _split_off(rest, separator, start, most_records)) is not None:
            if held:
                rest = b"".join([*held, rest])
                held.clear()
                chunk = _split_off(rest, separator, start, most_records)
                assert chunk is not None
            chunk.continues, continues = continues, False
            rest = rest[chunk.read :]
            start += chunk.read
            yield chunk
        if len(rest) < block_bytes and not held:
            continue
        # The last bytes may be the beginning of a separator: do not cut inside it.
        high = len(rest) - max(1, len(separator or b""))
        cut = cutter.last(rest, 0, high) if cutter is not None and high > 0 else -1
        if cut < 0:
            # Set aside what was searched: searching it again for each block takes quadratic time.
            edge = high - _CONTEXT
            if separator == b"":
                edge = min(edge, len(rest.rstrip(b" \t\r\n")))
            if edge > 0:
                held.append(rest[:edge])
                rest = rest[edge:]
            if (size := sum(map(len, held))) > hold_limit:
                held.clear()
                size += _count_uncut(blocks, separator, cutter)
                raise TooLongError(size, f"the {size:,} bytes from byte {start} on cannot be cut")
            continue
        fragment, rest = b"".join([*held, rest[:cut]]), rest[cut:]
        held.clear()
        chunk = _one_text(fragment, start, continues)
        chunk.unfinished, chunk.mid_line = True, rest[:1] not in (b"\r", b"\n")
        yield chunk
        start += len(fragment)
        continues = True
    rest = b"".join([*held, rest])
    if rest or continues or unfinished:
        last = rest
        if separator == b"" and not unfinished:
            last = _without_blank_end(rest)
        chunk = _one_text(last, start, continues)
        chunk.unfinished, chunk.read = unfinished, len(rest)
        chunk.lines = count_byte(rest, _NEWLINE)
        yield chunk


def _count_uncut(blocks: Iterator[bytes], separator: bytes | None, cutter: Cutter | None) -> int:
    """Count the bytes up to the end of the next block that can be cut; for the error message."""
    size = 0
    for block in blocks:
        size += len(block)
        if _split_off(block, separator, 0, 1) or (
            cutter and cutter.last(block, 0, len(block)) >= 0
        ):
            break
    return size


def is_utf8(data: bytes) -> bool:
    """Return whether `data` is valid UTF-8."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def count_byte(data: bytes, byte: int) -> int:
    """Count how often a byte occurs. `bytes.count` is ten times slower for frequent bytes."""
    if len(data) < 1024:  # for few bytes, calling NumPy takes longer
        return data.count(byte)
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == byte))


def count_characters(data: bytes, starts: Places, ends: Places) -> Places:
    """Count the characters in each range data[start:end]. The data must be valid UTF-8.

    Every byte is the start of a character, unless it is a continuation byte.

    >>> count_characters("é aé".encode(), np.array([0, 3]), np.array([2, 6])).tolist()
    [1, 2]
    """
    sizes: Places = ends - starts
    if not data.isascii():
        continuing = np.flatnonzero((np.frombuffer(data, np.uint8) & 0xC0) == 0x80)
        sizes = sizes - np.searchsorted(continuing, ends) + np.searchsorted(continuing, starts)
    return sizes


def _without_blank_end(data: bytes) -> bytes:
    """Remove blank lines at the end: splitting removes only the blank lines between records."""
    text = len(data.rstrip(b" \t\r\n"))
    return data[: data.find(b"\n", text)] if data.count(b"\n", text) > 1 else data


def _one_text(text: bytes, start: int, continues: bool) -> Chunk:
    chunk = Chunk([text], [start])
    chunk.continues, chunk.lines, chunk.read = continues, count_byte(text, _NEWLINE), len(text)
    chunk.whole, chunk.begin = text, start
    return chunk


def _split_off(data: bytes, separator: bytes | None, start: int, most: int) -> Chunk | None:
    """Return the first complete records of `data`, at most `most`, or None if there is none."""
    if separator is None:
        return None
    if separator == b"":
        texts, starts = _split_at_blank_lines(data, most)
    else:
        texts = data.split(separator, most)
        width = len(separator)
        starts = list(accumulate((len(text) + width for text in texts[:-1]), initial=0))
    if len(texts) == 1:
        return None
    taken = starts.pop()
    chunk = Chunk(texts[:-1], [start + place for place in starts])
    chunk.read, chunk.whole, chunk.begin = taken, data, start
    chunk.lines = int(np.count_nonzero(np.frombuffer(data, np.uint8, taken) == _NEWLINE))
    return chunk


def _split_at_blank_lines(data: bytes, most: int) -> tuple[list[bytes], list[int]]:
    """Split at blank lines. Returns the texts and their starts; the last text may be incomplete."""
    # Blank lines at the end may continue in the next block: use only those before the last text.
    found = _BLANK_LINES.finditer(data, 0, len(data.rstrip(b" \t\r\n")) + 1)
    matches = list(islice(found, most))
    starts = [0, *(match.end() for match in matches)]
    ends = [*(match.start() for match in matches), len(data)]
    return [data[a:b] for a, b in zip(starts, ends, strict=True)], starts


def limit_chunk(chunk: Chunk, cutter: Cutter | None, block: int = BLOCK) -> Iterator[Chunk]:
    """Divide a chunk into chunks of about `block` bytes. Long documents become fragments."""
    if sum(map(len, chunk.texts)) <= 2 * block:
        yield chunk
        return
    rest = Chunk([], [])
    rest.rejections, rest.lines, rest.read = chunk.rejections, chunk.lines, chunk.read
    yield rest
    texts: list[bytes] = []
    offsets: list[int] = []
    held = 0
    for text, offset in zip(chunk.texts, chunk.offsets, strict=True):
        if held and held + len(text) > block:
            yield Chunk(texts, offsets, bad_bytes=chunk.bad_bytes, fields=chunk.fields)
            texts, offsets, held = [], [], 0
        if len(text) > 2 * block and cutter is not None:
            blocks = (text[i : i + block] for i in range(0, len(text), block))
            for fragment in split_records(blocks, 0, None, cutter, block_bytes=block):
                fragment.offsets = [offset]
                fragment.lines, fragment.read, fragment.whole = 0, 0, b""
                fragment.bad_bytes, fragment.fields = chunk.bad_bytes, chunk.fields
                yield fragment
        else:
            texts.append(text)
            offsets.append(offset)
            held += len(text)
    if texts:
        yield Chunk(texts, offsets, bad_bytes=chunk.bad_bytes, fields=chunk.fields)
